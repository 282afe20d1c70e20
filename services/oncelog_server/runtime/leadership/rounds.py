"""When elections look at all partitions: after each change, and again while something is not done.

A round looks at every partition in one go, and with a thousand of them each change of one calls for
a round. So after each the loop has ROUND_REST times as long for everything else: else streams fall
silent and leases run out, which are changes, which call for rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

# The loop's other work gets so many times what rounds take.
ROUND_REST: Final = 3
# And never longer than this: a process that was stopped in the middle of a round looked for long.
REST_MS_MAX: Final = 500


class Rounds:
    """Of one process. `begin`, look, `looked`, what comes of it, `next`."""

    def __init__(self) -> None:
        self._called = asyncio.Event()
        self._began_s = self._took_s = 0.0

    def call(self) -> None:
        """Something changed: another round comes."""
        self._called.set()

    def begin(self) -> None:
        """What changes from here on calls for another one."""
        self._called.clear()
        self._began_s = self._now()

    def looked(self) -> None:
        """At everything; what is asked of etcd now is waited for, and holds up nobody."""
        self._took_s = self._now() - self._began_s

    async def next(self, *, within_ms: int | None) -> None:
        """Returns when another round is due: one was called for, or so much time has passed."""
        if self._took_s:
            await asyncio.sleep(min(ROUND_REST * self._took_s, REST_MS_MAX / 1000))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if within_ms is None else within_ms / 1000):
                await self._called.wait()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
