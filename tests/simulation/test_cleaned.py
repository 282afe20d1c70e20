"""What judges compacted logs notices each thing that may be wrong with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from tests.simulation.cleaned import (
    Commit,
    Held,
    Rules,
    Step,
    require_alike,
    require_followed,
    require_held,
    require_latest,
    require_served,
    require_table,
    staying,
)
from tests.simulation.rows import Row

RETENTION_MS: Final = 1_000.0
RULES: Final = Rules(RETENTION_MS)
LONG_MS: Final = 10 * RETENTION_MS


def row(key: str | None, value: str | None) -> Row:
    return Row(
        None if key is None else key.encode(), None if value is None else value.encode(), 0, ()
    )


#       0    1    2       3    4       5    6
TOLD: Final = ("a=1", "b=1", "b=-", "a=2", "c=-", "a=3", "d=1")
# Each a second after the one before.
LOG: Final = tuple(
    Commit(row(key, None if value == "-" else value), 1_000.0 * number)
    for number, (key, value) in enumerate(it.split("=") for it in TOLD)
)
END: Final = len(LOG)
# When all had been there for so long that tombstones may go.
LATE_MS: Final = 1_000.0 * END + LONG_MS


def step(
    *offsets: int, begin: int = 0, end: int = END, told_ms: float = LATE_MS, asked_ms: float = 0.0
) -> Step:
    return Step(asked_ms, told_ms, begin, end, [(it, LOG[it].row) for it in offsets])


def held(
    *offsets: int, to: int = END, tombstones: int = 0, holes: int = END, dropped: int = 0
) -> Held:
    return Held(0, END, {it: LOG[it].row for it in offsets}, to, tombstones, holes, dropped)


def test_i33_what_stays_is_the_last_of_each_key_below_the_point() -> None:
    assert staying(LOG, 0, END, 0) == {2, 4, 5, 6}
    assert staying(LOG, 0, END, 4) == {4, 5, 6}
    assert staying(LOG, 0, 4, 0) == {2, 3}
    assert staying(LOG, 0, 0, 0) == set()
    assert staying([*LOG, Commit(row(None, "x"), 0), LOG[0]], 0, 9, 0) == {2, 4, 6, 7, 8}


@pytest.mark.parametrize("offsets", [range(END), (2, 4, 5, 6), (5, 6), (1, 2, 5, 6), (3, 5, 6)])
def test_i33_what_may_be_missing_is_not_complained_of(offsets: Sequence[int]) -> None:
    require_served(LOG, step(*offsets), RULES)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (step(2, 4, 6), "I33: 5 is missing .* the last value of b'a'"),
        (step(3, 2, 5, 6), "I14: 2 was served"),
        (step(2, 2, 5, 6), "I14: 2 was served"),
        (step(5, 6, begin=6), "I14: 5 was served"),
        (step(5, 6, end=6), "I14: 6 was served"),
        (step(*range(END), end=END + 1), f"I14: a reader stands at {END + 1}"),
        (step(*range(END), told_ms=5_500.0), "I27: 6 was served before"),
        (step(5, 6)._replace(rows=[(5, LOG[3].row), (6, LOG[6].row)]), "I33: at 5 is served"),
        # A tombstone that nobody can have read yet.
        (step(0, 1, end=3, told_ms=2_500.0), "I33: 2 is missing .* a tombstone that became"),
        # What superseded it was not there yet.
        (step(0, 1, 2, end=4, told_ms=4_500.0), "I33: 3 is missing .* the last value of b'a'"),
    ],
)
def test_i33_what_is_served_wrongly_or_missing_wrongly_is_noticed(wrong: Step, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        require_served(LOG, wrong, RULES)


def test_i33_what_was_never_committed_is_noticed() -> None:
    wrong = Step(0.0, LATE_MS, 0, END + 1, [(it, LOG[it].row) for it in range(END)])
    with pytest.raises(AssertionError, match="I27: 7 is served, and nobody committed it"):
        require_served(LOG, wrong._replace(rows=[*wrong.rows, (7, LOG[0].row)]), RULES)


def test_i33_what_is_superseded_stays_for_the_lag() -> None:
    """3 is superseded by 5, which is readable since 5 s."""
    require_served(LOG, step(2, 4, 5, end=6, told_ms=7_000.0), Rules(RETENTION_MS, 1_500.0))
    with pytest.raises(AssertionError, match="I33: 3 is missing"):
        require_served(LOG, step(2, 4, 5, end=6, told_ms=7_000.0), Rules(RETENTION_MS, 3_000.0))


def test_i33_a_record_without_a_key_is_never_missing() -> None:
    log = [Commit(row(None, "x"), 0.0), Commit(row(None, "y"), 0.0)]
    with pytest.raises(AssertionError, match=r"I33: 0 is missing .* no key"):
        require_served(log, Step(0.0, LATE_MS, 0, 2, [(1, log[1].row)]), RULES)


def test_what_is_deleted_is_not_missing() -> None:
    require_served(LOG, step(6)._replace(deleted_below=6), RULES)


def scan(told_ms: float, second: Step) -> list[Step]:
    """It had b=1 at once, and went on later."""
    return [step(0, 1, end=2, told_ms=told_ms), second]


def test_i33_who_saw_a_value_meets_its_tombstone_unless_he_is_slow() -> None:
    met = step(2, 4, 5, 6, begin=2, told_ms=LATE_MS)
    require_followed(LOG, scan(1_500.0, met), RULES)
    missed = step(5, 6, begin=2, told_ms=LATE_MS, asked_ms=1_500.0)
    require_followed(LOG, scan(1_500.0, missed), RULES)
    with pytest.raises(AssertionError, match=r"I33: .* given 1 of b'b' .* that 2 removed it"):
        require_followed(LOG, scan(1_500.0, missed), Rules(LATE_MS + 1))


def test_i33_who_never_saw_the_value_need_not_see_that_it_went() -> None:
    require_followed(LOG, [step(3, 5, 6, told_ms=LATE_MS)], Rules(LATE_MS + 1))
    require_followed(
        LOG, [step(3, end=4), step(5, 6, begin=4, told_ms=LATE_MS)], Rules(LATE_MS + 1)
    )


def test_i33_who_saw_a_value_may_miss_a_tombstone_that_was_superseded() -> None:
    log = [*LOG, Commit(row("b", "2"), 7_000.0)]
    first = Step(0.0, 1_500.0, 0, 2, [(0, log[0].row), (1, log[1].row)])
    rest = Step(1_500.0, LATE_MS, 2, END, [(it, log[it].row) for it in (4, 5, 6)])
    require_followed(log, [first, rest], Rules(LATE_MS + 1))
    with pytest.raises(AssertionError, match=r"I33: .* that 2 removed it"):
        require_followed(log, [first, rest._replace(told_ms=6_900.0)], Rules(LATE_MS + 1))


def test_a_scan_that_jumps_is_no_scan() -> None:
    with pytest.raises(AssertionError, match="a scan goes on"):
        require_followed(LOG, [step(0, end=1), step(2, begin=2)], RULES)


@pytest.mark.parametrize(
    "right",
    [
        held(*range(END), to=0, holes=0),
        held(2, 4, 5, 6),
        held(4, 5, 6, tombstones=4),
        held(5, 6, tombstones=6),
        held(5, 6, tombstones=6, dropped=6),
        # Of what came from another replica, some may have gone there.
        held(4, 5, 6, tombstones=6, dropped=4),
        held(2, 3, 4, 5, 6, to=4),
        # Passes that were not finished.
        held(1, 2, 3, 4, 5, 6, to=0),
        held(2, 4, 5, 6, to=4),
    ],
)
def test_i33_what_a_replica_may_hold_is_not_complained_of(right: Held) -> None:
    require_held(LOG, right)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (held(2, 4, 6), "I33: 5 of b'a' is missing"),
        (held(2, 3, 4, 5, 6), "I33: 3 of b'a' is superseded below 7"),
        (held(4, 5, 6), "I33: 2 of b'b' is missing"),
        # Superseded by what its holes are said to be below.
        (held(1, 2, 4, 5, 6, to=0, holes=5), "I33: 3 of b'a' is missing, and nothing below 5"),
        (held(2, 4, 5, 6)._replace(end=6), "6 is outside"),
        (held(4, 5, 6, tombstones=6, dropped=6), "I33: tombstones below 6 are gone, and 4 stands"),
    ],
)
def test_i33_what_a_replica_holds_wrongly_is_noticed(wrong: Held, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        require_held(LOG, wrong)


def test_i33_a_replica_with_another_record_is_noticed() -> None:
    wrong = held(2, 4, 5, 6)
    rows = {**wrong.rows, 5: LOG[3].row}
    with pytest.raises(AssertionError, match="I33: at 5 stands"):
        require_held(LOG, wrong._replace(rows=rows))
    log = [*LOG[:-1], Commit(row(None, "x"), 0.0)]
    with pytest.raises(AssertionError, match="I33: 6 has no key"):
        require_held(log, held(2, 4, 5))


def test_i33_replicas_that_are_cleaned_alike_and_differ_are_noticed() -> None:
    require_alike(LOG, [])
    require_alike(LOG, [held(2, 4, 5, 6), held(2, 4, 5, 6), held(*range(END), to=0, holes=0)])
    require_alike(LOG, [held(5, 6, tombstones=6, dropped=6), held(4, 5, 6, tombstones=6)])
    with pytest.raises(AssertionError, match="I33: two replicas are cleaned alike"):
        require_alike(LOG, [held(2, 4, 5, 6), held(1, 2, 4, 5, 6)])
    with pytest.raises(AssertionError, match="I33: the last value of b'a' is at 5, found 3"):
        require_alike(LOG, [held(2, 4, 5, 6), held(2, 3, 4, 6, to=0)])


def test_i33_a_scan_that_ends_with_another_value_is_noticed() -> None:
    def rows(*offsets: int) -> list[tuple[int, Row]]:
        return [(it, LOG[it].row) for it in offsets]

    assert require_latest(LOG, rows(2, 4, 5, 6)) == {b"a": b"3", b"d": b"1"}
    assert require_latest(LOG, rows(5, 6)) == {b"a": b"3", b"d": b"1"}
    assert require_latest(LOG, rows(6), start=6) == {b"d": b"1"}
    assert require_latest(LOG, rows(0, 4), end=5) == {}
    with pytest.raises(AssertionError, match="I33: the last value of b'a' is at 5, found 3"):
        require_latest(LOG, rows(2, 3, 4, 6))
    with pytest.raises(AssertionError, match="I33: the last value of b'd' is at 6, found None"):
        require_latest(LOG, rows(2, 4, 5))
    with pytest.raises(AssertionError, match="I33: b'b' was removed at 2, found 1"):
        require_latest(LOG, rows(1, 5, 6))


def test_i33_a_table_with_another_value_is_noticed() -> None:
    require_table(LOG, {b"a": b"3", b"d": b"1"})
    require_table(LOG, {b"d": b"1"}, start=6)
    for wrong in ({b"a": b"2", b"d": b"1"}, {b"d": b"1"}, {b"a": b"3", b"b": b"1", b"d": b"1"}):
        with pytest.raises(AssertionError, match="I33: the table has"):
            require_table(LOG, wrong)
