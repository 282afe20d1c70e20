"""A consumer's sign of life: while it lives, its group is not forgotten, however quiet its topics.

A group without members expires when nothing was committed for `group_retention_ms` (7 days unless
the services say otherwise). A consumer that only waits would then find its position gone, and read
its topics from the beginning again. So it commits where it stands, from = to, now and then: that
moves nothing, and is recorded.

Offset managers say how long they wait: whoever waits for less than a week is told more often than
the consumer's own interval says. Who leaves before its first sign was due gives it on leaving: a
job that runs for two seconds every hour lives, too.

Left out: positions that change. A sign says what the group has, as far as this consumer knows;
where it is wrong, or something is pending there, somebody else keeps the group alive.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

# Signs that failed are given again after this part of the interval.
AGAIN_AFTER: Final = 0.1
# The first one comes so soon, seconds.
FIRST_S: Final = 10.0
# Signs within the time that an offset manager waits: two may be lost.
SIGNS_PER_RETENTION: Final = 4
# How long the sign of one who leaves may hold it back, seconds.
LAST_S: Final = 1.0


class SignOfLife:
    """Calls `give` at every `interval_ms` in which nobody said `given`. Belongs to the loop on
    which it was started."""

    def __init__(self, interval_ms: int, give: Callable[[], Awaitable[bool]]) -> None:
        """`give` tells whether it came through; it does not raise."""
        self._interval_s = interval_ms / 1000
        self._give = give
        self._timer: asyncio.TimerHandle | None = None
        self._giving: asyncio.Task[None] | None = None
        self._stopped = False
        # The group's offsets were read, and nothing was told to it since.
        self._owes = False

    def given(self) -> None:
        """The group was told something now."""
        self._owes = False
        if not self._stopped:
            self._after(self._interval_s)

    def begin(self, retention_ms: int) -> None:
        """The group's offsets were read; it is forgotten after `retention_ms` (0: nobody said). Who
        runs for a moment every day gives a sign, too."""
        if retention_ms:
            self._interval_s = min(self._interval_s, retention_ms / SIGNS_PER_RETENTION / 1000)
        if not self._stopped and self._timer is None:
            self._owes = True
            self._after(min(self._interval_s, FIRST_S))

    async def stop(self) -> None:
        """The last one, where it owes one. Safe to repeat."""
        owes, self._stopped = self._owes and not self._stopped, True
        if self._timer is not None:
            self._timer.cancel()
        if owes and self._giving is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._give(), LAST_S)
        if self._giving is not None:
            self._giving.cancel()
            await asyncio.gather(self._giving, return_exceptions=True)

    def _after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._due)

    def _due(self) -> None:
        self._giving = asyncio.get_running_loop().create_task(self._give_one())

    async def _give_one(self) -> None:
        came_through = await self._give()
        self._owes &= not came_through
        if not self._stopped:
            self._after(self._interval_s * (1.0 if came_through else AGAIN_AFTER))
