"""What a replica keeps beside its machine (outcomes of ended transactions), fed record by record.

Invariant: a projection sees a record once the high watermark covers it, in order; also those that
a leadership finds in its log and that are still on their way to the disk when it begins.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from oncelog_server.core.frame import At
from oncelog_server.core.machine import EpochStart


class Projecting:
    """Of one replica, over all its leaderships."""

    def __init__(self) -> None:
        self._projection: Any = None
        # Not covered yet.
        self._waiting: deque[tuple[Any, At]] = deque()
        self._high_watermark = 0

    def begin(self, projection: Any, high_watermark: int) -> None:
        """A leadership begins, over a log that is durable below this. `projection` may be None."""
        self._projection = projection
        self._waiting.clear()
        self._high_watermark = high_watermark

    def saw(self, record: Any, at: At) -> None:
        """The machine applied it: replayed or appended."""
        if self._projection is None or isinstance(record, EpochStart):
            return
        if at.offset < self._high_watermark and not self._waiting:
            self._projection.project(record, at)
        else:
            self._waiting.append((record, at))

    def advance(self, high_watermark: int) -> None:
        self._high_watermark = high_watermark
        while self._waiting and self._waiting[0][1].offset < high_watermark:
            self._projection.project(*self._waiting.popleft())

    def drop(self) -> None:
        """The leadership is over: what is not covered may be cut."""
        self._projection = None
        self._waiting.clear()
