"""Commits that a consumer makes by itself (`auto_commit_ms`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from oncelogpb import errors


class AutoCommit:
    """Of one consumer."""

    def __init__(
        self,
        every_ms: int,
        commit: Callable[[], Awaitable[None]],
        now_ms: Callable[[], float],
    ) -> None:
        """`every_ms` 0: it makes none. `commit`: of what was given so far."""
        self._every_ms = every_ms
        self._commit = commit
        self._now_ms = now_ms
        self._due_ms = now_ms() + every_ms

    @property
    def is_on(self) -> bool:
        """It makes them."""
        return self._every_ms > 0

    def stop(self) -> None:
        """No more: what was given last was not processed."""
        self._every_ms = 0

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
