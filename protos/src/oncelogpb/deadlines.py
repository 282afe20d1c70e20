"""Deadlines of many calls with one timer: the calls of a stream, at either end of it.

Nearly all calls end long before their deadline, so what counts is to begin and to end one cheaply:
a timer each costs ten times as much. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

# Timers may come early by the grain of their loop's clock (uvloop's is a millisecond).
GRAIN_S: Final = 0.001


class Deadlines:
    """By the number of a call. `expire` is called once for each that is still there when its time
    is over."""

    __slots__ = ("_at", "_expire", "_next", "_timer")

    def __init__(self, expire: Callable[[int], None]) -> None:
        self._expire = expire
        self._at: dict[int, float] = {}
        # When the timer comes: at the first deadline, or earlier, where that call has ended.
        self._next = math.inf
        self._timer: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """Calls that have neither ended nor expired."""
        return len(self._at)

    def add(self, number: int, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        at = self._at[number] = loop.time() + timeout_ms / 1000
        if at < self._next:
            self._wait_until(at, loop)

    def remove(self, number: int) -> None:
        """It has ended. Nothing where it has expired."""
        self._at.pop(number, None)

    def clear(self) -> None:
        """All have ended."""
        self._at.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next = math.inf

    def _wait_until(self, at: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = at
        self._timer = loop.call_at(at, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, self._next = None, math.inf
        now = loop.time() + GRAIN_S
        over = [number for number, at in self._at.items() if at <= now]
        for number in over:
            del self._at[number]
        if self._at:
            self._wait_until(min(self._at.values()), loop)
        for number in over:
            self._expire(number)
