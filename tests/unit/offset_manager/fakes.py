"""The outside of the role, in memory: one led partition per number, peers that answer by script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    BootId,
    PartitionId,
    TopicId,
)
from oncelog_server.core.machine import Instant
from oncelog_server.core.ports import Address, PartitionInfo, TopicInfo
from oncelog_server.core.role import RoleEnv
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.machine import OffsetManagerMachine
from oncelog_server.offset_manager.ports import OffsetManagerEnv
from oncelog_server.offset_manager.records import CODEC
from oncelogpb.errors import NotLeader, OncelogError
from tests.golden.host import MachineHost

BOOT = BootId(b"boot-of-this-one")


class FakeReplica:
    """The Replica port over a MachineHost; everything is durable at once."""

    def __init__(self, number: int, config: OffsetManagerConfig) -> None:
        self.partition = PartitionId(CONSUMER_OFFSETS_ID, number)
        self.host = MachineHost(lambda: OffsetManagerMachine(config), CODEC)
        self.full: OncelogError | None = None

    @property
    def machine(self) -> Any:
        return self.host.machine

    @property
    def high_watermark(self) -> int:
        return self.host.high_watermark

    def require_room(self) -> None:
        if self.full is not None:
            raise self.full

    def signal(self, signal: object) -> None:
        self.host.signal(signal)

    def submit(self, command: object) -> asyncio.Future[Any]:
        self.host.submit(command)
        (parked,) = self.host.sync()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if isinstance(parked.reply, OncelogError):
            future.set_exception(parked.reply)
        else:
            future.set_result(parked.reply)
        return future


class FakeReplicas:
    def __init__(self, *numbers: int, config: OffsetManagerConfig | None = None) -> None:
        config = config or OffsetManagerConfig()
        self.by_number = {number: FakeReplica(number, config) for number in numbers}

    def lead(self, partition: PartitionId) -> FakeReplica:
        replica = self.by_number.get(partition.number)
        if partition.topic_id != CONSUMER_OFFSETS_ID or replica is None:
            raise NotLeader(f"not the leader of {partition}", leader_host="elsewhere")
        return replica

    def led(self) -> Sequence[FakeReplica]:
        return list(self.by_number.values())


class FakeMetadata:
    def __init__(self) -> None:
        self.coordinator: Address | None = Address("n", BootId(b"c" * 16), "localhost", 1, 1)
        # By name: what this process sees; and what etcd knows to be deleted.
        self.topics: dict[str, TopicInfo] = {}
        self.deleted: set[TopicId] = set()
        self.asked_if_gone = 0

    def leader_of(self, partition: PartitionId) -> Address | None:
        if partition.topic_id == CONSUMER_OFFSETS_ID:
            return Address("n", BOOT, "localhost", 2, 1)
        return self.coordinator

    def partition(self, partition: PartitionId) -> PartitionInfo | None:
        return PartitionInfo(partition, ["n"], ["ab"], self.leader_of(partition), 9)

    async def gone(self, topic_ids: Collection[TopicId], *, timeout_ms: int) -> set[TopicId]:
        self.asked_if_gone += 1
        return self.deleted & set(topic_ids)

    def topic(self, name: str) -> TopicInfo | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: TopicId) -> TopicInfo | None:
        return next((one for one in self.topics.values() if one.topic_id == topic_id), None)

    def has(self, name: str, topic_id: bytes, partitions: int) -> None:
        self.topics[name] = TopicInfo(name, TopicId(topic_id), partitions, 1, {}, 0)


class FakeClock:
    def __init__(self) -> None:
        self.monotonic_ms = 5_000

    def now(self) -> Instant:
        return Instant(self.monotonic_ms, self.monotonic_ms + 1_000_000)


class FakePeers:
    """`answer` makes the reply, or raises."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    async def call(self, to: Address, method: str, request: Any, *, timeout_ms: int) -> Any:
        assert method == "coordinator.ask_transactions"
        self.asked.append(request)
        await asyncio.sleep(0)
        return self.answer(request)


class FakeReporter:
    def __init__(self) -> None:
        self.counts: dict[str, float] = {}
        self.events: list[str] = []
        # The newest of each gauge, by name and partition.
        self.gauges: dict[tuple[str, str], float] = {}

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + value

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.gauges[name, labels["partition"]] = value

    def observe(self, name: str, value_ms: float, **labels: str) -> None:
        pass

    def replace(
        self, name: str, whose: str, rows: Iterable[tuple[Mapping[str, str], float]]
    ) -> None: ...

    def forget(self, label: str, value: str) -> None:
        pass

    def event(self, event: str, **fields: object) -> None:
        self.events.append(event)


class Outside:
    """All of them, and the RoleEnv that holds them."""

    def __init__(
        self,
        *numbers: int,
        answer: Callable[[Any], Any] = lambda request: None,
        config: OffsetManagerConfig | None = None,
    ) -> None:
        self.replicas = FakeReplicas(*numbers, config=config)
        self.metadata = FakeMetadata()
        self.clock = FakeClock()
        self.peers = FakePeers(answer)
        self.reporter = FakeReporter()
        self.env: OffsetManagerEnv = RoleEnv(
            clock=self.clock,
            metadata=self.metadata,  # type: ignore[arg-type]
            topics=None,  # type: ignore[arg-type]
            peers=self.peers,
            replicas=self.replicas,  # type: ignore[arg-type]
            reporter=self.reporter,
            random_bytes=bytes,
        )
