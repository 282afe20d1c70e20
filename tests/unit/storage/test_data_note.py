"""The note of a data log: what it says of what was taken out, and of where the log begins."""

from __future__ import annotations

from collections.abc import Callable
from errno import EIO

import pytest

from oncelog_server.core.block import Block
from oncelog_server.core.cleaning import Cleanness
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.data_note import NOT_KNOWN, DataNote, DataNoteFile
from oncelog_server.runtime.storage.port import File
from tests.simulation.disk import FakeDisk, Tear
from tests.unit.storage.data_logs import DIRECTORY, blocks, kept, open_data, read_all, settle


def with_holes(disk: FakeDisk) -> DataLog:
    """A data log of which the note says that something was taken out."""
    log = open_data(disk, segment_bytes=500)
    log.begin_at(1, begun_at=4)
    settle(log, *blocks(1, 60))
    log.close()
    note = DataNoteFile(disk, DIRECTORY)
    assert note.kept is not None
    note.save(
        note.kept._replace(
            begun_at=4,
            compacted_to=20,
            tombstones_to=10,
            holes_below=30,
            dropped_at=40,
            dropped_to=5,
        )
    )
    return open_data(disk, segment_bytes=500)


def noted(disk: FakeDisk) -> DataNote:
    kept = DataNoteFile(disk, DIRECTORY).kept
    assert kept is not None
    return kept


def test_what_was_taken_out_is_said_for_as_long_as_it_is_so() -> None:
    disk = FakeDisk()
    log = with_holes(disk)
    holes = noted(disk)[-6:]
    assert holes == (4, 20, 10, 30, 40, 5)
    settle(log, *blocks(log.settled_end, 90))
    log.cut(2 * 70, journal_start=0)
    log.close()
    assert noted(open_and_close(disk))[-6:] == holes


def open_and_close(disk: FakeDisk) -> FakeDisk:
    open_data(disk, segment_bytes=500).close()
    return disk


@pytest.mark.parametrize("given_up", ["begin_at", "cut"])
def test_of_a_log_that_was_given_up_nothing_was_taken_out(given_up: str) -> None:
    disk = FakeDisk()
    log = with_holes(disk)
    if given_up == "begin_at":
        log.begin_at(1, begun_at=0)
    else:
        log.cut(4, journal_start=0)
    assert noted(disk)[:2] == (1, 1)
    assert noted(disk)[-5:] == (0, 0, 0, 0, 0)


def settle_each(log: DataLog, of: list[Block]) -> None:
    for one in of:
        settle(log, one)


class KilledAtSync(FakeDisk):
    """The process ends where it was about to sync a note."""

    is_near = False

    def sync(self, file: File) -> None:
        if self.is_near and file.path.endswith("/settled"):
            raise InterruptedError
        super().sync(file)


def killed_in_the_note(
    before: Callable[[DataLog], None], last: Callable[[DataLog], None]
) -> FakeDisk:
    """What `last` notes is in the page cache alone."""
    disk = KilledAtSync()
    log = open_data(disk)
    before(log)
    disk.is_near = True
    with pytest.raises(InterruptedError):
        last(log)
    disk.kill()
    return disk.reopen()


def test_i25_what_is_taken_out_rests_on_a_durable_note() -> None:
    """A pass of compaction was killed in its note, and the next one finds that it says so already:
    what that takes out is in the note, too, when the power goes."""
    holes = Cleanness(holes_below=50)
    disk = killed_in_the_note(
        lambda log: settle(log, *blocks(0, 60)), lambda log: log.note_cleanness(holes)
    )
    log = open_data(disk)
    log.note_cleanness(holes)
    disk.crash(Tear.NOTHING)
    assert noted(disk.reopen()).holes_below == 50, "what was taken out is noted"


def test_i25_what_a_note_gives_up_goes_after_it_is_durable() -> None:
    disk = killed_in_the_note(
        lambda log: settle(log, *blocks(0, 60)),
        lambda log: log.begin_at(90, begun_at=4),
    )
    disk.fail_files("/settled", EIO)
    with pytest.raises(OSError, match="told to fail"):
        open_data(disk)
    disk.crash(Tear.NOTHING)
    disk = disk.reopen()
    disk.fail_files("", 0)
    assert kept(disk) == blocks(0, 60)


def test_a_start_writes_no_note_of_what_is_found_without_it() -> None:
    """Nor does the next one go over the one that is durable for sure."""
    disk = killed_in_the_note(
        lambda log: settle_each(log, blocks(0, 12)),
        lambda log: settle(log, *blocks(12, 18)),
    )
    before, syncs = disk.bytes_of(f"{DIRECTORY}/settled"), disk.syncs
    log = open_data(disk)
    assert (log.settled_end, disk.syncs) == (18, syncs)
    settle(log, *blocks(18, 24))
    after = disk.bytes_of(f"{DIRECTORY}/settled")
    changed = [at for at in (0, 512) if before[at : at + 112] != after[at : at + 112]]
    sequences = [int.from_bytes(before[at + 8 : at + 16], "little") for at in (0, 512)]
    assert changed == [sequences.index(max(sequences)) * 512], "the one that was in doubt"
    assert read_all(open_data(disk.reopen())) == blocks(0, 24)


@pytest.mark.parametrize("begin", [0, 1])
def test_of_a_log_whose_note_is_lost_nobody_knows_what_was_taken_out(begin: int) -> None:
    disk = FakeDisk()
    log = open_data(disk)
    log.begin_at(begin, begun_at=0)
    settle(log, *blocks(begin, 60))
    log.close()
    disk.remove(f"{DIRECTORY}/settled")
    found = noted(open_and_close(disk))
    assert found.begun_at == (NOT_KNOWN if begin else 0)
    assert found[-5:] == (0, 0, NOT_KNOWN, NOT_KNOWN, 0)
