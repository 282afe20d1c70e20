"""Work that one thread hands over to an event loop in another one, and its end, handed back.

As asyncio.run_coroutine_threadsafe, with half of its steps: one wake-up there, one here, and no
future of either kind in between. Each call of the plain face is one of these.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class HandOver(Generic[T]):
    """One piece of work. `begin` and `cancel` belong to the loop, all else to who waits."""

    __slots__ = ("_error", "_has_ended", "_is_abandoned", "_over", "_result", "_task", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], over: Callable[[], object]) -> None:
        """`over` is called once it has ended, on the loop; not where it is cancelled before its
        first step: who waits asks `has_ended` now and then."""
        self._work = work
        self._over = over
        self._task: asyncio.Task[None] | None = None
        self._is_abandoned = False
        self._has_ended = False
        self._result: T | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        if self._is_abandoned:
            self._work.close()
        else:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def cancel(self) -> None:
        """Returns when it has ended; work that has not begun never will."""
        self._is_abandoned = True
        if self._task is None:
            self._work.close()
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((self._task,))

    @property
    def has_ended(self) -> bool:
        """In whatever way."""
        return self._has_ended or (self._task is not None and self._task.done())

    def result(self) -> T:
        """Once it has ended, and once only. Raises what it raised; asyncio.CancelledError."""
        assert self.has_ended, "it is waited for"
        if not self._has_ended:
            self._work.close()
            raise asyncio.CancelledError
        error, self._error = self._error, None
        if error is None:
            return self._result  # type: ignore[return-value]
        try:
            raise error
        finally:
            # What is raised holds this frame, and must not be held by it.
            del error

    async def _run(self) -> None:
        try:
            self._result = await self._work
        except BaseException as error:
            # An interrupt, too, is for who waits: it would end the loop.
            self._error = error
        self._has_ended = True
        self._over()
