"""Processes of all roles, one etcd and clients on a virtual-time loop, from one seed.

The drivers, machines, journals, elections and the client are the real ones; disk, network, etcd,
clock and chance are fakes. A process can lose power: its tasks end, its unsynced bytes are gone,
its connections break, and its lease runs out unless it is started again. It can be killed, which
leaves its bytes in the page cache, and stopped, which leaves it everything but time.

A process is called by its role and a number (`coordinator-2`, see `machines`). Marks are by role.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from oncelog.aio.log import Log
from oncelog.options import ConnectOptions
from oncelog.protocol import AsyncProtocol
from oncelog_server.cli.compose import cluster_handler, limits_of, make_roles
from oncelog_server.cli.settings import ServeSettings
from oncelog_server.core.role import at_once
from oncelog_server.core.roles import ROLES
from oncelog_server.runtime.etcd.memory import MemoryEtcd, MemoryEtcdServer
from oncelog_server.runtime.etcd.port import (
    Compare,
    Delete,
    DeletePrefix,
    EtcdUnavailable,
    Exists,
    Put,
    TxnResult,
)
from oncelog_server.runtime.failpoint_ports import with_failpoints
from oncelog_server.runtime.node import Node
from oncelog_server.runtime.outside import Outside
from tests.simulation.callers import SimPeers, SimTransport
from tests.simulation.commits import Commits
from tests.simulation.copies import Copies
from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.fates import Fates
from tests.simulation.machines import Machine, names_of, role_of_name
from tests.simulation.marks import Marks
from tests.simulation.moments import CLOCK_DRIFTED, Moments
from tests.simulation.network import Network
from tests.simulation.virtual_time import VirtualTimeLoop

SETTINGS = (
    "node.segment_bytes=262144",
    "node.disk_free_floor_bytes=0",
    # Metrics are of no interest here.
    "offset_manager.lag_every_ms=0",
)
READY_TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Cluster:
    """Which machines there are, and how they are."""

    # By role; one where nothing is said.
    nodes: Mapping[str, int] = field(default_factory=dict)
    # What the pace of a machine's clock is chosen of.
    paces: tuple[float, ...] = (1.0,)
    # How far away etcd is, each way.
    etcd_ms: float = 0.0
    # How it is started: "together" or "one by one".
    rollout: str = "one by one"
    # Of each control partition, or as many as its role has nodes.
    control_replicas: int = 1
    min_insync_replicas: int = 2


SMALLEST: Final = Cluster()


class Died(asyncio.CancelledError):
    """Ends the step in which a process died. Nothing of the process is there to see it."""


_owner: contextvars.ContextVar[str] = contextvars.ContextVar("owner", default="world")


@dataclass
class Process:
    """One run of one process."""

    name: str
    role: str
    # Who owns its tasks: this run, and no other.
    owner: str
    node: Node
    etcd: MemoryEtcd
    machine: Machine

    @property
    def disk(self) -> FakeDisk:
        return self.machine.disk


class World:
    """See the module. `trace` holds one line per thing that happened."""

    def __init__(
        self,
        seed: int,
        loop: VirtualTimeLoop,
        settings: Sequence[str] = (),
        cluster: Cluster = SMALLEST,
    ) -> None:
        self.loop = loop
        self.cluster = cluster
        # Of all processes, in the order in which they start.
        self.names = names_of(cluster.nodes)
        self.trace: list[str] = []
        self.random = random.Random(seed)
        self.etcd = MemoryEtcdServer()
        self.marks = Marks()
        self.network = Network(self.random.randrange(1 << 30), self.say, self.marks)
        # Chance of each fate of a call between processes, now.
        self.peer_trouble = 0.0
        # By name, of the newest run of each.
        self.processes: dict[str, Process] = {}
        self.machines: dict[str, Machine] = {}
        self.moments = Moments(self)
        self.copies = Copies(self)
        self.commits = Commits(self)
        # Processes that were started.
        self.runs = 0
        # By owner, in order of creation: a set would cancel in the order of addresses.
        self._tasks: dict[str, dict[asyncio.Task[Any], None]] = {}
        # Tasks of the dead that ended after them.
        # Owners whose processes fell.
        self._fallen: set[str] = set()
        self._dead: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._settings = {role: self._settings_of(role, settings) for role in ROLES}
        loop.owner_of = lambda context: context.get(_owner, "world")
        loop.current_owner = _owner.get
        loop.set_task_factory(self._make_task)

    def _settings_of(self, role: str, settings: Sequence[str]) -> ServeSettings:
        replicas = min(self.cluster.control_replicas, self.cluster.nodes.get(role, 1))
        replication = (
            f"node.control_replication_factor={replicas}",
            f"node.min_insync_replicas={self.cluster.min_insync_replicas}",
        )
        return ServeSettings.make(ROLES, pairs=[*SETTINGS, *replication, *settings])

    # -------------------------------------------------------------------------------- what happens

    def say(self, line: str) -> None:
        self.trace.append(f"{self.loop.now_s * 1000:9.3f} {line}")

    async def start(self, name: str) -> None:
        """Starts a process on what its predecessor left, or on an empty disk."""
        machine = self._machine(name)
        etcd = self.connect_to_etcd(name)
        self.runs += 1
        owner = f"{name}#{self.runs}"
        self.loop.set_pace(owner, machine.pace)
        role, clock = role_of_name(name), machine.clock()
        settings = self._settings[role]
        tracer = Tracer(name, self)
        peers = SimPeers(self.network, name, self._fates())
        node = Node(
            make_roles([role], settings.loaded),
            with_failpoints(
                Outside(
                    disk=machine.disk,
                    etcd=etcd,
                    clock=clock,
                    peers=peers,
                    streams=peers,
                    listener=_SimListener(self.network, owner),
                    reporter=tracer,
                    role_reporter=lambda _: tracer,
                    random_bytes=self.random.randbytes,
                    offload=self.offload,
                )
            ),
            limits_of(settings.node),
            cluster_handler((), clock),
        )
        self.processes[name] = Process(name, role, owner, node, etcd, machine)
        await self.run_as(owner, node.start())

    def connect_to_etcd(self, name: str) -> MemoryEtcd:
        """A session of a process that starts."""
        return SimEtcd(self)

    async def offload(self, work: Callable[[], None]) -> None:
        """What processes do with blocking work."""
        await at_once(work)

    def _machine(self, name: str) -> Machine:
        """As its next process finds it."""
        machine = self.machines.get(name)
        if machine is None:
            disk = FakeDisk(seed=self.random.randrange(1 << 30))
            pace = self.random.choice(self.cluster.paces)
            if pace != 1.0:
                self.moments.add(CLOCK_DRIFTED)
            machine = self.machines[name] = Machine(self.loop, disk, pace)
        else:
            machine.disk = machine.disk.reopen()
        return machine

    def _fates(self) -> Fates:
        return Fates(random.Random(self.random.randrange(1 << 30)), lambda: self.peer_trouble)

    async def start_all(self) -> None:
        if self.cluster.rollout == "together":
            await asyncio.gather(*(self.start(name) for name in self.names))
        else:
            for name in self.names:
                await self.start(name)
        await self.ready()

    async def ready(self) -> None:
        """Every control partition has a leader that answers, and nobody pauses any more."""
        async with asyncio.timeout(READY_TIMEOUT_SECONDS):
            while self.loop.somebody_pauses or not self._all_lead():
                await asyncio.sleep(0.01)

    def _all_lead(self) -> bool:
        return all(process.node.is_settled() for process in self.processes.values())

    async def lose_power(self, name: str, tear: Tear) -> None:
        """From one moment to the next, nothing of this process runs any more."""
        self.fall(name, tear)
        await self.bury(name)

    def fall(self, name: str, tear: Tear | None) -> None:
        """The process ends in this very step, by a loss of power or, without a tear, by a kill.
        Then `bury` it; who calls from inside of it raises Died, so that its step ends here."""
        process = self.processes[name]
        how = "is killed" if tear is None else f"loses power ({tear.name})"
        self.say(f"-- {name} {how}")
        self.copies.look()
        self.moments.falls(name)
        self._fallen.add(process.owner)
        if tear is None:
            process.disk.kill()
        else:
            self.moments.power_lost(process.disk.crash(tear))
        process.etcd.unavailable = True
        self.network.cut(process.node.port)
        self.loop.stop_owner(process.owner)

    async def bury(self, name: str) -> None:
        """Ends what a fallen process, or client, of that name left. What its tasks start while they
        end is as dead; then nothing of it ever runs again."""
        owner = self._owner_of(name)
        tasks = self._cancelled(owner)
        self.loop.resume_owner(owner)
        while tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
            tasks = self._cancelled(owner)
        self.loop.drop_owner(owner)
        self._tasks.pop(owner, None)

    def _cancelled(self, owner: str) -> list[asyncio.Task[Any]]:
        tasks = [task for task in self._tasks.get(owner, ()) if not task.done()]
        self._dead.update(tasks)
        for task in tasks:
            task.cancel()
        return tasks

    def freeze(self, name: str) -> None:
        """SIGSTOP: nothing of its process runs until `thaw`."""
        self.say(f"-- {name} is frozen")
        self.loop.stop_owner(self._owner_of(name))

    def thaw(self, name: str) -> None:
        self.loop.resume_owner(self._owner_of(name))

    def pause(self, name: str, seconds: float) -> None:
        """As `freeze`, by the process itself in the middle of a step. Raises Died where it fell
        meanwhile."""
        owner = self._owner_of(name)
        self.loop.pause(owner, seconds)
        if owner in self._fallen:
            raise Died("while it paused")

    def is_up(self, name: str) -> bool:
        """The process of that name did not fall."""
        return self.processes[name].owner not in self._fallen

    def _owner_of(self, name: str) -> str:
        process = self.processes.get(name)
        return name if process is None else process.owner

    def was_buried(self, task: object) -> bool:
        """A task of a process that had died already: what it meets then is nobody's."""
        return task in self._dead

    @staticmethod
    def caller() -> str:
        """Whose step this is: the name of a process or a client, or "world"."""
        return _owner.get().partition("#")[0]

    async def stop(self, name: str) -> None:
        """SIGTERM, or the end of a process whose node failed."""
        process = self.processes[name]
        await self.run_as(process.owner, process.node.stop())

    async def stop_all(self) -> None:
        for name in reversed(self.names):
            await self.stop(name)

    def check(self) -> None:
        """Every invariant of every machine that leads."""
        for process in self.processes.values():
            for machine in process.node.led_machines():
                machine.check()

    # ------------------------------------------------------------------------------------- clients

    def client(self, **options: Any) -> Log:
        """A client of its own, with chance of its own."""
        chance = random.Random(self.random.randrange(1 << 30))
        bootstrap = ",".join(f"127.0.0.1:{p.node.port}" for p in self.processes.values())
        settings = ConnectOptions(**options)
        protocol = AsyncProtocol(
            bootstrap,
            settings,
            transport=SimTransport(self.network),
            chance=chance.random,
            entropy=chance.randbytes,
            wall_ns=lambda: self.loop.now().wall_ms * 1_000_000,
        )
        return Log(bootstrap, settings, protocol=protocol)

    # ------------------------------------------------------------------------------ who owns a task

    async def run_as(self, owner: str, work: Coroutine[Any, Any, None]) -> None:
        """As a step of this process, and all that comes of it: it ends with its process."""
        context = contextvars.copy_context()
        context.run(_owner.set, owner)
        await asyncio.create_task(work, context=context)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any
    ) -> asyncio.Task[Any]:
        context = options.get("context")
        owner = _owner.get() if context is None else context.get(_owner, "world")
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        owned = self._tasks.setdefault(owner, {})
        owned[task] = None
        task.add_done_callback(lambda done: owned.pop(done, None))
        return task


class _SimListener:
    """The node's Listener on the simulated network. Handlers run as tasks of their process."""

    def __init__(self, network: Network, owner: str) -> None:
        self._network = network
        self._name = owner.partition("#")[0]
        self._context = contextvars.copy_context()
        self._context.run(_owner.set, owner)
        self._port = 0

    async def start(self, handlers: Any) -> tuple[str, int]:
        self._port = self._network.listen(self._name, handlers, self._context)
        return "127.0.0.1", self._port

    async def stop(self) -> None:
        self._network.cut(self._port)


class SimEtcd(MemoryEtcd):
    """A process's etcd: answers that are lost are seen."""

    def __init__(self, world: World) -> None:
        super().__init__(world.etcd, latency_ms=world.cluster.etcd_ms)
        self._moments = world.moments

    async def txn(
        self, compares: Sequence[Compare | Exists], then: Sequence[Put | Delete | DeletePrefix]
    ) -> TxnResult:
        try:
            return await super().txn(compares, then)
        except EtcdUnavailable:
            if not self.unavailable:
                self._moments.unanswered(op for op in then if isinstance(op, Put))
            raise


class Tracer:
    """The Reporter port of a process: events into the trace."""

    def __init__(self, name: str, world: World) -> None:
        self._name = name
        self._world = world

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Not traced."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Not traced."""

    def observe(self, name: str, value_ms: float, **labels: str) -> None:
        """Not traced. What became durable is looked at in this very step."""
        if name == "append":
            self._world.copies.advanced(self._name)
            self._world.commits.look_at(self._name)

    def replace(
        self, name: str, whose: str, rows: Iterable[tuple[Mapping[str, str], float]]
    ) -> None: ...

    def forget(self, label: str, value: str) -> None:
        """Not traced."""

    def event(self, event: str, **fields: object) -> None:
        self._world.marks.add("event", event)
        self._world.moments.reported(self._name, event, fields)
        said = " ".join(f"{key}={value}" for key, value in sorted(fields.items()))
        self._world.say(f"{self._name}: {event} {said}".rstrip())
