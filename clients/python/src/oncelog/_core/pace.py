"""Whether a reader that remembers keys keeps up with a compacted topic. PURE.

Compaction takes a tombstone out of the log when `delete.retention.ms` have passed since it was
readable. Who has read the key's value before, and comes to the place of its tombstone only then,
takes the key to be there for ever. So all that is readable at one moment must be read within that
time. A reader asks now and then where the log ends, and knows when it has read up to there:

    since        asked        all below is read
    ──┼────────────┼────────────────┼──────────────▶ time
                                    since = asked

Invariant: all that was readable at `since` has been read, or nothing has been read before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

POLICY: Final = "cleanup.policy"
COMPACT: Final = "compact"
DELETE_RETENTION: Final = "delete.retention.ms"
# Where the topic says nothing.
DELETE_RETENTION_MS: Final = 86_400_000
# Of that time, the share after which a reader is late, and of how much of it it asks again. The
# rest is for clocks that differ.
LATE: Final = 0.75
ASKS_EVERY: Final = 0.25
# Nobody keeps up with less, milliseconds.
KEPT_MS_LEAST: Final = 1_000


class Moment(NamedTuple):
    """By both clocks, for one stands still while a machine sleeps, and the other is set. In
    milliseconds."""

    monotonic_ms: float
    wall_ms: float

    def since_ms(self, earlier: Moment) -> float:
        """By the clock that says more."""
        return max(self.monotonic_ms - earlier.monotonic_ms, self.wall_ms - earlier.wall_ms)


def tombstones_kept_ms(configs: Mapping[str, str]) -> int | None:
    """How long at least, as the topic's settings say. None: for ever."""
    if COMPACT not in configs.get(POLICY, "").split(","):
        return None
    told = configs.get(DELETE_RETENTION, "")
    kept_ms = int(told) if told.isascii() and told.isdigit() else DELETE_RETENTION_MS
    return max(kept_ms, KEPT_MS_LEAST)


class Pace:
    """Of one reader. It begins at `now`."""

    def __init__(self, now: Moment) -> None:
        self.since = now

    def is_late(self, now: Moment, kept_ms: int | None) -> bool:
        """What is read now may lack tombstones of what was read before."""
        return kept_ms is not None and now.since_ms(self.since) >= kept_ms * LATE

    def begin_anew(self, now: Moment) -> None:
        """Nothing that was read before counts."""
        self.since = now

    def read_all(self, asked: Moment) -> None:
        """That was readable when it asked."""
        self.since = asked
