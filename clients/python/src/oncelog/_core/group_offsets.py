"""Where a group stands in all partitions of the topics that it reads, and what waits for it there.

An offset manager knows the partitions that a group has committed something of. One that it never
committed waits as a whole, from its first record on: left out, it would look like nothing waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from oncelog._core.routing import PartitionKey
from oncelogpb.v1 import offset_manager_pb2, partition_leader_pb2, types_pb2

_ISOLATIONS: Final = {
    types_pb2.VIEW_COMMITTED: partition_leader_pb2.ISOLATION_COMMITTED,
    types_pb2.VIEW_JOURNAL: partition_leader_pb2.ISOLATION_UNCOMMITTED,
}


class Edges(NamedTuple):
    """Where a partition begins and ends now, in the numbering of the group's offset."""

    # First offset that is kept.
    start: int
    # One past the last record that can be read.
    end: int


def topic_ids(offsets: Iterable[offset_manager_pb2.CommittedOffset]) -> list[bytes]:
    """Of the topics concerned, each once."""
    return sorted({offset.partition.topic_id for offset in offsets})


def of_whole_topics(
    offsets: Sequence[offset_manager_pb2.CommittedOffset],
    topics: Iterable[partition_leader_pb2.TopicDescription],
) -> list[offset_manager_pb2.CommittedOffset]:
    """The group's offsets, and one that says nothing for each other partition of these topics; by
    topic id and number. A topic that it has no offsets of has the view that the group has."""
    found = {PartitionKey.of(offset.partition): offset for offset in offsets}
    views = {offset.partition.topic_id: offset.view for offset in offsets}
    usual = offsets[0].view if offsets else types_pb2.VIEW_COMMITTED
    for topic in topics:
        for number in range(len(topic.partitions)):
            key = PartitionKey(topic.topic_id, number)
            if key not in found:
                found[key] = offset_manager_pb2.CommittedOffset(
                    partition=key.wire(), view=views.get(topic.topic_id, usual)
                )
    return [found[key] for key in sorted(found)]


def edges_requests(
    offsets: Iterable[offset_manager_pb2.CommittedOffset],
) -> list[partition_leader_pb2.ListOffsetsRequest]:
    """What to ask of leaders, for `edges`: one request per numbering."""
    requests: dict[int, partition_leader_pb2.ListOffsetsRequest] = {}
    for offset in offsets:
        view = offset.view or types_pb2.VIEW_COMMITTED
        if view not in requests:
            requests[view] = partition_leader_pb2.ListOffsetsRequest(isolation=isolation_of(view))
        requests[view].queries.add(partition=offset.partition, earliest=True)
        requests[view].queries.add(partition=offset.partition, latest=True)
    return list(requests.values())


def edges(
    replies: Iterable[partition_leader_pb2.ListOffsetsReply],
) -> dict[PartitionKey, Edges]:
    """Partitions that are gone, or that nobody leads now, are absent."""
    found: dict[PartitionKey, Edges] = {}
    for reply in replies:
        pairs = zip(reply.offsets[::2], reply.offsets[1::2], strict=True)
        for first, last in pairs:
            if not first.HasField("error") and not last.HasField("error"):
                found[PartitionKey.of(first.partition)] = Edges(first.offset, last.offset)
    return found


def isolation_of(
    view: types_pb2.View.ValueType,
) -> partition_leader_pb2.Isolation.ValueType:
    """The readers whose numbering it is."""
    return _ISOLATIONS[view]


def lag(committed: int | None, at: Edges | None) -> int | None:
    """Records that wait for the group. None where nobody says what there is."""
    return None if at is None else waiting(committed or 0, at)


def waiting(position: int, at: Edges) -> int:
    """Records that are there from a position on: what was deleted waits for nobody."""
    return max(0, at.end - max(at.start, position))
