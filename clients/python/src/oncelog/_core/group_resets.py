"""Moving a group to other offsets: where each partition shall stand, and the commits that put it
there. Nothing is asked here.

    wanted (partition -> aim) ──► what to ask leaders ──► resets (now -> then) ──► commits

Each commit says where the group was seen (`from`), so one that has come alive meanwhile, or was
moved by somebody else, is not overrun: it is refused as STALE_POSITION. An offset that the
partition does not have becomes the nearest one that it has.

What stands beside an offset (its metadata) says more of where a consumer stood: what it had given
beyond the offset, or where in the journal it read (docs/adr/0061, 0059). It goes with a reset, also
with one to the same offset, unless the aim brings what stood there when it was saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import NamedTuple

from oncelog._core.group_offsets import Edges, isolation_of, lag
from oncelog._core.routing import PartitionKey
from oncelogpb.v1 import offset_manager_pb2, partition_leader_pb2, types_pb2


class Kind(Enum):
    """What an aim's number means."""

    EARLIEST = auto()
    LATEST = auto()
    # This offset.
    OFFSET = auto()
    # So many records on from where it stands; back if negative.
    SHIFT = auto()
    # The first record of this time or later, in microseconds since 1970; the end if there is none.
    SINCE = auto()


class Aim(NamedTuple):
    """Where a partition of a group shall stand."""

    kind: Kind
    number: int = 0
    # What shall stand beside that offset, where the partition has it.
    metadata: str = ""


class Stand(NamedTuple):
    """Where a partition of a group stands. `offset` None: it has committed nothing there."""

    offset: int | None
    view: types_pb2.View.ValueType
    # None: nobody says now what the partition has.
    edges: Edges | None
    # Beside the offset.
    metadata: str = ""


class Reset(NamedTuple):
    """What becomes of one partition."""

    partition: PartitionKey
    now: Stand
    then: int
    metadata: str = ""

    @property
    def is_move(self) -> bool:
        return (self.now.offset, self.now.metadata) != (self.then, self.metadata)

    @property
    def lag_now(self) -> int | None:
        """None where nobody says what there is."""
        return lag(self.now.offset, self.now.edges)

    @property
    def lag_then(self) -> int | None:
        """None where nobody says what there is."""
        return lag(self.then, self.now.edges)


class NobodySays(Exception):
    """Nobody leads the partition now, and its aim cannot be known without."""

    def __init__(self, partition: PartitionKey) -> None:
        super().__init__(partition)
        self.partition = partition


def by_time_requests(
    wanted: Mapping[PartitionKey, Aim], stands: Mapping[PartitionKey, Stand]
) -> list[partition_leader_pb2.ListOffsetsRequest]:
    """What to ask for the aims that are times: one request per numbering."""
    requests: dict[int, partition_leader_pb2.ListOffsetsRequest] = {}
    for partition, aim in wanted.items():
        if aim.kind is Kind.SINCE:
            isolation = isolation_of(stands[partition].view)
            if isolation not in requests:
                requests[isolation] = partition_leader_pb2.ListOffsetsRequest(isolation=isolation)
            requests[isolation].queries.add(partition=partition.wire(), timestamp_us=aim.number)
    return list(requests.values())


def by_time(
    replies: Iterable[partition_leader_pb2.ListOffsetsReply],
) -> dict[PartitionKey, int]:
    """Partitions that nobody leads now are absent."""
    return {
        PartitionKey.of(listed.partition): listed.offset
        for reply in replies
        for listed in reply.offsets
        if not listed.HasField("error")
    }


def resets(
    wanted: Mapping[PartitionKey, Aim],
    stands: Mapping[PartitionKey, Stand],
    times: Mapping[PartitionKey, int],
) -> list[Reset]:
    """By topic id and number. Raises NobodySays."""
    found = []
    for partition, aim in sorted(wanted.items()):
        then = _then(partition, aim, stands[partition], times)
        is_there = aim.kind is Kind.OFFSET and then == aim.number
        metadata = aim.metadata if is_there else ""
        found.append(Reset(partition, stands[partition], then, metadata))
    return found


def commits(moved: Iterable[Reset]) -> list[offset_manager_pb2.OffsetCommit]:
    """Of those that move."""
    found = []
    for reset in moved:
        if reset.is_move:
            commit = offset_manager_pb2.OffsetCommit(
                partition=reset.partition.wire(),
                to_offset=reset.then,
                view=reset.now.view,
                metadata=reset.metadata,
            )
            if reset.now.offset is None:
                commit.from_none = True
            else:
                commit.from_offset = reset.now.offset
                commit.from_metadata = reset.now.metadata
            found.append(commit)
    return found


def _then(partition: PartitionKey, aim: Aim, now: Stand, times: Mapping[PartitionKey, int]) -> int:
    edges = now.edges
    if aim.kind is Kind.OFFSET and edges is None:
        return aim.number
    if edges is None or (aim.kind is Kind.SINCE and partition not in times):
        raise NobodySays(partition)
    match aim.kind:
        case Kind.EARLIEST:
            return edges.start
        case Kind.LATEST:
            return edges.end
        case Kind.SINCE:
            then = times[partition]
        case Kind.OFFSET:
            then = aim.number
        case Kind.SHIFT:
            # Who has committed nothing reads from the first record on.
            then = (edges.start if now.offset is None else now.offset) + aim.number
    return min(max(then, edges.start), edges.end)
