"""What a log start rests on, as the note of it says: the state that needed nothing before it."""

from __future__ import annotations

from typing import Final

import pytest
from crc32c import crc32c

from oncelog_server.core.machine import Snapshot
from oncelog_server.runtime.storage.epochs import EpochEntry
from oncelog_server.runtime.storage.identity import Bounds, SyncedEnd, decode_slot, encode_slot
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.keeping import Allowance
from tests.simulation.disk import FakeDisk
from tests.unit.storage.journals import DIRECTORY, EPOCH_START, append, open_journal, record, sync

NOTE: Final = f"{DIRECTORY}/synced_end"
EPOCHS: Final = (EpochEntry(1, 0, 0), EpochEntry(3, 40, 40))


def trimmed(disk: FakeDisk) -> Journal:
    """It begins in its third file, as a state of epoch 2 allowed; behind that is epoch 3."""
    journal = open_journal(disk, segment_bytes=200)
    for epoch in (1, 2, 3):
        append(journal, EPOCH_START, *map(record, "abcdefgh"), epoch=epoch)
        sync(journal, disk)
        journal.save_snapshot(journal.synced_end, Snapshot(b"state", {}))
    start = journal._snapshots.offsets[0]
    journal.prepare_start(start, journal.index_before_start(start))
    assert journal.move_start(start, allowed_at=18)
    while journal.note_synced_end():
        sync(journal, disk)
    journal.retire_front()
    journal.remove_front()
    return journal


def lacks_front(journal: Journal) -> bool:
    return journal.may_lack_front


def test_i25_what_allowed_a_start_is_noted_with_it() -> None:
    disk = FakeDisk()
    journal = trimmed(disk)
    assert journal.allowed == Allowance(18, 2)
    noted = SyncedEnd(disk.reopen(), DIRECTORY).noted
    assert noted == Bounds(9, 27, Allowance(18, 2))
    again = open_journal(disk.reopen(), segment_bytes=200)
    assert (again.log_start, again.allowed) == (9, Allowance(18, 2))
    again.cut(20)
    assert SyncedEnd(again._disk, DIRECTORY).noted == Bounds(9, 20, Allowance(18, 2))
    assert not lacks_front(again)


def test_i25_a_log_that_lost_what_allowed_its_start_knows_it() -> None:
    """It may be elected all the same, by an operator."""
    journal = trimmed(FakeDisk())
    journal.cut(17)
    assert lacks_front(journal), "it is a frame short of it"
    append(journal, EPOCH_START, record("else"), epoch=4)
    assert lacks_front(journal), "another frame stands there"
    journal.allow_start()
    assert not lacks_front(journal)
    assert journal.allowed == Allowance(19, 4)


def test_i25_who_begins_with_a_leaders_snapshot_takes_over_what_that_start_rests_on() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    allowed = Allowance(70, 3)
    journal.begin_at(50, Snapshot(b"state", {}), EPOCHS, time_ms=7_000, allowed=allowed)
    assert lacks_front(journal), "it has none of these frames yet"
    disk.crash()
    again = open_journal(disk.reopen())
    assert (again.log_start, again.allowed) == (50, allowed)
    append(again, *[record("x")] * 20, epoch=3)
    assert not lacks_front(again)


def test_i25_what_a_leaders_blocks_rest_on_is_in_both_slots_before_they_are_kept() -> None:
    """What allowed the start before would be enough for the start, and not for them."""
    disk = FakeDisk()
    journal = trimmed(disk)
    journal.rest_on(Allowance(40, 3))
    durable = []
    for _ in range(2):
        durable.append(journal.start_is_durable)
        assert journal.note_synced_end()
        sync(journal, disk)
    assert [*durable, journal.start_is_durable] == [False, False, True]


def slot_of_an_earlier_version(sequence: int, log_start: int, synced_end: int) -> bytes:
    sealed = b"".join(number.to_bytes(8, "little") for number in (sequence, log_start, synced_end))
    return b"OSE1" + crc32c(sealed).to_bytes(4, "little") + sealed


@pytest.mark.parametrize("behind", [0, 480])
def test_a_slot_of_an_earlier_version_is_read(behind: int) -> None:
    slot = slot_of_an_earlier_version(5, 0, 30) + bytes(behind)
    assert decode_slot(slot) == (5, Bounds(0, 30))
    slot = slot_of_an_earlier_version(5, 9, 30) + bytes(behind)
    assert decode_slot(slot) == (5, Bounds(9, 30, Allowance(30)))
    for position in range(32):
        bent = bytearray(slot)
        bent[position] ^= 1
        assert decode_slot(bytes(bent)) is None
    assert decode_slot(slot[:31]) is None
    for position in range(48):
        bent = bytearray(encode_slot(5, Bounds(9, 30, Allowance(20, 2))))
        bent[position] ^= 1
        assert decode_slot(bytes(bent)) is None


@pytest.mark.parametrize("is_lost", [False, True])
def test_i25_where_nothing_says_what_allowed_a_start_all_that_was_there_did(is_lost: bool) -> None:
    """A note of an earlier version, or none: what allowed it is somewhere in this log."""
    disk = FakeDisk()
    trimmed(disk).close()
    disk = disk.reopen()
    file = disk.open(NOTE)
    disk.truncate_and_sync(file, 0)
    if not is_lost:
        disk.write_and_sync(file, 0, slot_of_an_earlier_version(8, 9, 26))
        disk.write_and_sync(file, 512, slot_of_an_earlier_version(9, 9, 26))
    journal = open_journal(disk, segment_bytes=200)
    assert journal.log_start == 9
    assert journal.allowed == Allowance(27 if is_lost else 26, 3)
    assert not lacks_front(journal)
    while journal.note_synced_end():
        sync(journal, disk)
    noted = SyncedEnd(disk.reopen(), DIRECTORY).noted
    assert noted == Bounds(9, 27, journal.allowed)
