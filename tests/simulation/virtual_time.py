"""An asyncio loop whose time is a variable: what waits, waits no real time; one seed gives one run.

select(timeout) adds the timeout to the clock; select(None) means that everything waits for
something that can never come, which is a found deadlock.

Who is stopped (SIGSTOP) runs nothing while time goes on for the others: `pause` may be called in
the middle of a step, which then goes on later.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from oncelog_server.core.machine import Instant

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


class _Stoppable:
    """A handle that waits while its owner is stopped."""

    __slots__ = ()

    def _run(self) -> None:
        loop: VirtualTimeLoop = self._loop  # type: ignore[attr-defined]
        if not loop._put_by(self):
            super()._run()  # type: ignore[misc]


class _Soon(_Stoppable, asyncio.Handle):
    __slots__ = ()


class _Later(_Stoppable, asyncio.TimerHandle):
    __slots__ = ()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Also the Clock port."""

    # asyncio's own, which it does not declare.
    _ready: Any
    _scheduled: Any
    _run_once: Any

    def __init__(self) -> None:
        self.now_s = 0.0
        # Whose work runs in a context.
        self.owner_of: Callable[[contextvars.Context], str] = lambda context: ""
        # What waits for owners who are stopped, in order.
        self._stopped: dict[str, list[Any]] = {}
        super().__init__(_TimeSelector(self))

    def time(self) -> float:
        return self.now_s

    # ----------------------------------------------------------------------------- who is stopped

    def stop_owner(self, owner: str) -> None:
        """From this moment nothing of this owner runs."""
        self._stopped.setdefault(owner, [])

    def resume_owner(self, owner: str) -> None:
        for handle in self._stopped.pop(owner, ()):
            self._ready.append(handle)

    def pause(self, owner: str, seconds: float) -> None:
        """Called by `owner` itself, in the middle of a step: the rest of the world goes on for so
        long, then this step does."""
        end_s = self.now_s + seconds
        waiting = len(self._ready)
        task = asyncio.current_task(self)
        if task is not None:
            asyncio.tasks._leave_task(self, task)
        self.stop_owner(owner)
        # A timer of its own, so that the selector finds no deadlock.
        self.call_at(end_s, _nothing, context=contextvars.Context())
        while self.now_s < end_s:
            self._run_once()
        self.resume_owner(owner)
        if task is not None:
            asyncio.tasks._enter_task(self, task)
        # The turn that called us counted what was ready before.
        while len(self._ready) < waiting:
            self._call_soon(_nothing, (), contextvars.Context())

    def _put_by(self, handle: Any) -> bool:
        if not self._stopped:
            return False
        held = self._stopped.get(self.owner_of(handle._context))
        if held is None:
            return False
        held.append(handle)
        return True

    def _call_soon(self, callback: Any, args: Any, context: Any) -> asyncio.Handle:
        handle = _Soon(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = _Later(when, callback, args, self, context)
        heapq.heappush(self._scheduled, handle)
        handle._scheduled = True  # type: ignore[attr-defined]
        return handle

    def now(self) -> Instant:
        milliseconds = round(self.now_s * 1000)
        return Instant(milliseconds, EPOCH_MS + milliseconds)


def _nothing() -> None:
    pass


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
