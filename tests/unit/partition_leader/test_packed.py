"""A column of the index that is packed is what it was, value by value."""

from __future__ import annotations

import random
from array import array
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.ids import JournalOffset, Offset
from oncelog_server.core.machine import Instant, Tick
from oncelog_server.partition_leader import committed_log, packed
from oncelog_server.partition_leader.committed_log import PACKED_AT_ONCE, ROW_BYTES, CommittedLog
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.partition_leader.packed import PAGE_ROWS, Column
from tests.unit.partition_leader.test_committed_log import part, plain

LEAST, MOST = -(1 << 63), (1 << 63) - 1
# Values of which a plane is the same in all, or in none; of either sign.
KINDS = (
    lambda chance: 7,
    lambda chance: -1,
    lambda chance: chance.randrange(100),
    lambda chance: (1 << 40) + chance.randrange(1 << 20),
    lambda chance: chance.randrange(-1_000, 1_000),
    lambda chance: chance.choice((LEAST, 0, MOST)),
    lambda chance: chance.randrange(LEAST, MOST + 1),
)


def values_of(kind: int, count: int, seed: int = 1) -> list[int]:
    chance = random.Random(seed)
    return [KINDS[kind](chance) for _ in range(count)]


def require_same(column: Column, expected: list[int], chance: random.Random) -> None:
    assert len(column) == len(expected)
    assert list(column) == expected
    for _ in range(20):
        first, behind = sorted(chance.randrange(len(expected) + 1) for _ in range(2))
        assert column[first:behind] == array("q", expected[first:behind])
        assert list(islice(column.behind(first), 3)) == expected[first : first + 3]
        if expected:
            at = chance.randrange(-len(expected), len(expected))
            assert column[at] == expected[at]
    for at in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            column[at]


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_what_is_packed_is_what_was_there(kind: int) -> None:
    expected = values_of(kind, 3 * PAGE_ROWS + 17)
    column, chance = Column(), random.Random(2)
    column.tail.extend(expected)
    require_same(column, expected, chance)
    for pages in (1, 2):
        column.pack(pages)
        require_same(column, expected, chance)
    assert len(column.tail) == 17
    for count in (5, PAGE_ROWS, PAGE_ROWS - 5, PAGE_ROWS + 3):
        column.drop(count)
        del expected[:count]
        require_same(column, expected, chance)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["grow", "pack", "drop"]), st.integers(0, 9_000))))
def test_it_grows_is_packed_and_is_let_go_of_in_any_order(steps: list[tuple[str, int]]) -> None:
    column, expected, chance = Column(), list[int](), random.Random(3)
    for step, number in steps:
        if step == "grow":
            more = values_of(number % len(KINDS), number, seed=number)
            column.tail.extend(more)
            expected += more
        elif step == "pack":
            column.pack(min(number % 3, len(column.tail) // PAGE_ROWS))
        else:
            count = min(number, len(expected))
            column.drop(count)
            del expected[:count]
    require_same(column, expected, chance)


@pytest.mark.parametrize("rows", [0, 1, PAGE_ROWS - 1, PAGE_ROWS, 2 * PAGE_ROWS + 5])
def test_a_column_of_a_table_is_loaded_packed(rows: int) -> None:
    columns = [values_of(kind, rows) for kind in range(3)]
    table = array("q", [value for row in zip(*columns, strict=True) for value in row]).tobytes()
    for place, expected in enumerate(columns):
        column = Column()
        column.load(table, place, 3)
        require_same(column, expected, random.Random(4))
        assert len(column.tail) == rows % PAGE_ROWS


def grown() -> CommittedLog:
    """Runs and transactions, some of which lie before others in the journal."""
    log, journal = CommittedLog(), 1
    for number in range(120):
        batches = 1 + number % 7
        log.expose(
            part(batches, journal=journal + 3, times=number * 5),
            exposed_at=JournalOffset(journal + 40),
            time_ms=journal,
        )
        journal += 41
        for _ in range(number % 3):
            plain(log, journal, records=1 + number % 2, time=number * 5)
            journal += 2
    return log


def state_of(log: CommittedLog, end: int) -> list[object]:
    """All that can be asked of it."""
    offsets = range(log.end_offset)
    return [
        log.dump(),
        log.rows(log.first_row),
        [log.entry_of(offset) for offset in offsets],
        [log.unit_row(entry) for entry in range(len(log))],
        [log.lowest_from(entry) for entry in range(len(log))],
        [log.bytes_below(offset) for offset in offsets],
        [log.cut_to(excess) for excess in range(0, log.total_bytes, 97)],
        [log.since(time, below=end) for time in range(0, 700, 7)],
        [log.readable_end(watermark) for watermark in range(0, end, 3)],
        [log.stretches(at, below=log.end_offset, max_bytes=900, max_entries=9) for at in offsets],
    ]


def test_i35_an_index_that_is_packed_says_what_one_says_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (packed, committed_log):
        monkeypatch.setattr(module, "PAGE_ROWS", 16)
    monkeypatch.setattr(packed, "_SHIFT", 4)
    monkeypatch.setattr(packed, "_MASK", 15)
    end = 120 * 60
    plainly, log = grown(), grown()
    for _ in range(100):
        log.pack()
    assert len(log.base.tail) < 2 * 16 < len(log), "most of it is packed"
    log.check(end)
    assert state_of(log, end) == state_of(plainly, end)
    loaded = CommittedLog()
    loaded.load(log.dump(), log.rows(log.first_row))
    assert len(loaded.base.tail) <= 16
    loaded.check(end)
    assert state_of(loaded, end) == state_of(plainly, end)
    for one in (plainly, log, loaded):
        start = Offset(one.first_offset(one.unit_row(130)))
        one.begin_at(start, moved_at=JournalOffset(end))
        one.drop(end + 1)
        one.check(end + 1)
    rows = [one.rows(one.first_row) for one in (plainly, log, loaded)]
    assert rows[0] == rows[1] == rows[2]
    assert {one.bytes_below(start + 90) for one in (plainly, log, loaded)} == {
        plainly.bytes_below(start + 90)
    }


def test_i31_rows_of_small_transactions_take_a_third_of_what_they_did() -> None:
    log = CommittedLog()
    for number in range(4 * PAGE_ROWS):
        log.expose(
            part(1, journal=1 + 4 * number, records=1, times=number * 900),
            exposed_at=JournalOffset(3 + 4 * number),
            time_ms=1_790_000_000_000 + number,
        )
    before = log.memory_bytes
    assert before == len(log) * ROW_BYTES
    log.pack()
    assert len(log.base.tail) == PAGE_ROWS, "what is new stays as it is"
    assert log.memory_bytes < PAGE_ROWS * ROW_BYTES + 3 * PAGE_ROWS * ROW_BYTES / 3


def test_i31_a_leader_packs_its_index_at_its_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few pages at each: it must not hold up who writes."""
    for module in (packed, committed_log):
        monkeypatch.setattr(module, "PAGE_ROWS", 16)
    monkeypatch.setattr(packed, "_SHIFT", 4)
    monkeypatch.setattr(packed, "_MASK", 15)
    machine = PartitionMachine()
    machine.committed = grown()
    rows, tails = machine.committed.rows(0), list[int]()
    for tick in range(20):
        tails.append(len(machine.committed.base.tail))
        machine.seen(Tick(), Instant(tick * 1_000, tick * 1_000))
    assert tails[0] - tails[1] == PACKED_AT_ONCE * 16, "nothing was packed"
    assert 16 <= tails[-1] < 32
    assert machine.committed.rows(0) == rows
