"""A group and its members in virtual time: endless partitions, an offset manager that is a model,
and clients that may be cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from oncelog._core.routing import Endpoint, PartitionKey
from oncelog.aio.consumer import Consumer
from oncelog.aio.log import Log
from oncelog.batch import TopicPartition
from oncelog.options import ConnectOptions
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2 as offsets
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.model_group import ModelGroup
from tests.unit.client.scripted import TOPIC_ID, ScriptedTransport, on_virtual_time, protocol_over
from tests.unit.client.test_consuming import reply
from tests.unit.client.test_transactions import Services

SESSION_MS: Final = 9_000
RECORDS: Final = 1_000


class World:
    """One topic of endless partitions, a group, and clients with a connection of their own. Each
    reads `per_reply` records a second of each partition."""

    def __init__(self, partitions: int = 4) -> None:
        self.group = ModelGroup({("a", TOPIC_ID): partitions})
        self.partitions = partitions
        self.committed: dict[PartitionKey, int] = {}
        # Commits that took effect: partition, from, to, by whom.
        self.commits: list[tuple[int, int, int, str]] = []
        # Held by a transaction in flight.
        self.pending: set[int] = set()
        self.services = Services()
        self.beats: list[offsets.HeartbeatRequest] = []
        # Of each list of topics that was asked for.
        self.listed_names_only: list[bool] = []
        self.fetches: list[list[int]] = []
        self.begun_ms: list[int] = []
        self.pending_ms: list[int] = []

    def client(self, **options: Any) -> Client:
        return Client(self, **options)

    def now_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000

    def take(self, message: offsets.GroupOffsets) -> None:
        self.group.check_commit(message, self.now_ms())
        if all(self._was_done(message.member.member_id, offset) for offset in message.offsets):
            return
        for offset in message.offsets:
            key = PartitionKey.of(offset.partition)
            stands = self.committed.get(key)
            start = offset.from_offset if offset.HasField("from_offset") else None
            if not offset.HasField("from_any") and stands != start:
                raise errors.StalePosition(f"it stands at {stands}")
        for offset in message.offsets:
            key = PartitionKey.of(offset.partition)
            start = self.committed.get(key, 0)
            self.committed[key] = offset.to_offset
            self.commits.append((key.number, start, offset.to_offset, message.member.member_id))

    def _was_done(self, who: str, offset: offsets.OffsetCommit) -> bool:
        """By this member, and by nobody since."""
        number = offset.partition.number
        last = next((done for done in reversed(self.commits) if done[0] == number), None)
        return last is not None and last[2:] == (offset.to_offset, who)


class Client:
    """A process: its transport may be cut off."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.is_cut_off = False
        self.transport = _Endless(world, *([5] * world.partitions))
        for name in vars(Client):
            if name.startswith("on_"):
                method = name.removeprefix("on_").replace("__", ".")
                self.transport.handlers[method] = self._guarded(getattr(self, name))
        for name in ("init_producer", "begin_transaction", "commit_transaction"):
            handler = world.services.handler(f"coordinator.{name}")
            self.transport.handlers[f"coordinator.{name}"] = handler
        for name in ("abort_transaction", "get_transaction"):
            handler = world.services.handler(f"coordinator.{name}")
            self.transport.handlers[f"coordinator.{name}"] = handler
        handler = world.services.handler("partition_leader.produce")
        self.transport.handlers["partition_leader.produce"] = handler
        self.protocol = protocol_over(self.transport, **options)
        self.log = Log("boot:1", ConnectOptions(**options), protocol=self.protocol)

    def _guarded(self, handler: Callable[[Any], Any]) -> Callable[[Endpoint, Any], Any]:
        def handle(to: Endpoint, request: Any) -> Any:
            if self.is_cut_off:
                raise errors.Unavailable("cut off")
            return handler(request)

        return handle

    def on_offset_manager__heartbeat(self, request: Any) -> Any:
        self.world.beats.append(request)
        return self.world.group.heartbeat(request, self.world.now_ms())

    def on_offset_manager__fetch_offsets(self, request: Any) -> Any:
        self.world.fetches.append([partition.number for partition in request.partitions])
        for partition in request.partitions:
            if partition.number in self.world.pending and request.stable:
                raise errors.PendingTransaction(
                    "held", tx_id=7, topic_id=TOPIC_ID.hex(), partition=partition.number
                )
        known = [
            offsets.CommittedOffset(
                partition=p, offset=self.world.committed.get(PartitionKey.of(p))
            )
            for p in request.partitions
        ]
        return offsets.FetchOffsetsReply(offsets=known, group_retention_ms=10_000)

    def on_offset_manager__commit_offsets(self, request: Any) -> Any:
        self.world.take(request.offsets)
        return offsets.CommitOffsetsReply()

    def on_offset_manager__commit_transaction_offsets(self, request: Any) -> Any:
        self.world.pending_ms.append(request.timeout_ms)
        self.world.take(request.offsets)
        return self.world.services.commit_transaction_offsets(request)

    def on_coordinator__transact(self, request: Any) -> Any:
        if request.HasField("offsets"):
            self.world.take(request.offsets)
        return self.world.services.transact(request)

    def on_partition_leader__list_offsets(self, request: Any) -> Any:
        listed = [
            leader.ListedOffset(partition=q.partition, offset=0 if q.earliest else RECORDS)
            for q in request.queries
        ]
        return leader.ListOffsetsReply(offsets=listed)

    def on_partition_leader__list_topics(self, request: Any) -> Any:
        self.world.listed_names_only.append(request.names_only)
        made = leader.ListTopicsReply()
        for (name, topic_id), count in self.world.group.topics.items():
            topic = made.topics.add(name=name, topic_id=topic_id)
            for number in range(0 if request.names_only else count):
                topic.partitions.add(number=number)
        return made

    async def member(
        self, topics: Sequence[str] = ("a",), *, pattern: str | None = None, **options: Any
    ) -> Consumer:
        settings = {"session_timeout_ms": SESSION_MS, "batch_records_max": 5} | options
        consumer = await self.log.consumer(group="g", **settings)
        await consumer.subscribe(() if pattern else topics, pattern=pattern)
        return consumer


class _Endless(ScriptedTransport):
    """Each Subscribe gives the records that lie at its positions, five a second."""

    def __init__(self, world: World, *partitions: int) -> None:
        super().__init__(*partitions)
        self.world = world

    def metadata(self, to: Endpoint, request: Any) -> Any:
        made = super().metadata(to, request)
        for (name, topic_id), count in self.world.group.topics.items():
            if name != "a" and (name in request.topics or topic_id in request.topic_ids):
                topic = made.topics.add(name=name, topic_id=topic_id)
                for number in range(count):
                    topic.partitions.add(number=number, leader=made_leader())
        return made

    async def stream(self, to: Endpoint, method: str, request: Any) -> Any:
        self.asked.append((method, to.port))
        self.requests.append(request)
        at = {part.partition.number: part.offset for part in request.partitions}
        while True:
            for number, offset in at.items():
                if offset < RECORDS:
                    yield reply(number, offset, 5)
                    at[number] = offset + 5
            await asyncio.sleep(1)


def made_leader() -> Any:
    from tests.unit.client.scripted import _leader

    return _leader(5)


def places(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("a", number) for number in numbers]


async def read(consumer: Consumer, seconds: float) -> list[tuple[int, int]]:
    """(partition, offset) of all that is given meanwhile."""
    found: list[tuple[int, int]] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        batch = await consumer.poll(min(0.5, end - loop.time()))
        found += [(record.partition, record.offset) for record in batch or ()]
    return found


def in_a_world(work: Callable[[World], Awaitable[None]], partitions: int = 4) -> None:
    async def main() -> None:
        await work(World(partitions))

    on_virtual_time(main)


def without_gap_or_overlap(world: World) -> None:
    stands: dict[int, int] = {}
    for partition, start, to, _ in world.commits:
        assert stands.get(partition, 0) == start
        stands[partition] = to


class Told:
    """What the callbacks were told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []

    def options(self) -> dict[str, Any]:
        return {f"on_{name}": self._teller(name) for name in ("assigned", "revoked", "lost")}

    def _teller(self, name: str) -> Callable[[Sequence[TopicPartition]], None]:
        return lambda given: self.told.append((name, [place.partition for place in given]))
