"""Slots that nobody asks for any more: their files go, front to back, and none too early."""

from __future__ import annotations

from errno import EIO
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.slots import SLOT_RANGE_OFFSETS, SlotFiles
from tests.simulation.disk import FakeDisk
from tests.unit.storage.journals import DIRECTORY, open_journal, start

FOLDER: Final = f"{DIRECTORY}/slots/outcomes"
RANGE: Final = SLOT_RANGE_OFFSETS


def slots_of(disk: FakeDisk, journal: Journal | None = None) -> SlotFiles:
    return (journal or start(disk, "a")).slots.open("outcomes", 4)


def written(disk: FakeDisk, *offsets: int) -> SlotFiles:
    slots = slots_of(disk)
    for offset in offsets:
        slots.write(offset, b"kept")
    slots.flush()
    return slots


def firsts(disk: FakeDisk) -> list[int]:
    return [int(name.removesuffix(".slots")) // RANGE for name in disk.list(FOLDER)]


@given(
    st.lists(st.integers(0, 4 * RANGE), min_size=1, max_size=6, unique=True),
    st.lists(
        st.one_of(
            st.integers(0, 4 * RANGE), st.sampled_from([RANGE - 1, RANGE, RANGE + 1, 2 * RANGE])
        ),
        max_size=4,
    ),
)
def test_i4_no_slot_goes_before_it_is_let_go_of(offsets: list[int], begins: list[int]) -> None:
    disk = FakeDisk()
    slots = written(disk, *offsets)
    slots.write(4 * RANGE + 1, b"held")
    begin = 0
    for at in begins:
        begin = max(begin, at)
        slots.let_go_below(at)
        slots.remove_gone()
        for offset in offsets:
            assert slots.read(offset) == (b"kept" if offset >= begin else None), "told too short"
        assert all(first * RANGE + RANGE > begin for first in firsts(disk)), "a file stays behind"
    assert slots.read(4 * RANGE + 1) == b"held"
    slots.close()
    disk.crash()
    again = slots_of(disk, open_journal(disk.reopen()))
    again.let_go_below(begin)
    assert [again.read(at) for at in offsets if at >= begin] == [
        b"kept" for at in offsets if at >= begin
    ]


def test_a_file_is_looked_for_only_where_one_may_go() -> None:
    disk = FakeDisk()
    slots = written(disk, 1, RANGE + 1)
    slots.let_go_below(RANGE - 1)
    assert slots.has_gone is False
    slots.let_go_below(RANGE)
    assert slots.remove_gone() == 1
    assert firsts(disk) == [1]
    slots.let_go_below(RANGE + 1)
    assert slots.has_gone is False


def test_what_a_crash_left_goes_after_it() -> None:
    """Also what a replay wrote again."""
    disk = FakeDisk()
    written(disk, 1, RANGE + 1).let_go_below(RANGE)
    disk.crash()
    disk = disk.reopen()
    slots = slots_of(disk, open_journal(disk))
    slots.write(2, b"anew")
    slots.flush()
    slots.let_go_below(RANGE)
    assert slots.has_gone
    assert slots.remove_gone() == 1
    assert firsts(disk) == [1]


def test_a_failed_removal_is_tried_again() -> None:
    disk = FailsToRemove()
    slots = written(disk, 1)
    slots.let_go_below(RANGE)
    with pytest.raises(OSError, match="bad disk"):
        slots.remove_gone()
    assert slots.has_gone
    assert slots.read(1) is None
    assert slots.remove_gone() == 1
    assert firsts(disk) == []


class FailsToRemove(FakeDisk):
    """Once."""

    fails = True

    def remove(self, path: str) -> None:
        if self.fails:
            self.fails = False
            raise OSError(EIO, "bad disk")
        super().remove(path)


def test_what_is_held_is_let_go_of_too() -> None:
    disk = FakeDisk()
    slots = slots_of(disk)
    slots.write(1, b"gone")
    slots.write(9, b"kept")
    slots.let_go_below(9)
    assert (slots.held, slots.read(1), slots.read(9)) == (1, None, b"kept")
    slots.write(2, b"late")
    assert slots.held == 1, "nobody asks for it"


def test_another_replica_gets_none_of_them() -> None:
    disk = FakeDisk()
    slots = written(disk, 1, 9, RANGE + 1)
    slots.let_go_below(9)
    data, after = slots.stored(0, 2 * RANGE, max_bytes=1 << 30)
    assert int.from_bytes(data[:8], "little") == 9
    assert after == RANGE
    slots.let_go_below(2 * RANGE)
    assert slots.stored(0, 2 * RANGE, max_bytes=1 << 30) == (b"", 2 * RANGE)


def test_i4_a_cut_takes_back_what_cut_frames_said() -> None:
    """An unclean election: the frames that said that outcomes are over are gone. One that is
    decided now, of a transaction that began before, is told."""
    disk = FakeDisk()
    journal = start(disk, *"abcdef")
    slots = slots_of(disk, journal)
    slots.let_go_below(5)
    journal.cut(4)
    slots.write(2, b"anew")
    assert slots.read(2) == b"anew"
