"""PURE: what `query.lastProgress` shows of a source: where the log ends, and how far the query is
behind it.

Spark's Python API has no metrics of sources. What it has is `latestOffset` of a source's progress,
a JSON document of the source's own: the ends of all partitions, in the form that
`startingOffsets` takes, and beside them an entry "~lag", which no topic can be named.

    "~lag": {"minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 12,
             "avgOffsetsBehindLatest": 4.0, "offsetsBehindLatest": 24,
             "group": "g", "groupOffsetsBehindLatest": 30}

The first three have the names that the Kafka source's metrics have. They count from the end of the
batch; the group stands where the batch begins.
"""

from __future__ import annotations

from typing import Any, Final

from oncelog_spark.offsets import Positions, backlog, positions_json

LAG: Final = "~lag"


class Progress:
    """Of one run of a query, in the process of its reader."""

    def __init__(self, group: str | None) -> None:
        self._group = group
        # Offsets that were deleted before this run could read them, and that it went on without.
        self.passed_over = 0
        self._latest: Positions | None = None
        self._begin: Positions = {}
        self._end: Positions = {}

    def saw(self, latest: Positions, begin: Positions, end: Positions) -> None:
        """Where the log ends, and what the next batch reads of it."""
        self._latest, self._begin, self._end = latest, begin, end

    def document(self) -> dict[str, Any] | None:
        """As Spark shows it; None where nothing was seen yet."""
        if self._latest is None:
            return None
        behind = backlog(self._end, self._latest)
        lag: dict[str, Any] = {
            "minOffsetsBehindLatest": min(behind.values(), default=0),
            "maxOffsetsBehindLatest": max(behind.values(), default=0),
            "avgOffsetsBehindLatest": round(sum(behind.values()) / max(len(behind), 1), 1),
            "offsetsBehindLatest": sum(behind.values()),
        }
        if self._group is not None:
            lag["group"] = self._group
            lag["groupOffsetsBehindLatest"] = sum(backlog(self._begin, self._latest).values())
        if self.passed_over:
            lag["offsetsDeletedUnread"] = self.passed_over
        return {**positions_json(self._latest), LAG: lag}
