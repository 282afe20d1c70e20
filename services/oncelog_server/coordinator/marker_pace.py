"""When markers go out (docs/adr/0080): at once where none went in this moment, or where somebody
waits for them; else together, when the moment is over.

A message of markers costs its coordinator and its leader as much as a commit does, and carries a
thousand for little more than one. So who commits one small transaction after the other pays for one
message per moment, and not per transaction.

Moments are the same for all journal partitions of a process: what waits at several of them goes to
a leader in one message of the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

# How long a moment is. Nobody waits longer for markers that are due, because of it.
MOMENT_MS: Final = 5


class MarkerPace:
    """Of one led partition. Belongs to one event loop."""

    def __init__(self, wake: Callable[[], None], is_awaited: Callable[[], bool]) -> None:
        """`wake` is called when a moment is over in which something was held back. `is_awaited`:
        a caller waits until a transaction is visible."""
        self._wake = wake
        self._is_awaited = is_awaited
        # In which something went last.
        self._last_moment = -1
        self._timer: asyncio.TimerHandle | None = None

    def may_go(self) -> bool:
        """What is due may go now. False: `wake` is called within the moment."""
        if self._timer is not None:
            return self._is_awaited()
        loop = asyncio.get_running_loop()
        moment = _moment(loop.time())
        if moment != self._last_moment or self._is_awaited():
            return True
        self._timer = loop.call_at((moment + 1) * MOMENT_MS / 1000, self._is_over)
        return False

    def went(self) -> None:
        """Some went now, and all that was held back with them."""
        self.stop()
        self._last_moment = _moment(asyncio.get_running_loop().time())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_over(self) -> None:
        self._timer = None
        # Whatever the loop's clock says: timers may be early by its grain.
        self._last_moment = -1
        self._wake()


def _moment(seconds: float) -> int:
    return int(seconds * 1000) // MOMENT_MS
