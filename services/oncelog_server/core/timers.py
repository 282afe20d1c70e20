"""Deadlines on the monotonic clock, by key. Volatile: a new leader starts them again. PURE.

A heap, not scans: a tick costs what is due. Moving a deadline later is free: the entry in the heap
is looked at when its time comes, and goes back with the later one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", bound="int | tuple[str, str] | tuple[bytes, int]")


class Timers(Generic[K]):
    """Invariant: each key has an entry in the heap, at or before its deadline, or is due."""

    def __init__(self) -> None:
        self._deadline_ms: dict[K, int] = {}
        self._heap: list[tuple[int, K]] = []
        self._due: dict[K, None] = {}

    def __len__(self) -> int:
        return len(self._deadline_ms)

    def __contains__(self, key: K) -> bool:
        return key in self._deadline_ms

    def set(self, key: K, deadline_ms: int) -> None:
        """Starts a timer, or moves it."""
        earlier_ms = self._deadline_ms.get(key)
        self._deadline_ms[key] = deadline_ms
        if key in self._due:
            # Its entry has left the heap.
            del self._due[key]
            earlier_ms = None
        if earlier_ms is None or deadline_ms < earlier_ms:
            heapq.heappush(self._heap, (deadline_ms, key))

    def cancel(self, key: K) -> None:
        """No error where there is none."""
        self._deadline_ms.pop(key, None)
        self._due.pop(key, None)

    def turn(self, now_ms: int) -> None:
        """Finds what is due by now. Turning twice is turning once."""
        while self._heap and self._heap[0][0] <= now_ms:
            _, key = heapq.heappop(self._heap)
            deadline_ms = self._deadline_ms.get(key)
            if deadline_ms is None or key in self._due:
                continue
            if deadline_ms > now_ms:
                heapq.heappush(self._heap, (deadline_ms, key))
            else:
                self._due[key] = None

    def next_ms(self) -> int | None:
        """No deadline is earlier, and there may be none at that moment; None: there is none at
        all."""
        if self._due:
            return 0
        return self._heap[0][0] if self._heap else None

    def due(self, count_max: int | None = None) -> Iterator[K]:
        """Stays due until it is cancelled or set again. Of many, the first so many."""
        return islice(self._due, count_max)

    def check(self) -> None:
        in_heap = {key for _, key in self._heap}
        for key, deadline_ms in self._deadline_ms.items():
            assert key in in_heap or key in self._due, "a timer that nobody looks at"
            if key not in self._due:
                earliest = min(at for at, of in self._heap if of == key)
                assert earliest <= deadline_ms
        assert all(key in self._deadline_ms for key in self._due)
