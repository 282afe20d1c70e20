"""Faults in the middle of a step: at one passing of one failpoint, of any role.

A loss of power at a random moment of virtual time mostly hits a moment at which nothing happens,
for steps take none. So the places are chosen, as in the kill matrix (`tests/faults`), and what goes
on around them is left to chance.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from oncelog_server.core.failpoints import Repeat
from tests.faults.cases import Case
from tests.faults.happening import Happening
from tests.simulation.world import World

# SIGSTOP for so long, seconds: shorter and longer than a lease.
PAUSES_S: Final = (0.5, 8.0)
ETCD_AWAY_S: Final = (0.5, 6.0)


class _Strike:
    """One that waits for its passing."""

    def __init__(self, case: Case, passing: int) -> None:
        self.case = case
        self.left = passing
        self.struck = asyncio.Event()
        # Its process ended by it.
        self.fell = False

    def fall(self) -> None:
        self.fell = True


class Striker:
    """The hook of failpoints. Arm it before the first process starts."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        # Roles and failpoints, since somebody cleared it.
        self.passed: set[tuple[str, str]] = set()
        self._waiting: list[_Strike] = []
        self._happening = Happening(world, chance, pauses_s=PAUSES_S, etcd_away_s=ETCD_AWAY_S)

    async def strike(self, case: Case, passing: int, within_s: float) -> str:
        """Waits for that passing, and lets the case's fault happen there. Returns the role whose
        process fell by it; "" where it goes on, or nothing passed in time."""
        strike = _Strike(case, passing)
        self._waiting.append(strike)
        try:
            async with asyncio.timeout(within_s):
                await strike.struck.wait()
        except TimeoutError:
            if strike in self._waiting:
                self._waiting.remove(strike)
        return case.role if strike.fell else ""

    def __call__(self, name: str) -> Repeat | None:
        role = self._world.caller()
        self.passed.add((role, name))
        self._world.marks.add("passed", f"{role} {name}")
        for strike in self._waiting:
            if strike.case.point == name and strike.case.role == role:
                strike.left -= 1
                if not strike.left:
                    self._waiting.remove(strike)
                    return self._happen(strike)
        return None

    def _happen(self, strike: _Strike) -> Repeat | None:
        self._world.say(f"-- {strike.case}")
        strike.struck.set()
        return self._happening.let(strike.case.role, strike.case.fault, strike.fall)
