"""The note of a data log: what it says of what was taken out, and of where the log begins."""

from __future__ import annotations

import pytest

from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.data_note import NOT_KNOWN, DataNote, DataNoteFile
from tests.simulation.disk import FakeDisk
from tests.unit.storage.data_logs import DIRECTORY, blocks, open_data, settle


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
