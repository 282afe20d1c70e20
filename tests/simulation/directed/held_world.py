"""The world of a stage: processes whose view of etcd, elections, disks and blocking work a story
may hold up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from oncelog_server.core.roles import ROLES
from oncelog_server.runtime.etcd.keys import PARTITIONS, decode_partition
from oncelog_server.runtime.etcd.memory import MemoryEtcd
from oncelog_server.runtime.etcd.port import (
    Compare,
    Delete,
    DeletePrefix,
    Exists,
    KeyValue,
    Put,
    TxnResult,
)
from tests.simulation.machines import Machine
from tests.simulation.virtual_time import VirtualTimeLoop
from tests.simulation.world import Cluster, World

# Processes of each role, and replicas of everything.
REPLICAS: Final = 3


class StageEtcd(MemoryEtcd):
    """A session that may be kept from winning elections."""

    barred = False
    # What a reader of everything is shown first: a member of etcd that is behind; and what was
    # written since is told by the watch, once `stale` is False again.
    view: tuple[list[KeyValue], int] | None = None

    def listing(self) -> tuple[list[KeyValue], int]:
        """Everything, as of now."""
        return self.server.range(""), self.server.revision

    async def range(self, prefix: str) -> tuple[list[KeyValue], int]:
        if prefix == "" and self.view is not None:
            return self.view
        return await super().range(prefix)

    async def txn(
        self, compares: Sequence[Compare | Exists], then: Sequence[Put | Delete | DeletePrefix]
    ) -> TxnResult:
        if self.barred and any(self._elects(op) for op in then):
            # As if somebody had changed the key.
            return TxnResult(False, self.server.revision)
        return await super().txn(compares, then)

    def _elects(self, op: Put | Delete | DeletePrefix) -> bool:
        if not isinstance(op, Put) or not op.key.startswith(PARTITIONS):
            return False
        before = self.server.get(op.key)
        new = decode_partition(op.value)
        return before is not None and new.epoch > decode_partition(before.value).epoch


class StageWorld(World):
    """Blocking work of processes may be held up."""

    def __init__(self, seed: int, loop: VirtualTimeLoop, settings: Sequence[str]) -> None:
        nodes = dict.fromkeys(ROLES, REPLICAS)
        super().__init__(seed, loop, settings, Cluster(nodes=nodes, rollout="together"))
        # Who wins no election, by name.
        self.barred: set[str] = set()
        # What the next run of a process takes for everything that etcd has.
        self.views: dict[str, tuple[list[KeyValue], int]] = {}
        # Whose next run finds a disk that hangs.
        self.held: set[str] = set()
        # Set: blocking work is done at once.
        self.gate = asyncio.Event()
        self.gate.set()

    def connect_to_etcd(self, name: str) -> StageEtcd:
        session = StageEtcd(self.etcd)
        session.barred = name in self.barred
        session.view = self.views.pop(name, None)
        session.stale = session.view is not None
        return session

    def _machine(self, name: str) -> Machine:
        machine = super()._machine(name)
        if name in self.held:
            self.held.discard(name)
            machine.disk.hold_commits()
        return machine

    async def offload(self, work: Callable[[], None]) -> None:
        await self.gate.wait()
        work()
