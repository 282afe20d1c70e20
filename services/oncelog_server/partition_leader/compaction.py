"""How far a partition is compacted, as far as its replicas must agree on it. PURE.

    what the leader's own data log is cleaned to ──► compacted below ──► no leader serves from below
                                                          │              that what is superseded
                                  delete.retention.ms of  │
                                  the journal's own age   ▼
                                                    tombstones below ──► replicas may drop those

Each replica cleans its data log by itself, when it likes. What they must agree on is journaled
(CompactionPoint), in two steps. Who has read a key's old value at one leader must meet its
tombstone at the next one: so a tombstone goes only so long after the moment from which on nobody
serves what it superseded (docs/protocol.md, docs/adr/0074).

Invariants:
  * tombstones below <= waiting <= compacted below < end of the log; none of them ever goes back;
  * the last record of a log is a tombstone that stays, or no tombstone: so a reader reaches the
    end;
  * a partition whose points have come to its end journals nothing more.

Left out: who removes what, and when (`runtime/replica`); the rule of reads (`reads`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog_server.core.age import JournalAge
from oncelog_server.core.machine import Compaction
from oncelog_server.partition_leader.commands import Settings
from oncelog_server.partition_leader.records import CompactionPoint

# A point is journaled no more often than this, and than each such share of delete.retention.ms.
POINT_MS_LEAST: Final = 1_000
POINT_MS_MOST: Final = 10 * 60 * 1000
POINT_SHARE: Final = 16


class CompactionState(msgspec.Struct, array_like=True):
    """Replicated: changed by `apply` only."""

    compacted_below: int = 0
    tombstones_below: int = 0
    # An earlier `compacted_below`, up to which tombstones go next, and the journal's age when it
    # was journaled. One is enough: where it is used, the newest one waits.
    waiting: int = 0
    waiting_since_ms: int = 0
    # Age of the journal when `compacted_below` was journaled, or more.
    newest_since_ms: int = 0

    @property
    def is_waiting(self) -> bool:
        """Time that passes brings something about."""
        return self.waiting > self.tombstones_below

    def reached(self, point: CompactionPoint, aged_ms: int) -> None:
        if point.compacted_below > self.compacted_below:
            self.compacted_below, self.newest_since_ms = point.compacted_below, aged_ms
        self.tombstones_below = max(self.tombstones_below, point.tombstones_below)
        if not self.is_waiting:
            self.waiting, self.waiting_since_ms = self.compacted_below, self.newest_since_ms

    def time_passed(self, by_ms: int) -> None:
        """The journal is older by so much at once. Who measured that time began when `waiting` was
        there (`retention.Watch`); the newest point may have come at its end."""
        if self.compacted_below > self.waiting:
            self.newest_since_ms += by_ms

    def begin_anew(self, aged_ms: int) -> None:
        """More was believed of clocks that jump than `delete.retention.ms` bears now."""
        if self.compacted_below:
            self.waiting_since_ms = self.newest_since_ms = aged_ms

    def told(self, settings: Settings) -> Compaction:
        """As snapshots say it."""
        return Compaction(
            settings.is_compacted,
            settings.min_compaction_lag_ms,
            self.compacted_below,
            self.tombstones_below,
        )

    def check(self, end_offset: int) -> None:
        assert 0 <= self.tombstones_below <= self.waiting <= self.compacted_below
        assert self.compacted_below < max(end_offset, 1), "the last record is never below the point"


class CompactionWatch:
    """How far the leader's data log is cleaned, and when that is worth a record. Volatile."""

    def __init__(self) -> None:
        self.cleaned_below = 0
        self.is_due = False
        self._not_before_ms = 0
        self._known = 0

    def look(self, state: CompactionState, settings: Settings, now_ms: int) -> None:
        if state.compacted_below != self._known:
            self._known = state.compacted_below
            self._not_before_ms = now_ms + point_every_ms(settings)
        self.is_due = now_ms >= self._not_before_ms


def point_every_ms(settings: Settings) -> int:
    share_ms = settings.delete_retention_ms // POINT_SHARE
    return min(max(share_ms, POINT_MS_LEAST), POINT_MS_MOST)


def due(
    state: CompactionState,
    settings: Settings,
    watch: CompactionWatch,
    age: JournalAge,
    *,
    start_offset: int,
    end_offset: int,
) -> tuple[CompactionPoint, ...]:
    """At a Tick. `watch` has looked."""
    if not settings.is_compacted:
        return ()
    compacted_below, tombstones_below = state.compacted_below, state.tombstones_below
    if watch.is_due and watch.cleaned_below > start_offset:
        # The last record stays, whatever it is.
        compacted_below = max(compacted_below, min(watch.cleaned_below, end_offset - 1))
    waited_ms = age.aged_ms - state.waiting_since_ms
    if state.is_waiting and waited_ms >= settings.delete_retention_ms:
        tombstones_below = state.waiting
    point = CompactionPoint(compacted_below, tombstones_below)
    is_news = point != CompactionPoint(state.compacted_below, state.tombstones_below)
    return (point,) if is_news else ()
