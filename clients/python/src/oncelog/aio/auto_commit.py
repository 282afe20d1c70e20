"""Commits that a consumer makes by itself (`auto_commit_ms`).

Whoever polls has processed what the polls before have given; nobody else knows that. So where
another task or thread closes the consumer, what the last poll gave is not committed: it may be
processed still. Who polled is known by the context (PEP 567) in which that was: of a task with
those that it begins later, or of a thread.

A poll waits for a commit no longer than for records: one that takes longer goes on beside the
polls, and nothing else is committed, sought or given up before it is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import Any, Final

from oncelogpb import errors

# Of each consumer (by the identity of its AutoCommit) the last poll that was made here. A poll that
# is over is equal to none, so whatever took the identity of one that is gone is not taken for it.
_POLLS: Final[ContextVar[Mapping[int, object] | None]] = ContextVar("oncelog_polls", default=None)


class AutoCommit:
    """Of one consumer."""

    def __init__(
        self,
        every_ms: int,
        commit: Callable[[], Coroutine[Any, Any, None]],
        now_ms: Callable[[], float],
    ) -> None:
        """`every_ms` 0: it makes none. `commit`: of what is processed."""
        self._every_ms = every_ms
        self._commit = commit
        self._now_ms = now_ms
        self._due_ms = now_ms() + every_ms
        # One that was begun by a poll, until it is looked at again.
        self._running: asyncio.Task[None] | None = None
        # The last one.
        self._poll = object()
        # What it gave may be processed still, by somebody else.
        self.spares_last = False

    @property
    def is_on(self) -> bool:
        """It makes them."""
        return self._every_ms > 0

    def stop(self) -> None:
        """No more: what was given last was not processed."""
        self._every_ms = 0

    def polls(self) -> None:
        """A poll begins."""
        if self._every_ms:
            self._poll = object()
            self.polled_here()

    def polled_here(self) -> None:
        """The last poll is one of this task or thread."""
        if self._every_ms:
            _POLLS.set({**(_POLLS.get() or {}), id(self): self._poll})

    def closes(self) -> None:
        """What follows is the last commit."""
        self.spares_last = (_POLLS.get() or {}).get(id(self)) is not self._poll

    async def where_due(self, deadline_ms: float) -> None:
        """At a poll, which waits until then: what the polls before have given is processed."""
        if self._running is None and self._every_ms and self._now_ms() >= self._due_ms:
            self._running = asyncio.get_running_loop().create_task(self._commit_once())
        if self._running is not None:
            left_s = max(0.0, (deadline_ms - self._now_ms()) / 1000)
            # Where no time is left, too, it has begun when this returns: what it commits is known.
            await asyncio.wait([self._running], timeout=left_s)
            self._take_in()

    async def at_last(self) -> None:
        """Before partitions go, and at the end."""
        await self.over()
        if self._every_ms:
            await self._commit_once()

    async def over(self) -> None:
        """Waits for the one that is on its way. Raises what it does."""
        if self._running is not None:
            await asyncio.wait([self._running])
            self._take_in()

    async def end(self) -> None:
        """None is on its way any more."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait([running])

    def _take_in(self) -> None:
        running = self._running
        if running is not None and running.done():
            self._running = None
            running.result()

    async def _commit_once(self) -> None:
        """A refusal is no error: what somebody else has committed meanwhile is read from there on,
        what is in flight is committed at a later poll, and what is in doubt is read again."""
        try:
            await self._commit()
        except (errors.GroupMoved, errors.InDoubt, errors.TryAgain):
            return
        finally:
            # It may have taken long.
            self._due_ms = self._now_ms() + self._every_ms
