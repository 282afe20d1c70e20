"""How old things in a journal are, whatever wall clocks do. PURE.

What is idle for days is forgotten: groups, producers, outcomes. By the wall clock, one jump ahead
would make everything that lives look idle for as long, at one tick: consumers would start anew and
process all of their input again. So ages are measured by a clock of the journal's own. It goes on
by the time between two frames, but by STEP_MS at most: whoever is silent while the clock jumps, or
while nobody leads, is as old as after a pause of STEP_MS. Every replica and every replay gives the
same age, and it never goes back.

A journal without frames would never age, nor one whose wall clock has gone back (frame times wait
until it has caught up). So a leader whose journal did not age while STEP_MS of monotonic time went
by says so in a record (`TimePassed`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog_server.core.machine import Instant

STEP_MS: Final = 6 * 60 * 60 * 1000


class TimePassed(msgspec.Struct, frozen=True, array_like=True, tag="time"):
    """STEP_MS went by in which the journal did not age. A record of those who forget."""


class JournalAge(msgspec.Struct, array_like=True):
    """Replicated: changed by `apply` only."""

    # On the journal's own clock; begins with the time of its first frame.
    aged_ms: int = 0
    # Time of the last frame.
    last_ms: int = 0

    def saw(self, time_ms: int, step_ms: int = STEP_MS) -> int:
        """A frame of that time. Returns its age. `step_ms`: of who forgets what is younger, the
        most that a clock which jumps can bring about."""
        if not self.last_ms:
            self.aged_ms = time_ms
        else:
            self.aged_ms += min(max(time_ms - self.last_ms, 0), step_ms)
        self.last_ms = time_ms
        return self.aged_ms

    def passed(self, time_ms: int) -> int:
        """A TimePassed of that frame time. Returns its age."""
        self.aged_ms += STEP_MS
        self.last_ms = time_ms
        return self.aged_ms

    def at(self, wall_ms: int) -> int:
        """What a frame would be told that is written now."""
        return self.aged_ms + min(max(wall_ms - self.last_ms, 0), STEP_MS)


class AgeWatch:
    """Whether a leader's journal ages. Volatile: a new leader watches anew."""

    def __init__(self) -> None:
        self._since: tuple[int, int] | None = None
        # When this leader looked first.
        self._began_ms: int | None = None
        # The machine is to remember that time passed.
        self.wants_record = False

    def led_ms(self, now: Instant) -> int:
        """How long somebody has been here to hear signs of life."""
        return 0 if self._began_ms is None else now.monotonic_ms - self._began_ms

    def look(self, age: JournalAge, now: Instant) -> None:
        if self._began_ms is None:
            self._began_ms = now.monotonic_ms
        if self._since is None:
            self._since = (now.monotonic_ms, age.aged_ms)
            return
        since_ms, aged_ms = self._since
        if now.monotonic_ms - since_ms < STEP_MS:
            return
        self.wants_record = age.aged_ms - aged_ms < STEP_MS // 2
        self._since = (now.monotonic_ms, age.aged_ms + STEP_MS * self.wants_record)
