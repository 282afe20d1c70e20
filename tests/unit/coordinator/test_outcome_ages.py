"""How long outcomes are told: whatever the clocks do, whatever was trimmed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog_server.coordinator.outcome_ages import MARKS, OVER_KEPT, OutcomeAges
from oncelog_server.core.ids import JournalOffset

RETENTION_MS = 3_200
STEP_MS = RETENTION_MS // MARKS


class Journal:
    """Of which every third record begins a transaction; the oldest ones are decided in time."""

    def __init__(self) -> None:
        self.ages = OutcomeAges()
        self.offset = 0
        self.aged_ms = 0
        # Not decided, by the offset of its first record.
        self.open: list[int] = []
        # The age when it was decided.
        self.decided: dict[int, int] = {}

    def append(self, aged_ms: int, *, decides: bool) -> None:
        self.aged_ms += aged_ms
        if self.ages.is_due(self.aged_ms, retention_ms=RETENTION_MS):
            self.ages.saw(
                JournalOffset(self.offset),
                self.aged_ms,
                retention_ms=RETENTION_MS,
                undecided_from=JournalOffset(self.open[0] if self.open else self.offset),
            )
        if decides and self.open:
            self.decided[self.open.pop(0)] = self.aged_ms
        elif self.offset % 3 == 0:
            self.open.append(self.offset)
        self.offset += 1
        self.ages.check(self.offset)


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, STEP_MS, 7 * STEP_MS, RETENTION_MS]), st.booleans()),
        max_size=120,
    )
)
def test_i4_an_outcome_is_told_for_as_long_as_is_said(steps: list[tuple[int, bool]]) -> None:
    journal = Journal()
    told_from = 0
    for aged_ms, decides in steps:
        journal.append(aged_ms, decides=decides)
        assert journal.ages.told_from >= told_from, "what is over stays over"
        told_from = journal.ages.told_from
        for tx, decided_ms in journal.decided.items():
            is_young = journal.aged_ms - decided_ms < RETENTION_MS
            assert tx >= told_from or not is_young, "told too short"
        assert all(tx >= told_from for tx in journal.open), "its outcome is not known yet"


def test_i4_an_outcome_is_over_soon_after_its_time() -> None:
    journal = Journal()
    journal.append(0, decides=False)
    journal.append(0, decides=True)
    while journal.ages.told_from == 0:
        journal.append(STEP_MS // 3, decides=True)
        assert journal.aged_ms <= RETENTION_MS + 3 * STEP_MS
    assert journal.aged_ms >= RETENTION_MS


def test_marks_are_few_however_long_a_journal_is() -> None:
    journal = Journal()
    for _ in range(20_000):
        journal.append(STEP_MS // 2, decides=True)
    assert len(journal.ages.marks) <= MARKS + 1
    assert len(journal.ages.over) == OVER_KEPT
    assert journal.ages.told_from > 19_000


def test_i4_what_is_over_by_a_record_that_may_be_lost_is_told_still() -> None:
    journal = Journal()
    while journal.ages.told_from == 0:
        journal.append(STEP_MS, decides=True)
    [over] = journal.ages.over
    assert journal.ages.over_below(over.since) == 0
    assert journal.ages.over_below(JournalOffset(over.since + 1)) == over.below > 0
