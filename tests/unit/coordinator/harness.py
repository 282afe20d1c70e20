"""The coordinator's service and outbox over a machine in memory: a driver whose every sync is one
loop turn, participants and an offset manager that answer as a test says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.outcomes import Outcomes
from oncelog_server.coordinator.role import CoordinatorRole
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.core.frame import StoredFrame
from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    TRANSACTION_CONTROL_ID,
    BootId,
    PartitionId,
    TopicId,
    control_partition,
)
from oncelog_server.core.machine import Instant
from oncelog_server.core.ports import Address, TopicInfo
from oncelog_server.core.role import RoleEnv
from oncelogpb.errors import DiskFull, NotLeader, OffsetOutOfRange, OncelogError, UnknownOutcome
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import participant_pb2 as participant_pb
from tests.golden.host import MachineHost

ORDERS = TopicId(b"orders-topic-id.")
# No topic has it.
UNHEARD_OF = TopicId(b"x" * 16)
# A topic that was just created.
HEARD_OF_LATER = TopicId(b"y" * 16)
BOOT = BootId(b"boot-of-leader-1")


class MemorySlots:
    """The Slots port."""

    def __init__(self) -> None:
        self.slots: dict[int, bytes] = {}

    def write(self, offset: int, slot: bytes) -> None:
        self.slots[offset] = slot

    def read(self, offset: int) -> bytes | None:
        return self.slots.get(offset)


class LedReplica:
    """The Replica port over a MachineHost. What is decided is durable a loop turn later."""

    def __init__(self, host: MachineHost, partition: PartitionId) -> None:
        self.partition = partition
        self.host = host
        self.outbox: Any = None
        self.leads = True
        # Past the lease: nothing is submitted, and no answer is released; leadership may stay.
        self.lapsed = False
        # Below `disk_free_floor`.
        self.full = False
        # Frames below were trimmed.
        self.log_begins = 0
        self._parked: deque[tuple[int, asyncio.Future[Any], object]] = deque()

    @property
    def machine(self) -> Any:
        return self.host.machine if self.leads else None

    @property
    def epoch(self) -> int:
        return self.host.epoch

    @property
    def high_watermark(self) -> int:
        return self.host.high_watermark

    @property
    def log_start(self) -> int:
        return self.log_begins

    @property
    def log_end(self) -> int:
        return self.host.log_end

    def submit(self, command: object) -> Awaitable[Any]:
        if not self.leads:
            raise NotLeader("this process does not lead the partition")
        if self.lapsed:
            raise NotLeader("this node's lease ran out")
        self.host.submit(command)
        end, reply = self.host.take_parked()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._parked.append((end, future, reply))
        asyncio.get_running_loop().call_soon(self._sync)
        return future

    def _sync(self) -> None:
        if not self.leads:
            return
        self.host.sync()
        while self._parked and self._parked[0][0] <= self.high_watermark:
            _, future, reply = self._parked.popleft()
            if future.done():
                continue
            if self.lapsed:
                reply = UnknownOutcome("the lease ran out before the answer was durable")
            if isinstance(reply, OncelogError):
                future.set_exception(reply)
                future.exception()
            else:
                future.set_result(reply)
        if self.outbox is not None:
            self.outbox.wake()

    def signal(self, signal: object) -> None:
        if self.leads:
            self.host.signal(signal)

    def require_room(self) -> None:
        if self.full:
            raise DiskFull("free disk space is below disk_free_floor")

    def require_lease(self) -> None:
        if self.lapsed:
            raise NotLeader("this node's lease ran out")

    async def read(self, from_offset: int, max_bytes: int, *, below: int) -> list[StoredFrame]:
        raise AssertionError("the coordinator reads single frames only")

    async def read_frames(self, offsets: Sequence[int]) -> list[StoredFrame]:
        if any(offset < self.log_begins for offset in offsets):
            raise OffsetOutOfRange("the log begins later", start=self.log_begins)
        return [stored for stored in self.host.frames if stored.at.offset in offsets]

    def watch(self, moved: Callable[[], None]) -> Callable[[], object]:
        raise AssertionError("the coordinator is woken by its outbox")


class Surroundings:
    """Clock, ClusterMetadata, Peers, Replicas and Reporter ports in one."""

    cluster_id = b"c" * 16

    def __init__(self, replica: LedReplica) -> None:
        self._replica = replica
        self.leader: Address | None = Address("n1", BOOT, "127.0.0.1", 1, 1)
        self.topics = {ORDERS: TopicInfo("orders", ORDERS, 4, 1, {}, 0)}
        self.gone: set[TopicId] = {UNHEARD_OF}
        # Partitions that stand in etcd, and that this process has not heard of.
        self.in_etcd: set[PartitionId] = {PartitionId(HEARD_OF_LATER, 0)}
        self.leaderless: set[PartitionId] = set()
        self.calls: list[tuple[str, Any]] = []
        self.markers: Callable[[participant_pb.WriteMarkersRequest], Any] = apply_all
        self.offsets: Callable[[offsets_pb.CommitTransactionOffsetsRequest], Any] = accept_all
        self.counted: dict[str, float] = {}
        # Of each gauge.
        self.labels: dict[str, dict[str, str]] = {}
        self.events: list[str] = []

    def now(self) -> Instant:
        return self._replica.host.now

    def leader_of(self, partition: PartitionId) -> Address | None:
        return None if partition in self.leaderless else self.leader

    async def exists(self, partition: PartitionId) -> bool:
        topic = self.topics.get(partition.topic_id)
        known = topic is not None and partition.number < topic.partitions
        return known or partition in self.in_etcd

    def topic_by_id(self, topic_id: TopicId) -> TopicInfo | None:
        return self.topics.get(topic_id)

    def delete(self, topic_id: TopicId) -> None:
        del self.topics[topic_id]
        self.gone.add(topic_id)

    async def is_gone(self, topic_id: TopicId) -> bool:
        return topic_id in self.gone

    async def call(self, to: Address, method: str, request: Any, *, timeout_ms: int) -> Any:
        self.calls.append((method, request))
        await asyncio.sleep(0)
        answer = (
            self.markers(request)
            if method == "participant.write_markers"
            else self.offsets(request)
        )
        return await answer if asyncio.iscoroutine(answer) else answer

    def lead(self, partition: PartitionId) -> LedReplica:
        if partition != self._replica.partition:
            raise NotLeader("another process leads it", leader_host="elsewhere")
        return self._replica

    def led(self) -> list[LedReplica]:
        return [self._replica]

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        self.counted[name] = self.counted.get(name, 0) + value

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.counted[name] = value
        self.labels[name] = labels

    def observe(self, name: str, value_ms: float, **labels: str) -> None:
        self.counted[name] = self.counted.get(name, 0) + 1

    def replace(
        self, name: str, whose: str, rows: Iterable[tuple[Mapping[str, str], float]]
    ) -> None: ...

    def forget(self, label: str, value: str) -> None:
        pass

    def event(self, event: str, **fields: object) -> None:
        self.events.append(event)


class FakeCall:
    """The Call port."""

    identity = ""
    peer = ""
    refused: Mapping[int, OncelogError] = {}

    def __init__(self, *, timeout_ms: int = 60_000, stream_id: int = 0) -> None:
        self.timeout_ms = timeout_ms
        self.stream_id = stream_id
        self.ends: list[Callable[[], None]] = []

    def not_yours(self, owner: str, producer: str) -> OncelogError | None:
        return None

    def sees(self, need: object) -> bool:
        return True

    def on_stream_end(self, callback: Callable[[], None]) -> None:
        self.ends.append(callback)


class Coordinator:
    """One led journal partition with its service and outbox. Make it inside a running loop."""

    def __init__(self, group: str = "g", config: CoordinatorConfig | None = None) -> None:
        config = config or CoordinatorConfig()
        partition = control_partition(TRANSACTION_CONTROL_ID, group)
        self.role = CoordinatorRole(config)
        self.slots = MemorySlots()
        outcomes = self.role.projection(partition, lambda name, slot_bytes: self.slots)
        assert isinstance(outcomes, Outcomes)
        host = MachineHost(lambda: self.role.machine(partition), self.role.codec, outcomes)
        self.replica = LedReplica(host, partition)
        self.around = Surroundings(self.replica)
        around: Any = self.around
        replica: Any = self.replica
        self.env = RoleEnv(around, around, around, around, around, around, lambda n: b"r" * n)
        self.outbox = self.role.outbox(replica, self.env)
        self.replica.outbox = self.outbox
        self.service: Any = self.role.services(self.env)["Coordinator"]

    @property
    def state(self) -> CoordinatorState:
        machine: Any = self.replica.host.machine
        state: CoordinatorState = machine.state
        return state

    async def step_down(self) -> None:
        self.replica.leads = False
        await self.outbox.stop()


def apply_all(request: participant_pb.WriteMarkersRequest) -> participant_pb.WriteMarkersReply:
    """Participants that take everything."""
    return participant_pb.WriteMarkersReply(
        groups=[
            participant_pb.MarkerGroupResult(
                results=[
                    participant_pb.MarkerResult(
                        tx_id=marker.tx_id, status=participant_pb.MarkerResult.STATUS_APPLIED
                    )
                    for marker in group.markers
                ]
            )
            for group in request.groups
        ]
    )


def accept_all(
    request: offsets_pb.CommitTransactionOffsetsRequest,
) -> offsets_pb.CommitTransactionOffsetsReply:
    """An offset manager that says yes."""
    return offsets_pb.CommitTransactionOffsetsReply()


def offsets_partition(number: int) -> PartitionId:
    return PartitionId(CONSUMER_OFFSETS_ID, number)


async def until(happened: Callable[[], bool]) -> None:
    """Lets the loop run; the pauses of the outbox are real and short."""
    for _ in range(2_000):
        if happened():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen")
