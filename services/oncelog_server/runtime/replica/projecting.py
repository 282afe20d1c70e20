"""What a replica keeps beside its machine (outcomes of ended transactions), fed record by record.

Invariant: a projection sees a record once the high watermark covers it, in order; also those that
a leadership finds in its log and that are still on their way to the disk when it begins.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from oncelog_server.core.frame import At
from oncelog_server.core.machine import EpochStart, Projection


class Projecting:
    """Of one leadership, over a log that is durable below `high_watermark`. `projection` may be
    None: then there is nothing to show."""

    def __init__(self, projection: Projection[Any] | None, high_watermark: int) -> None:
        self._projection = projection
        # Not covered yet.
        self._waiting: deque[tuple[Any, At]] = deque()
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
        while self._projection is not None and self._waiting:
            record, at = self._waiting[0]
            if at.offset >= high_watermark:
                return
            self._waiting.popleft()
            self._projection.project(record, at)
