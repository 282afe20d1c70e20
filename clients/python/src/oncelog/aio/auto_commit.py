"""Commits that a consumer makes by itself (`auto_commit_ms`).

Whoever polls has processed what the polls before have given; nobody else knows that. So where
another task or thread closes the consumer, what the last poll gave is not committed: it may be
processed still. Who polled is known by the context (PEP 567) in which that was: of a task with
those that it begins later, or of a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Final

from oncelogpb import errors

# Of each consumer (by the identity of its AutoCommit) the last poll that was made here. A poll that
# is over is equal to none, so whatever took the identity of one that is gone is not taken for it.
_POLLS: Final[ContextVar[Mapping[int, object] | None]] = ContextVar("oncelog_polls", default=None)


class AutoCommit:
    """Of one consumer."""

    def __init__(
        self,
        every_ms: int,
        commit: Callable[[], Awaitable[None]],
        now_ms: Callable[[], float],
    ) -> None:
        """`every_ms` 0: it makes none. `commit`: of what is processed."""
        self._every_ms = every_ms
        self._commit = commit
        self._now_ms = now_ms
        self._due_ms = now_ms() + every_ms
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

    async def where_due(self) -> None:
        """At a poll: what the polls before have given is processed."""
        now_ms = self._now_ms()
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + self._every_ms
            await self.at_last()

    async def at_last(self) -> None:
        """Before partitions go, and at the end. A refusal is no error: what somebody else has
        committed meanwhile is read from there on, what is in flight is committed at a later poll,
        and what is in doubt is read again."""
        if self._every_ms:
            try:
                await self._commit()
            except (errors.GroupMoved, errors.InDoubt, errors.TryAgain):
                return
