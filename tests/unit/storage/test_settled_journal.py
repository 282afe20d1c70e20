"""What a journal does with its data log, and what a snapshot says to whoever settles it."""

from __future__ import annotations

import contextlib

import pytest

from oncelog_server.core.cleaning import Cleanness
from oncelog_server.core.machine import Needs, Settled, Snapshot, Table
from oncelog_server.runtime.storage import snapshot_rows, tables
from oncelog_server.runtime.storage.epochs import EpochEntry
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.keeping import Allowance
from oncelogpb.errors import CorruptLog
from tests.simulation.disk import FakeDisk
from tests.unit.storage.data_logs import block, read_all, settle
from tests.unit.storage.journals import (
    DIRECTORY,
    append,
    open_journal,
    record,
    start,
    sync,
)

ROW_BYTES = 8


def with_settled(disk: FakeDisk) -> Journal:
    """Ten frames; what was readable below journal offset 4 is in one block, below 8 in two."""
    journal = start(disk, *"abcdefghi")
    settle(journal.data, block(0, 1, exposed=4), at=4)
    settle(journal.data, block(1, 1, exposed=8), at=8)
    return journal


def test_i27_what_is_cut_from_the_journal_is_settled_no_more() -> None:
    disk = FakeDisk()
    journal = with_settled(disk)
    journal.cut(8)
    assert journal.data.settled_end == 2
    journal.cut(7)
    assert journal.data.settled_end == 1, "the second block became readable by what is gone"
    assert [it.first_offset for it in read_all(journal.data)] == [0]
    disk.crash()
    assert open_journal(disk.reopen()).data.settled_end == 1


def test_i33_of_a_compacted_log_all_is_settled_anew_where_a_cut_takes_what_superseded() -> None:
    """The journal has everything; what was taken out is in no block any more."""
    journal = with_settled(FakeDisk())
    journal.data.note_cleanness(Cleanness(2, 0, 2))
    journal.cut(8)
    assert (journal.data.settled_end, journal.data.compacted_to) == (2, 2)
    journal.cut(7)
    assert (journal.data.settled_end, journal.data.cleanness) == (0, Cleanness())
    assert journal.log_end == 7


@pytest.mark.parametrize("after", range(12))
def test_i27_a_cut_that_a_crash_interrupts_leaves_no_block_of_what_is_gone(after: int) -> None:
    disk = FakeDisk()
    journal = with_settled(disk)
    disk.fail_next(after=after)
    try:
        journal.cut(5)
    except OSError:
        pass
    disk.crash()
    again = open_journal(disk.reopen())
    # Less may be settled than could be, never more than is there.
    assert again.data.settled_end == 1 or (again.data.settled_end, again.log_end) == (2, 10)


@pytest.mark.parametrize("after", range(20))
def test_i35_who_begins_where_its_leaders_log_does_keeps_what_it_has_settled(after: int) -> None:
    """Whenever it dies: nobody sends it again what it has."""
    disk = FakeDisk()
    journal = with_settled(disk)
    epochs = (EpochEntry(1, 0, 0), EpochEntry(3, 40, 40))
    disk.fail_next(after=after)
    with contextlib.suppress(OSError):
        journal.begin_at(50, Snapshot(b"", {}), epochs, time_ms=7_000, allowed=Allowance(70, 3))
    assert journal.data.settled_end == 2
    disk.crash()
    again = open_journal(disk.reopen(), seed=9)
    assert [it.first_offset for it in read_all(again.data)] == [0, 1]
    assert again.log_end in (0, 10, 50)
    assert again.log_end == 10 or again.allowed == Allowance(70, 3), "what its blocks rest on"


def test_i26_a_snapshot_says_what_is_settled_of_it_after_a_restart() -> None:
    disk = FakeDisk()
    journal = start(disk, *"abc")
    for offset, settled in ((2, Settled(0, 5, 1)), (3, Settled(0, 9, 2, wanted=True))):
        journal.save_snapshot(offset, Snapshot(b"", {}, Needs(), settled=settled))
    disk.crash()
    again = open_journal(disk.reopen())
    newest = (3, Settled(0, 9, 2, wanted=True))
    assert again.snapshots.settled(has_data=False) == [(2, Settled(0, 5, 1)), newest]
    disk.damage(f"{DIRECTORY}/snapshot-{3:020d}", lambda content: content.__setitem__(70, 255))
    assert open_journal(disk.reopen()).snapshots.settled(has_data=True) == [(2, Settled(0, 5, 1))]


def number_of(row: bytes) -> int:
    return int.from_bytes(row, "little")


def with_rows(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch, count: int
) -> snapshot_rows.SnapshotRows:
    """Rows of the numbers 0, 3, 6, ..., in chunks of 10, read 3 at a time."""
    monkeypatch.setattr(tables, "CHUNK_BYTES", 10 * ROW_BYTES)
    monkeypatch.setattr(snapshot_rows, "PIECE_BYTES", 3 * ROW_BYTES)
    journal = start(disk, "a")
    rows = b"".join((3 * n).to_bytes(ROW_BYTES, "little") for n in range(count))
    journal.save_snapshot(2, Snapshot(b"", {"t": Table(ROW_BYTES, 0, rows)}))
    file = journal.snapshots.read(2)
    assert file is not None
    return journal.snapshots.rows("t", file.tables["t"])


@pytest.mark.parametrize("offset", [0, 1, 3, 28, 29, 30, 31, 95, 1_000])
def test_rows_are_given_from_the_one_that_holds_an_offset(
    monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    rows = with_rows(FakeDisk(), monkeypatch, 35)
    pieces = list(rows.around(offset, number_of))
    assert all(len(piece) <= 3 * ROW_BYTES for piece in pieces)
    data = b"".join(pieces)
    found = [number_of(data[at : at + ROW_BYTES]) for at in range(0, len(data), ROW_BYTES)]
    assert found == list(range(min(offset // 3, 34) * 3, 105, 3))


@pytest.mark.parametrize("row", [0, 1, 9, 10, 12, 20, 34, 35, 99])
def test_rows_are_given_from_a_number_on(monkeypatch: pytest.MonkeyPatch, row: int) -> None:
    data = b"".join(with_rows(FakeDisk(), monkeypatch, 35).behind(row))
    found = [number_of(data[at : at + ROW_BYTES]) for at in range(0, len(data), ROW_BYTES)]
    assert found == list(range(3 * row, 105, 3))


def test_of_a_table_without_rows_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(with_rows(FakeDisk(), monkeypatch, 0).around(5, number_of)) == []


def test_i26_rows_that_are_not_as_they_were_written_are_not_settled_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FakeDisk()
    rows = with_rows(disk, monkeypatch, 35)
    path = f"{DIRECTORY}/tables/t-{10:020d}.rows"
    disk.damage(path, lambda content: content.__setitem__(9 * ROW_BYTES, 255))
    pieces = rows.around(0, number_of)
    assert len([next(pieces) for _ in range(4)]) == 4, "the first chunk is whole"
    with pytest.raises(CorruptLog) as caught:
        next(pieces)
    assert caught.value.metadata["file"] == path


def test_a_journal_that_settles_nothing_has_no_data_directory() -> None:
    disk = FakeDisk()
    journal = start(disk, "a", "b")
    append(journal, record("c"))
    sync(journal, disk)
    journal.cut(2)
    journal.close()
    assert not disk.exists(f"{DIRECTORY}/data")
