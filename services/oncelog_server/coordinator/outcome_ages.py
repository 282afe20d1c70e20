"""When the outcomes of ended transactions may be forgotten, by the journal's age. PURE.

Replicated state, changed by `apply` only. Outcomes themselves lie in files (`outcomes`), and what
was in their transactions stands in the journal; both may go once this says so.

    age          ───────┬──────────┬──────────┬──────────┬────────►
    marks               m1         m2         m3         m4   now
                        └ every TxId below m1.below was decided by then
                        ◄──── outcome_retention_ms ───────────►      then m1 is over

Ages are compared with ages: frame times stand still while a wall clock has gone back, and what is
decided meanwhile would look as old as that.

Invariants:
  * what is over stays over;
  * an outcome is told for `retention_ms` at least, and about MARKS-th of it longer at most, as long
    as the journal ages evenly;
  * marks and what was over are few, however long the journal is.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog_server.core.ids import JournalOffset

# In the time that outcomes are told.
MARKS: Final = 32
# Of the last times that something was over. Who reads looks at those that are durable.
OVER_KEPT: Final = 2 * MARKS


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """At this age every transaction whose first record is below was decided, or never was one."""

    aged_ms: int
    below: JournalOffset


class Over(msgspec.Struct, frozen=True, array_like=True):
    """From the record at `since` on, the outcomes of TxIds below `below` are over."""

    since: JournalOffset
    below: JournalOffset


class OutcomeAges(msgspec.Struct, array_like=True):
    """See the module."""

    # Not over. Ages and offsets grow.
    marks: list[Mark] = []
    # Since and below grow; the newest stands last.
    over: list[Over] = []
    # Behind the highest TxId that was decided.
    decided_to: JournalOffset = JournalOffset(0)

    def is_due(self, aged_ms: int, *, retention_ms: int) -> bool:
        """`saw` has something to do at this age."""
        if not self.marks:
            return True
        step_ms = max(1, retention_ms // MARKS)
        return aged_ms - self.marks[-1].aged_ms >= step_ms

    def saw(
        self,
        offset: JournalOffset,
        aged_ms: int,
        *,
        retention_ms: int,
        undecided_from: JournalOffset,
    ) -> None:
        """A record there. Every transaction that begins below `undecided_from` was decided before
        it."""
        assert self.is_due(aged_ms, retention_ms=retention_ms)
        self.marks.append(Mark(aged_ms, undecided_from))
        old = 0
        while self.marks[old].aged_ms <= aged_ms - retention_ms:
            old += 1
        if not old:
            return
        below = self.marks[old - 1].below
        del self.marks[:old]
        if below > self.told_from:
            self.over.append(Over(offset, below))
            del self.over[:-OVER_KEPT]

    def decided(self, begin: JournalOffset) -> None:
        """The transaction that began there."""
        self.decided_to = max(self.decided_to, JournalOffset(begin + 1))

    @property
    def are_told(self) -> bool:
        """Some outcome is not over: time must pass here."""
        return self.told_from < self.decided_to

    @property
    def told_from(self) -> JournalOffset:
        """Outcomes of TxIds below are over: nobody is told what was in their transactions."""
        return self.over[-1].below if self.over else JournalOffset(0)

    def over_below(self, high_watermark: JournalOffset) -> JournalOffset:
        """The same, by what is durable: another leader says so, too."""
        durable = (o.below for o in reversed(self.over) if o.since < high_watermark)
        return next(durable, JournalOffset(0))

    def check(self, next_offset: int) -> None:
        ages = [mark.aged_ms for mark in self.marks]
        assert ages == sorted(set(ages)), "marks grow older one by one"
        marked = [mark.below for mark in self.marks]
        assert marked == sorted(marked), "what is decided stays decided"
        assert all(below <= next_offset for below in marked)
        sinces = [over.since for over in self.over]
        belows = [over.below for over in self.over]
        assert sinces == sorted(set(sinces))
        assert belows == sorted(set(belows)), "what is over stays over"
        assert len(self.over) <= OVER_KEPT
        assert self.decided_to <= next_offset
        assert not (marked and belows) or belows[-1] <= marked[0]
