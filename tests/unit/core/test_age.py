"""The age of a journal: never goes back, never jumps, and goes on where nobody writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog_server.core.age import STEP_MS, AgeWatch, JournalAge
from oncelog_server.core.machine import Instant

HOUR_MS = 3_600_000
START_MS = 1_767_225_600_000


@given(st.lists(st.integers(-(10**12), 10**12), max_size=20))
def test_it_goes_on_with_time_and_never_by_a_jump(jumps: list[int]) -> None:
    age = JournalAge()
    assert age.saw(START_MS) == START_MS
    time_ms = START_MS
    for jump in jumps:
        before = age.aged_ms
        # Frame times never go back.
        time_ms = max(time_ms, time_ms + jump)
        assert 0 <= age.at(time_ms) - before <= STEP_MS
        assert age.at(time_ms) == age.saw(time_ms)
        assert age.aged_ms - before == min(max(jump, 0), STEP_MS)


def idle_for(age: JournalAge, hours: int, *, wall_stands: bool = False) -> int:
    """How many records an idle leader writes."""
    watch, records = AgeWatch(), 0
    for hour in range(hours + 1):
        wall_ms = START_MS + (0 if wall_stands else hour * HOUR_MS)
        watch.look(age, Instant(hour * HOUR_MS, wall_ms))
        if watch.wants_record:
            records += 1
            age.passed(wall_ms)
            watch.wants_record = False
    return records


def test_an_idle_journal_ages_by_records_of_its_leader() -> None:
    for wall_stands in (False, True):
        age = JournalAge()
        age.saw(START_MS)
        assert idle_for(age, 10 * 24, wall_stands=wall_stands) == 40
        assert age.aged_ms - START_MS == 10 * 24 * HOUR_MS


def test_a_busy_journal_needs_none() -> None:
    age, watch = JournalAge(), AgeWatch()
    for minute in range(7 * 24 * 60):
        now = Instant(minute * 60_000, START_MS + minute * 60_000)
        age.saw(now.wall_ms)
        watch.look(age, now)
        assert not watch.wants_record
    assert age.aged_ms == age.last_ms


def test_a_new_leader_watches_anew() -> None:
    age = JournalAge()
    age.saw(START_MS)
    watch = AgeWatch()
    watch.look(age, Instant(90 * HOUR_MS, START_MS))
    assert not watch.wants_record
    watch.look(age, Instant(96 * HOUR_MS, START_MS))
    assert watch.wants_record
