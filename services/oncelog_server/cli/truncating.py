"""`oncelog topic truncate`: deletes the oldest records of a topic for good.

What is shown, and agreed to, is what goes: times and the end become offsets first, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from oncelog_server.cli import interrupts, names
from oncelog_server.cli.examples import examples
from oncelog_server.cli.output import print_json, print_table, show_bytes
from oncelog_server.cli.places import Place
from oncelog_server.cli.positions import Since, parse_start
from oncelog_server.cli.session import Session, connected

if TYPE_CHECKING:
    from oncelog.aio.truncating import Before, Cut, Truncation

END: Final[Literal["end"]] = "end"


@click.command(
    epilog=examples(
        "oncelog topic truncate payments --before 7d --dry-run",
        "oncelog topic truncate payments --before 2026-01-31T12:00:00Z --yes",
        "oncelog topic truncate payments --partition 0 --before 120000",
        "oncelog topic truncate scratch --before end --yes",
    )
)
@click.argument("name", shell_complete=names.topics)
@click.option(
    "--before",
    "text",
    metavar="OFFSET|TIME|end",
    required=True,
    help="The record that stands there is kept, and all behind it.",
)
@click.option("--partition", type=click.IntRange(0), help="Only this one. Default: all.")
@click.option("--dry-run", is_flag=True, help="Show what would go, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def truncate(
    session: Session, name: str, text: str, partition: int | None, dry_run: bool, yes: bool
) -> None:
    """Delete the oldest records of a topic, for good.

    What is kept stands at the offsets that it had. Records of open transactions are kept. A
    consumer that stands below is told so, or goes on at the first record that is kept (its option
    if_deleted). The disk gets its space back within minutes, segment by segment.
    """
    cuts = _plan(session, name, _before(text), partition)
    preview = _execute(session, cuts, dry_run=True)
    records = sum(row.record_count for row in preview)
    if dry_run or not records:
        _tell(session, name, preview, executed=False)
        if not session.as_json:
            click.echo(
                "Nothing was deleted: without --dry-run it is."
                if records
                else f"Nothing lies below {text}: nothing is deleted."
            )
        return
    if not session.as_json:
        _show(preview)
    if not yes:
        click.confirm(f"Delete these {records} records of {name} for good?", abort=True, err=True)
    done = _execute(session, cuts, dry_run=False)
    if session.as_json:
        _tell(session, name, done, executed=True)
    else:
        click.echo(f"deleted {sum(row.record_count for row in done)} records of {name}")


def _before(text: str) -> Before:
    """Raises UsageError."""
    match parse_start("--before", text, [END]):
        case Since() as since:
            return since.moment
        case int() as offset:
            return offset
        case _:
            return END


def _plan(session: Session, name: str, before: Before, partition: int | None) -> list[Cut]:
    """Raises OncelogError."""
    with interrupts.importing():
        from oncelog.aio import truncating

    return session.protocol.run(lambda protocol: truncating.plan(protocol, name, before, partition))


def _execute(session: Session, cuts: Sequence[Cut], *, dry_run: bool) -> list[Truncation]:
    """Raises OncelogError."""
    from oncelog.aio import truncating

    return session.protocol.run(
        lambda protocol: truncating.execute(protocol, cuts, dry_run=dry_run)
    )


def _tell(session: Session, name: str, rows: Sequence[Truncation], *, executed: bool) -> None:
    if session.as_json:
        print_json(
            {"topic": name, "executed": executed, "partitions": [_as_json(row) for row in rows]}
        )
    else:
        _show(rows)


def _as_json(row: Truncation) -> dict[str, Any]:
    return {
        "number": row.partition,
        "start_before": row.start_before,
        "start_after": row.start_after,
        "records": row.record_count,
        "payload_bytes": row.payload_bytes,
    }


def _show(rows: Sequence[Truncation]) -> None:
    print_table(
        ["PARTITION", "START", "THEN", "RECORDS", "PAYLOAD"],
        [
            [
                str(Place(row.topic, row.partition)),
                row.start_before,
                row.start_after,
                row.record_count,
                show_bytes(row.payload_bytes),
            ]
            for row in rows
        ],
        empty="no partitions",
    )
