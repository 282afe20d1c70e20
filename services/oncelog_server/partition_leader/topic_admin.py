"""Handlers that administer topics. Their state lies in etcd: any partition leader process
answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Final

from oncelog_server.core.ids import CONTROL_TOPIC_IDS, PartitionId, TopicId
from oncelog_server.core.ports import Address, Call, TopicInfo
from oncelog_server.core.roles import PARTITION_LEADER
from oncelog_server.core.topic_limits import TOPIC_NAME_BYTES_MAX
from oncelog_server.partition_leader import wire
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.ports import PartitionEnv
from oncelog_server.partition_leader.topic_configs import effective, require_configs
from oncelogpb.errors import (
    InvalidArgument,
    TooLarge,
    TopicExists,
    UnknownTopic,
)
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2

_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_NAME_BYTES_MAX}}}")
# Where a creation names none, and so many partition leaders live; one where fewer do.
REPLICATION_FACTOR: Final = 3
# Topics and partitions that are described in one turn of the loop: some 4 ms. A cluster has up to
# 100,000, and nothing else of the process goes on meanwhile, its lease included.
DESCRIBED_PER_TURN: Final = 256


class TopicAdmin:
    """See the module."""

    def __init__(self, env: PartitionEnv, config: PartitionLeaderConfig) -> None:
        self._env = env
        self._config = config

    async def create_topic(self, request: pb.CreateTopicRequest, call: Call) -> pb.CreateTopicReply:
        """Returns when this process knows the topic; its partitions may have no leader yet."""
        partitions = request.partitions or self._config.topic_partitions
        factor = request.replication_factor or self._default_factor()
        self._require_creatable(request.name, partitions, factor, request.configs)
        configs = {name: value for name, value in request.configs.items() if value}
        if request.validate_only:
            preview = TopicInfo(request.name, TopicId(b""), partitions, factor, configs, 0)
            return pb.CreateTopicReply(topic=await self._described(preview))
        topic = await self._env.topics.create(request.name, partitions, factor, configs)
        self._env.reporter.event("topic created", topic=topic.name, partitions=partitions)
        return pb.CreateTopicReply(topic=await self._described(topic))

    async def describe_topics(
        self, request: pb.DescribeTopicsRequest, call: Call
    ) -> pb.DescribeTopicsReply:
        if not request.names and not request.topic_ids:
            raise InvalidArgument("name at least one topic, or its id", field="names")
        asked = len(request.names) + len(request.topic_ids)
        most = self._config.items_per_call_max
        wire.require_few("topics", asked, "items_per_call_max", most)
        metadata = self._env.metadata
        found = [_required(metadata.topic(name), repr(name)) for name in request.names]
        found += [
            _required(metadata.topic_by_id(TopicId(topic_id)), f"with id {topic_id.hex()}")
            for topic_id in request.topic_ids
        ]
        partitions = sum(topic.partitions for topic in found)
        most = self._config.described_partitions_max
        wire.require_few("partitions", partitions, "described_partitions_max", most)
        reply, turns = pb.DescribeTopicsReply(), _Turns()
        for topic in found:
            await self._describe(topic, reply.topics.add(), turns)
        return reply

    async def list_topics(self, request: pb.ListTopicsRequest, call: Call) -> pb.ListTopicsReply:
        """Those that there are at the begin, without those that are deleted meanwhile."""
        metadata = self._env.metadata
        topics = list(metadata.topics())
        if request.internal:
            control = (metadata.topic(name) for name in sorted(CONTROL_TOPIC_IDS))
            topics += [topic for topic in control if topic is not None]
        reply, turns = pb.ListTopicsReply(), _Turns()
        for topic in sorted(topics, key=lambda topic: topic.name):
            await turns.spend()
            if metadata.topic_by_id(topic.topic_id) is None:
                continue
            if request.names_only:
                reply.topics.add(name=topic.name, topic_id=topic.topic_id)
            else:
                await self._describe(topic, reply.topics.add(), turns)
        return reply

    async def alter_topic(self, request: pb.AlterTopicRequest, call: Call) -> pb.AlterTopicReply:
        self._require_users_topic(request.name)
        require_configs(request.configs)
        self._require_few_partitions(request.partitions)
        topic = await self._env.topics.alter(
            request.name, dict(request.configs), partitions=request.partitions
        )
        self._env.reporter.event(
            "topic altered",
            topic=topic.name,
            partitions=topic.partitions,
            configs=dict(request.configs),
        )
        return pb.AlterTopicReply(topic=await self._described(topic))

    async def delete_topic(self, request: pb.DeleteTopicRequest, call: Call) -> pb.DeleteTopicReply:
        self._require_users_topic(request.name)
        only = TopicId(request.topic_id) if request.topic_id else None
        topic_id = await self._env.topics.delete(request.name, only)
        self._env.reporter.event("topic deleted", topic=request.name, topic_id=topic_id.hex())
        return pb.DeleteTopicReply(topic_id=topic_id)

    def _default_factor(self) -> int:
        nodes = self._env.metadata.nodes()
        alive = {node.node_id for node in nodes if PARTITION_LEADER in node.roles}
        return REPLICATION_FACTOR if len(alive) >= REPLICATION_FACTOR else 1

    # ------------------------------------------------------------------------------------- checks

    def _require_creatable(
        self, name: str, partitions: int, factor: int, configs: Mapping[str, str]
    ) -> None:
        if not _NAME.fullmatch(name) or name.startswith("__") or name in (".", ".."):
            raise InvalidArgument(
                f"topic name {name!r} must be 1 to 249 of letters, digits, '.', '_' and '-', and "
                "must not start with two underscores",
                field="name",
            )
        self._require_few_partitions(partitions)
        require_configs(configs)
        if self._env.metadata.topic(name) is not None:
            raise TopicExists(f"topic {name!r} exists")

    def _require_few_partitions(self, partitions: int) -> None:
        limit = self._config.topic_partitions_max
        if partitions > limit:
            raise TooLarge(
                f"{partitions} partitions are above topic_partitions_max = {limit}",
                limit="topic_partitions_max",
                maximum=limit,
            )

    def _require_users_topic(self, name: str) -> None:
        if name in CONTROL_TOPIC_IDS:
            raise InvalidArgument(f"{name} is the cluster's own: leave it alone", field="name")

    # ---------------------------------------------------------------------------------- describing

    async def _described(self, topic: TopicInfo) -> pb.TopicDescription:
        description = pb.TopicDescription()
        await self._describe(topic, description, _Turns())
        return description

    async def _describe(self, topic: TopicInfo, into: pb.TopicDescription, turns: _Turns) -> None:
        """Each partition as it is when its turn comes."""
        into.name, into.topic_id = topic.name, topic.topic_id
        into.replication_factor, into.created_ms = topic.replication_factor, topic.created_ms
        if topic.name not in CONTROL_TOPIC_IDS:
            into.configs.update(effective(topic.configs))
        for number in range(topic.partitions):
            await turns.spend()
            self._describe_partition(
                PartitionId(topic.topic_id, number), into.partitions.add(number=number)
            )

    def _describe_partition(self, partition: PartitionId, into: pb.PartitionDescription) -> None:
        known = self._env.metadata.partition(partition)
        # Not as etcd names it: a process that is gone leads nothing.
        leader = self._env.metadata.leader_of(partition)
        if known is not None:
            into.epoch = known.epoch
            into.replicas.extend(known.replicas)
            into.isr.extend(known.isr)
            into.unclean_epoch = known.unclean_epoch
            into.adding.extend(known.adding)
            into.target.extend(known.target)
        if leader is not None:
            into.leader.CopyFrom(leader_message(leader))


class _Turns:
    """Leaves the loop to others each time that so much was described."""

    def __init__(self) -> None:
        self._spent = 0

    async def spend(self) -> None:
        """Before one more."""
        if self._spent >= DESCRIBED_PER_TURN:
            self._spent = 0
            await asyncio.sleep(0)
        self._spent += 1


def leader_message(leader: Address) -> types_pb2.Leader:
    return types_pb2.Leader(
        node_id=leader.node_id,
        boot_id=leader.boot_id,
        endpoint=types_pb2.Endpoint(host=leader.host, port=leader.port),
        epoch=leader.epoch,
    )


def _required(topic: TopicInfo | None, what: str) -> TopicInfo:
    if topic is None:
        raise UnknownTopic(f"no topic {what}")
    return topic
