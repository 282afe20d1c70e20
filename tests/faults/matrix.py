"""The kill matrix in the simulated world: which passing of which failpoint is struck.

`Injector` is the hook of the simulated world: it counts every passing, and at one passing of one
failpoint in one role's process it lets the case's fault happen.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from oncelog_server.core.failpoints import Repeat
from oncelog_server.runtime.etcd.port import EtcdUnavailable
from tests.faults.cases import Case
from tests.faults.happening import Happening
from tests.simulation.machines import role_of_name
from tests.simulation.world import World

# Longer than the lease of 5 s.
PAUSE_SECONDS: Final = 8.0
# How long the process stays dead, and etcd away: shorter and longer than the lease.
DEAD_SECONDS: Final = (0.05, 7.0)
ETCD_AWAY_SECONDS: Final = (0.5, 8.0)
# How long a supervisor takes.
RESTART_SECONDS: Final = 0.5
# How often a passing in the middle of the story is chosen, where there is one, in percent.
IN_STORY_PERCENT: Final = 80


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
        # Processes that have fallen and are not up again.
        self._down: set[str] = set()
        self._falls: Counter[str] = Counter()
        self._fell = asyncio.Event()
        self._world = world
        self._plan = plan
        self._left = plan[0].passing if plan else 0
        self._chance = random.Random(sum(strike.case.seed + strike.passing for strike in plan))
        self._happening = Happening(
            world, self._chance, pauses_s=(PAUSE_SECONDS,), etcd_away_s=ETCD_AWAY_SECONDS
        )

    def story_begins(self) -> None:
        self.at_start = Counter(self.passed)

    def __call__(self, name: str) -> Repeat | None:
        caller = self._world.caller()
        role = role_of_name(caller)
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
        return self._happening.let(caller, case.fault, lambda: self._note_fall(caller))

    def _note_fall(self, name: str) -> None:
        self._down.add(name)
        self._falls[name] += 1
        self._fell.set()

    async def settled(self) -> None:
        """Until every process is up."""
        while self._down:
            await asyncio.sleep(RESTART_SECONDS)

    async def revive(self) -> None:
        """Starts what falls, after a while, as often as it falls."""
        while True:
            await self._fell.wait()
            self._fell.clear()
            for name in sorted(self._down):
                await self._world.bury(name)
                await asyncio.sleep(self._chance.uniform(*DEAD_SECONDS))
                falls = self._falls[name]
                starting = asyncio.create_task(self.start(name))
                while not (await asyncio.wait((starting,), timeout=RESTART_SECONDS))[0]:
                    if self._falls[name] != falls:
                        # It waits for something of its own that is dead.
                        await self._world.bury(name)
                await starting
                if self._falls[name] == falls:
                    self._down.discard(name)

    async def start(self, name: str) -> None:
        """As an operator's supervisor would: what cannot start is started again. What falls as it
        starts is left to `revive`."""
        falls = self._falls[name]
        while True:
            try:
                await self._world.start(name)
                return
            except (OSError, EtcdUnavailable) as error:
                self._world.say(f"-- {name} did not start: {error}")
                await self._world.stop(name)
            except asyncio.CancelledError:
                if self._falls[name] == falls:
                    raise
                return
            await asyncio.sleep(RESTART_SECONDS)

    async def supervise(self, name: str) -> None:
        """Starts a process again whose node gave up."""
        node, ending = None, None
        while True:
            await asyncio.sleep(RESTART_SECONDS)
            if name in self._down:
                continue
            current = self._world.processes[name].node
            if current is not node:
                node, ending = current, asyncio.ensure_future(current.failed())
            if ending is not None and ending.done():
                self._world.say(f"-- {name} gave up: {ending.exception()!r}")
                await self._world.stop(name)
                await self.start(name)


def passing_of(case: Case, passings: Passings, attempt: int = 0) -> int:
    """Which passing the fault happens at: from the case's own seed."""
    chance = random.Random(case.seed + attempt)
    first = 1
    if passings.total > passings.at_start and chance.randrange(100) < IN_STORY_PERCENT:
        first = passings.at_start + 1
    return chance.randint(first, passings.total)
