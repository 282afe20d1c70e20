"""A simulated day: what its applications share, and how their lives go.

An application's *life* is one run of it, with a client of its own: it ends by itself, by an error
that its program would not survive, or because its process dies. Then the next one begins.

What they ask and are told is in one history. What only an application can judge, it asserts.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias

from oncelog.aio.log import Log
from oncelog.batch import Record
from oncelog.checker import HistoryWriter
from oncelog.checker.recorder import RecordedLog
from oncelog.options import ConnectOptions
from oncelog.protocol import AsyncProtocol
from oncelog_server.core.roles import ROLES
from oncelog_server.runtime.clock import SLEW
from oncelogpb import errors
from tests.simulation.callers import SimTransport
from tests.simulation.fates import Fates
from tests.simulation.machines import role_of_name
from tests.simulation.plan import Plan
from tests.simulation.world import World

SUCCESSES_AFTER_HEALING: Final = 2
CALL_TIMEOUT_MS: Final = 8_000
DELIVERY_TIMEOUT_MS: Final = 6_000
TRANSACTION_TIMEOUT_MS: Final = 4_000
# After so many pauses of a day, further ones are of these seconds.
HASTY_PAUSES: Final = 400
UNHURRIED_PAUSES_S: Final = (0.1, 0.5)
# Who reads all that there is hears nothing for so long at the end, seconds.
SILENT_S: Final = 1.0
# Those whose group is forgotten where they rest.
RESTLESS: Final = frozenset({"quiet"})
# Those with a life that asks again for as long as it takes: it would look for ever for processes
# whose addresses are of yesterday.
PATIENT: Final = frozenset({"quiet", "gardener", "forger"})
# Those whose clocks may run fast or slow.
DRIFTING: Final = frozenset({"crew", "plain crew", "unit crew"})
# Of a topic that keeps its records for the longest: what a clock that jumps adds to their age.
AGE_STEP_MS: Final = 4_000 // 16
# Between two lives, seconds.
REBIRTH_S: Final = (0.05, 0.8)


class Client(NamedTuple):
    """The process of an application."""

    # Who owns its tasks, in the world.
    name: str
    log: RecordedLog
    transport: SimTransport


Life: TypeAlias = Callable[["Day", RecordedLog], Awaitable[None]]


class Day:
    """One run. `successes` counts by application, since the last healing."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.spice = plan.spice
        self.random = random.Random(world.random.randrange(1 << 30))
        self.history = HistoryWriter(now_us=lambda: round(world.loop.now_s * 1e6))
        # Chance of each fate of a client's call, now.
        self.network_trouble = 0.0
        self.healed = False
        self.stopping = False
        self.successes: Counter[str] = Counter()
        # Whose offsets are read at the end: topics by group.
        self.groups: dict[str, list[str]] = {}
        self.known_tx_ids: list[int] = []
        # Those whose processes run, in order of their start.
        self.clients: dict[str, Client] = {}
        self._clients_made = 0
        # Where each process listens, or listened last, and which process had which port.
        self._ports: dict[str, int] = {}
        self._names_by_port: dict[int, str] = {}
        self._pauses = 0
        # Topics that are in no history: their applications judge themselves.
        self.unrecorded: set[str] = set()
        # What applications judge at the end, when all is read.
        self.judges: list[Life] = []
        # What a reader was given of all topics, when all were gone.
        self.seen: list[Record] = []

    # --------------------------------------------------------------------------- its first and last

    async def create_topics(self) -> None:
        client = self.connect()
        for name, partitions in self.plan.partitions.items():
            configs = self.plan.configs.get(name)
            await client.log.admin.create_topic(
                name,
                partitions,
                replication_factor=self.plan.replicas_of_topic(name),
                configs=configs,
            )
        await client.log.close()

    async def read_everything(self) -> None:
        """When all are gone: what is there for ever."""
        client = self.connect()
        await client.log.settle()
        topics = [name for name in self.plan.partitions if name not in self.unrecorded]
        self.seen = await client.log.read_everything(topics)
        # Its positions are those of the journal, whose last ones may be no records: it ends where
        # nothing comes. Retention may delete what it is about to read.
        uncommitted = await client.log.consumer(
            topics, isolation="uncommitted", if_deleted="earliest"
        )
        while await uncommitted.poll(SILENT_S) is not None:
            pass
        for group, read in self.groups.items():
            await client.log.stable_offsets(group, read)
        for judge in self.judges:
            await judge(self, client.log)
        await client.log.close()

    def clocks(self) -> dict[str, float]:
        """How far ages that services measured can be from real time: a wall clock that jumps is
        followed at twice its pace, and each start of a process believes it one step more."""
        if "wall clock" not in self.plan.faults:
            return {"faster": max(self.plan.paces) - 1 + 0.001, "leap_ms": 2}
        return {"faster": SLEW - 1 + 0.02, "leap_ms": self.world.runs * AGE_STEP_MS}

    # ------------------------------------------------------------------------------------- clients

    def connect(self, application: str = "") -> Client:
        """A process with a client. What it does runs as its own: it can die."""
        self._clients_made += 1
        name = f"client-{self._clients_made}"
        chance = random.Random(self.random.randrange(1 << 30))
        if application in DRIFTING:
            self.world.loop.set_pace(name, chance.choice(self.plan.paces))
        # Addresses are names, or each is of one run of a process, and a client that knows none of
        # the runs of today has to connect anew.
        are_names = chance.random() < 0.5 or application in PATIENT
        find = self.port_now if are_names else int
        transport = SimTransport(
            self.world.network,
            caller=name,
            fates=Fates(chance, lambda: self.network_trouble),
            find=find,
        )
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in self._known_ports(chance))
        options = ConnectOptions(timeout_ms=CALL_TIMEOUT_MS)
        protocol = AsyncProtocol(
            bootstrap,
            options,
            transport=transport,
            chance=chance.random,
            entropy=chance.randbytes,
            wall_ns=lambda: self.world.loop.now().wall_ms * 1_000_000,
        )
        # A name is of whoever has the role now: it tells no two leaders apart.
        leader_name: Callable[[Any], str | None] = str if find is int else lambda _: None
        recorded = RecordedLog(
            Log(bootstrap, options, protocol=protocol), self.history, leader_name=leader_name
        )
        return Client(name, recorded, transport)

    def port_now(self, port: int) -> int:
        """Where the process that once listened at this port listens now."""
        for name, process in self.world.processes.items():
            # One that starts does not listen yet: its predecessor's is told until it does.
            if process.node.port:
                self._ports[name] = process.node.port
                self._names_by_port[process.node.port] = name
        return self._ports.get(self._names_by_port.get(port, ""), port)

    def _known_ports(self, chance: random.Random) -> list[int]:
        """What a program is told to begin with: all processes, or one of each role."""
        self.port_now(0)
        names = list(self._ports)
        if chance.random() < 0.5:
            names = [
                chance.choice([name for name in names if role_of_name(name) == role])
                for role in ROLES
            ]
        return [self._ports[name] for name in names]

    async def kill(self, client: Client) -> None:
        """Its process ends, from one step to the next; what it tries from now on reaches nobody,
        what it sent may arrive still."""
        self.world.say(f"-- {client.name} is killed")
        self.clients.pop(client.name, None)
        self.world.loop.stop_owner(client.name)
        client.transport.die()
        await self.world.bury(client.name)

    # --------------------------------------------------------------------------------------- lives

    async def forever(self, name: str, life: Life) -> None:
        """One life after the other, until the end of the day."""
        while self.goes_on(name):
            await self.live(name, life)
            await asyncio.sleep(self.random.uniform(*REBIRTH_S))

    async def live(self, name: str, life: Life) -> None:
        client = self.connect(name)
        self.clients[client.name] = client
        self.world.say(f"{client.name} is a {name}")
        try:
            await self.world.run_as(client.name, self._live(name, life, client.log))
        except asyncio.CancelledError:
            if client.name in self.clients:
                raise
        finally:
            self.clients.pop(client.name, None)

    async def _live(self, name: str, life: Life, log: RecordedLog) -> None:
        try:
            await life(self, log)
        except errors.OncelogError as error:
            self.world.say(f"{name}: {error.reason} {error.message}")
        try:
            await log.close()
        except errors.OncelogError as error:
            self.world.say(f"{name}: close: {error.reason}")

    def goes_on(self, name: str) -> bool:
        """False when the day ends, or after healing, where this application may rest."""
        may_rest = self.plan.rests and self.healed and name not in RESTLESS
        return not self.stopping and not (may_rest and self.is_well(name))

    def is_well(self, name: str) -> bool:
        return self.successes[name] >= SUCCESSES_AFTER_HEALING

    def succeeded(self, name: str) -> None:
        self.successes[name] += 1
        self.world.marks.add("application", name)

    # ----------------------------------------------------------------------- what applications use

    def partition(self, topic: str) -> int:
        """One of them."""
        return self.random.randrange(self.plan.partitions[topic])

    def value(self, prefix: str) -> bytes:
        """A record's: unique, for it is its id in the history."""
        return self.history.fresh(prefix).encode()

    def happens(self, chance: float) -> bool:
        return self.random.random() < chance

    def is_tired(self) -> bool:
        """Its life ends here."""
        return self.happens(self.spice.tired)

    async def pause(self) -> None:
        """Between two actions. After enough of them there is less haste: a day must not take
        long."""
        self._pauses += 1
        pauses = self.spice.pauses if self._pauses < HASTY_PAUSES else UNHURRIED_PAUSES_S
        await asyncio.sleep(self.random.choice(pauses))

    def producer_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"delivery_timeout_ms": DELIVERY_TIMEOUT_MS}
        if self.happens(self.spice.cramped):
            options["batch_bytes"] = 1_024
            options["buffer_bytes_max"] = self.random.choice([1_024, 4_096, 65_536])
        return options

    def transactional_options(self) -> dict[str, Any]:
        return {**self.producer_options(), "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS}

    def group(self, name: str, *topics: str) -> str:
        """Of a consumer; it is read at the end."""
        known = self.groups.setdefault(name, [])
        known += [topic for topic in topics if topic not in known]
        return name
