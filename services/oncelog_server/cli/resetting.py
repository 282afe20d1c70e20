"""`oncelog group reset-offsets`: has a group go on from somewhere else.

It shows what would change, and whether that would be refused now, and changes it only with
--execute. The call says where it saw the group, so one that has moved meanwhile is not overrun, but
refused.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import click

from oncelog_server.cli import names
from oncelog_server.cli.examples import examples
from oncelog_server.cli.failures import CommandFailed
from oncelog_server.cli.output import print_json, print_table
from oncelog_server.cli.places import Place
from oncelog_server.cli.positions import EARLIEST, Since, Start, parse_start
from oncelog_server.cli.session import Session, connected
from oncelog_server.core.numbers import is_number
from oncelogpb.errors import NotFound, OncelogError, UnknownPartition
from oncelogpb.ids import show_id

if TYPE_CHECKING:
    from oncelog import groups
    from oncelog.aio.group_resetting import ResetPlan
    from oncelog.batch import TopicPartition
    from oncelog.groups import OffsetReset

_SHIFT: Final = re.compile(r"[+-][0-9]{1,18}")


class Moved(NamedTuple):
    """So many records on; back if negative."""

    by: int


class Saved(NamedTuple):
    """An offset with what stood beside it."""

    offset: int
    metadata: str


Where = Start | Moved | Saved


class WhereType(click.ParamType[Where]):
    name = "WHERE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Where:
        return _parse_where(str(value), str(value)) if isinstance(value, str) else value


class Target(NamedTuple):
    """TOPIC[/PARTITION][=WHERE] on the command line."""

    topic: str
    # None: all partitions of the topic.
    number: int | None
    # None: where --to says.
    to: Where | None


class TargetType(click.ParamType[Target]):
    name = "TOPIC[/PARTITION][=WHERE]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Target:
        if isinstance(value, Target):
            return value
        place, equals, to = str(value).partition("=")
        topic, slash, number = place.partition("/")
        if not topic:
            self.fail(f"{value!r} is not {self.name}, e.g. payments/0=120 or payments=earliest.")
        if slash and not is_number(number):
            self.fail(f"{value!r}: {number!r} is not a partition's number.")
        where = _parse_where(str(value), to) if equals else None
        return Target(topic, int(number) if slash else None, where)


@click.command(
    name="reset-offsets",
    epilog=examples(
        "oncelog group reset-offsets enricher --to earliest",
        "oncelog group reset-offsets enricher --to earliest --save before.csv --execute",
        "oncelog group reset-offsets enricher --from-file before.csv --execute",
        "oncelog group reset-offsets enricher payments --to 2026-01-31T12:00:00Z --execute",
        "oncelog group reset-offsets enricher payments/0=120 payments/1=-100 orders=latest",
    ),
)
@click.argument("group", shell_complete=names.groups)
@click.argument("targets", nargs=-1, type=TargetType(), metavar="[TOPIC[/PARTITION][=WHERE]]...")
@click.option("--to", type=WhereType(), help="Where, for all that names no WHERE of its own.")
@click.option(
    "--from-file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="Where each partition shall stand, a line for each: topic,partition,offset[,metadata].",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write where the group stands now into a new file, for --from-file.",
)
@click.option("--execute", is_flag=True, help="Do it. Else it is only shown.")
@connected
def reset_offsets(
    session: Session,
    group: str,
    targets: tuple[Target, ...],
    to: Where | None,
    from_file: IO[str] | None,
    save: Path | None,
    execute: bool,
) -> None:
    """Have a group go on from somewhere else. Shows what would change; --execute does it.

    WHERE is an offset, earliest, latest, +N or -N (so many records on or back), or a TIME: the
    first record of that time or later, like 2026-01-31T12:00:00Z (UTC where no zone is named), or
    15m: so long ago. An offset that a partition does not have becomes the nearest that it has.

    Without a TOPIC it is all that the group has offsets of. Refused while the group has members,
    while a transaction holds any of its offsets, and when the group has moved meanwhile: stop its
    consumers first.
    """
    if from_file is not None:
        if targets or to is not None:
            raise click.UsageError("--from-file names all: leave out TOPIC and --to.")
        targets = tuple(_read(from_file))
    elif to is None and not any(target.to is not None for target in targets) and save is None:
        raise click.UsageError("Say where: --to WHERE, TOPIC=WHERE or --from-file FILE.")
    plan = _plan(session, group, targets, to)
    rows = [] if plan is None else plan.rows()
    if save is not None:
        _save(save, _stands(session, group, rows))
    refusal = None
    if plan is not None:
        if execute:
            _execute(session, plan)
        else:
            refusal = _refusal(session, plan)
    if session.as_json:
        print_json(_told(group, rows, executed=execute, refusal=refusal))
    elif rows:
        _show(rows)
        session.say(_remark(group, rows, executed=execute, refusal=refusal))


def _plan(
    session: Session, group: str, targets: Sequence[Target], to: Where | None
) -> ResetPlan | None:
    """None: nothing shall move. Raises UsageError, OncelogError."""
    from oncelog.aio import group_resetting

    if not targets and to is None:
        return None
    wanted = _wheres(targets, to) if to is None or targets else _where(to)
    try:
        return session.protocol.run(lambda protocol: group_resetting.plan(protocol, group, wanted))
    except UnknownPartition as error:
        raise click.UsageError(error.message) from None


def _wheres(targets: Sequence[Target], to: Where | None) -> groups.Wheres:
    """Of targets that name the same partition, the last one counts. Raises UsageError."""
    wheres: dict[str | TopicPartition | tuple[str, int], groups.Where] = {}
    for target in targets:
        where = to if target.to is None else target.to
        if where is None:
            raise click.UsageError(
                f"Say where {target.topic} shall stand: --to or {target.topic}=."
            )
        name = target.topic if target.number is None else (target.topic, target.number)
        wheres.pop(name, None)
        wheres[name] = _where(where)
    return wheres


def _execute(session: Session, plan: ResetPlan) -> None:
    """Raises OncelogError."""
    from oncelog.aio import group_resetting

    session.protocol.run(lambda protocol: group_resetting.execute(protocol, plan))


def _refusal(session: Session, plan: ResetPlan) -> OncelogError | None:
    """What stands in the way now."""
    from oncelog.aio import group_resetting

    try:
        session.protocol.run(lambda protocol: group_resetting.execute(protocol, plan, dry_run=True))
    except OncelogError as refusal:
        return refusal
    return None


def _where(where: Where) -> groups.Where:
    """As `log.admin` takes it."""
    from oncelog import groups

    match where:
        case Moved(by):
            return groups.Shift(by)
        case Saved(offset, metadata):
            return groups.Saved(offset, metadata)
        case Since():
            return where.moment
        case int():
            return where
        case _:
            return "earliest" if where == EARLIEST else "latest"


def _parse_where(what: str, text: str) -> Where:
    """Raises UsageError that names `what`."""
    return Moved(int(text)) if _SHIFT.fullmatch(text) else parse_start(what, text)


# ------------------------------------------------------------------------------------------- files


def _read(file: IO[str]) -> Iterator[Target]:
    """Raises UsageError that names the line."""
    for row in (rows := csv.reader(file)):
        if not row or row[0].startswith("#"):
            continue
        match [cell.strip() for cell in row]:
            case [topic, number, offset, *beside] if (
                topic and is_number(number) and is_number(offset) and len(beside) <= 1
            ):
                yield Target(topic, int(number), Saved(int(offset), "".join(beside)))
            case _:
                raise click.UsageError(
                    f"{file.name}, line {rows.line_num}: not topic,partition,offset[,metadata]."
                )


def _stands(
    session: Session, group: str, rows: Sequence[OffsetReset]
) -> list[tuple[str, int, int | None, str]]:
    """Topic, partition, offset and what stands beside it: of what would move, or of everything."""
    if rows:
        return [(row.topic, row.partition, row.before, row.metadata_before) for row in rows]
    offsets = session.of_groups(lambda admin: admin.group_offsets(group))
    if not offsets:
        raise NotFound(f"group {group!r} has no offsets")
    topics = set(session.topic_names().values())
    return [
        (offset.topic, offset.partition, offset.offset, offset.metadata)
        for offset in offsets
        # Nobody goes back to a topic that is gone.
        if offset.topic in topics
    ]


def _save(path: Path, stands: Iterable[tuple[str, int, int | None, str]]) -> None:
    """Partitions that it committed nothing of are left out. Raises CommandFailed."""
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            for topic, number, offset, metadata in stands:
                if offset is not None:
                    writer.writerow([topic, number, offset, *filter(None, [metadata])])
    except OSError as error:
        raise CommandFailed(f"cannot save where the group stands: {error}") from None


# ------------------------------------------------------------------------------------------- words


def _told(
    group: str, rows: Sequence[OffsetReset], *, executed: bool, refusal: OncelogError | None
) -> dict[str, Any]:
    return {
        "group": group,
        "executed": executed,
        "refused": None if refusal is None else refusal.reason,
        "offsets": [
            {
                "partition": str(Place(row.topic, row.partition)),
                "now": row.before,
                "then": row.after,
                "lag_now": row.lag_before,
                "lag_then": row.lag_after,
            }
            for row in rows
        ],
    }


def _show(rows: Sequence[OffsetReset]) -> None:
    print_table(
        ["PARTITION", "NOW", "THEN", "LAG NOW", "LAG THEN"],
        [
            [
                str(Place(row.topic, row.partition)),
                row.before,
                row.after,
                row.lag_before,
                row.lag_after,
            ]
            for row in rows
        ],
        empty="",
    )


def _remark(
    group: str, rows: Sequence[OffsetReset], *, executed: bool, refusal: OncelogError | None
) -> str:
    moving = [row for row in rows if row.is_move]
    if not moving:
        return f"Group {group} stands there already."
    if executed:
        return f"Group {group} goes on from there."
    for row in moving:
        if row.pending_tx_id:
            place = Place(row.topic, row.partition)
            return (
                "Nothing has changed, and would not with --execute: transaction "
                f"{show_id(row.pending_tx_id)} holds the offset of {place}."
            )
    if refusal is not None:
        return f"Nothing has changed, and would not with --execute: {refusal.message}."
    return "Nothing has changed: --execute does it."
