"""`oncelog consume`: read a topic, print its records.

Without --follow it stops where the topic ended when it began. With --group it starts where the
group stands, and commits the group's positions after what it printed, at least once: a record may
be printed again after a crash, never skipped.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import click

from oncelog_server.cli import names
from oncelog_server.cli.examples import examples
from oncelog_server.cli.offsets import EARLIEST, LATEST, resolve_positions
from oncelog_server.cli.session import Session, connected
from oncelogpb.errors import OffsetOutOfRange, from_status
from oncelogpb.ids import show_id
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2

FETCH_WAIT_MS: Final = 500
ISOLATIONS: Final = {
    "committed": pb.ISOLATION_COMMITTED,
    "uncommitted": pb.ISOLATION_UNCOMMITTED,
    "raw": pb.ISOLATION_RAW,
}
FORMATS: Final = ("value", "key-value", "json")
KINDS: Final = {
    pb.FetchedBatch.KIND_COMMITTED: "committed",
    pb.FetchedBatch.KIND_ABORTED: "aborted",
    pb.FetchedBatch.KIND_DAMAGED: "damaged",
    pb.FetchedBatch.KIND_CONTROL: "control",
}


class Record(NamedTuple):
    """One record of one partition, or (RAW) a marker: then `row` is None."""

    partition: int
    offset: int
    batch: pb.FetchedBatch
    row: types_pb2.Row | None


class Reader:
    """Positions in the partitions of one topic, and what comes from there."""

    def __init__(
        self,
        session: Session,
        topic: pb.TopicDescription,
        isolation: pb.Isolation.ValueType,
        positions: dict[int, int],
    ) -> None:
        self.topic = topic
        # Next offset of each partition, in the numbering of the isolation.
        self.positions = positions
        self._session = session
        self._isolation = isolation

    def poll(self, wait_ms: int) -> Iterator[Record]:
        """What one fetch brings. A position moves when its record is taken. Raises OncelogError."""
        request = pb.FetchRequest(
            partitions=[
                pb.FetchPartition(partition=self.partition(number), offset=offset)
                for number, offset in sorted(self.positions.items())
            ],
            isolation=self._isolation,
            format=pb.FORMAT_ROWS,
            max_wait_ms=wait_ms,
        )
        reply: pb.FetchReply = self._session.call("partition_leader.fetch", request)
        for fetched in reply.partitions:
            if fetched.HasField("error"):
                raise from_status(fetched.error)
            yield from self._records(fetched)

    def ends(self) -> dict[int, int]:
        """Where each partition ends now."""
        wanted = [(self.partition(number), LATEST) for number in sorted(self.positions)]
        found = resolve_positions(self._session, wanted, self._isolation)
        return dict(zip(sorted(self.positions), found, strict=True))

    def partition(self, number: int) -> types_pb2.Partition:
        return types_pb2.Partition(topic_id=self.topic.topic_id, number=number)

    def _records(self, fetched: pb.FetchedPartition) -> Iterator[Record]:
        number = fetched.partition.number
        for batch in fetched.batches:
            if batch.kind not in (pb.FetchedBatch.KIND_DATA, pb.FetchedBatch.KIND_ONE_SHOT):
                self.positions[number] = batch.first_offset + 1
                yield Record(number, batch.first_offset, batch, None)
                continue
            rows = types_pb2.Rows.FromString(batch.payload).rows
            for offset, row in enumerate(rows, start=batch.first_offset):
                # Batches are not cut: the first may begin below what was asked for.
                if offset >= self.positions[number]:
                    self.positions[number] = offset + 1
                    yield Record(number, offset, batch, row)


@click.command(
    epilog=examples(
        "oncelog consume payments",
        "oncelog consume payments --from latest --follow --format key-value",
        "oncelog consume payments --group audit --max 100 --json",
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
    metavar="earliest|latest|OFFSET",
    help="Where to start; with --group only where the group has no offset.",
)
@click.option("--partition", "numbers", type=click.IntRange(0), multiple=True, help="Repeatable.")
@click.option(
    "--isolation",
    type=click.Choice(list(ISOLATIONS)),
    default="committed",
    show_default=True,
    help="uncommitted and raw (with markers) read the journal; their offsets are journal offsets.",
)
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after so many records.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="value", show_default=True)
@click.option("--follow", is_flag=True, help="Go on and wait for what comes, until Ctrl-C.")
@connected
def consume(
    session: Session,
    topic: str,
    group: str | None,
    start: str,
    numbers: tuple[int, ...],
    isolation: str,
    limit: int | None,
    form: str,
    follow: bool,
) -> None:
    """Print a topic's records, one per line: committed ones in commit order."""
    if start not in (EARLIEST, LATEST) and not start.isdecimal():
        raise click.UsageError(f"--from {start!r} is neither earliest, latest nor an offset.")
    if group and isolation == "raw":
        raise click.UsageError("--isolation raw is for looking; it commits nothing for a --group.")
    described = session.topic(topic)
    chosen = _chosen(described, numbers)
    progress = _Group(session, group, isolation) if group else None
    committed = progress.fetch(described, chosen) if progress else {}
    positions = _start_positions(session, described, chosen, committed, start, isolation)
    reader = Reader(session, described, ISOLATIONS[isolation], positions)
    writer = _Writer("json" if session.as_json else form)
    ends = None if follow else reader.ends()
    if ends is not None:
        _tell_beyond(session, topic, positions, ends)
    try:
        _read(reader, writer, progress, limit=limit, ends=ends)
    except KeyboardInterrupt:
        session.say(f"{writer.count} records")


def _read(
    reader: Reader,
    writer: _Writer,
    progress: _Group | None,
    *,
    limit: int | None,
    ends: dict[int, int] | None,
) -> None:
    while limit is None or writer.count < limit:
        if ends is not None and all(reader.positions[n] >= end for n, end in ends.items()):
            return
        before = dict(reader.positions)
        for record in reader.poll(FETCH_WAIT_MS):
            if ends is not None and record.offset >= ends[record.partition]:
                reader.positions[record.partition] = record.offset
                break
            writer.write(record)
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


class _Group:
    """A group's positions of the topic that is read."""

    def __init__(self, session: Session, name: str, isolation: str) -> None:
        self._session = session
        self._name = name
        committed = isolation == "committed"
        self._view = types_pb2.VIEW_COMMITTED if committed else types_pb2.VIEW_JOURNAL
        # As the group has them; absent: nothing committed.
        self._committed: dict[int, int] = {}

    def fetch(self, topic: pb.TopicDescription, numbers: Sequence[int]) -> dict[int, int]:
        """Waits, up to --timeout, for transactions that hold these offsets."""
        request = offsets_pb.FetchOffsetsRequest(
            group=self._name,
            partitions=[
                types_pb2.Partition(topic_id=topic.topic_id, number=number) for number in numbers
            ],
            stable=True,
            view=self._view,
        )
        reply: offsets_pb.FetchOffsetsReply = self._session.call(
            "offset_manager.fetch_offsets", request
        )
        self._committed = {
            offset.partition.number: offset.offset
            for offset in reply.offsets
            if offset.HasField("offset")
        }
        return dict(self._committed)

    def commit(self, reader: Reader) -> None:
        """Moves the group to what was printed. Raises StalePosition where another one moved it."""
        moved = {
            number: position
            for number, position in sorted(reader.positions.items())
            if position != self._committed.get(number)
        }
        if not moved:
            return
        commits = [self._step(reader, number, to) for number, to in moved.items()]
        request = offsets_pb.CommitOffsetsRequest(
            offsets=offsets_pb.GroupOffsets(group=self._name, offsets=commits)
        )
        self._session.call("offset_manager.commit_offsets", request)
        self._committed.update(moved)

    def _step(self, reader: Reader, number: int, to: int) -> offsets_pb.OffsetCommit:
        step = offsets_pb.OffsetCommit(
            partition=reader.partition(number), to_offset=to, view=self._view
        )
        if number in self._committed:
            step.from_offset = self._committed[number]
        else:
            step.from_none = True
        return step


class _Writer:
    """Records as lines on stdout, as bytes: a value need not be text."""

    def __init__(self, form: str) -> None:
        self.count = 0
        self._form = form

    def write(self, record: Record) -> None:
        self.count += 1
        sys.stdout.buffer.write(line_of(record, self._form) + b"\n")

    def flush(self) -> None:
        sys.stdout.buffer.flush()


def line_of(record: Record, form: str) -> bytes:
    """One record in one of FORMATS."""
    row = record.row
    if form == "json":
        return json.dumps(describe(record)).encode()
    if row is None:
        kind = KINDS.get(record.batch.kind, "control")
        return f"# {kind} {show_id(record.batch.tx_id)}".encode()
    value = row.value if row.HasField("value") else b""
    if form == "value":
        return value
    return (row.key if row.HasField("key") else b"") + b"\t" + value


def describe(record: Record) -> dict[str, Any]:
    """For --json. Bytes that are not UTF-8 stand under `key_base64`, `value_base64`."""
    batch, row = record.batch, record.row
    described: dict[str, Any] = {"partition": record.partition, "offset": record.offset}
    if batch.tx_id:
        described["tx_id"] = show_id(batch.tx_id)
    if row is None:
        return described | {"marker": KINDS.get(batch.kind, "control")}
    return (
        described
        | {"timestamp_us": row.timestamp_us}
        | _text("key", row.key if row.HasField("key") else None)
        | _text("value", row.value if row.HasField("value") else None)
        | {
            "headers": [
                {"key": header.key}
                | _text("value", header.value if header.HasField("value") else None)
                for header in row.headers
            ]
        }
    )


def _text(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _chosen(topic: pb.TopicDescription, numbers: Sequence[int]) -> list[int]:
    for number in numbers:
        if number >= len(topic.partitions):
            raise click.UsageError(
                f"Topic {topic.name} has {len(topic.partitions)} partitions, no {number}."
            )
    return sorted(set(numbers)) or list(range(len(topic.partitions)))


def _start_positions(
    session: Session,
    topic: pb.TopicDescription,
    numbers: Sequence[int],
    committed: dict[int, int],
    start: str,
    isolation: str,
) -> dict[int, int]:
    """Where the group stands, else where --from says."""
    fresh = [number for number in numbers if number not in committed]
    places: list[tuple[types_pb2.Partition, int | str]] = [
        (
            types_pb2.Partition(topic_id=topic.topic_id, number=number),
            int(start) if start.isdecimal() else start,
        )
        for number in fresh
    ]
    found = resolve_positions(session, places, ISOLATIONS[isolation])
    return committed | dict(zip(fresh, found, strict=True))
