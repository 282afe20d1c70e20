"""What callers act upon: topics, a group, producers and their transactions, made by an identity
that nobody else is."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from oncelog_server.core.ids import CONSUMER_OFFSETS_ID
from oncelogpb import records
from oncelogpb.v1 import coordinator_pb2, offset_manager_pb2, partition_leader_pb2, types_pb2
from tests.access.world import World

OWNER: Final = "owner"
TOPICS: Final = ("a", "b", "in", "doomed")
# Each has one open transaction, but the last.
PRODUCERS: Final = ("committing", "aborting", "asking", "idle")


@dataclass
class Stage:
    """See the module."""

    world: World
    topics: dict[str, bytes] = field(default_factory=dict)
    producers: dict[str, types_pb2.Producer] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    # ------------------------------------------------------------------------------------- messages

    def place(self, topic: str, number: int = 0) -> types_pb2.Partition:
        return types_pb2.Partition(topic_id=self.topics[topic], number=number)

    def batch(self, topic: str) -> types_pb2.Batch:
        made = records.seal(records.make_batch([None], [b"value"], 1))
        made.partition.CopyFrom(self.place(topic))
        return made

    def plain(self, *topics: str) -> partition_leader_pb2.ProduceRequest:
        """From a producer id of its own, so that any order of calls is sound."""
        producer = types_pb2.Producer(producer_id=1 << 63 | next(self.numbers))
        return partition_leader_pb2.ProduceRequest(
            producer=producer, batches=[self.batch(topic) for topic in topics]
        )

    def offsets(self, group: str, *topics: str) -> offset_manager_pb2.GroupOffsets:
        commits = [
            offset_manager_pb2.OffsetCommit(
                partition=self.place(topic), from_any=True, to_offset=next(self.numbers)
            )
            for topic in topics
        ]
        return offset_manager_pb2.GroupOffsets(group=group, offsets=commits)

    def manifest(self, *topics: str) -> types_pb2.Manifest:
        """What the transaction of `committing` wrote: nothing."""
        made = types_pb2.Manifest()
        for topic in topics:
            made.topics.add(
                topic_id=self.topics[topic], partition=[0], writer=[0], record_count=[1]
            )
        made.topics.add(topic_id=CONSUMER_OFFSETS_ID, partition=[0], writer=[0], record_count=[0])
        return made


def init(name: str = "", group: str = "") -> coordinator_pb2.InitProducerRequest:
    """A new instance."""
    return coordinator_pb2.InitProducerRequest(
        name=name, group=group, instance_id=uuid.uuid4().bytes
    )


async def set_up(world: World) -> Stage:
    """By the operator, and by `owner`."""
    await world.allow(f"{OWNER} write producer:*", f"{OWNER} write topic:*")
    stage, operator, owner = Stage(world), world.operator, world.caller(OWNER)
    for name in TOPICS:
        request = partition_leader_pb2.CreateTopicRequest(name=name, partitions=1)
        reply = await operator.call("PartitionLeader", "create_topic", request)
        stage.topics[name] = reply.topic.topic_id
    log = operator.log()
    # Every process knows the topics, and their partitions have leaders.
    for name in TOPICS:
        async with await log.producer() as producer:
            await producer.send(name, b"first")
            await producer.flush()
    await log.close()
    for name in PRODUCERS:
        granted = await owner.call("Coordinator", "init_producer", init(name))
        stage.producers[name] = granted.producer
        if name != "idle":
            begin = coordinator_pb2.BeginTransactionRequest(
                producer=granted.producer, request_id=1, timeout_ms=600_000
            )
            begun = await owner.call("Coordinator", "begin_transaction", begin)
            stage.transactions[name] = begun.tx_id
    for group in ("g", "gone"):
        commit = offset_manager_pb2.CommitOffsetsRequest(offsets=stage.offsets(group, "a", "b"))
        await operator.call("OffsetManager", "commit_offsets", commit)
    return stage
