"""A replica that begins in the middle of its log, with its leader's snapshot."""

from __future__ import annotations

import contextlib
from typing import Final

import pytest

from oncelog_server.core.machine import Snapshot, Table
from oncelog_server.runtime.storage.damage import JournalDamaged
from oncelog_server.runtime.storage.epochs import EpochEntry
from oncelog_server.runtime.storage.journal import Journal
from tests.simulation.disk import FakeDisk, Tear
from tests.unit.storage.journals import (
    DIRECTORY,
    EPOCH_START,
    append,
    open_journal,
    record,
    replayed,
    start,
    sync,
)

SNAPSHOT: Final = Snapshot(b"state", {"rows": Table(2, 0, b"aabb")})
EPOCHS: Final = (EpochEntry(1, 0, 0), EpochEntry(3, 40, 40))


def begin(journal: Journal) -> None:
    journal.begin_at(50, SNAPSHOT, EPOCHS, time_ms=7_000)


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
    again = open_journal(disk.reopen(), segment_bytes=200, seed=9)
    if again.log_start:
        require_begun(again)
    else:
        assert "abc".startswith("".join(replayed(again)))
        saved = again.load_snapshot()
        assert saved is None or saved[0] <= again.log_end
    assert again.log_end == 4 or again.incarnation != name


def test_i26_without_its_epochs_a_log_that_begins_in_the_middle_is_refused() -> None:
    disk = FakeDisk()
    begin(open_journal(disk))
    disk.damage(f"{DIRECTORY}/epochs", lambda data: data.__setitem__(0, data[0] ^ 1))
    disk.crash()
    with pytest.raises(JournalDamaged, match="in which epoch the log begins"):
        open_journal(disk.reopen())
