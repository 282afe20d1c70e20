"""The clock that leases are measured with."""

from __future__ import annotations

import time
from typing import Final

# Counts a suspended machine's sleep too, where the system has such a clock: etcd's clock on another
# machine ran on meanwhile, and the lease with it.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock_ms() -> int:
    """Milliseconds; never goes back. Safe in any thread."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
