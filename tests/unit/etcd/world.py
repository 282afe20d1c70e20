"""Several nodes over one in-memory etcd, on a loop whose time is a variable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from oncelog_server.core.ids import BootId, PartitionId
from oncelog_server.core.machine import Instant
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.keys import CLUSTER, BootValue, ClusterValue, encode
from oncelog_server.runtime.etcd.memory import MemoryEtcd, MemoryEtcdServer
from oncelog_server.runtime.etcd.port import Put
from oncelog_server.runtime.etcd.topics import EtcdTopics
from oncelog_server.runtime.leadership.election import Elections
from oncelog_server.runtime.leadership.lease import Membership
from oncelog_server.runtime.target import Candidate, Follow, Isr, Lead, Leave, StandBy, Target
from tests.simulation.virtual_time import VirtualTimeLoop, run

LEASE_MS = 5_000
CLUSTER_RECORD = ClusterValue((b"c" * 16).hex(), 16, 16, 1, LEASE_MS)
T = TypeVar("T")


def loop_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


class LoopClock:
    def now(self) -> Instant:
        return Instant(loop_ms(), loop_ms())


class Log:
    """The Reporter port: events as (name, fields)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def count(self, name: str, value: float = 1, **labels: str) -> None: ...

    def gauge(self, name: str, value: float, **labels: str) -> None: ...

    def observe(self, name: str, value_ms: float, **labels: str) -> None: ...

    def replace(
        self, name: str, whose: str, rows: Iterable[tuple[Mapping[str, str], float]]
    ) -> None: ...

    def forget(self, label: str, value: str) -> None: ...

    def event(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


class Host:
    """Where Elections want replicas, in order of what they say. `candidates` may be edited by a
    test; what a replica is told first is to stand by, and is not kept."""

    def __init__(self, node_id: str) -> None:
        self.told: list[tuple[str, PartitionId, int]] = []
        self.default = Candidate(node_id.encode().ljust(16, b"."), 0)
        self.candidates: dict[PartitionId, Candidate | None] = {}
        self.targets: dict[PartitionId, Target] = {}
        # By partition and epoch, what was said of who is in sync.
        self.isrs: dict[tuple[PartitionId, int], list[Isr]] = {}

    def aim(self, partition: PartitionId, target: Target) -> None:
        before = self.targets.get(partition, StandBy())
        self.targets[partition] = target
        match target:
            case Lead(epoch=epoch):
                self.told.append(("elected", partition, epoch))
            case Follow():
                self.told.append(("follows", partition, target.epoch))
            case Leave():
                self.told.append(("deleted", partition, 0))
            case _ if before != target:
                self.told.append(("deposed", partition, 0))

    def isr_seen(self, partition: PartitionId, epoch: int, isr: Isr) -> None:
        self.isrs.setdefault((partition, epoch), []).append(isr)

    def candidate(self, partition: PartitionId) -> Candidate | None:
        return self.candidates.get(partition, self.default)

    async def opened(self, partition: PartitionId) -> Candidate:
        candidate = self.candidate(partition)
        assert candidate is not None
        return candidate


class Node:
    """One process: everything that it has of etcd."""

    def __init__(self, server: MemoryEtcdServer, node_id: str, boot: str, *roles: str) -> None:
        self.etcd = MemoryEtcd(server)
        self.log = Log()
        self.host = Host(node_id)
        self.refused: list[BaseException] = []
        self.view = ClusterView(self.etcd, cluster_id=b"c" * 16, on_fatal=self.refused.append)
        self.membership = Membership(
            self.etcd,
            boot_id=BootId(boot.encode().ljust(16, b".")),
            node=BootValue(node_id, "localhost", 7401, roles or ("partition_leader",), "0.1"),
            lease_ms=LEASE_MS,
            reporter=self.log,
            now_ms=loop_ms,
        )
        self.elections = Elections(
            self.etcd,
            self.view,
            self.membership,
            host=self.host,
            reporter=self.log,
            on_fatal=self.refused.append,
        )
        self._drawn = 0
        self.topics = EtcdTopics(
            self.etcd,
            self.view,
            lease=lambda: self.membership.lease,
            clock=LoopClock(),
            random_bytes=self._draw,
        )

    async def start(self, *, previous: BootId | None = None, elections: bool = True) -> Node:
        await self.view.start()
        await self.membership.start(previous_boot_id=previous)
        boot_id = self.membership.boot_id
        await self.view.wait_for(
            lambda view: any(node.boot_id == boot_id for node in view.nodes()), timeout_ms=1_000
        )
        if elections:
            await self.elections.start()
        return self

    async def crash(self) -> None:
        """kill -9: nothing is said to etcd."""
        self.etcd.unavailable = True
        await self.elections.stop()
        await self.membership.stop()
        await self.view.stop()

    async def stop(self) -> None:
        await self.elections.stop()
        await self.membership.stop()
        await self.view.stop()

    def leads(self, partition: PartitionId) -> int:
        """The epoch, 0 for none."""
        return self.elections.led_epoch(partition)

    def _draw(self, size: int) -> bytes:
        self._drawn += 1
        return f"{self.membership.node.node_id}-{self._drawn}".encode().ljust(size, b"r")


class World:
    """One store and its nodes; `run` stops what a test left running."""

    def __init__(self) -> None:
        self.server = MemoryEtcdServer()
        self.nodes: list[Node] = []

    def found(self) -> None:
        """The cluster, as the first process does that joins."""
        self.server.txn([], [Put(CLUSTER, encode(CLUSTER_RECORD))])

    def node(self, node_id: str, *roles: str, boot: str = "") -> Node:
        if not self.nodes:
            self.found()
        node = Node(self.server, node_id, boot or f"{node_id}-{len(self.nodes)}", *roles)
        self.nodes.append(node)
        return node

    def run(self, story: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def with_end() -> T:
            try:
                async with asyncio.timeout(3_600):
                    return await story()
            finally:
                for node in self.nodes:
                    await node.crash()
                self.server.close()

        return run(with_end(), VirtualTimeLoop())

    @staticmethod
    async def until(predicate: Callable[[], object], *, within_ms: int = 30_000) -> None:
        """Lets time pass until the predicate holds."""
        end = loop_ms() + within_ms
        while not predicate():
            assert loop_ms() < end, "it did not come about"
            await asyncio.sleep(0.01)
