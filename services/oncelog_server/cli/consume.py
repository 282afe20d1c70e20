"""`oncelog consume`: read a topic, print its records.

Without --follow it stops where the topic ended when it began. With --group it starts where the
group stands, and commits the group's positions after what it printed, at least once: a record may
be printed again after a crash, never skipped.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

import click

from oncelog_server.cli import names
from oncelog_server.cli.examples import examples
from oncelog_server.cli.formats import JSON, Format, Shown, parse_escapes
from oncelog_server.cli.positions import EARLIEST, LATEST, Start, parse_start, resolve_positions
from oncelog_server.cli.reading import (
    ISOLATIONS,
    LOOK_EVERY_SECONDS,
    Group,
    Reader,
    Record,
    chosen_partitions,
)
from oncelog_server.cli.session import Session, connected
from oncelogpb.errors import OffsetOutOfRange
from oncelogpb.ids import show_id
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2

FETCH_WAIT_MS: Final = 500
KINDS: Final = {
    pb.FetchedBatch.KIND_COMMITTED: "committed",
    pb.FetchedBatch.KIND_ABORTED: "aborted",
    pb.FetchedBatch.KIND_DAMAGED: "damaged",
    pb.FetchedBatch.KIND_CONTROL: "control",
    pb.FetchedBatch.KIND_EXPOSED: "exposed",
    pb.FetchedBatch.KIND_DROPPED: "dropped",
}


@click.command(
    epilog=examples(
        "oncelog consume payments",
        "oncelog consume payments --from 15m --follow --format long",
        "oncelog consume payments --format '{timestamp} {key}={value} {header.source}'",
        "oncelog consume payments --group audit --max 100 --json",
        "oncelog consume photos --max 1 --format '{value}' --delimiter ''",
        "oncelog consume payments --isolation raw --partition 0 --from 1500 --json",
    )
)
@click.argument("topic", shell_complete=names.topics)
@click.option(
    "--group",
    shell_complete=names.groups,
    help="Start where this group stands; commit its positions.",
)
@click.option(
    "--from",
    "start",
    default=EARLIEST,
    show_default=True,
    metavar="earliest|latest|OFFSET|TIME",
    help="Where to start; with --group only where the group has no offset.",
)
@click.option("--until", metavar="TIME", help="Stop before the first record of that time or later.")
@click.option("--partition", "numbers", type=click.IntRange(0), multiple=True, help="Repeatable.")
@click.option(
    "--isolation",
    type=click.Choice(list(ISOLATIONS)),
    default="committed",
    show_default=True,
    help="uncommitted and raw (with markers) read the journal; their offsets are journal offsets.",
)
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after so many records.")
@click.option(
    "-f",
    "--format",
    "form",
    default="value",
    show_default=True,
    metavar="FORMAT",
    help="value, key-value, long, json, or a text with fields, see above.",
)
@click.option(
    "--delimiter", default="\\n", show_default=True, metavar="TEXT", help="Behind each record."
)
@click.option("--follow", is_flag=True, help="Go on and wait for what comes, until Ctrl-C.")
@connected
def consume(
    session: Session,
    topic: str,
    group: str | None,
    start: str,
    until: str | None,
    numbers: tuple[int, ...],
    isolation: str,
    limit: int | None,
    form: str,
    delimiter: str,
    follow: bool,
) -> None:
    """Print a topic's records, one per line: committed ones in commit order.

    TIME is like 2026-01-31T12:00:00Z (UTC where no zone is named), or 15m: so long ago (s, m, h,
    d).

    \b
    Fields of a FORMAT:
      {topic} {partition} {offset}           where it stands
      {tx_id} {producer_id} {visible}        of which transaction and producer, readable since
      {key} {value}                          as they are
      {timestamp}                            also {timestamp:ms} and {timestamp:us} since 1970
      {headers} {header.NAME}                name=value,...; one of them
    Keys, values and headers also as {value:base64}, {value:hex}, {value:json}, {value:size}.
    Outside of fields: \\n \\t \\r \\0 \\xHH, and {{ for a brace.
    """
    if group and isolation == "raw":
        raise click.UsageError("--isolation raw is for looking; it commits nothing for a --group.")
    if until and follow:
        raise click.UsageError("--until and --follow exclude each other.")
    begins = parse_start("--from", start)
    ends_at = None if until is None else parse_start("--until", until)
    if isinstance(ends_at, int | str):
        raise click.UsageError(f"--until {until!r} is no time like 2026-01-31T12:00:00Z, nor 15m.")
    writer = _Writer(JSON if session.as_json else form, delimiter)
    described = session.topic(topic)
    chosen = chosen_partitions(described, numbers)
    progress = Group(session, group, isolation) if group else None
    if progress is not None:
        progress.require_no_members()
    committed = progress.fetch(described, chosen) if progress else {}
    positions = _start_positions(session, described, chosen, committed, begins, isolation)
    reader = Reader(session, described, ISOLATIONS[isolation], positions)
    ends = None if follow else reader.ends(ends_at or LATEST)
    if ends is not None and ends_at is None:
        _tell_beyond(session, topic, positions, ends)
    widens = follow and not numbers
    try:
        _read(session, reader, writer, progress, limit=limit, ends=ends, widens=widens)
    except KeyboardInterrupt:
        session.say(f"{writer.count} records")


def _read(
    session: Session,
    reader: Reader,
    writer: _Writer,
    progress: Group | None,
    *,
    limit: int | None,
    ends: dict[int, int] | None,
    widens: bool,
) -> None:
    looked = time.monotonic()
    while limit is None or writer.count < limit:
        if ends is not None and all(reader.positions[n] >= end for n, end in ends.items()):
            return
        if widens and time.monotonic() - looked >= LOOK_EVERY_SECONDS:
            looked = time.monotonic()
            for number in reader.widen():
                session.say(f"partition {number} was added to {reader.topic.name}; it is read, too")
        before = dict(reader.positions)
        for record in reader.poll(FETCH_WAIT_MS):
            if ends is not None and record.offset >= ends[record.partition]:
                reader.positions[record.partition] = record.offset
                break
            writer.write(reader.topic.name, record)
            if writer.count == limit:
                break
        writer.flush()
        if progress is not None:
            progress.commit(reader)
        if ends is not None and reader.positions == before:
            # What is left of the journal are control records.
            return


def _tell_beyond(
    session: Session, topic: str, positions: dict[int, int], ends: dict[int, int]
) -> None:
    """Where a start lies behind the end, which would print nothing. Raises OffsetOutOfRange where
    all of them do."""
    beyond = [number for number, end in sorted(ends.items()) if positions[number] > end]
    if not beyond:
        return
    first, *others = beyond
    told = f"partition {first} ends at {ends[first]}"
    told += "".join(f", partition {number} at {ends[number]}" for number in others)
    if len(beyond) == len(ends):
        raise OffsetOutOfRange(f"nothing to read in {topic}: {told}")
    session.say(f"nothing to read there: {told}")


class _Writer:
    """Records on stdout, as bytes: a value need not be text."""

    def __init__(self, form: str, delimiter: str) -> None:
        """Raises UsageError."""
        self.count = 0
        self._is_json = form == JSON
        self._format = Format.parse(form)
        self._delimiter = parse_escapes(delimiter)

    def write(self, topic: str, record: Record) -> None:
        self.count += 1
        sys.stdout.buffer.write(self._line(topic, record) + self._delimiter)

    def flush(self) -> None:
        sys.stdout.buffer.flush()

    def _line(self, topic: str, record: Record) -> bytes:
        if record.row is None:
            return self._marker(topic, record)
        place, by = (topic, record.partition, record.offset), record.written
        return self._format.render(Shown(*place, by.tx_id, record.row, by.producer_id, by.time_ms))

    def _marker(self, topic: str, record: Record) -> bytes:
        kind, tx_id = KINDS.get(record.kind, "control"), show_id(record.written.tx_id)
        if not self._is_json:
            return f"# {kind} {tx_id}".encode()
        told: dict[str, Any] = {
            "topic": topic,
            "partition": record.partition,
            "offset": record.offset,
        }
        if record.written.tx_id:
            told["tx_id"] = tx_id
        return json.dumps(told | {"marker": kind}).encode()


def _start_positions(
    session: Session,
    topic: pb.TopicDescription,
    numbers: list[int],
    committed: dict[int, int],
    start: Start,
    isolation: str,
) -> dict[int, int]:
    """Where the group stands, else where --from says."""
    fresh = [number for number in numbers if number not in committed]
    places: list[tuple[types_pb2.Partition, Start]] = [
        (types_pb2.Partition(topic_id=topic.topic_id, number=number), start) for number in fresh
    ]
    found = resolve_positions(session, places, ISOLATIONS[isolation])
    return committed | dict(zip(fresh, found, strict=True))
