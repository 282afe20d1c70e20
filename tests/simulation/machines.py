"""The machines of a simulated cluster: which processes there are, and the clock of each.

A process is one of a role, numbered from 1: `coordinator-2`. Its machine outlives its runs: the
disk, the clock. `pace` is how many seconds its monotonic clock shows per second; `wall_ahead_ms`
how far its wall clock is from the true time, now. It goes through the services' own clock, which
follows a wall clock that jumps ahead only slowly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from oncelog_server.core.roles import ROLES
from oncelog_server.runtime.clock import NS_PER_MS, RealClock
from tests.simulation.disk import FakeDisk
from tests.simulation.virtual_time import EPOCH_MS, VirtualTimeLoop

NODES_MAX: Final = 5
# Floating-point seconds that stand for a whole millisecond may lie just below it.
_ROUNDING_S: Final = 1e-9


def names_of(nodes: Mapping[str, int]) -> tuple[str, ...]:
    """Processes of so many nodes by role, in the order in which they start; one of each role that
    is not named."""
    return tuple(
        f"{role}-{number}" for role in ROLES for number in range(1, nodes.get(role, 1) + 1)
    )


def role_of_name(name: str) -> str:
    """Of a process, by its name."""
    return name.rpartition("-")[0]


@dataclass
class Machine:
    """What a process runs on."""

    loop: VirtualTimeLoop
    disk: FakeDisk
    pace: float = 1.0
    wall_ahead_ms: int = 0

    def clock(self) -> RealClock:
        """Of its next process."""
        return RealClock(
            monotonic_ns=lambda: self._monotonic_ms() * NS_PER_MS,
            wall_ns=lambda: self._wall_ms() * NS_PER_MS,
            lease_clock_ms=self._monotonic_ms,
        )

    def _monotonic_ms(self) -> int:
        return int((self.loop.now_s * self.pace + _ROUNDING_S) * 1000)

    def _wall_ms(self) -> int:
        return EPOCH_MS + int((self.loop.now_s + _ROUNDING_S) * 1000) + self.wall_ahead_ms
