"""The real clock: the loop's monotonic time for timers, the wall for people and for what is kept
for days.

What a journal is told goes into its frames for ever, and frames never go back: a wall clock that
jumped a week ahead, and was set right an hour later, would stop the time of every journal for a
week. So it is followed at most at SLEW times its pace where it runs ahead: after that hour it is an
hour ahead. Backwards it is followed at once, for journals hold that by themselves.

Left out: a process that starts while the clock is wrong has nothing to compare it with.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from oncelog_server.core.machine import Instant
from oncelog_server.runtime.etcd.lease_clock import lease_clock_ms

# How quickly a jump ahead is caught up with: a clock that was five minutes slow, and was set right,
# is followed within five minutes.
SLEW: Final = 2
# A jump so small is no jump.
STEP_MS: Final = 1_000
NS_PER_MS: Final = 1_000_000


class RealClock:
    """The Clock port. `monotonic_ms` is the same clock that asyncio's loop uses."""

    def __init__(
        self,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
        lease_clock_ms: Callable[[], int] = lease_clock_ms,
    ) -> None:
        """`lease_clock_ms` counts a sleep of the machine, which is no jump of the wall clock."""
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ns
        self._lease_clock_ms = lease_clock_ms
        self._looked_ms = monotonic_ns() // NS_PER_MS
        # What is added to the monotonic clock to get the wall.
        self._ahead_ms = wall_ns() // NS_PER_MS - self._looked_ms
        self._slept_ms = lease_clock_ms() - self._looked_ms

    def now(self) -> Instant:
        # A small transaction asks a dozen times: the system's clocks with nothing between.
        now_ms = self._monotonic_ns() // NS_PER_MS
        ahead_ms = self._wall_ns() // NS_PER_MS - now_ms
        if ahead_ms > self._ahead_ms + STEP_MS:
            ahead_ms = self._catch_up(ahead_ms, now_ms)
        self._ahead_ms, self._looked_ms = ahead_ms, now_ms
        return Instant(now_ms, now_ms + ahead_ms)

    def _catch_up(self, ahead_ms: int, now_ms: int) -> int:
        slept_ms = self._lease_clock_ms() - now_ms
        asleep_ms, self._slept_ms = slept_ms - self._slept_ms, slept_ms
        passed_ms = now_ms - self._looked_ms
        return min(ahead_ms, self._ahead_ms + asleep_ms + passed_ms * (SLEW - 1))
