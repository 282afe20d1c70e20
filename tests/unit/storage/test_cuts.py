"""Epochs, cuts and abandoned writes: what goes stays away, and no crash on the way hurts."""

from __future__ import annotations

import asyncio
import contextlib
from errno import EIO, ENOSPC

import pytest

from oncelog_server.core.machine import Snapshot
from oncelog_server.runtime.storage.epochs import EpochTable
from oncelog_server.runtime.storage.identity import SyncedEnd
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.tail import MemoryTail
from oncelogpb.errors import CorruptLog
from tests.simulation.disk import FakeDisk, Tear
from tests.unit.storage.journals import (
    DIRECTORY,
    EPOCH_START,
    append,
    data,
    open_journal,
    read,
    read_frames,
    record,
    replayed,
    start,
    sync,
    texts,
    without_tail,
    write_without_sync,
)

# --------------------------------------------------------------------------------- epochs and cuts


def epochs_journal(disk: FakeDisk, segment_bytes: int = 1 << 20) -> Journal:
    """Epoch 1: offsets 0-3, epoch 3: 4-6, epoch 4: 100-101 (after a jump)."""
    journal = open_journal(disk, segment_bytes=segment_bytes)
    append(journal, EPOCH_START, *map(record, "abc"), epoch=1)
    append(journal, EPOCH_START, *map(record, "de"), epoch=3)
    journal.append(EPOCH_START, epoch=4, time_ms=1, skip_to=100)
    append(journal, record("f"), epoch=4)
    sync(journal, disk)
    return journal


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(0, (0, 0)), (1, (1, 4)), (2, (1, 4)), (3, (3, 7)), (4, (4, 102)), (9, (4, 102))],
)
def test_the_end_of_an_epoch_is_where_its_last_frame_ended(
    asked: int, answer: tuple[int, int]
) -> None:
    disk = FakeDisk()
    assert epochs_journal(disk).end_of_epoch(asked) == answer
    disk.crash()
    assert open_journal(disk.reopen()).end_of_epoch(asked) == answer


@pytest.mark.parametrize("segment_bytes", [1 << 20, 330, 100])
@pytest.mark.parametrize(
    ("end", "left", "last_epoch"),
    [(101, "abcde", 4), (7, "abcde", 3), (6, "abcd", 3), (4, "abc", 1), (1, "", 1), (0, "", 0)],
)
def test_a_cut_is_durable_and_the_log_goes_on_behind_it(
    segment_bytes: int, end: int, left: str, last_epoch: int
) -> None:
    disk = FakeDisk()
    journal = epochs_journal(disk, segment_bytes)
    journal.note_synced_end()
    sync(journal, disk)
    journal.cut(end)
    assert (journal.log_end, journal.synced_end, journal.last_epoch) == (end, end, last_epoch)
    assert texts(read(journal, 0, below=end)) in ([], list(left)) or segment_bytes < 1 << 20
    disk.crash()
    disk = disk.reopen()
    again = open_journal(disk, segment_bytes=segment_bytes, seed=2)
    assert "".join(replayed(again)) == left
    assert (again.log_end, again.last_epoch) == (end, last_epoch)
    assert again.incarnation == journal.incarnation, "a cut that was asked for is no damage"
    append(again, EPOCH_START, record("z"), epoch=9)
    sync(again, disk)
    disk.crash()
    assert "".join(replayed(open_journal(disk.reopen()))) == left + "z"


def test_a_cut_keeps_what_only_memory_had_below_it() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    append(journal, *map(record, "bc"))
    journal.cut(3)
    assert journal.synced_end == 3
    disk.crash()
    assert replayed(open_journal(disk.reopen())) == ["a", "b"]


def test_a_cut_inside_a_frame_is_refused() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    append(journal, EPOCH_START, data(b"abc", 3))
    sync(journal, disk)
    with pytest.raises(CorruptLog):
        journal.cut(2)


def test_a_cut_lowers_the_promise_before_the_log() -> None:
    disk = FakeDisk()
    journal = start(disk, *"abc")
    journal.note_synced_end()
    sync(journal, disk)
    # The note is the first durable step; the cut itself is the one that fails.
    disk.fail_next(after=1)
    with pytest.raises(OSError, match="told to fail"):
        journal.cut(2)
    disk.crash()
    disk = disk.reopen()
    noted = SyncedEnd(disk, DIRECTORY).noted
    assert noted is not None
    assert noted.synced_end == 2, "who crashes in the middle of a cut must not look damaged"
    assert replayed(open_journal(disk)) == ["a", "b", "c"]


# ------------------------------------------------------------------------------------ failed writes


def test_notes_that_fail_one_after_the_other_leave_the_last_durable_one() -> None:
    disk = FakeDisk()
    journal = start(disk, *"abc")
    journal.note_synced_end()
    append(journal, record("d"))
    sync(journal, disk)
    append(journal, record("x"))
    write_without_sync(journal, disk)
    journal.mark_failed()
    for _ in range(3):
        disk.short_write_next()
        with pytest.raises(OSError, match="short write"):
            journal.abandon_unsynced()
    disk.crash(Tear.PREFIX)
    again = open_journal(disk.reopen(), seed=2)
    assert again.incarnation == journal.incarnation, "it lost nothing that it had promised"
    assert again.synced_end >= 5


def test_a_note_that_only_the_page_cache_has_is_written_again_before_the_next_one() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    journal.note_synced_end()
    append(journal, record("b"))
    disk.fail_next()
    with pytest.raises(OSError, match="told to fail"):
        asyncio.run(disk.commit(journal.take_writes()[0]))
    disk.kill()
    disk = disk.reopen()
    open_journal(disk)
    disk.crash()
    noted = SyncedEnd(disk.reopen(), DIRECTORY).noted
    assert noted is not None
    assert noted.synced_end == 2


@pytest.mark.parametrize("segment_bytes", [1 << 20, 200])
def test_after_a_failed_write_the_log_goes_on_from_the_last_sync_in_a_new_file(
    segment_bytes: int,
) -> None:
    disk = FakeDisk()
    journal = start(disk, "a", "b", segment_bytes=segment_bytes)
    append(journal, *map(record, "xyz"))
    write_without_sync(journal, disk)
    journal.mark_failed()
    with pytest.raises(OSError) as caught:
        append(journal, record("w"))
    assert caught.value.errno == EIO
    assert texts(read(journal, 2, below=3)) == ["b"], "reads go on"
    journal.abandon_unsynced()
    assert (journal.log_end, journal.synced_end) == (3, 3)
    append(journal, EPOCH_START, record("c"), epoch=2)
    sync(journal, disk)
    assert replayed(journal) == ["a", "b", "c"]
    disk.kill()
    disk = disk.reopen()
    again = open_journal(disk, segment_bytes=segment_bytes, seed=2)
    assert replayed(again) == ["a", "b", "c"], "what was in doubt does not come back"
    assert again.incarnation == journal.incarnation
    logs = [name for name in disk.list(DIRECTORY) if name.endswith(".log")]
    assert f"{3:020d}.log" in logs


def test_in_doubt_bytes_do_not_come_back_when_the_process_dies_right_after() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    append(journal, record("x"))
    write_without_sync(journal, disk)
    journal.mark_failed()
    journal.abandon_unsynced()
    disk.kill()
    assert replayed(open_journal(disk.reopen())) == ["a"]


def test_a_journal_that_cannot_be_written_anew_stays_failed() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    append(journal, record("x"))
    write_without_sync(journal, disk)
    journal.mark_failed()
    disk.full = True
    with pytest.raises(OSError) as caught:
        journal.abandon_unsynced()
    assert caught.value.errno == ENOSPC
    with pytest.raises(OSError):
        append(journal, record("y"))
    assert texts(read(journal, 0, below=2)) == ["a"], "reads go on (I28)"
    disk.full = False
    journal.abandon_unsynced()
    append(journal, EPOCH_START, record("b"), epoch=2)
    sync(journal, disk)
    assert replayed(journal) == ["a", "b"]


# ------------------------------------------------------------- what a cut must not leave behind it


def test_after_a_cut_the_index_points_to_the_new_frames() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    append(journal, EPOCH_START, *(record("old" * 3000) for _ in range(30)))
    sync(journal, disk)
    journal.note_synced_end()
    sync(journal, disk)
    journal.cut(5)
    append(journal, EPOCH_START, *(record(f"{number:5}" * 1700) for number in range(30)), epoch=2)
    sync(journal, disk)
    journal.note_synced_end()
    sync(journal, disk)
    for reader in (journal, None):
        if reader is None:
            disk.crash()
            reader = open_journal(disk.reopen())
        without_tail(reader)
        for number in range(30):
            assert texts(read(reader, 6 + number, 1, below=36)) == [f"{number:5}" * 1700]
            assert texts(read_frames(reader, [6 + number])) == [f"{number:5}" * 1700]


def test_after_a_cut_the_epochs_are_those_of_the_log_now_and_after_a_restart() -> None:
    disk = FakeDisk()
    journal = epochs_journal(disk)
    journal.cut(3)
    ends = [(0, 0), (1, 3), (1, 3), (1, 3), (1, 3)]
    assert [journal.end_of_epoch(epoch) for epoch in range(5)] == ends
    append(journal, EPOCH_START, epoch=6)
    sync(journal, disk)
    ends = [*ends, (1, 3), (6, 4), (6, 4)]
    assert [journal.end_of_epoch(epoch) for epoch in range(8)] == ends
    disk.crash()
    disk = disk.reopen()
    table = EpochTable.decode(disk.bytes_of(f"{DIRECTORY}/epochs"))
    assert table is not None
    assert [entry.epoch for entry in table.entries] == [1, 6]
    again = open_journal(disk)
    assert [again.end_of_epoch(epoch) for epoch in range(8)] == ends


def test_after_a_cut_below_the_tail_what_follows_is_read_from_it() -> None:
    disk = FakeDisk()
    journal = start(disk, *"abcdef")
    journal._tail = MemoryTail(journal.log_end)
    journal.cut(3)
    append(journal, record("x"))
    sync(journal, disk)
    assert texts(read(journal, 3, below=4)) == ["x"]
    assert journal._tail.start == 3


@pytest.mark.parametrize("tear", Tear)
@pytest.mark.parametrize("steps", range(12))
def test_a_cut_that_was_cut_off_leaves_a_log_as_it_was_or_shorter(steps: int, tear: Tear) -> None:
    disk = FakeDisk(seed=steps)
    journal = epochs_journal(disk, segment_bytes=200)
    journal.save_snapshot(101, Snapshot(b"", {}))
    journal.note_synced_end()
    sync(journal, disk)
    disk.fail_next(after=steps)
    with contextlib.suppress(OSError):
        journal.cut(2)
    disk.crash(tear)
    again = open_journal(disk.reopen(), segment_bytes=200, seed=2)
    left = "".join(replayed(again))
    assert left.startswith("a")
    assert "abcdef".startswith(left)
    assert again.incarnation == journal.incarnation
    assert again.log_end >= 2


@pytest.mark.parametrize("tear", Tear)
@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("segment_bytes", [1 << 20, 200])
def test_i25_whoever_dies_while_it_abandons_keeps_what_was_synced(
    segment_bytes: int, steps: int, tear: Tear
) -> None:
    disk = FakeDisk(seed=steps)
    journal = start(disk, *"abc", segment_bytes=segment_bytes)
    journal.note_synced_end()
    sync(journal, disk)
    append(journal, *map(record, "xyz"))
    write_without_sync(journal, disk)
    journal.mark_failed()
    disk.fail_next(after=steps)
    with contextlib.suppress(OSError):
        journal.abandon_unsynced()
    disk.crash(tear)
    again = open_journal(disk.reopen(), segment_bytes=segment_bytes, seed=2)
    left = "".join(replayed(again))
    assert left.startswith("abc")
    assert "abcxyz".startswith(left)
    assert again.incarnation == journal.incarnation


# ------------------------------------------------------------------ what was not handed over yet


def test_epochs_that_were_cut_before_they_were_written_are_never_written() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    append(journal, EPOCH_START, record("lost"), epoch=2)
    journal.cut(2)
    append(journal, EPOCH_START, record("b"), epoch=3)
    sync(journal, disk)
    assert journal.end_of_epoch(2) == (1, 2)
    disk.crash()
    again = open_journal(disk.reopen(), seed=2)
    assert (again.end_of_epoch(2), again.end_of_epoch(3)) == ((1, 2), (3, 4))
    assert again.incarnation == journal.incarnation


def test_epochs_behind_a_failed_write_are_never_written() -> None:
    """The next leadership began while the last one's commit was under way."""
    disk = FakeDisk()
    journal = start(disk, "a")
    append(journal, record("doubtful"))
    journal.take_writes()
    append(journal, EPOCH_START, epoch=2)
    journal.mark_failed()
    journal.abandon_unsynced()
    append(journal, EPOCH_START, record("b"), epoch=3)
    sync(journal, disk)
    disk.crash()
    again = open_journal(disk.reopen(), seed=2)
    assert (again.end_of_epoch(2), again.end_of_epoch(3)) == ((1, 2), (3, 4))


def test_a_cut_makes_durable_what_it_leaves_also_of_earlier_files() -> None:
    disk = FakeDisk()
    journal = start(disk, "a", segment_bytes=300)
    # Two files that the disk was not given yet; the second one is cut.
    append(journal, *map(record, "bcde"))
    journal.cut(4)
    disk.crash()
    assert "".join(replayed(open_journal(disk.reopen(), segment_bytes=300, seed=2))) == "abc"


@pytest.mark.parametrize("unsynced", ["", "xyz"])
@pytest.mark.parametrize("steps", range(14))
def test_i29_a_cut_that_failed_is_abandoned_and_the_log_goes_on(steps: int, unsynced: str) -> None:
    disk = FakeDisk(seed=steps)
    journal = epochs_journal(disk, segment_bytes=200)
    append(journal, *map(record, unsynced), epoch=4)
    disk.fail_next(after=steps)
    with contextlib.suppress(OSError):
        journal.cut(2)
    disk.fail_next(0)
    with contextlib.suppress(CorruptLog):
        journal.abandon_unsynced()
    assert not journal._failed, "it takes no frames any more"
    assert 2 <= journal.log_end <= 102
    assert journal.synced_end == journal.log_end
    left = replayed(journal)
    assert left == list("abcdef")[: len(left)]
    # More than were cut: a file that stayed behind would stand in the middle of them.
    new = ["z"] * 110
    append(journal, EPOCH_START, *map(record, new), epoch=5)
    sync(journal, disk)
    disk.crash()
    again = replayed(open_journal(disk.reopen(), segment_bytes=200))
    assert again == [*left, *new], "what was synced is lost"
