"""Faults in the middle of a step: at one passing of one failpoint, of any role.

A loss of power at a random moment of virtual time mostly hits a moment at which nothing happens,
for steps take none. So the places are chosen, as in the kill matrix (`tests/faults`), and what goes
on around them is left to chance.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final, NamedTuple

from oncelog_server.core.failpoints import Repeat
from tests.faults.cases import Case
from tests.faults.happening import Happening
from tests.simulation.machines import role_of_name
from tests.simulation.moments import STRUCK
from tests.simulation.world import World

# SIGSTOP for so long, seconds: shorter and longer than a lease.
PAUSES_S: Final = (0.5, 8.0)
ETCD_AWAY_S: Final = (0.5, 6.0)


class Victim(NamedTuple):
    """A process that a strike met in the middle of a step."""

    name: str
    # It ended by it.
    fell: bool


class _Strike:
    """One that waits for its passing."""

    def __init__(self, case: Case, passing: int) -> None:
        self.case = case
        self.left = passing
        self.struck = asyncio.Event()
        # Whose step it was; its process ended by it.
        self.victim = ""
        self.fell = False

    def fall(self) -> None:
        self.fell = True


class Striker:
    """The hook of failpoints. Arm it before the first process starts."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        # Roles and failpoints, since somebody cleared it.
        self.passed: set[tuple[str, str]] = set()
        # Processes that a fault has now: no other may strike them.
        self.taken: set[str] = set()
        self._waiting: list[_Strike] = []
        self._happening = Happening(world, chance, pauses_s=PAUSES_S, etcd_away_s=ETCD_AWAY_S)

    async def strike(self, case: Case, passing: int, within_s: float) -> Victim | None:
        """Waits for that passing, by any process of the role, and lets the case's fault happen
        there. Returns the process that it struck, which is `taken` from then on; None where nothing
        passed in time."""
        strike = _Strike(case, passing)
        self._waiting.append(strike)
        try:
            async with asyncio.timeout(within_s):
                await strike.struck.wait()
        except TimeoutError:
            if strike in self._waiting:
                self._waiting.remove(strike)
        return Victim(strike.victim, strike.fell) if strike.victim else None

    def __call__(self, name: str) -> Repeat | None:
        caller = self._world.caller()
        role = role_of_name(caller)
        self.passed.add((role, name))
        self._world.marks.add("passed", f"{role} {name}")
        if caller in self.taken:
            return None
        for strike in self._waiting:
            if strike.case.point == name and strike.case.role == role:
                strike.left -= 1
                if not strike.left:
                    self._waiting.remove(strike)
                    return self._happen(strike, caller)
        return None

    def _happen(self, strike: _Strike, victim: str) -> Repeat | None:
        self._world.say(f"-- {strike.case}, at {victim}")
        self._world.moments.add(STRUCK)
        strike.victim = victim
        self.taken.add(victim)
        strike.struck.set()
        return self._happening.let(victim, strike.case.fault, strike.fall)
