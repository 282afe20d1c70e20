"""Where a data log begins, and by which state it does: what becomes of it where the journal is
taken back to before that."""

from __future__ import annotations

import contextlib

import pytest

from oncelog_server.core.machine import Settled, Snapshot
from oncelog_server.runtime.storage.data_note import NOT_KNOWN, DataNoteFile
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.keeping import Allowance
from oncelogpb.errors import CorruptLog, OffsetOutOfRange
from tests.simulation.disk import FakeDisk
from tests.unit.storage.data_logs import block, read, read_all, settle
from tests.unit.storage.journals import (
    DIRECTORY,
    EPOCH_START,
    append,
    open_journal,
    record,
    sync,
)

SEGMENT_BYTES = 200
# Of the first two epochs, each of nine frames, two snapshots.
DELETED_AT = 20


def with_deleted(disk: FakeDisk, *, trimmed: bool = False) -> Journal:
    """Three epochs of nine frames. Settled are the offsets 0 to 30, from a snapshot at 18; up to 20
    was deleted, as a state at 20 says. The journal begins at 0, or at 9, as one at 18 allowed."""
    journal = open_journal(disk, segment_bytes=SEGMENT_BYTES)
    for epoch in (1, 2, 3):
        append(journal, EPOCH_START, *map(record, "abcdefgh"), epoch=epoch)
        sync(journal, disk)
        journal.save_snapshot(journal.synced_end, Snapshot(b"state", {}))
    for first in (0, 10, 20):
        # One to a file.
        settle(journal.data, block(first, 10, payload=b"x" * SEGMENT_BYTES, exposed=18), at=18)
    if trimmed:
        start = journal._snapshots.offsets[0]
        journal.prepare_start(start, journal.index_before_start(start))
        assert journal.move_start(start, allowed_at=18)
    journal.data.remove_before(20, begun_at=DELETED_AT)
    journal.rest_on_data()
    while journal.note_synced_end():
        sync(journal, disk)
    if trimmed:
        journal.retire_front()
        journal.remove_front()
    assert (journal.data.begin, journal.data.settled_end) == (20, 30)
    return journal


def reopened(disk: FakeDisk) -> Journal:
    return open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES)


def test_i25_a_cut_to_behind_a_deletion_leaves_what_is_settled() -> None:
    disk = FakeDisk()
    journal = with_deleted(disk)
    journal.cut(DELETED_AT)
    assert (journal.data.begin, journal.data.settled_end) == (20, 30)
    assert reopened(disk).data.begun_at == DELETED_AT


@pytest.mark.parametrize("end", [DELETED_AT - 1, 18, 9])
def test_i25_a_deletion_that_is_cut_takes_the_data_log_with_it(end: int) -> None:
    """All of it is settled again: the journal has every frame."""
    disk = FakeDisk()
    journal = with_deleted(disk)
    journal.cut(end)
    again = reopened(disk)
    for found in (journal, again):
        assert (found.data.begin, found.data.settled_end, found.data.begun_at) == (0, 0, 0)
    settle(again.data, block(0, 10, exposed=9), at=9)
    assert [it.first_offset for it in read_all(again.data)] == [0]


@pytest.mark.parametrize("slot", [0, 512])
@pytest.mark.parametrize("trimmed", [False, True])
def test_i26_a_slot_that_rots_deletes_nothing_again(slot: int, trimmed: bool) -> None:
    disk = FakeDisk()
    journal = with_deleted(disk, trimmed=trimmed)
    start = journal.log_start
    journal.data.take_back_begin(journal_start=start)
    disk.damage(f"{DIRECTORY}/data/settled", lambda content: content.__setitem__(slot + 20, 255))
    assert reopened(disk).data.begin == 0


@pytest.mark.parametrize("after", range(16))
def test_i25_a_cut_of_a_deletion_that_a_crash_interrupts_leaves_none_of_it(after: int) -> None:
    disk = FakeDisk()
    journal = with_deleted(disk)
    disk.fail_next(after=after)
    with contextlib.suppress(OSError):
        journal.cut(18)
    disk.crash()
    again = reopened(disk)
    if again.log_end == 18:
        assert (again.data.begin, again.data.settled_end) == (0, 0)
    else:
        assert again.data.settled_end in (0, 30), "all of it, or it is settled again"


def test_i25_a_journal_without_a_front_rests_on_what_the_data_log_has_deleted() -> None:
    """A cut to below that puts it aside: nothing here has what was deleted."""
    disk = FakeDisk()
    journal = with_deleted(disk, trimmed=True)
    assert journal.allowed == Allowance(DELETED_AT, 3)
    disk.crash()
    again = reopened(disk)
    assert (again.log_start, again.allowed) == (9, Allowance(DELETED_AT, 3))


def test_i25_a_crash_before_that_is_noted_finds_it_in_the_data_log() -> None:
    disk = FakeDisk()
    journal = with_deleted(disk, trimmed=True)
    journal.data.remove_before(30, begun_at=25)
    disk.crash()
    assert reopened(disk).allowed == Allowance(25, 3)


def test_i25_a_front_that_goes_after_a_deletion_rests_on_that_too() -> None:
    disk = FakeDisk()
    journal = with_deleted(disk)
    start = journal._snapshots.offsets[0]
    journal.prepare_start(start, journal.index_before_start(start))
    assert journal.move_start(start, allowed_at=18)
    assert journal.allowed == Allowance(DELETED_AT, 3)


@pytest.mark.parametrize("slot", [0, 512])
def test_i25_a_front_goes_while_the_data_log_deletes_before_each_note(slot: int) -> None:
    """And whichever slot of the note rots then, the log rests on what the data log says."""
    disk = FakeDisk()
    journal = with_deleted(disk)
    start = journal._snapshots.offsets[0]
    journal.prepare_start(start, journal.index_before_start(start))
    assert journal.move_start(start, allowed_at=18)
    for begin, begun_at in ((24, 21), (27, 22), (30, 23)):
        assert not journal.start_is_durable or begin == 30
        journal.data.remove_before(begin, begun_at=begun_at)
        journal.rest_on_data()
        journal.note_synced_end()
        sync(journal, disk)
    assert journal.start_is_durable, "both slots say it, and what allowed it"
    assert not journal.is_noted, "they rest on two states, and one of them on the newest"
    journal.retire_front()
    journal.remove_front()
    disk.damage(f"{DIRECTORY}/synced_end", lambda content: content.__setitem__(slot + 20, 255))
    disk.crash()
    again = reopened(disk)
    assert (again.log_start, again.allowed) == (9, Allowance(23, 3))


def test_i25_no_front_goes_by_what_a_lost_end_of_the_log_allowed() -> None:
    """An unclean election took that end away, and the leader allows its start anew: what the note
    said before speaks of frames that are not there."""
    disk = FakeDisk()
    journal = with_deleted(disk, trimmed=True)
    journal.cut(DELETED_AT - 2)
    append(journal, EPOCH_START, epoch=5)
    sync(journal, disk)
    journal.allow_start()
    append(journal, *map(record, "abc"), epoch=5)
    sync(journal, disk)
    assert journal.allowed == Allowance(DELETED_AT - 1, 5)
    assert not journal.start_is_durable, "the note says a later offset, of other frames"
    for _ in range(2):
        journal.note_synced_end()
        sync(journal, disk)
    assert journal.start_is_durable


def test_i26_who_leads_without_what_was_deleted_says_so_and_keeps_the_rest() -> None:
    """Nobody else may have what is here; and nobody is told that what lacks was deleted."""
    journal = with_deleted(FakeDisk(), trimmed=True)
    data = journal.data
    data.cut(18, journal_start=journal.log_start)
    assert (data.begin, data.settled_end) == (0, 30)
    assert [it.first_offset for it in read(data, 20)] == [20]
    with pytest.raises(CorruptLog):
        read(data, 19)
    assert data.damaged_at(5) == (0, 20)
    # The state that is left says that less was deleted.
    assert data.goes_before(5)
    data.remove_before(5, begun_at=18)
    assert not data.goes_before(5)
    with pytest.raises(OffsetOutOfRange):
        read(data, 4)
    assert data.damaged_at(5) == (5, 20)


def test_i27_of_what_is_cut_wholly_nothing_stays_that_says_it_is_settled() -> None:
    data = with_deleted(FakeDisk(), trimmed=True).data
    data.cut(17, journal_start=9)
    assert (data.begin, data.settled_end) == (0, 0)


@pytest.mark.parametrize("begins", [(19, 18), (20, 20), (25, 27)])
def test_i25_where_no_note_says_it_a_snapshot_does(begins: tuple[int, int]) -> None:
    """The oldest that begins there, or behind; else it is one at the end of the journal."""
    begin, begun_at = begins
    disk = FakeDisk()
    journal = with_deleted(disk)
    for offset, deleted in ((18, 19), (20, 20), (22, 21)):
        settled = Settled(min(begin, deleted), 30, wanted=True)
        journal.save_snapshot(offset, Snapshot(b"", {}, settled=settled))
    journal.close()
    note = DataNoteFile(disk, f"{DIRECTORY}/data")
    assert note.kept is not None
    note.save(note.kept._replace(begin=begin, begun_at=NOT_KNOWN))
    again = reopened(disk)
    assert again.data.begin == begin
    assert again.data.begun_at == begun_at
    assert reopened(disk).data.begun_at == begun_at, "it is noted"
