"""What `oncelog consume` reads: records of one topic, from positions that it keeps, and a group's
positions of that topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from oncelog_server.cli.positions import EARLIEST, LATEST, Start, resolve_positions
from oncelog_server.cli.session import Session
from oncelogpb.errors import InvalidArgument, NotFound, PermissionDenied, UnknownMember, from_status
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2

if TYPE_CHECKING:
    from oncelog._core.units import Written

ISOLATIONS: Final = {
    "committed": pb.ISOLATION_COMMITTED,
    "uncommitted": pb.ISOLATION_UNCOMMITTED,
    "raw": pb.ISOLATION_RAW,
}
# How often a topic that is followed is looked at for partitions that were added.
LOOK_EVERY_SECONDS: Final = 10.0


class Record(NamedTuple):
    """One record of one partition, or (RAW) a marker: then `row` is None."""

    partition: int
    offset: int
    kind: pb.FetchedBatch.Kind.ValueType
    # Whose it is, and when it became readable (of the journal: was appended).
    written: Written
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
            with_units=True,
            with_offsets=True,
        )
        reply: pb.FetchReply = self._session.call("partition_leader.fetch", request)
        for fetched in reply.partitions:
            if fetched.HasField("error"):
                raise from_status(fetched.error)
            yield from self._records(fetched)

    def ends(self, at: Start = LATEST) -> dict[int, int]:
        """Where each partition ends now, or where `at` says."""
        wanted = [(self.partition(number), at) for number in sorted(self.positions)]
        found = resolve_positions(self._session, wanted, self._isolation)
        return dict(zip(sorted(self.positions), found, strict=True))

    def widen(self) -> list[int]:
        """Takes in partitions that were added to the topic, from their first record on; which."""
        topic = self._session.topic(self.topic.name)
        if topic.topic_id != self.topic.topic_id:
            # Another one of that name; the next fetch says that ours is gone.
            return []
        added = list(range(len(self.topic.partitions), len(topic.partitions)))
        if not added:
            return []
        self.topic = topic
        places: list[tuple[types_pb2.Partition, Start]] = [
            (self.partition(number), EARLIEST) for number in added
        ]
        found = resolve_positions(self._session, places, self._isolation)
        self.positions.update(zip(added, found, strict=True))
        return added

    def partition(self, number: int) -> types_pb2.Partition:
        return types_pb2.Partition(topic_id=self.topic.topic_id, number=number)

    def _records(self, fetched: pb.FetchedPartition) -> Iterator[Record]:
        from oncelog._core import holes

        number = fetched.partition.number
        for batch in fetched.batches:
            first, written = batch.first_offset, _written(batch)
            if batch.kind not in (pb.FetchedBatch.KIND_DATA, pb.FetchedBatch.KIND_ONE_SHOT):
                self.positions[number] = first + 1
                yield Record(number, first, batch.kind, next(written), None)
                continue
            rows = types_pb2.Rows.FromString(batch.payload).rows
            offsets = holes.offsets_of(batch)
            each = range(first, first + len(rows)) if offsets is None else offsets.tolist()
            for offset, row, by in zip(each, rows, written, strict=False):
                # Batches are not cut: the first may begin below what was asked for.
                if offset >= self.positions[number]:
                    self.positions[number] = offset + 1
                    yield Record(number, offset, batch.kind, by, row)
            if not batch.record_count:
                # No record stands before it.
                self.positions[number] = max(self.positions[number], first)


def _written(batch: pb.FetchedBatch) -> Iterator[Written]:
    """Of each of its records. Raises CorruptBatch."""
    from oncelog._core.merged import Merged
    from oncelog._core.units import Written

    if not batch.HasField("units"):
        by = batch.producer
        return repeat(Written(batch.tx_id, by.producer_id, by.generation, batch.time_ms))
    count = batch.record_count
    runs = Merged(batch.units, count).runs(0, count)
    return chain.from_iterable(repeat(run.written, run.record_count) for run in runs)


class Group:
    """A group's positions of the topic that is read."""

    def __init__(self, session: Session, name: str, isolation: str) -> None:
        self._session = session
        self._name = name
        committed = isolation == "committed"
        self._view = types_pb2.VIEW_COMMITTED if committed else types_pb2.VIEW_JOURNAL
        # As the group has them; absent: nothing committed.
        self._committed: dict[int, int] = {}
        # What stands beside these.
        self._metadata: dict[int, str] = {}

    def require_no_members(self) -> None:
        """Raises UnknownMember: only they commit its offsets. Who may not look is told so by his
        first commit."""
        request = offsets_pb.DescribeGroupRequest(group=self._name)
        try:
            told = self._session.call("offset_manager.describe_group", request)
        except (NotFound, PermissionDenied):
            return
        if not told.members:
            return
        first, *others = told.members
        name = first.instance_id or first.client_id or first.member_id
        more = f" and {len(others)} more" if others else ""
        raise UnknownMember(
            f"group {self._name!r} has living members, {name} on {first.host}{more}: they share "
            "its partitions, and only they commit its offsets. Nothing was read: stop them, or "
            "leave out --group to look at the records"
        )

    def fetch(self, topic: pb.TopicDescription, numbers: Sequence[int]) -> dict[int, int]:
        """Where the group stands; partitions of which it has nothing are absent. Waits, up to
        --timeout, for transactions that hold these offsets. Raises InvalidArgument where it has
        more of one than an offset: what it was given beyond would be read again, and forgotten by
        the next commit."""
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
        self._metadata = {
            offset.partition.number: offset.metadata
            for offset in reply.offsets
            if offset.HasField("offset")
        }
        for number, metadata in sorted(self._metadata.items()):
            if _has_beyond(metadata):
                raise InvalidArgument(
                    f"group {self._name!r} was read by transactions(across=True), which has given "
                    f"transactions behind its offset of {topic.name}/{number}. Nothing was read: "
                    "go on that way until all before them is given and committed, move the group "
                    "(`oncelog group reset-offsets`), or leave out --group to look at the records",
                    field="across",
                )
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
        self._metadata.update(dict.fromkeys(moved, ""))

    def _step(self, reader: Reader, number: int, to: int) -> offsets_pb.OffsetCommit:
        step = offsets_pb.OffsetCommit(
            partition=reader.partition(number), to_offset=to, view=self._view
        )
        if number in self._committed:
            step.from_offset = self._committed[number]
            # Who read on across partitions meanwhile may have left the offset where it was.
            step.from_metadata = self._metadata[number]
        else:
            step.from_none = True
        return step


def _has_beyond(metadata: str) -> bool:
    if not metadata:
        return False
    from oncelog._core import beyond

    return bool(beyond.decode(metadata)[0])


def chosen_partitions(topic: pb.TopicDescription, numbers: Sequence[int]) -> list[int]:
    """Those that were named, else all. Raises UsageError."""
    for number in numbers:
        if number >= len(topic.partitions):
            raise click.UsageError(
                f"Topic {topic.name} has {len(topic.partitions)} partitions, no {number}."
            )
    return sorted(set(numbers)) or list(range(len(topic.partitions)))
