"""Where a group stands in the partitions of its topics, as it is asked of offset managers and
leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from oncelog._core import group_offsets
from oncelog._core.group_offsets import Edges
from oncelog._core.requests import made
from oncelog._core.routing import PartitionKey
from oncelog.batch import TopicPartition
from oncelog.groups import GroupOffset
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2, offset_manager_pb2, partition_leader_pb2, types_pb2


class Standing(NamedTuple):
    """A group, in every partition of the topics that it has offsets of, and of others that were
    asked about. One that it never committed has an offset that says nothing."""

    offsets: Sequence[offset_manager_pb2.CommittedOffset]
    # Partitions that are gone, or that nobody leads now, are absent.
    edges: Mapping[PartitionKey, Edges]
    # By topic id; those that are gone are absent.
    topics: Mapping[bytes, partition_leader_pb2.TopicDescription]
    last_commits: Sequence[offset_manager_pb2.LastCommit]

    def place(self, partition: types_pb2.Partition) -> TopicPartition:
        """A topic that is gone by its id, in hexadecimal."""
        topic = self.topics.get(partition.topic_id)
        name = partition.topic_id.hex() if topic is None else topic.name
        return TopicPartition(name, partition.number)

    def rows(self, owners: Mapping[PartitionKey, str]) -> list[GroupOffset]:
        """`owners`: member ids."""
        return [self._row(offset, owners) for offset in self.offsets]

    def _row(
        self, item: offset_manager_pb2.CommittedOffset, owners: Mapping[PartitionKey, str]
    ) -> GroupOffset:
        key, offset = PartitionKey.of(item.partition), committed(item)
        edges = self.edges.get(key)
        return GroupOffset(
            *self.place(item.partition),
            offset,
            item.metadata,
            item.commit_time_ms,
            item.pending_tx_id,
            None if edges is None else edges.start,
            None if edges is None else edges.end,
            group_offsets.lag(offset, edges),
            owners.get(key),
            "journal" if item.view == types_pb2.VIEW_JOURNAL else "committed",
        )


def committed(item: offset_manager_pb2.CommittedOffset) -> int | None:
    """None: nothing."""
    return item.offset if item.HasField("offset") else None


async def ask(
    protocol: AsyncProtocol,
    group: str,
    besides: Iterable[partition_leader_pb2.TopicDescription] = (),
    *,
    with_last_commits: bool = False,
) -> Standing:
    """Pending offsets are named, not waited for. `besides`: topics that it may have no offsets of.
    Raises OncelogError."""
    reply = await fetched(protocol, group, with_last_commits=with_last_commits)
    known = {topic.topic_id: topic for topic in besides}
    ids = [one for one in group_offsets.topic_ids(reply.offsets) if one not in known]
    if ids:
        known |= await topics_of(protocol, ids)
    offsets = group_offsets.of_whole_topics(reply.offsets, known.values())
    standing = [offset for offset in offsets if offset.partition.topic_id in known]
    edges = group_offsets.edges(
        [
            await protocol.call("partition_leader.list_offsets", request)
            for request in group_offsets.edges_requests(standing)
        ]
    )
    return Standing(offsets, edges, known, reply.last_commits)


async def topics_of(
    protocol: AsyncProtocol, topic_ids: Iterable[bytes]
) -> dict[bytes, partition_leader_pb2.TopicDescription]:
    """As the cluster says now, by id; those that are gone are absent."""
    ids = sorted(set(topic_ids))
    if not ids:
        return {}
    request = cluster_pb2.GetMetadataRequest(topic_ids=ids)
    reply = await protocol.call("cluster.get_metadata", request)
    return {topic.topic_id: topic for topic in reply.topics}


async def fetched(
    protocol: AsyncProtocol,
    group: str,
    timeout_ms: int | None = None,
    *,
    with_last_commits: bool,
) -> offset_manager_pb2.FetchOffsetsReply:
    """In whichever view they are."""
    request = made(
        offset_manager_pb2.FetchOffsetsRequest, group=group, with_last_commits=with_last_commits
    )
    method = "offset_manager.fetch_offsets"
    try:
        reply: offset_manager_pb2.FetchOffsetsReply = await protocol.call(
            method, request, timeout_ms
        )
    except errors.InvalidArgument as error:
        if error.metadata.get("stored") != "JOURNAL":
            raise
        request.view = types_pb2.VIEW_JOURNAL
        reply = await protocol.call(method, request, timeout_ms)
    return reply
