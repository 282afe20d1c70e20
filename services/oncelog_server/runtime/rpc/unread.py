"""Bytes of replies that one connection has not read yet. A fetch takes room before it reads, so a
caller that asks for much and reads nothing costs no more than `connection_unread_bytes_max`, and
many such callers no more than `unread_bytes_max` and one fetch each. A Subscribe never waits for
room, for its caller may read its other streams first; it sends less at a time where others hold
half of the room, so that fetches find some.

Invariants: what is taken is given back once, when the reply is written or its call has ended; room
is given in the order in which it was asked for; who comes alone gets any size.

Left out: replies of calls that do not ask for room (they are small).
"""

from __future__ import annotations

import asyncio
from collections import deque


class Total:
    """Of all connections of a process."""

    __slots__ = ("bytes", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.bytes = 0


class Unread:
    """Of one connection."""

    __slots__ = ("__weakref__", "_bytes", "_total", "_waiting", "maximum")

    def __init__(self, maximum: int, total: Total) -> None:
        self.maximum = maximum
        self._total = total
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def bytes(self) -> int:
        return self._bytes

    def has_room(self, size: int) -> bool:
        """Whether `take` would not wait."""
        return not self._waiting and self._fits(size)

    def room_left(self) -> int:
        """What a stream of replies may hold: of the first half of the room."""
        if self._waiting:
            return 0
        own, all_ = self.maximum // 2 - self._bytes, self._total.maximum // 2 - self._total.bytes
        return max(min(own, all_), 0)

    async def take(self, size: int) -> None:
        """Waits for room."""
        if self.has_room(size):
            self._add(size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.change(-size)
            else:
                # Gone already where room came after it had given up.
                if entry in self._waiting:
                    self._waiting.remove(entry)
                self.change(0)
            raise

    def change(self, by: int) -> None:
        """Without waiting: what was read turned out smaller or larger, or was written."""
        self._add(by)
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._add(size)
                turn.set_result(None)

    def _add(self, by: int) -> None:
        self._bytes += by
        self._total.bytes += by
        assert self._bytes >= 0, "more was given back than taken"

    def _fits(self, size: int) -> bool:
        # Who waits has something out, and is woken when that is read: others need not wake it.
        return self._bytes == 0 or (
            self._bytes + size <= self.maximum and self._total.bytes + size <= self._total.maximum
        )
