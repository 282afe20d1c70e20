"""An asyncio loop whose time is a variable: what waits, waits no real time; one seed gives one run.

select(timeout) adds the timeout to the clock; select(None) means that everything waits for
something that can never come, which is a found deadlock.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from services.core.machine import Instant

T = TypeVar("T")
# 2026-01-01T00:00:00Z: the wall clock of every simulated run begins here.
EPOCH_MS = 1_767_225_600_000


class Deadlock(AssertionError):
    """Every task waits, and nothing is scheduled."""


class _TimeSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Deadlock("all tasks wait and no timer is set")
        self._loop.now_s += max(timeout, 0.0)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Also the Clock port."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_TimeSelector(self))

    def time(self) -> float:
        return self.now_s

    def now(self) -> Instant:
        milliseconds = round(self.now_s * 1000)
        return Instant(milliseconds, EPOCH_MS + milliseconds)


def run(main: Coroutine[Any, Any, T], loop: VirtualTimeLoop) -> T:
    """Runs `main` to its end on `loop`, cancels what is left, closes the loop."""
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
