"""How far what is settled of a committed log that is led is behind what is readable: for operators.

In records, in bytes of the journal that stand for them, and in time: for how long the oldest record
that is not settled has been readable, as far as this process has seen it. A lag is normal: what was
written last is in the journal, where it is read as well. One that grows without end is a journal
that grows.

Left out: what keeps settling from going on (`settling`), and what there is to do about it
(docs/operating.md).
"""

from __future__ import annotations

from typing import Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import Settled
from oncelog_server.core.ports import Reporter
from oncelog_server.runtime.storage.journal import Journal

# Moments that are remembered, at which more was readable than before.
MARKS_MAX: Final = 64


class Readable:
    """PURE. Since when more was readable than is settled.

    Invariant: marks ascend in both; none says that something was readable later than it was seen.
    """

    def __init__(self) -> None:
        # (ms, committed end): at that time so much was readable, and not more before.
        self._marks: list[tuple[int, int]] = []

    def seen(self, end: int, *, settled_end: int, now_ms: int) -> int:
        """For how many milliseconds something below `end` has not been settled; 0: all is."""
        if end > (self._marks[-1][1] if self._marks else settled_end):
            self._marks.append((now_ms, end))
        self._marks = [mark for mark in self._marks if mark[1] > settled_end]
        if len(self._marks) > MARKS_MAX:
            self._thin_out()
        return now_ms - self._marks[0][0] if self._marks else 0

    def _thin_out(self) -> None:
        """Of two, the time of the first and the end of the second: rather too long than too short.
        The last one stays, for it says what was seen."""
        first, last = self._marks[:-1], self._marks[-1]
        pairs = zip(first[::2], first[1::2] or first, strict=False)
        self._marks = [(one[0], other[1]) for one, other in pairs] + [last]


class SettlingLag:
    """Of one leadership. Shows nothing of what is not settled and shall not be."""

    def __init__(self, partition: PartitionId, journal: Journal, reporter: Reporter) -> None:
        self._partition = partition
        self._journal = journal
        self._reporter = reporter
        self._readable = Readable()
        self._is_shown = False

    def report(self, settled: Settled | None, *, reached_at: int, now_ms: int) -> None:
        """`settled`: as the machine says now. `reached_at`: journal offset of the newest snapshot
        of which all is settled."""
        data = self._journal.data
        is_wanted = settled is not None and settled.wanted
        if settled is None or not (is_wanted or data.settled_end or self._is_shown):
            return
        self._is_shown = True
        end = max(data.settled_end, settled.begin)
        readable = settled.end if is_wanted else end
        records = max(0, readable - end)
        lag_ms = self._readable.seen(readable, settled_end=end, now_ms=now_ms)
        for name, value in (
            ("settled_end", data.settled_end),
            ("compacted_to", data.compacted_to if data.cleanness.holes_below else 0),
            ("settling_lag", records),
            ("settling_lag_bytes", self._journal.bytes_from(reached_at) if records else 0),
            ("settling_lag_ms", lag_ms if records else 0),
        ):
            self._reporter.gauge(name, value, partition=str(self._partition))
