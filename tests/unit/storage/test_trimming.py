"""A log that begins later than it did: its steps, a crash in each, what recovery makes of it."""

from __future__ import annotations

import contextlib
from errno import EMFILE
from typing import Final

import pytest

from oncelog_server.core.machine import Needs, Snapshot, Table
from oncelog_server.runtime.storage import tables
from oncelog_server.runtime.storage.damage import JournalDamaged
from oncelog_server.runtime.storage.identity import Bounds, encode_slot
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.keeping import kept_snapshots
from oncelog_server.runtime.storage.segment import segment_name
from oncelog_server.runtime.storage.snapshots import snapshot_offsets
from oncelogpb.errors import CorruptLog, OffsetOutOfRange
from tests.simulation.disk import FakeDisk, FakeFile, Tear
from tests.unit.storage.journals import (
    DIRECTORY,
    EPOCH_START,
    append,
    noted,
    open_journal,
    read,
    record,
    replayed,
    sync,
    texts,
    without_tail,
)

SEGMENT_BYTES: Final = 300
ALL: Final = 1 << 40


def saved(journal: Journal) -> None:
    """A snapshot of all that is synced, whose table has a row for each offset; those before the
    half of it are nothing to the state."""
    end, row = journal.synced_end, journal.rows_saved.get("t", 0)
    rows = b"".join(number.to_bytes(2, "big") for number in range(row, end))
    table = Table(2, row, rows, end // 2)
    journal.save_snapshot(end, Snapshot(b"state %d" % end, {"t": table}, Needs(end, end, 0)))


def log(disk: FakeDisk, count: int = 12, *, segment_bytes: int = SEGMENT_BYTES) -> Journal:
    """Of as many records, each synced, in small segments; a snapshot after every third one, an
    epoch after every fifth."""
    journal = open_journal(disk, segment_bytes=segment_bytes)
    epoch = 0
    for number in range(count):
        if number % 5 == 0:
            epoch += 1
            append(journal, EPOCH_START, epoch=epoch)
        append(journal, record(f"{number:03d}"), epoch=epoch)
        sync(journal, disk)
        if number % 3 == 2:
            saved(journal)
    journal.note_synced_end()
    sync(journal, disk)
    return journal


def trim(journal: Journal, disk: FakeDisk, start: int) -> None:
    """As `replica/trimming` does it."""
    journal.prepare_start(start, journal.index_before_start(start))
    assert journal.move_start(start, allowed_at=journal.synced_end)
    noted(journal, disk)
    journal.retire_front()
    journal.remove_front()


def possible_starts(journal: Journal) -> list[int]:
    return [it for it in journal._snapshots.offsets if it > journal.log_start]


def contents(journal: Journal) -> list[str]:
    """All that a log tells: its snapshot, and what comes behind it."""
    loaded = journal.load_snapshot()
    assert loaded is not None
    offset, state, rows = loaded
    assert state == b"state %d" % offset
    numbers = range(offset // 2, offset)
    assert rows["t"] == b"".join(number.to_bytes(2, "big") for number in numbers)
    return [bytes(it.frame.payload).decode() for it in journal.replay(offset) if it.frame.payload]


def files(disk: FakeDisk) -> list[str]:
    return [*disk.list(DIRECTORY), *disk.list(f"{DIRECTORY}/tables")]


def test_i25_a_log_begins_at_one_of_its_snapshots_and_has_every_frame_from_there() -> None:
    disk = FakeDisk()
    journal = log(disk)
    start = possible_starts(journal)[-2]
    behind = texts(list(journal.replay(start)))
    epochs = [journal.end_of_epoch(epoch) for epoch in (1, 2, 3)]
    trim(journal, disk, start)
    assert journal.log_start == start
    assert replayed(journal) == behind
    told = replayed(journal)
    assert journal._segments.bases[0] <= start, "the first segment holds the first frame"
    assert not disk.exists(f"{DIRECTORY}/{segment_name(0)}")
    with pytest.raises(OffsetOutOfRange):
        read(without_tail(journal), start - 1, below=journal.log_end)
    disk.crash()
    again = open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES, seed=2)
    assert (again.log_start, again.log_end) == (start, journal.log_end)
    assert again.incarnation == journal.incarnation
    assert [again.end_of_epoch(epoch) for epoch in (1, 2, 3)] == epochs
    assert replayed(again) == told


@pytest.mark.parametrize("tear", Tear)
@pytest.mark.parametrize("steps", range(26))
def test_i25_wherever_a_trim_dies_the_log_begins_at_the_old_start_or_the_new(
    steps: int, tear: Tear
) -> None:
    disk = FakeDisk(seed=steps)
    journal = log(disk)
    # What stands, and was removed in an earlier one.
    trim(journal, disk, possible_starts(journal)[0])
    old, new = journal.log_start, possible_starts(journal)[-1]
    told, end, name = contents(journal), journal.log_end, journal.incarnation
    disk.fail_next(after=steps)
    with contextlib.suppress(OSError):
        trim(journal, disk, new)
        disk.fail_next()
    disk.crash(tear)
    disk = disk.reopen()
    try:
        again = open_journal(disk, segment_bytes=SEGMENT_BYTES, seed=9)
    except JournalDamaged as damaged:
        raise AssertionError("a trim that was cut off is no damage") from damaged
    assert again.log_start in (old, new)
    assert (again.log_end, again.incarnation) == (end, name)
    assert contents(again) == told
    assert [at for at in again._snapshots.offsets if at < again.log_start] == []
    if again.log_start == new:
        assert [base for base in again._segments.bases[1:] if base <= new] == []
    # It goes on, and so does the trim.
    append(again, record("more"), epoch=3)
    sync(again, disk)
    if again.log_start == old:
        trim(again, disk, new)
    disk.crash()
    after = open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES, seed=10)
    assert contents(after) == [*told, "more"]
    assert after.log_start == new


def test_i25_nothing_goes_before_the_note_is_durable() -> None:
    disk = FakeDisk()
    journal = log(disk)
    start = possible_starts(journal)[-1]
    journal.prepare_start(start, journal.index_before_start(start))
    assert journal.move_start(start, allowed_at=journal.synced_end)
    assert not journal.start_is_durable
    with pytest.raises(AssertionError, match="finds a log without its front"):
        journal.retire_front()
    journal.note_synced_end()
    assert not journal.start_is_durable, "only the page cache has it"
    sync(journal, disk)
    assert not journal.start_is_durable, "the other slot says the start of before"
    journal.note_synced_end()
    sync(journal, disk)
    assert journal.start_is_durable


def test_i25_a_note_that_only_the_page_cache_has_is_synced_before_its_files_go() -> None:
    """The process is killed between the note and its sync, and the next one removes what it left;
    then the power goes."""
    disk = FakeDisk()
    journal = log(disk)
    start, told = possible_starts(journal)[-1], contents(journal)
    incarnation = journal.incarnation
    journal.prepare_start(start, journal.index_before_start(start))
    assert journal.move_start(start, allowed_at=journal.synced_end)
    journal.note_synced_end()
    disk.kill()
    disk = disk.reopen()
    open_journal(disk, segment_bytes=SEGMENT_BYTES, seed=2)
    disk.crash()
    again = open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES, seed=3)
    assert (again.log_start, contents(again)) == (start, told)
    assert again.incarnation == incarnation, "it lacks nothing that it promised"


def test_i26_a_log_does_not_begin_at_a_snapshot_that_is_damaged() -> None:
    disk = FakeDisk()
    journal = log(disk)
    start = possible_starts(journal)[-2]
    disk.damage(f"{DIRECTORY}/snapshot-{start:020d}", lambda data: data.__setitem__(60, 255))
    with pytest.raises(CorruptLog, match=f"{start:020d}"):
        journal.prepare_start(start, journal.index_before_start(start))
    assert journal.log_start == 0


def test_i26_rot_before_the_log_start_refuses_nothing() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    append(journal, EPOCH_START, *(record("x" * 9_000) for _ in range(6)))
    sync(journal, disk)
    saved(journal)
    start = journal.synced_end
    journal.roll()
    for _ in range(3):
        append(journal, record("y" * 9_000))
        sync(journal, disk)
        saved(journal)
    journal.note_synced_end()
    sync(journal, disk)
    [first, second] = journal._segments.bases
    assert (first, second) == (0, start)
    trim(journal, disk, journal._snapshots.offsets[-1])
    disk.damage(f"{DIRECTORY}/{segment_name(second)}", lambda data: data.__setitem__(100, 255))
    disk.crash()
    again = open_journal(disk.reopen(), seed=2)
    assert (again.log_start, again.log_end) == (journal.log_start, journal.log_end)


def test_i7_a_cut_to_the_log_start_leaves_no_file_that_begins_before_it() -> None:
    """Its name says where its first frame belongs."""
    disk = FakeDisk()
    journal = log(disk)
    start = possible_starts(journal)[-2]
    trim(journal, disk, start)
    assert journal._segments.bases[0] < start
    journal.cut(start)
    assert (journal.log_start, journal.log_end) == (start, start)
    epoch = journal.last_epoch
    assert epoch > 0
    append(journal, record("other"), epoch=epoch)
    sync(journal, disk)
    disk.crash()
    again = open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES, seed=2)
    assert (again.log_start, replayed(again)) == (start, ["other"])
    assert again.incarnation == journal.incarnation


def test_i5_a_power_that_tears_the_epoch_table_costs_a_log_that_begins_later_nothing() -> None:
    """An entry goes to the disk in one commit with its EPOCH_START; half of it may be there."""
    disk = FakeDisk()
    journal = log(disk)
    trim(journal, disk, possible_starts(journal)[-2])
    told, name, epochs = contents(journal), journal.incarnation, journal.end_of_epoch(3)
    path = f"{DIRECTORY}/epochs"
    disk.damage(path, lambda data: data.extend(b"half an entry"))
    disk.crash()
    again = open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES, seed=2)
    assert (contents(again), again.incarnation, again.end_of_epoch(3)) == (told, name, epochs)
    assert disk.bytes_of(path)[-13:] != b"half an entry"


def test_i7_an_epoch_table_that_lacks_what_is_before_the_log_is_refused() -> None:
    """With it the log would part from others where it does not."""
    disk = FakeDisk()
    journal = log(disk)
    start = possible_starts(journal)[-2]
    trim(journal, disk, start)
    journal.cut(start)
    assert journal.last_epoch > 1
    disk.damage(f"{DIRECTORY}/epochs", lambda data: data.__delitem__(slice(24, None)))
    disk.crash()
    with pytest.raises(JournalDamaged, match="begins in leader epoch"):
        open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES, seed=2)


def test_i25_who_lost_its_note_begins_at_the_first_snapshot_with_all_behind_it() -> None:
    disk = FakeDisk()
    journal = log(disk)
    trim(journal, disk, possible_starts(journal)[-2])
    told = contents(journal)
    disk.remove(f"{DIRECTORY}/synced_end")
    disk.crash()
    again = open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES, seed=2)
    assert again.log_start in journal._snapshots.offsets
    assert contents(again) == told
    assert again.incarnation != journal.incarnation


def _rotten_note(disk: FakeDisk) -> None:
    """A sector of the newer slot."""
    file = disk.open(f"{DIRECTORY}/synced_end")
    slots = {at: file.read(at, 32) for at in (0, 512)}
    newer = max(slots, key=lambda at: slots[at][8:16][::-1])
    disk.write_and_sync(file, newer + 20, b"\xff")


def _quiet_log_without_frames(disk: FakeDisk) -> Journal:
    """Its state is all that is left of it."""
    journal = log(disk)
    journal.roll()
    saved(journal)
    trim(journal, disk, journal.log_end)
    return journal


@pytest.mark.parametrize("is_lost", [False, True])
def test_i25_a_log_of_which_only_a_snapshot_is_left_is_not_taken_for_an_empty_one(
    is_lost: bool,
) -> None:
    disk = FakeDisk()
    journal = _quiet_log_without_frames(disk)
    assert not [name for name in disk.list(DIRECTORY) if name.endswith(".log")]
    start = journal.log_start
    if is_lost:
        disk.remove(f"{DIRECTORY}/synced_end")
    else:
        _rotten_note(disk)
    again = open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES, seed=2)
    assert (again.log_start, again.log_end) == (start, start)
    assert contents(again) == []


def test_i25_both_slots_say_the_start_before_anything_goes() -> None:
    disk = FakeDisk()
    journal = log(disk)
    start = possible_starts(journal)[-1]
    trim(journal, disk, start)
    assert not journal.note_synced_end(), "all is said"
    told = contents(journal)
    _rotten_note(disk)
    again = open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES, seed=2)
    assert (again.log_start, contents(again)) == (start, told)
    assert again.incarnation == journal.incarnation


@pytest.mark.parametrize("has_frames", [False, True])
def test_i25_a_note_of_a_start_that_no_file_holds_is_not_believed(has_frames: bool) -> None:
    """As a version wrote it that noted a start once."""
    disk = FakeDisk()
    journal = _quiet_log_without_frames(disk)
    if has_frames:
        append(journal, record("behind"), epoch=3)
        sync(journal, disk)
    file = disk.open(f"{DIRECTORY}/synced_end")
    disk.write_and_sync(file, 0, encode_slot(9, Bounds(0, journal.log_start)) + bytes(480))
    disk.truncate_and_sync(file, 512)
    again = open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES, seed=2)
    assert (again.log_start, again.log_end) == (journal.log_start, journal.log_end)
    assert contents(again) == ["behind"] * has_frames
    assert again.incarnation != journal.incarnation


def test_i25_a_first_file_that_is_lost_is_no_trim() -> None:
    disk = FakeDisk()
    journal = log(disk)
    end = journal.synced_end
    journal.save_snapshot(end, Snapshot(b"state", {}, Needs(1, 1, 0)))
    disk.remove(f"{DIRECTORY}/{segment_name(0)}")
    with pytest.raises(JournalDamaged, match="journal offset 0 is next"):
        open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES, seed=2)
    disk = disk.reopen()
    for base in journal._segments.bases[1:]:
        disk.remove(f"{DIRECTORY}/{segment_name(base)}")
    with pytest.raises(JournalDamaged, match="no file has the frames from 0 on"):
        open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES, seed=2)


def test_a_reader_that_comes_late_makes_no_file_again() -> None:
    disk = FakeDisk()
    journal = log(disk)
    [first, *_] = journal._segments.all
    trim(journal, disk, possible_starts(journal)[-1])
    with pytest.raises(OffsetOutOfRange):
        assert first.file
    assert not disk.exists(first.path)


def test_what_the_disk_does_not_remove_is_removed_later() -> None:
    disk = FakeDisk()
    journal = log(disk)
    start = possible_starts(journal)[-1]
    journal.prepare_start(start, journal.index_before_start(start))
    journal.move_start(start, allowed_at=journal.synced_end)
    noted(journal, disk)
    journal.retire_front()
    disk.fail_next(after=2)
    with pytest.raises(OSError):
        journal.remove_front()
    assert journal.has_old_front, "it is tried again"
    journal.retire_front()
    journal.remove_front()
    assert [name for name in files(disk) if name.endswith(".log")] == [
        segment_name(base) for base in journal._segments.bases
    ]


def test_rows_go_with_whole_chunks_that_no_snapshot_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "CHUNK_BYTES", 8)
    disk = FakeDisk()
    journal = log(disk, 30)
    assert disk.exists(f"{DIRECTORY}/tables/t.rows")
    for start in possible_starts(journal)[1::2]:
        trim(journal, disk, start)
        told = contents(journal)
        disk.crash()
        disk = disk.reopen()
        journal = open_journal(disk, segment_bytes=SEGMENT_BYTES, seed=2)
        assert contents(journal) == told
        # Each snapshot that is kept is whole, that of the log start too.
        assert all(journal._snapshots.is_whole(it) for it in journal._snapshots.offsets)
    chunks = disk.list(f"{DIRECTORY}/tables")
    assert chunks[0] == f"t-{start // 2 // 4 * 4:020d}.rows", "those in front are gone"


def test_a_chunk_that_an_older_snapshot_counts_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CHUNK_BYTES", 4)
    disk = FakeDisk()
    journal = log(disk, 3)
    oldest = journal.synced_end
    append(journal, record("more"))
    sync(journal, disk)
    # All rows before are nothing to this state.
    end = journal.synced_end
    table = Table(2, end, b"", end)
    journal.save_snapshot(end, Snapshot(b"", {"t": table}, Needs(end, end, 0)))
    assert journal._snapshots.is_whole(oldest), "it may be needed, should the newest be damaged"


def test_rows_that_come_and_go_between_two_snapshots_leave_no_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "CHUNK_BYTES", 4)
    disk = FakeDisk()
    journal = log(disk, 3)
    end = journal.synced_end
    table = Table(2, end + 7, b"aabb", end + 7)
    journal.save_snapshot(end, Snapshot(b"", {"t": table}))
    assert journal.load_snapshot() == (end, b"", {"t": b"aabb"})
    assert journal.rows_saved == {"t": end + 9}


def test_a_roll_lets_a_quiet_log_go() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    append(journal, EPOCH_START, record("a"), record("b"))
    sync(journal, disk)
    saved(journal)
    needs = Needs(3, 3, 3)
    assert journal.next_log_start(needs, wanted_bytes_max=ALL) is None, "it would free nothing"
    journal.roll()
    append(journal, record("c"))
    sync(journal, disk)
    assert journal.next_log_start(needs, wanted_bytes_max=ALL) == 3
    trim(journal, disk, 3)
    disk.crash()
    again = open_journal(disk.reopen(), seed=2)
    assert (again.log_start, replayed(again)) == (3, ["c"])


def test_i25_a_snapshot_that_is_written_while_the_start_moves_lets_go_of_neither_start() -> None:
    """The note that says where the log begins may wait for its turn, and snapshots stand meanwhile:
    whichever start a crash finds has its snapshot."""
    for is_noted in (False, True):
        disk = FakeDisk()
        journal = log(disk, segment_bytes=4 * SEGMENT_BYTES)
        for _ in range(4):
            append(journal, record("more"), epoch=3)
            sync(journal, disk)
            saved(journal)
        before = journal.log_start
        start = next(it for it in possible_starts(journal) if not is_kept_anyway(journal, it))
        journal.prepare_start(start, journal.index_before_start(start))
        assert journal.move_start(start, allowed_at=journal.synced_end)
        if is_noted:
            journal.note_synced_end()
            sync(journal, disk)
        for number in range(3):
            append(journal, record(f"more {number}"), epoch=3)
            sync(journal, disk)
            saved(journal)
        stood = snapshot_offsets(disk.list(DIRECTORY))
        assert start in stood, "the log will begin there"
        disk.crash()
        again = open_journal(disk.reopen(), segment_bytes=4 * SEGMENT_BYTES, seed=2)
        assert again.log_start == (start if is_noted else before)
        assert again.load_snapshot() is not None
        assert not again.log_start or again._snapshots.is_whole(again.log_start)


def is_kept_anyway(journal: Journal, offset: int) -> bool:
    """One of those at which the log may begin later than where it begins."""
    offsets = [*journal._snapshots.offsets, journal.log_end, journal.log_end + 1]
    kept = kept_snapshots(offsets, log_start=journal.log_start, bases=journal._segments.bases)
    return offset in kept


def test_an_index_that_cannot_be_read_says_no_less_than_a_lost_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sizes are asked on the loop, each second: nothing there bears an OSError."""
    disk = FakeDisk()
    journal = log(disk)
    journal.close()
    journal = open_journal(disk, segment_bytes=SEGMENT_BYTES, seed=2)
    _, second, third = journal._segments.all[:3]
    for segment in journal._segments.all:
        segment.rest()
    index = f"{DIRECTORY}/{segment_name(second.base)}".replace(".log", ".index")
    real_open = disk.open

    def refuses(path: str, *, create: bool = False, grows_to: int = 0) -> FakeFile:
        if path.endswith(".index"):
            raise OSError(EMFILE, "too many open files", path)
        return real_open(path, create=create, grows_to=grows_to)

    assert disk.exists(index)
    with monkeypatch.context() as broken:
        broken.setattr(disk, "open", refuses)
        needs = Needs(journal.log_end, 0, 0)
        try:
            size = journal.bytes_between(second.base + 1, third.base + 1)
            begins_at = journal.next_log_start(needs, wanted_bytes_max=0)
        except OSError as error:
            pytest.fail(f"whoever asks ends, for {error}")
        assert (size, begins_at) == (second.size, journal._snapshots.newest)
    assert len(second.index) > 0, "it is read once that can be done again"
