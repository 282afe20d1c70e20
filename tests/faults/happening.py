"""What happens at a failpoint of the simulated world when a fault strikes there."""

from __future__ import annotations

import contextvars
import random
from collections.abc import Callable, Sequence
from errno import EIO
from typing import Final

from oncelog_server.core.failpoints import Repeat
from oncelogpb.errors import UnknownOutcome
from tests.faults.cases import Fault
from tests.simulation.disk import Tear
from tests.simulation.world import Died, World

# When a write that the network held back reaches etcd, seconds.
ETCD_HELD_S: Final = 2.0


class Happening:
    """Make it before the first process starts: what goes on after the step is the world's, not the
    process's."""

    def __init__(
        self,
        world: World,
        chance: random.Random,
        *,
        pauses_s: Sequence[float],
        etcd_away_s: tuple[float, float],
    ) -> None:
        self._world = world
        self._chance = chance
        self._pauses_s = pauses_s
        self._etcd_away_s = etcd_away_s
        self._context = contextvars.copy_context()

    def let(self, name: str, fault: Fault, on_fall: Callable[[], None]) -> Repeat | None:
        """In the step of that process that passes the failpoint. Raises what the step meets
        there; Died after `on_fall` where the process has fallen."""
        match fault:
            case Fault.POWER_LOSS | Fault.KILL:
                tear = self._chance.choice(list(Tear)) if fault is Fault.POWER_LOSS else None
                self._world.fall(name, tear)
                on_fall()
                raise Died(fault.value)
            case Fault.PAUSE:
                self._world.pause(name, self._chance.choice(self._pauses_s))
            case Fault.REPLY_LOST:
                raise UnknownOutcome("the reply was lost")
            case Fault.REQUEST_TWICE:
                return Repeat.AT_ONCE
            case Fault.REQUEST_LATE:
                return Repeat.LATE
            case Fault.DISK_ERROR:
                raise OSError(EIO, "the disk was told to fail")
            case _:
                self._etcd(name, fault)
        return None

    def _etcd(self, name: str, fault: Fault) -> None:
        etcd = self._world.processes[name].etcd
        if fault is Fault.ETCD_REPLY_LOST:
            etcd.drop_next_txn_reply()
        elif fault is Fault.ETCD_WRITE_LATE:
            etcd.hold_next_txn()
            self._later(ETCD_HELD_S, etcd.release_held_txns)
        else:
            etcd.unavailable = True
            back_s = self._chance.uniform(*self._etcd_away_s)
            self._later(back_s, lambda: setattr(etcd, "unavailable", False))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._world.loop.call_later(seconds, action, context=self._context)
