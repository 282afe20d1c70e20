"""One process of partition leaders in memory: the ports that its handlers and outboxes are given.

A FakeReplica runs the real machine over a list of frames; its high watermark follows at once, or
stays while `hold` is set, and moves by `sync`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oncelog_server.core.block import Block
from oncelog_server.core.frame import At, Frame, FrameKind, StoredFrame
from oncelog_server.core.ids import (
    TRANSACTION_CONTROL_ID,
    BootId,
    JournalOffset,
    LeaderEpoch,
    PartitionId,
    TopicId,
)
from oncelog_server.core.machine import EpochStart, Instant
from oncelog_server.core.ports import Address, NodeInfo, PartitionInfo, TopicInfo
from oncelog_server.core.role import RoleEnv
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.partition_leader.records import PartitionCodec
from oncelogpb.errors import (
    CorruptLog,
    DiskFull,
    NotLeader,
    OffsetOutOfRange,
    OncelogError,
    TopicExists,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from tests.golden.unchanged import decide, look_at
from tests.unit.partition_leader.settled import settle

TOPIC = TopicInfo("payments", TopicId(b"t" * 16), 2, 1, {}, 0)
FIRST = PartitionId(TOPIC.topic_id, 0)
SECOND = PartitionId(TOPIC.topic_id, 1)
BOOT = BootId(b"b" * 16)
LEADER = Address("node", BOOT, "127.0.0.1", 7401, 1)
WALL_MS = 1_767_225_600_000


class ManualClock:
    """The Clock port; moved by tests."""

    def __init__(self) -> None:
        self.monotonic_ms = 0

    def now(self) -> Instant:
        return Instant(self.monotonic_ms, WALL_MS + self.monotonic_ms)


class FakeReplica:
    """The Replica port."""

    def __init__(self, partition: PartitionId, config: PartitionLeaderConfig, clock: ManualClock):
        self.partition = partition
        self.machine = PartitionMachine(config)
        self.epoch = LeaderEpoch(1)
        self.high_watermark = JournalOffset(0)
        self.log_start = JournalOffset(0)
        self.hold = False
        self.full = False
        self.lease_valid = True
        self.frames: list[StoredFrame] = []
        self.reads = 0
        self.unreadable_for: list[str] = []
        # What is settled, and offsets whose blocks are damaged.
        self.blocks: list[Block] = []
        self.damaged: set[int] = set()
        # What is superseded below is gone from them.
        self.compacted_to = 0
        self._clock = clock
        self._codec = PartitionCodec()
        self._parked: list[tuple[int, asyncio.Future[Any], object]] = []
        self.watchers: dict[Callable[[], None], None] = {}
        self.is_watched = False
        self._append(Frame(FrameKind.EPOCH_START), EpochStart())
        self.high_watermark = self.log_end

    @property
    def log_end(self) -> JournalOffset:
        return self.frames[-1].end if self.frames else JournalOffset(0)

    def submit(self, command: Any) -> asyncio.Future[Any]:
        decision = decide(self.machine, command, self._clock.now())
        for record in decision.records:
            self._append(self._codec.encode(record), record)
        look_at(self.machine, self.high_watermark)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._parked.append((self.log_end, future, decision.reply))
        if not self.hold:
            asyncio.get_running_loop().call_soon(self.sync)
        return future

    def _append(self, frame: Frame, record: Any) -> None:
        at = At(self.log_end, self.epoch, self._clock.now().wall_ms)
        self.frames.append(StoredFrame(frame, at))
        self.machine.apply(record, at)

    def sync(self, to: int | None = None) -> None:
        self.high_watermark = self.log_end if to is None else JournalOffset(to)
        parked, self._parked = self._parked, []
        for item in parked:
            end, future, reply = item
            if end > self.high_watermark:
                self._parked.append(item)
            elif not future.done():
                if isinstance(reply, OncelogError):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)
        self.is_watched = False
        watchers, self.watchers = self.watchers, {}
        for moved in watchers:
            moved()

    def signal(self, signal: object) -> None:
        self.machine.seen(signal, self._clock.now())

    def require_room(self) -> None:
        if self.full:
            raise DiskFull("full")

    def require_lease(self) -> None:
        if not self.lease_valid:
            raise NotLeader("lease")

    async def read(self, from_offset: int, max_bytes: int, *, below: int) -> Sequence[StoredFrame]:
        self.reads += 1
        await asyncio.sleep(0)
        assert below <= self.high_watermark
        self._require_kept(from_offset)
        found: list[StoredFrame] = []
        for stored in self.frames:
            if stored.end <= from_offset or stored.at.offset >= below:
                continue
            if found and sum(len(one.frame.payload) + 100 for one in found) >= max_bytes:
                break
            found.append(stored)
        return found

    async def read_frames(self, offsets: Sequence[int]) -> Sequence[StoredFrame]:
        await asyncio.sleep(0)
        assert all(offset < self.high_watermark for offset in offsets)
        self._require_kept(min(offsets))
        by_offset: dict[int, StoredFrame] = {stored.at.offset: stored for stored in self.frames}
        return [by_offset[offset] for offset in offsets]

    @property
    def settled_end(self) -> int:
        return self.blocks[-1].end_offset if self.blocks else 0

    async def read_settled(
        self, from_offset: int, max_bytes: int, *, below: int
    ) -> Sequence[Block]:
        await asyncio.sleep(0)
        assert below <= self.settled_end
        begin = self.blocks[0].first_offset
        if from_offset < begin:
            raise OffsetOutOfRange(f"begins at {begin}", start=begin)
        found: list[Block] = []
        for block in self.blocks:
            if not from_offset < block.end_offset <= below:
                continue
            if found and sum(len(one.payload) for one in found) >= max_bytes:
                break
            if self.damaged.intersection(range(block.first_offset, block.end_offset)):
                if found:
                    break
                raise CorruptLog("a block is damaged", file="data", position=0)
            found.append(block)
        return found

    def settle(self) -> None:
        """What is readable now."""
        blocks = settle(self.machine, self.frames, self.settled_end, below=self.high_watermark)
        self.blocks.extend(blocks)

    def unreadable(self, error: CorruptLog) -> OncelogError:
        self.unreadable_for.append(error.reason)
        return error

    def trim(self) -> None:
        """The log goes in front, as far as its machine lets it."""
        self.log_start = self.machine.needed_from()

    def trim_settled(self) -> None:
        """The same, where all that is readable is settled."""
        assert self.settled_end == self.machine.committed.end_offset, "settle first"
        self.log_start = JournalOffset(self.machine.settled().pending_from)

    def _require_kept(self, offset: int) -> None:
        if offset < self.log_start:
            raise OffsetOutOfRange(f"begins at {self.log_start}", start=self.log_start)

    def watch(self, moved: Callable[[], None]) -> Callable[[], object]:
        self.is_watched = True
        self.watchers[moved] = None
        return lambda: self.watchers.pop(moved, None)


class FakeReplicas:
    """The Replicas port."""

    def __init__(self, replicas: Mapping[PartitionId, FakeReplica]) -> None:
        self.replicas = dict(replicas)

    def lead(self, partition: PartitionId) -> FakeReplica:
        if partition.topic_id != TOPIC.topic_id:
            raise UnknownTopic("no such topic")
        if partition.number >= TOPIC.partitions:
            raise UnknownPartition("no such partition")
        if partition not in self.replicas:
            raise NotLeader("elsewhere", leader_host="10.0.0.9", leader_port=7401)
        return self.replicas[partition]

    def led(self) -> Sequence[FakeReplica]:
        return [replica for _, replica in sorted(self.replicas.items())]


@dataclass
class FakeMetadata:
    """The ClusterMetadata port."""

    cluster_id: bytes = b"c" * 16
    by_name: dict[str, TopicInfo] = field(default_factory=lambda: {TOPIC.name: TOPIC})
    coordinators: dict[int, Address] = field(default_factory=dict)
    gone_ids: set[bytes] = field(default_factory=set)
    etcd_reachable: bool = True

    def leader_of(self, partition: PartitionId) -> Address | None:
        if partition.topic_id == TRANSACTION_CONTROL_ID:
            return self.coordinators.get(partition.number)
        return LEADER

    def topic(self, name: str) -> TopicInfo | None:
        return self.by_name.get(name)

    def topic_by_id(self, topic_id: TopicId) -> TopicInfo | None:
        return next((t for t in self.by_name.values() if t.topic_id == topic_id), None)

    def topics(self) -> Sequence[TopicInfo]:
        return [self.by_name[name] for name in sorted(self.by_name) if not name.startswith("__")]

    def partition(self, partition: PartitionId) -> PartitionInfo | None:
        return PartitionInfo(partition, ["node"], ["ab"], LEADER, 1)

    def nodes(self) -> Sequence[NodeInfo]:
        return []

    async def is_gone(self, topic_id: TopicId) -> bool:
        if not self.etcd_reachable:
            raise Unavailable("etcd does not answer")
        return topic_id in self.gone_ids

    async def gone(self, topic_ids: Collection[TopicId], *, timeout_ms: int) -> set[TopicId]:
        return set(topic_ids) & self.gone_ids if self.etcd_reachable else set()

    async def exists(self, partition: PartitionId) -> bool:
        topic = self.topic_by_id(partition.topic_id)
        return topic is not None and partition.number < topic.partitions

    def etcd_status(self) -> tuple[int, bool]:
        return 1, True


class FakeTopics:
    """The TopicStore port."""

    def __init__(self, metadata: FakeMetadata) -> None:
        self._metadata = metadata

    async def create(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> TopicInfo:
        if name in self._metadata.by_name:
            raise TopicExists(name)
        topic_id = TopicId(name.encode().ljust(16, b"."))
        topic = TopicInfo(name, topic_id, partitions, replication_factor, dict(configs), 0)
        self._metadata.by_name[name] = topic
        return topic

    async def alter(
        self, name: str, configs: Mapping[str, str], *, partitions: int = 0
    ) -> TopicInfo:
        found = self._metadata.by_name.get(name)
        if found is None:
            raise UnknownTopic(name)
        merged = {k: v for k, v in {**found.configs, **configs}.items() if v}
        self._metadata.by_name[name] = found._replace(
            configs=merged, partitions=partitions or found.partitions
        )
        return self._metadata.by_name[name]

    async def delete(self, name: str, only: TopicId | None = None) -> TopicId:
        if only not in (None, self._metadata.by_name[name].topic_id):
            raise UnknownTopic(name)
        return self._metadata.by_name.pop(name).topic_id


class FakePeers:
    """The Peers port: `answer` stands for the coordinator."""

    def __init__(self) -> None:
        self.asked: list[tuple[Address, Any]] = []
        self.answer: Callable[[Any], Any] | None = None

    async def call(self, to: Address, method: str, request: Any, *, timeout_ms: int) -> Any:
        assert method == "coordinator.ask_transactions"
        self.asked.append((to, request))
        await asyncio.sleep(0)
        if self.answer is None:
            raise NotLeader("no coordinator")
        return self.answer(request)


class FakeReporter:
    """The Reporter port."""

    def __init__(self) -> None:
        self.counted: dict[str, float] = {}
        self.events: list[str] = []

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        key = name + "".join(f"/{label}" for label in labels.values())
        self.counted[key] = self.counted.get(key, 0) + value

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.counted[name] = value

    def observe(self, name: str, value_ms: float, **labels: str) -> None:
        pass

    def replace(
        self, name: str, whose: str, rows: Iterable[tuple[Mapping[str, str], float]]
    ) -> None: ...

    def forget(self, label: str, value: str) -> None:
        pass

    def event(self, event: str, **fields: object) -> None:
        self.events.append(event)


@dataclass
class FakeCall:
    """The Call port."""

    timeout_ms: int = 30_000
    identity: str = ""
    peer: str = ""
    stream_id: int = 0
    refused: Mapping[int, OncelogError] = field(default_factory=dict)

    def not_yours(self, owner: str, producer: str) -> OncelogError | None:
        return None

    def sees(self, need: object) -> bool:
        return True

    def on_stream_end(self, callback: Callable[[], None]) -> None:
        pass

    async def room(self, size: int) -> None:
        pass

    def has_room(self, size: int) -> bool:
        return True

    def room_left(self) -> int:
        return 1 << 30

    def holds(self, size: int) -> None:
        pass


class World:
    """Everything, wired."""

    def __init__(self, config: PartitionLeaderConfig | None = None) -> None:
        self.config = config or PartitionLeaderConfig()
        self.clock = ManualClock()
        self.replicas = FakeReplicas(
            {id_: FakeReplica(id_, self.config, self.clock) for id_ in (FIRST, SECOND)}
        )
        self.metadata = FakeMetadata()
        self.peers = FakePeers()
        self.reporter = FakeReporter()
        self.env = RoleEnv(
            clock=self.clock,
            metadata=self.metadata,
            topics=FakeTopics(self.metadata),
            peers=self.peers,
            replicas=self.replicas,
            reporter=self.reporter,
            random_bytes=bytes,
        )

    @property
    def first(self) -> FakeReplica:
        return self.replicas.replicas[FIRST]

    @property
    def second(self) -> FakeReplica:
        return self.replicas.replicas[SECOND]
