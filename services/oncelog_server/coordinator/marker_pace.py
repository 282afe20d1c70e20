"""When markers go out (docs/adr/0080): at once where none went in this moment, or where somebody
waits for them; else together, when the moment is over.

A message of markers costs its coordinator and its leader as much as a commit does, and carries a
thousand for little more than one. So who commits one small transaction after the other pays for one
message per moment, and not per transaction.

A moment is longer where nobody reads what the markers bring (docs/adr/0097): each participant says
with its answers whether somebody does.

Moments are the same for all journal partitions of a process: what waits at several of them goes to
a leader in one message of the transport.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

# How long a moment is: markers that could go wait no longer for others.
MOMENT_MS: Final = 5
# The same, where no participant has said of late that somebody reads there. A multiple of that.
UNWATCHED_MOMENT_MS: Final = 50
# For how long it counts that somebody reads there.
WATCHED_FOR_S: Final = 10.0


class MarkerPace:
    """Of one led partition. Belongs to one event loop."""

    def __init__(self, wake: Callable[[], None], is_awaited: Callable[[], bool]) -> None:
        """`wake` is called when a moment is over in which something was held back. `is_awaited`:
        a caller waits until a transaction is visible."""
        self._wake = wake
        self._is_awaited = is_awaited
        # When something went last, by the loop's clock; -1: nothing went in this moment.
        self._last_s = -1.0
        # Until then somebody reads, as far as is known here; nobody has said anything at first.
        self._watched_until_s = math.inf
        # Ends the moment in which something is held back, and how long that moment is.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def may_go(self, *, is_much: bool) -> bool:
        """What is due may go now. False: `wake` is called within the moment. `is_much`: so much
        waits that a longer moment saves nothing."""
        if self._is_awaited():
            return True
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        is_short = is_much or now_s < self._watched_until_s
        moment_ms = MOMENT_MS if is_short else UNWATCHED_MOMENT_MS
        if self._timer is not None:
            if self._timer_ms <= moment_ms:
                return False
            self.stop()
        over_s = _end_of_moment(self._last_s, moment_ms)
        if now_s >= over_s:
            return True
        self._timer, self._timer_ms = loop.call_at(over_s, self._is_over), moment_ms
        return False

    def went(self) -> None:
        """Some went now, and all that was held back with them."""
        self.stop()
        self._last_s = asyncio.get_running_loop().time()

    def heard(self, *, is_watched: bool) -> None:
        """Whether somebody reads what markers bring to a participant, as that says, or waits for
        it. Who calls this looks afterwards whether something may go."""
        now_s = asyncio.get_running_loop().time()
        if is_watched:
            self._watched_until_s = now_s + WATCHED_FOR_S
        elif self._watched_until_s == math.inf:
            self._watched_until_s = now_s

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_over(self) -> None:
        self._timer = None
        # Whatever the loop's clock says: timers may be early by its grain.
        self._last_s = -1.0
        self._wake()


def _end_of_moment(within_s: float, moment_ms: int) -> float:
    return (int(within_s * 1000) // moment_ms + 1) * moment_ms / 1000
