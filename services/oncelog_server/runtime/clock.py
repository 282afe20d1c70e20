"""The real clock: the loop's monotonic time for timers, the wall for people."""

from __future__ import annotations

import time

from oncelog_server.core.machine import Instant


class RealClock:
    """The Clock port. `monotonic_ms` is the same clock that asyncio's loop uses."""

    def now(self) -> Instant:
        return Instant(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)
