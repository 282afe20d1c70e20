"""A replica that begins in the middle of its log, with its leader's snapshot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import pytest

from oncelog_server.core.machine import Snapshot, Table
from oncelog_server.runtime.storage.damage import JournalDamaged
from oncelog_server.runtime.storage.epochs import EpochEntry, EpochTable
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.keeping import Allowance
from oncelog_server.runtime.storage.snapshot_parts import Content, PartOf
from oncelog_server.runtime.storage.snapshots import decode_snapshot
from oncelogpb.errors import CorruptLog
from tests.simulation.disk import FakeDisk, Tear
from tests.unit.storage.journals import (
    DIRECTORY,
    EPOCH_START,
    FIRST_SEGMENT,
    append,
    open_journal,
    record,
    replayed,
    start,
    sync,
)

SNAPSHOT: Final = Snapshot(b"state", {"rows": Table(2, 0, b"aabb")})
EPOCHS: Final = (EpochEntry(1, 0, 0), EpochEntry(3, 40, 40))
ALLOWED: Final = Allowance(70, 3)


def begin(journal: Journal) -> None:
    journal.begin_at(50, SNAPSHOT, EPOCHS, time_ms=7_000, allowed=ALLOWED)


def require_begun(journal: Journal) -> None:
    assert (journal.log_start, journal.log_end, journal.synced_end) == (50, 50, 50)
    assert journal.last_epoch == 3
    assert journal.end_of_epoch(2) == (1, 40)
    assert journal.load_snapshot() == (50, b"state", {"rows": b"aabb"})


def test_an_empty_replica_goes_on_behind_a_snapshot_as_who_it_was() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    name = journal.incarnation
    begin(journal)
    require_begun(journal)
    disk.crash()
    disk = disk.reopen()
    journal = open_journal(disk, seed=2)
    require_begun(journal)
    assert journal.incarnation == name
    append(journal, record("x"), epoch=3)
    append(journal, EPOCH_START, record("y"), epoch=5)
    sync(journal, disk)
    disk.crash()
    again = open_journal(disk.reopen(), seed=3)
    assert (replayed(again), again.log_start, again.last_epoch) == (["x", "y"], 50, 5)
    assert again.incarnation == name


def first_write_failed() -> FakeDisk:
    disk = FakeDisk()
    journal = open_journal(disk)
    append(journal, EPOCH_START, record("a"))
    journal.take_writes()
    journal.mark_failed()
    journal.abandon_unsynced()
    return disk


def first_frame_torn() -> FakeDisk:
    disk = FakeDisk()
    journal = open_journal(disk)
    append(journal, EPOCH_START, record("a"))
    sync(journal, disk)
    disk.damage(FIRST_SEGMENT, lambda data: data.__setitem__(slice(8, None), bytes(len(data) - 8)))
    disk.crash()
    return disk.reopen()


@pytest.mark.parametrize("lost", [first_write_failed, first_frame_torn])
def test_i5_a_file_without_frames_takes_none_of_those_behind_the_beginning(
    lost: Callable[[], FakeDisk],
) -> None:
    """The next start looks in each file for the offset that its name says."""
    disk = lost()
    journal = open_journal(disk, seed=2)
    assert (journal.log_end, disk.exists(FIRST_SEGMENT)) == (0, True)
    begin(journal)
    name = journal.incarnation
    append(journal, record("x"), epoch=3)
    sync(journal, disk)
    disk.crash()
    again = open_journal(disk.reopen(), seed=3)
    assert (replayed(again), again.log_end, again.incarnation) == (["x"], 51, name)


@pytest.mark.parametrize("tear", Tear)
@pytest.mark.parametrize("steps", range(20))
def test_i25_who_gives_up_its_log_has_another_name_whenever_it_dies(steps: int, tear: Tear) -> None:
    disk = FakeDisk(seed=steps)
    journal = start(disk, *"abc", segment_bytes=200)
    journal.save_snapshot(4, Snapshot(b"old", {"rows": Table(2, 0, b"zz")}))
    journal.note_synced_end()
    sync(journal, disk)
    name = journal.incarnation
    disk.fail_next(after=steps)
    with contextlib.suppress(OSError):
        begin(journal)
    disk.crash(tear)
    try:
        again = open_journal(disk.reopen(), segment_bytes=200, seed=9)
    except JournalDamaged as damaged:
        raise AssertionError("it begins where nothing stands before it") from damaged
    if again.log_start:
        require_begun(again)
    else:
        assert "abc".startswith("".join(replayed(again)))
        saved = again.load_snapshot()
        assert saved is None or saved[0] <= again.log_end
    assert again.log_end == 4 or again.incarnation != name


@pytest.mark.parametrize("tear", Tear)
@pytest.mark.parametrize("abandoned", range(8))
@pytest.mark.parametrize("begun", range(8, 20))
def test_i29_who_abandons_a_beginning_and_dies_is_not_taken_for_damaged(
    begun: int, abandoned: int, tear: Tear
) -> None:
    """The note of the new start may stand though its sync failed: its snapshot goes after it."""
    disk = FakeDisk(seed=begun)
    journal = start(disk, *"abc", segment_bytes=200)
    disk.fail_next(after=begun)
    try:
        begin(journal)
    except OSError:
        disk.fail_next(after=abandoned)
        with contextlib.suppress(OSError):
            journal.abandon_unsynced()
    disk.crash(tear)
    try:
        again = open_journal(disk.reopen(), segment_bytes=200, seed=9)
    except JournalDamaged as damaged:
        raise AssertionError("its snapshot went before the note") from damaged
    assert again.log_start in (0, 50)


@pytest.mark.parametrize("steps", range(20))
def test_i29_a_beginning_that_the_disk_refused_is_abandoned_and_tried_again(steps: int) -> None:
    disk = FakeDisk(seed=steps)
    journal = start(disk, *"abc", segment_bytes=200)
    disk.fail_next(after=steps)
    try:
        begin(journal)
    except OSError:
        journal.abandon_unsynced()
        assert "abc".startswith("".join(replayed(journal)))
        assert journal.log_start == 0
        begin(journal)
    require_begun(journal)
    disk.crash()
    require_begun(open_journal(disk.reopen(), segment_bytes=200, seed=9))


def test_i35_the_snapshot_that_a_log_begins_with_is_kept() -> None:
    """Whoever ends before the log begins has nothing else to begin with."""
    disk = FakeDisk()
    journal = open_journal(disk)
    begin(journal)
    for number in range(5):
        [at] = append(journal, record(f"{number}"), epoch=3)
        sync(journal, disk)
        journal.save_snapshot(at + 1, Snapshot(b"later", {"rows": Table(2, 2, b"cc")}))
    disk.damage(f"{DIRECTORY}/snapshot-{55:020d}", lambda data: data.__setitem__(9, 1))
    disk.damage(f"{DIRECTORY}/snapshot-{54:020d}", lambda data: data.__setitem__(9, 1))
    assert open_journal(disk).load_snapshot() == (50, b"state", {"rows": b"aabb"})


def test_i26_without_what_was_before_a_log_that_begins_in_the_middle_is_refused() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    begin(journal)
    name = journal.incarnation
    disk.damage(f"{DIRECTORY}/snapshot-{50:020d}", lambda data: data.__setitem__(9, 1))
    journal = open_journal(disk, seed=2)
    with pytest.raises(JournalDamaged, match="no snapshot is intact"):
        journal.load_snapshot()
    assert journal.incarnation != name
    disk.remove(f"{DIRECTORY}/snapshot-{50:020d}")
    with pytest.raises(JournalDamaged, match="what was before is not there"):
        open_journal(disk, seed=3)


def test_i7_a_log_that_is_cut_to_its_beginning_knows_the_epoch_before_it() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    begin(journal)
    append(journal, EPOCH_START, epoch=4)
    sync(journal, disk)
    journal.cut(50)
    assert (journal.log_end, journal.last_epoch) == (50, 3)
    require_begun(journal)


def parts_of(journal: Journal, content: Content, name: str = "") -> list[bytes]:
    """As another replica reads them."""
    found: list[bytes] = []
    position: int | None = 0
    while position is not None:
        data, following = journal.snapshot_parts().read(PartOf(content, name, position))
        found.append(data)
        assert following is None or following > position, "it goes on"
        position = following
    return found


def test_what_was_before_is_read_in_parts_under_the_checksums_that_it_has() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    slots = journal.slots.open("outcomes", 8)
    far = 3 << 20
    for offset in (1, 2, far - 1, far + 5):
        slots.write(offset, offset.to_bytes(8, "big"))
    journal.slots.flush()
    slots.write(7, b"not yet.")
    journal.begin_at(far, SNAPSHOT, EPOCHS, time_ms=7_000, allowed=ALLOWED)
    slots.write(9, b"in memo.")
    append(journal, record("x"), epoch=3)
    sync(journal, disk)
    journal.save_snapshot(far + 1, Snapshot(b"later", {"rows": Table(2, 2, b"cc")}))
    [file] = parts_of(journal, Content.FILE)
    found = decode_snapshot(file)
    assert found is not None
    assert (found.offset, found.state) == (far, b"state")
    rows = b"".join(parts_of(journal, Content.TABLE, "rows"))
    assert rows.startswith(b"aabb"), "what belongs to it is said in the file"
    [epochs] = parts_of(journal, Content.EPOCHS)
    table = EpochTable.decode(epochs)
    assert table is not None
    assert tuple(table.entries) == EPOCHS
    copied = open_journal(FakeDisk()).slots.open("outcomes", 8)
    parts = parts_of(journal, Content.SLOTS, "outcomes")
    assert len(parts) < 50, "what is not there is not looked through"
    for part in parts:
        copied.write_stored(part)
    assert [copied.read(at) for at in (1, 2, 7, 9, far - 1)] == [
        (1).to_bytes(8, "big"),
        (2).to_bytes(8, "big"),
        b"not yet.",
        b"in memo.",
        (far - 1).to_bytes(8, "big"),
    ]
    assert copied.read(far + 5) is None, "replay writes those"
    with pytest.raises(CorruptLog):
        copied.write_stored(parts[0][:-1] + b"?")


def test_i26_without_its_epochs_a_log_that_begins_in_the_middle_is_refused() -> None:
    disk = FakeDisk()
    begin(open_journal(disk))
    disk.damage(f"{DIRECTORY}/epochs", lambda data: data.__setitem__(0, data[0] ^ 1))
    disk.crash()
    with pytest.raises(JournalDamaged, match="in which epoch the log begins"):
        open_journal(disk.reopen())
