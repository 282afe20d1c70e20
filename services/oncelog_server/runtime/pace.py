"""Work that many events call for, and that costs the same for one as for all of them: done at once,
and then once in a while at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

# The loop's other work gets so many times what this takes, however often it is called for.
PACE_REST: Final = 10
# And never longer than this: a process that was stopped meanwhile took long.
PAUSE_MS_MAX: Final = 200


class Pace:
    """Invariant: whoever calls has the work done after it called, within `every_ms`, or PACE_REST
    times what it took, up to PAUSE_MS_MAX."""

    def __init__(self, work: Callable[[], None], *, every_ms: int) -> None:
        """`work` must not block."""
        self._work = work
        self._every_s = every_ms / 1000
        self._is_due = False
        # The end of the pause after the work was done.
        self._pause: asyncio.TimerHandle | None = None

    def call(self) -> None:
        """Now, or when the pause ends."""
        if self._pause is not None:
            self._is_due = True
            return
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        # What the work calls for itself waits for the pause, too.
        self._pause = loop.call_later(self._every_s, self._go_on)
        self._work()
        pause_s = min(PACE_REST * (loop.time() - began_s), PAUSE_MS_MAX / 1000)
        if pause_s > self._every_s and self._pause is not None:
            self._pause.cancel()
            self._pause = loop.call_later(pause_s, self._go_on)

    def stop(self) -> None:
        """Nothing is done any more that was called for before."""
        if self._pause is not None:
            self._pause.cancel()
        self._pause, self._is_due = None, False

    def _go_on(self) -> None:
        self._pause = None
        if self._is_due:
            self._is_due = False
            self.call()
