"""Faults in the middle of a step: at one passing of one failpoint, of any role.

A loss of power at a random moment of virtual time mostly hits a moment at which nothing happens,
for steps take none. So the places are chosen, as in the kill matrix (`tests/faults`), and what goes
on around them is left to chance.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from errno import EIO
from typing import Final

from oncelog_server.core.failpoints import Repeat
from oncelogpb.errors import UnknownOutcome
from tests.faults.matrix import Case, Fault
from tests.simulation.disk import Tear
from tests.simulation.world import Died, World

# SIGSTOP for so long, seconds: shorter and longer than a lease.
PAUSES_S: Final = (0.5, 8.0)
ETCD_AWAY_S: Final = (0.5, 6.0)
# When a write that the network held back reaches etcd, seconds.
ETCD_HELD_S: Final = 2.0


class _Strike:
    """One that waits for its passing."""

    def __init__(self, case: Case, passing: int) -> None:
        self.case = case
        self.left = passing
        self.struck = asyncio.Event()
        # Its process ended by it.
        self.fell = False


class Striker:
    """The hook of failpoints. Arm it before the first process starts."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        # Roles and failpoints, since somebody cleared it.
        self.passed: set[tuple[str, str]] = set()
        self._waiting: list[_Strike] = []
        # What goes on after the step is the world's, not the process's.
        self._context = contextvars.copy_context()

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
        role, fault = strike.case.role, strike.case.fault
        match fault:
            case Fault.POWER_LOSS | Fault.KILL:
                tear = self._chance.choice(list(Tear)) if fault is Fault.POWER_LOSS else None
                strike.fell = True
                self._world.fall(role, tear)
                raise Died(fault.value)
            case Fault.PAUSE:
                self._world.pause(role, self._chance.choice(PAUSES_S))
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
            self._later(ETCD_HELD_S, etcd.release_held_txns)
        else:
            etcd.unavailable = True
            back_s = self._chance.uniform(*ETCD_AWAY_S)
            self._later(back_s, lambda: setattr(etcd, "unavailable", False))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._world.loop.call_later(seconds, action, context=self._context)
