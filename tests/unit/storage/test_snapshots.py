"""Snapshots and slots: old or new after a crash, never a mix; damage is noticed (I26)."""

from __future__ import annotations

from collections.abc import Callable
from errno import EIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_server.core.machine import Compaction, Needs, Settled, Snapshot, Table
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.port import File
from oncelog_server.runtime.storage.slots import SLOT_FILES_OPEN_MAX, SLOT_RANGE_OFFSETS
from oncelog_server.runtime.storage.snapshots import (
    SnapshotFile,
    decode_snapshot,
    encode_snapshot,
)
from oncelog_server.runtime.storage.tables import Chunk, TableEnd
from oncelogpb.errors import CorruptLog
from tests.simulation.disk import FakeDisk, Tear
from tests.unit.storage.journals import DIRECTORY, append, open_journal, record, start, sync


def rows(first: int, *values: str) -> Table:
    return Table(2, first, "".join(values).encode())


def snapshot_path(offset: int) -> str:
    return f"{DIRECTORY}/snapshot-{offset:020d}"


def snapshots(disk: FakeDisk) -> list[int]:
    names = disk.list(DIRECTORY)
    return [int(name[9:]) for name in names if name.startswith("snapshot-")]


def with_three_snapshots(disk: FakeDisk) -> Journal:
    journal = start(disk, *"abcdef")
    journal.save_snapshot(2, Snapshot(b"two", {"t": rows(0, "r0", "r1")}))
    journal.save_snapshot(4, Snapshot(b"four", {"t": rows(2, "r2"), "u": Table(1, 0, b"")}))
    journal.save_snapshot(6, Snapshot(b"six", {"t": rows(3, "r3", "r4"), "u": Table(1, 0, b"x")}))
    return journal


SIX = (6, b"six", {"t": b"r0r1r2r3r4", "u": b"x"})
FOUR = (4, b"four", {"t": b"r0r1r2", "u": b""})


@given(
    st.integers(0, 2**63),
    st.binary(max_size=50),
    st.dictionaries(
        st.text(max_size=9),
        st.builds(
            TableEnd,
            st.integers(1, 2**32 - 1),
            st.integers(0, 2**60),
            st.lists(
                st.builds(
                    Chunk,
                    st.integers(0, 2**60),
                    st.integers(0, 2**60),
                    st.integers(0, 2**32 - 1),
                ),
                max_size=3,
            ).map(tuple),
        ),
        max_size=4,
    ),
    st.integers(0, 2**32 - 1),
    st.builds(Needs, *[st.integers(0, 2**63)] * 3),
    st.integers(0, 2**63),
    st.none()
    | st.builds(
        Settled,
        *[st.integers(0, 2**63)] * 3,
        st.booleans(),
        st.builds(Compaction, st.booleans(), *[st.integers(0, 2**63)] * 3),
        st.booleans(),
        st.booleans(),
    ),
)
def test_a_snapshot_survives_the_round_trip(
    offset: int,
    state: bytes,
    tables: dict[str, TableEnd],
    epoch: int,
    needs: Needs,
    time_ms: int,
    settled: Settled | None,
) -> None:
    file = SnapshotFile(offset, state, tables, epoch, needs, time_ms, settled)
    data = encode_snapshot(file)
    assert decode_snapshot(data) == file
    assert decode_snapshot(data[:-1]) is None
    assert decode_snapshot(data + b"x") is None


def test_a_journal_without_snapshot_says_so() -> None:
    assert start(FakeDisk(), "a").load_snapshot() is None


def test_the_newest_is_loaded_with_all_rows_and_two_are_kept() -> None:
    disk = FakeDisk()
    with_three_snapshots(disk)
    disk.crash()
    disk = disk.reopen()
    assert open_journal(disk).load_snapshot() == SIX
    assert snapshots(disk) == [4, 6]


@pytest.mark.parametrize("position", range(0, 75, 5))
def test_a_damaged_newest_falls_back_to_the_older_one(position: int) -> None:
    disk = FakeDisk()
    with_three_snapshots(disk)
    disk.damage(snapshot_path(6), lambda content: content.__setitem__(position, 255))
    disk.crash()
    assert open_journal(disk.reopen()).load_snapshot() == FOUR


@pytest.mark.parametrize(("position", "expected"), [(9, FOUR), (5, None)])
def test_damaged_rows_damage_the_snapshots_that_count_them(position: int, expected: object) -> None:
    disk = FakeDisk()
    with_three_snapshots(disk)
    disk.damage(f"{DIRECTORY}/tables/t.rows", lambda content: content.__setitem__(position, 0))
    disk.crash()
    assert open_journal(disk.reopen()).load_snapshot() == expected


def test_a_snapshot_never_runs_ahead_of_the_log() -> None:
    journal = start(FakeDisk(), "a")
    append(journal, record("b"))
    with pytest.raises(AssertionError, match="ahead of the log"):
        journal.save_snapshot(3, Snapshot(b"", {}))


def test_rows_go_on_after_a_restart_and_may_be_handed_over_again() -> None:
    disk = FakeDisk()
    with_three_snapshots(disk)
    disk.crash()
    journal = open_journal(disk.reopen())
    assert journal.load_snapshot() == SIX
    journal.save_snapshot(7, Snapshot(b"seven", {"t": rows(5, "r5"), "u": Table(1, 1, b"y")}))
    assert journal.load_snapshot() == (7, b"seven", {"t": b"r0r1r2r3r4r5", "u": b"xy"})
    again = Snapshot(b"7", {"t": rows(2, "r2", "r3", "r4", "r5"), "u": Table(1, 0, b"xy")})
    journal.save_snapshot(7, again)
    assert journal.load_snapshot() == (7, b"7", {"t": b"r0r1r2r3r4r5", "u": b"xy"})


def test_rows_are_saved_as_far_as_the_newest_snapshot_on_disk_counts_them() -> None:
    disk = FakeDisk()
    journal = with_three_snapshots(disk)
    assert journal.rows_saved == {"t": 5, "u": 1}
    disk.fail_next()
    with pytest.raises(OSError):
        journal.save_snapshot(7, Snapshot(b"", {"t": rows(5, "r5"), "u": Table(1, 1, b"")}))
    assert journal.rows_saved == {"t": 5, "u": 1}
    disk.crash()
    journal = open_journal(disk.reopen())
    assert journal.rows_saved == {}, "nothing is known of them before one is loaded"
    journal.load_snapshot()
    assert journal.rows_saved == {"t": 5, "u": 1}


def test_i35_rows_of_frames_that_were_cut_are_not_taken_for_saved() -> None:
    """The log grows again, with other frames: their rows stand where those of the lost ones did."""
    disk = FakeDisk()
    journal = start(disk, *"abcdef")
    journal.save_snapshot(6, Snapshot(b"six", {"t": rows(0, "r0", "r1")}))
    journal.cut(2)
    assert journal.rows_saved == {}
    append(journal, *map(record, "xyz"))
    sync(journal, disk)
    assert journal.load_snapshot() is None
    journal.save_snapshot(5, Snapshot(b"five", {"t": rows(0, "s0", "s1", "s2")}))
    assert journal.load_snapshot() == (5, b"five", {"t": b"s0s1s2"})


def test_rows_with_a_hole_are_refused() -> None:
    journal = start(FakeDisk(), "a")
    with pytest.raises(AssertionError, match="rows before 3 lack"):
        journal.save_snapshot(1, Snapshot(b"", {"t": rows(3, "r3")}))


@pytest.mark.parametrize("tear", Tear)
@pytest.mark.parametrize("step", [1, 2])
def test_a_snapshot_that_was_cut_off_leaves_the_one_before(step: int, tear: Tear) -> None:
    disk = FakeDisk(seed=step)
    journal = with_three_snapshots(disk)
    tables = {"t": rows(5, "r5"), "u": Table(1, 1, b"y")} if step == 1 else {}
    disk.fail_next()
    with pytest.raises(OSError):
        journal.save_snapshot(7, Snapshot(b"seven", tables))
    disk.crash(tear)
    assert open_journal(disk.reopen()).load_snapshot() == SIX


def test_a_snapshot_above_the_log_end_is_never_loaded_not_even_when_the_log_has_grown() -> None:
    disk = FakeDisk()
    journal = with_three_snapshots(disk)
    journal.cut(5)
    assert journal.load_snapshot() == FOUR
    append(journal, *map(record, "xyz"))
    sync(journal, disk)
    assert journal.load_snapshot() == FOUR


def test_a_snapshot_of_what_rot_took_is_dropped_at_opening() -> None:
    disk = FakeDisk()
    with_three_snapshots(disk)
    path = f"{DIRECTORY}/{0:020d}.log"
    disk.damage(path, lambda content: content.__delitem__(slice(96 + 4 * 97, None)))
    disk.kill()
    disk = disk.reopen()
    journal = open_journal(disk, seed=2)
    assert journal.log_end == 5
    assert snapshots(disk) == [4]


# ------------------------------------------------------------------------------------------- slots


def test_slots_hold_what_was_written_and_none_elsewhere() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    slots = journal.slots.open("outcomes", 4)
    offsets = [1, 2, SLOT_RANGE_OFFSETS - 1, SLOT_RANGE_OFFSETS, (1 << 40) + 7]
    for offset in offsets:
        slots.write(offset, offset.to_bytes(8, "big")[-4:])
    slots.write(5, bytes(4))
    assert [slots.read(offset) for offset in offsets] == [
        offset.to_bytes(8, "big")[-4:] for offset in offsets
    ]
    assert slots.read(5) == bytes(4), "a slot of zeros was written all the same"
    assert slots.read(4) is None
    assert slots.read(1 << 45) is None
    assert journal.slots.open("outcomes", 4) is slots


def test_slots_are_synced_before_the_snapshot_that_leaves_them_behind() -> None:
    disk = FakeDisk()
    journal = start(disk, "a", "b")
    journal.slots.open("outcomes", 4).write(1, b"kept")
    journal.save_snapshot(2, Snapshot(b"", {}))
    journal.slots.open("outcomes", 4).write(2, b"lost")
    disk.crash()
    slots = open_journal(disk.reopen()).slots.open("outcomes", 4)
    assert slots.read(1) == b"kept"
    assert slots.read(2) is None


def test_no_snapshot_stands_over_slots_whose_sync_failed() -> None:
    disk = FakeDisk()
    journal = start(disk, "a", "b")
    slots = journal.slots.open("outcomes", 4)
    slots.write(1, b"kept")
    disk.fail_next()
    with pytest.raises(OSError):
        journal.save_snapshot(2, Snapshot(b"", {}))
    assert journal.load_snapshot() is None


class SyncsBeside(FakeDisk):
    """Another thread has its turn in the middle of the first sync."""

    def __init__(self) -> None:
        super().__init__()
        self.beside: list[Callable[[], None]] = []

    def sync(self, file: File) -> None:
        super().sync(file)
        while self.beside:
            self.beside.pop()()


def test_slots_that_two_flushes_write_at_once_are_let_go_of_once() -> None:
    disk = SyncsBeside()
    slots = start(disk, "a").slots.open("outcomes", 4)
    slots.write(1, b"kept")
    disk.beside.append(slots.flush)
    met: list[Exception] = []
    try:
        slots.flush()
    except Exception as error:
        met.append(error)
    assert met == [], "one of them breaks"
    assert (slots.held, slots.read(1)) == (0, b"kept")


@pytest.mark.parametrize("byte", range(8))
def test_i26_a_damaged_slot_is_named(byte: int) -> None:
    disk = FakeDisk()
    slots = start(disk, "a").slots.open("outcomes", 4)
    slots.write(3, b"good")
    slots.flush()
    path = f"{DIRECTORY}/slots/outcomes/{0:020d}.slots"

    def flip(content: bytearray) -> None:
        content[3 * 8 + byte] ^= 4

    disk.damage(path, flip)
    with pytest.raises(CorruptLog) as caught:
        slots.read(3)
    assert caught.value.metadata == {"file": path, "position": "24"}


def test_few_slot_files_stay_open_and_none_is_forgotten() -> None:
    disk = FakeDisk()
    slots = start(disk, "a").slots.open("outcomes", 2)
    count = SLOT_FILES_OPEN_MAX + 20
    for number in range(count):
        slots.write(number * SLOT_RANGE_OFFSETS, number.to_bytes(2, "big"))
    slots.flush()
    assert slots.held == 0
    disk.crash()
    again = open_journal(disk.reopen()).slots.open("outcomes", 2)
    for number in range(count):
        assert again.read(number * SLOT_RANGE_OFFSETS) == number.to_bytes(2, "big")
    assert len(again._files) == SLOT_FILES_OPEN_MAX


def test_i26_a_slot_in_the_place_of_another_is_noticed() -> None:
    disk = FakeDisk()
    slots = start(disk, "a").slots.open("outcomes", 4)
    slots.write(3, b"good")
    slots.flush()

    def move(content: bytearray) -> None:
        content[32:40] = content[24:32]

    disk.damage(f"{DIRECTORY}/slots/outcomes/{0:020d}.slots", move)
    with pytest.raises(CorruptLog):
        slots.read(4)


def test_i26_a_snapshot_under_the_name_of_another_is_not_loaded() -> None:
    disk = FakeDisk()
    journal = start(disk, *"abcdef")
    journal.save_snapshot(2, Snapshot(b"two", {}))
    stored = disk.bytes_of(snapshot_path(2))
    disk.replace_file(snapshot_path(5), stored)
    loaded = journal.load_snapshot()
    assert loaded is not None
    assert loaded[:2] == (2, b"two"), "frames 2 to 4 would be missing from the state"


def test_i4_slots_whose_sync_failed_are_written_again() -> None:
    """What a failed sync let go of is clean to the disk: a second sync alone saves nothing."""
    disk = FakeDisk()
    slots = start(disk, "a").slots.open("outcomes", 4)
    for offset in range(1, 20):
        slots.write(offset, b"kept")
    disk.fail_next(EIO)
    with pytest.raises(OSError, match="told"):
        slots.flush()
    assert slots.read(1) == b"kept"
    slots.flush()
    disk.crash()
    again = open_journal(disk.reopen()).slots.open("outcomes", 4)
    assert [again.read(offset) for offset in range(1, 20)] == [b"kept"] * 19


def test_a_slot_that_is_written_beside_a_flush_stays_held() -> None:
    class Beside(FakeDisk):
        def sync(self, file: File) -> None:
            if "/slots/" in file.path:
                slots.write(1, b"new!")
                slots.write(2, b"more")
            super().sync(file)

    disk = Beside()
    slots = start(disk, "a").slots.open("outcomes", 4)
    slots.write(1, b"old!")
    slots.flush()
    assert slots.held == 2
    assert (slots.read(1), slots.read(2)) == (b"new!", b"more")


def test_the_newest_snapshot_is_known_without_reading_it() -> None:
    journal = start(FakeDisk(), *"ab")
    assert journal.snapshot_offset == 0
    journal = with_three_snapshots(FakeDisk())
    assert journal.snapshot_offset == 6
    journal.cut(5)
    assert journal.snapshot_offset == 4, "it is of what was cut"


def test_a_snapshot_that_is_damaged_is_not_the_newest_any_more() -> None:
    disk = FakeDisk()
    with_three_snapshots(disk)
    disk.damage(snapshot_path(6), lambda content: content.__setitem__(20, 255))
    journal = open_journal(disk)
    assert journal.snapshot_offset == 6
    assert journal.load_snapshot() == FOUR
    assert journal.snapshot_offset == 4, "frames since then are replayed"
    disk.damage(snapshot_path(4), lambda content: content.__setitem__(20, 255))
    assert journal.load_snapshot() is None
    assert journal.snapshot_offset == 0
