"""An asyncio loop whose time is a variable: what waits, waits no real time; one seed gives one run.

Where nothing is ready, the clock goes to the next timer. Where there is none, everything waits for
something that can never come, which is a found deadlock. A turn is written out here, without the
checks of a real loop: simulated runs spend a good part of their time in it.

Each owner of tasks may have a clock of its own *pace*: `time` and timers are then by that clock, as
they are on a machine whose oscillator is fast or slow.

Who is stopped (SIGSTOP) runs nothing while time goes on for the others: `pause` may be called in
the middle of a step, which then goes on later.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import heapq
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from oncelog_server.core.machine import Instant

T = TypeVar("T")
# 2026-01-01T00:00:00Z: the wall clock of every simulated run begins here.
EPOCH_MS = 1_767_225_600_000
# Time goes on by so much where somebody waits for a moment to come, seconds.
LEAST_S: Final = 1e-9


class Deadlock(AssertionError):
    """Every task waits, and nothing is scheduled."""


class _NoSelector(selectors.SelectSelector):
    """The base class wants one, for its wake-up socket. It is never asked."""

    def select(self, timeout: float | None = None) -> list[Any]:
        raise AssertionError("a turn of virtual time waits for nothing outside")


class _Soon(asyncio.Handle):
    """A callback that is due. Made ten thousand times a second: nothing is asked of the loop."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: VirtualTimeLoop, context: Any) -> None:
        self._context = context if context is not None else contextvars.copy_context()
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _Later(asyncio.TimerHandle):
    """A callback that waits for its time."""

    __slots__ = ()

    def __init__(
        self, when: float, callback: Any, args: Any, loop: VirtualTimeLoop, context: Any
    ) -> None:
        _Soon.__init__(self, callback, args, loop, context)  # type: ignore[arg-type]
        self._when = when
        # The loop forgets cancelled timers when their time comes.
        self._scheduled = False


class _Nowhere(list[Any]):
    """Where the callbacks of the dead wait."""

    def append(self, handle: Any) -> None:
        """Nobody comes back for it."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Also the Clock port."""

    # asyncio's own, which it does not declare.
    _ready: collections.deque[Any]
    _stopping: bool

    def __init__(self) -> None:
        self.now_s = 0.0
        # Whose work runs in a context.
        self.owner_of: Callable[[contextvars.Context], str] = lambda context: ""
        # Whose step this is.
        self.current_owner: Callable[[], str] = str
        # Seconds of an owner's clock per second, where it is not 1.
        self._paces: dict[str, float] = {}
        # What waits for owners who are stopped, in order.
        self._stopped: dict[str, list[Any]] = {}
        # Owners in the middle of a step that pauses, and whether somebody else stopped them since.
        self._paused: dict[str, bool] = {}
        # (when, number, handle): of one time, the first that was set rings first.
        self._timers: list[tuple[float, int, _Later]] = []
        self._timers_set = 0
        super().__init__(_NoSelector())

    def time(self) -> float:
        """By the clock of whoever asks."""
        return self.now_s * self._pace() if self._paces else self.now_s

    def set_pace(self, owner: str, pace: float) -> None:
        """From its first step on: its clock shows that many seconds per second."""
        if pace != 1.0:
            self._paces[owner] = pace

    def _pace(self) -> float:
        return self._paces.get(self.current_owner(), 1.0)

    # ---------------------------------------------------------------------------------- one turn

    def _run_once(self) -> None:
        """What was ready when the turn began; where nothing is, what rings next."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready and not self._stopping:
            if not timers:
                raise Deadlock("all tasks wait and no timer is set")
            self.now_s = max(self.now_s, timers[0][0])
        while timers and timers[0][0] <= self.now_s:
            ready.append(heapq.heappop(timers)[2])
        turn = len(ready)
        # A pause in the middle of the turn runs turns of its own, and may leave less.
        while turn and ready:
            turn -= 1
            handle = ready.popleft()
            if not handle._cancelled and not (self._stopped and self._put_by(handle)):
                handle._run()

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = _Soon(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        if self._paces:
            when /= self._pace()
        # Else who waits for a moment that rounds to this one would ask again for ever.
        return self._ring_at(max(when, self.now_s + LEAST_S), callback, args, context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        if self._paces:
            delay /= self._pace()
        return self._ring_at(self.now_s + delay, callback, args, context)

    def _ring_at(self, when: float, callback: Any, args: Any, context: Any) -> _Later:
        handle = _Later(when, callback, args, self, context)
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, handle))
        return handle

    # ----------------------------------------------------------------------------- who is stopped

    def stop_owner(self, owner: str) -> None:
        """From this moment nothing of this owner runs."""
        self._stopped.setdefault(owner, [])
        if owner in self._paused:
            self._paused[owner] = True

    def resume_owner(self, owner: str) -> None:
        """Where it pauses in the middle of a step, that step ends first: its context is in use."""
        if owner in self._paused:
            self._paused[owner] = False
            return
        for handle in self._stopped.pop(owner, ()):
            self._ready.append(handle)

    def drop_owner(self, owner: str) -> None:
        """Nothing of this owner ever runs again."""
        self._stopped[owner] = _Nowhere()
        self._paces.pop(owner, None)

    def pause(self, owner: str, seconds: float) -> None:
        """Called by `owner` itself, in the middle of a step: the rest of the world goes on for so
        long, then this step does."""
        end_s = self.now_s + seconds
        task = asyncio.current_task(self)
        if task is not None:
            asyncio.tasks._leave_task(self, task)
        self.stop_owner(owner)
        self._paused[owner] = False
        # A timer of its own, so that the loop finds no deadlock.
        self._ring_at(end_s, _nothing, (), contextvars.Context())
        # Where the run ends meanwhile, nobody is left to wait for.
        while self.now_s < end_s and not self._stopping:
            self._run_once()
        if not self._paused.pop(owner):
            self.resume_owner(owner)
        if task is not None:
            asyncio.tasks._enter_task(self, task)

    @property
    def somebody_pauses(self) -> bool:
        return bool(self._paused)

    def _put_by(self, handle: Any) -> bool:
        held = self._stopped.get(self.owner_of(handle._context))
        if held is None:
            return False
        held.append(handle)
        return True

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
