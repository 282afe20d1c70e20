"""What operators and tools ask of a cluster, and tell it: `log.admin`. Topics and processes are
here; transactions and groups have modules of their own.

Answers are frozen dataclasses, not messages: what a field means stands at the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oncelog._core.requests import made, require_text
from oncelog._core.routing import Endpoint, PartitionKey
from oncelog.aio import truncating
from oncelog.aio.access import Access
from oncelog.aio.admin_groups import GroupAdmin
from oncelog.aio.admin_transactions import TransactionAdmin
from oncelog.aio.truncating import Before, Truncation
from oncelog.groups import Rows
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition of a topic."""

    number: int
    # host:port of its leader; None where nobody leads it now.
    leader: str | None
    epoch: int
    # Node ids.
    replicas: tuple[str, ...]
    # Incarnations of those in sync: of each replica's directory.
    isr: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. `topic_id` in hexadecimal; times in milliseconds since 1970."""

    name: str
    topic_id: str
    partitions: tuple[PartitionInfo, ...]
    replication_factor: int
    configs: Mapping[str, str]
    created_ms: int


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A process of the cluster."""

    node_id: str
    address: str
    roles: tuple[str, ...]
    version: str
    # Where it stands (its setting `node.rack`); empty where it does not say.
    rack: str = ""
    # When this run of it began, milliseconds since 1970; 0 where it does not say.
    started_ms: int = 0


class Admin(TransactionAdmin, GroupAdmin):
    """Made as `log.admin`."""

    def __init__(self, protocol: AsyncProtocol) -> None:
        super().__init__(protocol)
        # Who may do what, and how much of it.
        self.access = Access(protocol)

    # ------------------------------------------------------------------------------------- topics

    async def create_topic(
        self,
        name: str,
        partitions: int = 0,
        *,
        replication_factor: int = 0,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicInfo:
        """0: the cluster's default. Returns when a leader of each partition can be named, or at the
        deadline with those that can. Raises TopicExists, InvalidArgument, UnknownOutcome (look
        whether it is there)."""
        request = made(
            partition_leader_pb2.CreateTopicRequest,
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=configs or {},
            validate_only=validate_only,
        )
        deadline = self._protocol.deadline()
        reply = await self._protocol.call("partition_leader.create_topic", request)
        if validate_only:
            return topic_info(reply.topic)
        return topic_info(await self._protocol.led_topic(reply.topic, deadline))

    async def topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """By name. `internal`: the control topics as well."""
        request = partition_leader_pb2.ListTopicsRequest(internal=internal)
        reply = await self._protocol.call("partition_leader.list_topics", request)
        return [topic_info(topic) for topic in reply.topics]

    async def describe_topic(self, name: str) -> TopicInfo:
        """Raises UnknownTopic."""
        require_text("name", name)
        request = partition_leader_pb2.DescribeTopicsRequest(names=[name])
        reply = await self._protocol.call("partition_leader.describe_topics", request)
        return topic_info(reply.topics[0])

    async def alter_topic(
        self, name: str, configs: Mapping[str, str] | None = None, *, partitions: int = 0
    ) -> TopicInfo:
        """Changes these settings; an empty value restores the default. `partitions`: how many there
        shall be, 0: as many as there are. Some can be added, none taken away; the next records of a
        key may then go to another partition than those before. Clients hear of it within
        `topic_refresh_ms`. Raises UnknownTopic, InvalidArgument."""
        request = made(
            partition_leader_pb2.AlterTopicRequest,
            name=name,
            configs=configs or {},
            partitions=partitions,
        )
        deadline = self._protocol.deadline()
        reply = await self._protocol.call("partition_leader.alter_topic", request)
        return topic_info(await self._protocol.led_topic(reply.topic, deadline))

    async def delete_topic(self, name: str) -> None:
        """The topic of that name, and not one that is made under it later: a request that was lost
        may arrive late. Raises UnknownTopic, UnknownOutcome (look whether it exists)."""
        require_text("name", name)
        topic_id = (await self._protocol.topic(name)).topic_id
        self._protocol.directory.forget_topic(name)
        try:
            await self._delete_only(name, topic_id)
        except errors.UnknownTopic as error:
            standing = error.metadata.get("topic_id", "")
            if not standing:
                raise
            # It was made again since we looked.
            await self._delete_only(name, bytes.fromhex(standing))

    async def _delete_only(self, name: str, topic_id: bytes) -> None:
        request = partition_leader_pb2.DeleteTopicRequest(name=name, topic_id=topic_id)
        await self._protocol.call("partition_leader.delete_topic", request)

    async def truncate(
        self,
        topic: str,
        *,
        before: Before,
        partition: int | None = None,
        dry_run: bool = False,
    ) -> Rows[Truncation]:
        """Deletes the oldest records for good: all that can be read below an offset of a partition,
        older than a time, or up to the end as it is now. Positions stay: what is kept has the
        offsets that it had. Records of open transactions stay, too. Readers who stand below are
        told, or go on (`if_deleted`). `dry_run`: says what would go. Raises UnknownTopic,
        UnknownPartition, OffsetOutOfRange (above the end), InvalidArgument; doing it again is
        harmless."""
        cuts = await truncating.plan(self._protocol, topic, before, partition)
        return await truncating.execute(self._protocol, cuts, dry_run=dry_run)

    async def offsets(
        self, topic: str, at: str | int = "latest", *, isolation: str = "committed"
    ) -> list[int]:
        """By partition: "earliest", "latest", or of the first record at or after a time in
        microseconds since 1970. Raises UnknownTopic, InvalidArgument."""
        request = partition_leader_pb2.ListOffsetsRequest(isolation=_isolation(isolation))
        since = _since(at)
        require_text("topic", topic)
        description = await self._protocol.topic(topic)
        for partition in description.partitions:
            key = PartitionKey(description.topic_id, partition.number)
            request.queries.add(partition=key.wire()).MergeFrom(since)
        reply = await self._protocol.call("partition_leader.list_offsets", request)
        for listed in reply.offsets:
            if listed.HasField("error"):
                raise errors.from_status(listed.error)
        return [listed.offset for listed in reply.offsets]

    # -------------------------------------------------------------------------------------- nodes

    async def nodes(self) -> list[NodeInfo]:
        """The processes that are alive, by id."""
        await self._protocol.refresh()
        nodes = self._protocol.directory.nodes
        return sorted(
            (
                NodeInfo(
                    node.node_id,
                    str(Endpoint(node.endpoint.host, node.endpoint.port)),
                    tuple(node.roles),
                    node.version,
                    node.rack,
                    node.started_ms,
                )
                for node in nodes
            ),
            key=lambda node: node.node_id,
        )


def topic_info(topic: partition_leader_pb2.TopicDescription) -> TopicInfo:
    """The description as users see it."""
    return TopicInfo(
        name=topic.name,
        topic_id=topic.topic_id.hex(),
        partitions=tuple(
            PartitionInfo(
                part.number,
                str(Endpoint(part.leader.endpoint.host, part.leader.endpoint.port))
                if part.HasField("leader")
                else None,
                part.epoch,
                tuple(part.replicas),
                tuple(part.isr),
            )
            for part in topic.partitions
        ),
        replication_factor=topic.replication_factor,
        configs=dict(topic.configs),
        created_ms=topic.created_ms,
    )


def _since(at: str | int) -> partition_leader_pb2.OffsetQuery:
    """Of no partition yet. Raises InvalidArgument."""
    if at == "earliest":
        return partition_leader_pb2.OffsetQuery(earliest=True)
    if at == "latest":
        return partition_leader_pb2.OffsetQuery(latest=True)
    if not isinstance(at, int) or isinstance(at, bool) or not -(1 << 63) <= at < 1 << 63:
        raise errors.InvalidArgument(
            f"at is {at!r}; allowed: earliest, latest, a time in microseconds", field="at"
        )
    return partition_leader_pb2.OffsetQuery(timestamp_us=at)


def _isolation(isolation: str) -> partition_leader_pb2.Isolation.ValueType:
    choices: dict[str, partition_leader_pb2.Isolation.ValueType] = {
        "committed": partition_leader_pb2.ISOLATION_COMMITTED,
        "uncommitted": partition_leader_pb2.ISOLATION_UNCOMMITTED,
    }
    require_text("isolation", isolation)
    if isolation not in choices:
        raise errors.InvalidArgument(
            f"isolation is {isolation!r}; allowed: {', '.join(choices)}", field="isolation"
        )
    return choices[isolation]
