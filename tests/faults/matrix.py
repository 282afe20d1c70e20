"""The kill matrix: role x failpoint x what happens there, generated from the table of failpoints.

`Injector` is the hook of the simulated world: it counts every passing, and at one passing of one
failpoint in one role's process it lets the case's fault happen.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from errno import EIO
from typing import Final, NamedTuple

from oncelog_server.core.failpoints import TABLE, Failpoint, Kind, Repeat
from oncelog_server.core.ports import EtcdUnavailable
from oncelogpb.errors import UnknownOutcome
from tests.simulation.disk import Tear
from tests.simulation.world import Died, World

# Longer than the lease of 5 s.
PAUSE_SECONDS: Final = 8.0
# How long the process stays dead, and etcd away: shorter and longer than the lease.
DEAD_SECONDS: Final = (0.05, 7.0)
ETCD_AWAY_SECONDS: Final = (0.5, 8.0)
# When a write that the network held back reaches etcd.
ETCD_HELD_SECONDS: Final = 2.0
# How long a supervisor takes.
RESTART_SECONDS: Final = 0.5
# How often a passing in the middle of the story is chosen, where there is one, in percent.
IN_STORY_PERCENT: Final = 80


class Fault(Enum):
    POWER_LOSS = "power"
    KILL = "kill"
    # SIGSTOP, longer than the lease.
    PAUSE = "pause"
    REPLY_LOST = "lost"
    REQUEST_TWICE = "twice"
    REQUEST_LATE = "late"
    # A write of etcd's is applied and its answer lost, or it is applied later.
    ETCD_REPLY_LOST = "etcd-lost"
    ETCD_WRITE_LATE = "etcd-late"
    # etcd cannot be reached from this process for a while.
    ETCD_AWAY = "etcd-away"
    DISK_ERROR = "eio"


class Case(NamedTuple):
    role: str
    point: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.role}-{self.point}-{self.fault.value}"

    @property
    def seed(self) -> int:
        return zlib.crc32(str(self).encode())


def faults_at(point: Failpoint) -> Iterator[Fault]:
    """All that may happen there."""
    yield from (Fault.POWER_LOSS, Fault.KILL, Fault.PAUSE)
    before = point.name.endswith(".before")
    if point.kind in (Kind.SERVE, Kind.CALL) and not before:
        yield Fault.REPLY_LOST
    if point.kind is Kind.SERVE and before:
        yield from (Fault.REQUEST_TWICE, Fault.REQUEST_LATE)
    if point.kind is Kind.ETCD:
        yield Fault.ETCD_AWAY
        if point.name == "etcd.txn.before":
            yield from (Fault.ETCD_REPLY_LOST, Fault.ETCD_WRITE_LATE)
    if point.kind is Kind.DISK:
        yield Fault.DISK_ERROR


CASES: Final = tuple(
    Case(role, point.name, fault)
    for point in TABLE
    for role in point.roles
    for fault in faults_at(point)
)


class Passings(NamedTuple):
    """Of one failpoint in one role, in a run without faults: all, and those before the story."""

    total: int
    at_start: int


class Strike(NamedTuple):
    """A fault, and at which passing of its failpoint it happens: counted from the start, or from
    the strike before it."""

    case: Case
    passing: int


class Injector:
    """One per run. Lets the strikes of a plan happen one after the other; without one it only
    counts."""

    def __init__(self, world: World, plan: Sequence[Strike] = ()) -> None:
        self.passed: Counter[tuple[str, str]] = Counter()
        self.at_start: Counter[tuple[str, str]] = Counter()
        # Strikes that happened.
        self.struck = 0
        # Roles whose process has fallen and is not up again.
        self._down: set[str] = set()
        self._falls: Counter[str] = Counter()
        self._fell = asyncio.Event()
        self._world = world
        self._plan = plan
        self._left = plan[0].passing if plan else 0
        self._chance = random.Random(sum(strike.case.seed + strike.passing for strike in plan))
        # What goes on after the step is the world's, not the process's.
        self._context = contextvars.copy_context()

    def story_begins(self) -> None:
        self.at_start = Counter(self.passed)

    def __call__(self, name: str) -> Repeat | None:
        role = self._world.caller()
        self.passed[role, name] += 1
        if self.struck == len(self._plan):
            return None
        case = self._plan[self.struck].case
        if (role, name) != (case.role, case.point):
            return None
        self._left -= 1
        if self._left:
            return None
        self.struck += 1
        if self.struck < len(self._plan):
            self._left = self._plan[self.struck].passing
        self._world.say(f"-- {case}")
        return self._happen(role, case.fault)

    def _happen(self, role: str, fault: Fault) -> Repeat | None:
        match fault:
            case Fault.POWER_LOSS | Fault.KILL:
                tear = self._chance.choice(list(Tear)) if fault is Fault.POWER_LOSS else None
                self._world.fall(role, tear)
                self._down.add(role)
                self._falls[role] += 1
                self._fell.set()
                raise Died(fault.value)
            case Fault.PAUSE:
                self._world.pause(role, PAUSE_SECONDS)
            case Fault.REPLY_LOST:
                raise UnknownOutcome("the reply was lost")
            case Fault.REQUEST_TWICE:
                return Repeat.AT_ONCE
            case Fault.REQUEST_LATE:
                return Repeat.LATE
            case Fault.DISK_ERROR:
                raise OSError(EIO, "the disk was told to fail")
            case _:
                self._etcd(role, fault)
        return None

    def _etcd(self, role: str, fault: Fault) -> None:
        etcd = self._world.processes[role].etcd
        if fault is Fault.ETCD_REPLY_LOST:
            etcd.drop_next_txn_reply()
        elif fault is Fault.ETCD_WRITE_LATE:
            etcd.hold_next_txn()
            self._later(ETCD_HELD_SECONDS, etcd.release_held_txns)
        else:
            etcd.unavailable = True
            back = self._chance.uniform(*ETCD_AWAY_SECONDS)
            self._later(back, lambda: setattr(etcd, "unavailable", False))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._world.loop.call_later(seconds, action, context=self._context)

    async def settled(self) -> None:
        """Until every process is up."""
        while self._down:
            await asyncio.sleep(RESTART_SECONDS)

    async def revive(self) -> None:
        """Starts what falls, after a while, as often as it falls."""
        while True:
            await self._fell.wait()
            self._fell.clear()
            for role in sorted(self._down):
                await self._world.bury(role)
                await asyncio.sleep(self._chance.uniform(*DEAD_SECONDS))
                falls = self._falls[role]
                await self.start(role)
                if self._falls[role] == falls:
                    self._down.discard(role)

    async def start(self, role: str) -> None:
        """As an operator's supervisor would: what cannot start is started again. What falls as it
        starts is left to `revive`."""
        falls = self._falls[role]
        while True:
            try:
                await self._world.start(role)
                return
            except (OSError, EtcdUnavailable) as error:
                self._world.say(f"-- {role} did not start: {error}")
                await self._world.stop(role)
            except asyncio.CancelledError:
                if self._falls[role] == falls:
                    raise
                return
            await asyncio.sleep(RESTART_SECONDS)

    async def supervise(self, role: str) -> None:
        """Starts a process again whose node gave up."""
        node, ending = None, None
        while True:
            await asyncio.sleep(RESTART_SECONDS)
            if role in self._down:
                continue
            current = self._world.processes[role].node
            if current is not node:
                node, ending = current, asyncio.ensure_future(current.failed())
            if ending is not None and ending.done():
                self._world.say(f"-- {role} gave up: {ending.exception()!r}")
                await self._world.stop(role)
                await self.start(role)


def passing_of(case: Case, passings: Passings, attempt: int = 0) -> int:
    """Which passing the fault happens at: from the case's own seed."""
    chance = random.Random(case.seed + attempt)
    first = 1
    if passings.total > passings.at_start and chance.randrange(100) < IN_STORY_PERCENT:
        first = passings.at_start + 1
    return chance.randint(first, passings.total)
