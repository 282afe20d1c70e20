"""What the disk does not give back is damage, as a flipped bit is: it is refused where it stands,
and hides nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from errno import EBADMSG, EIO, EMFILE, EUCLEAN
from pathlib import Path

import pytest

from oncelog_server.core.machine import Snapshot, Table
from oncelog_server.runtime.storage import real_file
from oncelog_server.runtime.storage.disk import RealDisk
from oncelog_server.runtime.storage.journal import JournalDamaged
from oncelog_server.runtime.storage.node_id import NODE_FILE, load_node_id
from oncelog_server.runtime.storage.real_file import RealFile
from oncelog_server.runtime.storage.segment import INDEX_INTERVAL_BYTES
from oncelog_server.runtime.storage.tables import TableFiles
from oncelog_server.runtime.storage.unreadable import PIECE_BYTES
from oncelogpb.errors import CorruptLog
from tests.simulation.disk import FakeDisk
from tests.unit.storage.data_logs import DIRECTORY as DATA
from tests.unit.storage.data_logs import blocks, kept, open_data, read, read_all, settle
from tests.unit.storage.journals import (
    DIRECTORY,
    EPOCH_START,
    FIRST_SEGMENT,
    append,
    data,
    noted,
    open_journal,
    record,
    replayed,
    start,
    sync,
    without_tail,
    write_without_sync,
)
from tests.unit.storage.journals import read as read_journal

FIRST_DATA = f"{DATA}/{0:020d}.data"


def bad_sector(monkeypatch: pytest.MonkeyPatch, begin: int, end: int, errno: int = EIO) -> None:
    """Of every file."""
    pread, preadv = os.pread, getattr(os, "preadv", None)

    def require(position: int, length: int) -> None:
        if begin < position + length and position < end:
            raise OSError(errno, os.strerror(errno))

    def reads(fd: int, length: int, position: int) -> bytes:
        require(position, length)
        return pread(fd, length, position)

    def reads_cached(fd: int, into: Sequence[bytearray], position: int, flags: int) -> int:
        require(position, len(into[0]))
        assert preadv is not None
        return int(preadv(fd, into, position, flags))

    monkeypatch.setattr(os, "pread", reads)
    if preadv is not None:
        monkeypatch.setattr(os, "preadv", reads_cached)


@pytest.fixture
def written(tmp_path: Path) -> RealFile:
    disk = RealDisk(tmp_path)
    file = disk.open("f", create=True)
    disk.write_and_sync(file, 0, b"x" * (3 * PIECE_BYTES + 10))
    disk.close()
    return file


def answer(file: RealFile, position: int, length: int) -> bytes | OSError:
    try:
        return file.read(position, length)
    except OSError as error:
        return error


@pytest.mark.parametrize("errno", [EIO, EUCLEAN, EBADMSG])
def test_i26_one_bad_sector_hides_nothing_beside_it(
    written: RealFile, monkeypatch: pytest.MonkeyPatch, errno: int
) -> None:
    bad_sector(monkeypatch, PIECE_BYTES + 512, PIECE_BYTES + 1024, errno)
    assert written.read(0, PIECE_BYTES) == b"x" * PIECE_BYTES
    wanted = b"x" * (PIECE_BYTES - 7) + b"\xff" * PIECE_BYTES + b"x" * (PIECE_BYTES + 10)
    assert answer(written, 7, 1 << 20) == wanted, "up to the end of the file"
    assert written.has_unreadable
    assert written.read_cached(0, 2 * PIECE_BYTES) is None
    assert not written.is_blank_from(0)


def test_what_says_nothing_of_the_bytes_is_an_error(
    written: RealFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_sector(monkeypatch, 0, 10, EMFILE)
    with pytest.raises(OSError) as met:
        written.read(0, 100)
    assert met.value.errno == EMFILE
    assert not written.has_unreadable


def test_what_could_not_be_read_once_is_asked_for_again(
    written: RealFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failing = real_file._read, [OSError(EIO, "once")]

    def reads(fd: int, position: int, length: int) -> bytes:
        if failing:
            raise failing.pop()
        return read(fd, position, length)

    monkeypatch.setattr(real_file, "_read", reads)
    assert written.read(0, 1 << 20) == b"x" * (3 * PIECE_BYTES + 10)
    assert not written.has_unreadable


# ------------------------------------------------------------------------------------- a journal


def test_i26_frames_that_cannot_be_read_are_refused_and_no_others() -> None:
    disk = FakeDisk()
    journal = start(disk)
    append(journal, *(data(bytes([number]) * 1_000, 1) for number in range(20)))
    sync(journal, disk)
    journal.close()
    disk = disk.reopen()
    disk.cannot_read(FIRST_SEGMENT, 4_200, 4_300)
    journal = without_tail(open_journal(disk, seed=2))
    assert [found.at.offset for found in read_journal(journal, 1, 3_000, below=21)] == [1, 2]
    with pytest.raises(CorruptLog, match=r"\.log is damaged at byte .*the disk cannot read"):
        read_journal(journal, 4, below=21)
    incarnation = journal.incarnation
    with pytest.raises(JournalDamaged, match=r"is damaged at byte"):
        replayed(journal)
    assert journal.incarnation != incarnation


@pytest.mark.parametrize("is_noted", [True, False])
def test_i26_a_tail_that_cannot_be_read_is_no_torn_one(is_noted: bool) -> None:
    """Nobody knows whether it was acknowledged: only what is seen to be torn is cut."""
    disk = FakeDisk()
    journal = noted(start(disk, "a"), disk)
    incarnation = journal.incarnation
    append(journal, data(b"b" * 6_000, 1))
    if is_noted:
        sync(journal, disk)
        noted(journal, disk)
    else:
        write_without_sync(journal, disk)
    disk.kill()
    disk = disk.reopen()
    disk.cannot_read(FIRST_SEGMENT, 4_500, 5_000)
    before = disk.bytes_of(FIRST_SEGMENT)
    with pytest.raises(JournalDamaged, match=r"the disk cannot read all of it"):
        open_journal(disk, seed=2)
    assert disk.bytes_of(FIRST_SEGMENT) == before
    assert incarnation not in disk.bytes_of(f"{DIRECTORY}/incarnation"), (
        "it counts for nothing under its old name"
    )


@pytest.mark.parametrize("is_noted", [True, False])
def test_room_behind_the_log_that_cannot_be_read_is_given_back(is_noted: bool) -> None:
    disk = FakeDisk()
    journal = noted(start(disk), disk)
    append(journal, record("a"))
    write_without_sync(journal, disk)
    disk = disk.reopen()
    if is_noted:
        noted(open_journal(disk), disk)
        disk = disk.reopen()
    size = len(disk.bytes_of(FIRST_SEGMENT))
    disk.cannot_read(FIRST_SEGMENT, size - 10, size)
    journal = open_journal(disk)
    assert replayed(journal) == ["a"]
    append(journal, data(b"b", 1))
    sync(journal, disk)
    assert len(disk.bytes_of(FIRST_SEGMENT)) > 0


@pytest.mark.parametrize("name", ["synced_end", "incarnation", "epochs", "index", "snapshot"])
def test_i26_a_small_file_that_cannot_be_read_is_as_one_that_is_lost(name: str) -> None:
    """Not even a part of it can be written: another one takes its place."""
    disk = FakeDisk()
    journal = start(disk)
    append(journal, *(data(b"x" * INDEX_INTERVAL_BYTES, 1) for _ in range(4)))
    sync(journal, disk)
    for offset in (2, 4):
        journal.save_snapshot(offset, Snapshot(b"state", {}))
    incarnation = journal.incarnation
    journal.close()
    disk = disk.reopen()
    (path,) = {
        "index": [f"{DIRECTORY}/{0:020d}.index"],
        "snapshot": [f"{DIRECTORY}/snapshot-{4:020d}"],
    }.get(name, [f"{DIRECTORY}/{name}"])
    disk.cannot_read(path, 0, 4_096)
    journal = open_journal(disk, seed=2)
    assert len(list(journal.replay(0))) == 5
    found = journal.load_snapshot()
    assert found is not None
    assert found[0] == (2 if name == "snapshot" else 4)
    assert (journal.incarnation != incarnation) == (name in ("synced_end", "incarnation"))
    append(journal, data(b"y", 1))
    sync(journal, disk)
    journal.close()
    again = open_journal(disk.reopen(), seed=3)
    assert (again.log_end, again.incarnation) == (6, journal.incarnation)


def test_i26_a_slot_that_can_be_read_is_kept_beside_one_that_cannot() -> None:
    disk = FakeDisk()
    journal = noted(start(disk, "a", "b"), disk)
    incarnation = journal.incarnation
    journal.close()
    disk = disk.reopen()
    sequence = int.from_bytes(disk.bytes_of(f"{DIRECTORY}/synced_end")[8:16], "little")
    assert sequence, "both slots are written"
    # That which was written last stays.
    last = max((0, 512), key=lambda at: disk.bytes_of(f"{DIRECTORY}/synced_end")[at + 8])
    lost = 512 - last
    disk._platter.names[f"{DIRECTORY}/synced_end"].unreadable = (lost, lost + 48)
    journal = open_journal(disk, seed=2)
    assert (journal.log_end, journal.incarnation) == (3, incarnation)
    append(journal, EPOCH_START, epoch=2)
    sync(journal, disk)
    noted(journal, disk)
    assert disk.exists(f"{DIRECTORY}/synced_end.damaged")


def test_i26_rows_that_cannot_be_read_get_no_crc_of_their_own() -> None:
    """Of a chunk of which a part is written again, the CRC is that of the rows before."""
    disk = FakeDisk()
    disk.make_directory(DIRECTORY)
    files = TableFiles(disk, DIRECTORY)
    known = files.append("t", Table(4, 0, b"aaaabbbbcccc"), None)
    (path,) = (f"{DIRECTORY}/tables/{name}" for name in disk.list(f"{DIRECTORY}/tables"))
    disk.cannot_read(path, 0, 4)
    with pytest.raises(OSError, match="cannot be read"):
        files.append("t", Table(4, 2, b"dddd"), known)
    assert files.load("t", known) is None


def test_the_id_of_a_node_that_cannot_be_read_is_no_other_one() -> None:
    disk = FakeDisk()
    load_node_id(disk, bytes)
    disk.cannot_read(NODE_FILE, 0, 4)
    with pytest.raises(OSError, match="the disk cannot read it"):
        load_node_id(disk, bytes)


# ------------------------------------------------------------------------------------ a data log


def test_i26_blocks_that_cannot_be_read_are_damage_until_others_take_their_place() -> None:
    disk = FakeDisk()
    log = open_data(disk)
    wanted = blocks(0, 90, payload_bytes=2_000)
    settle(log, *wanted)
    disk.cannot_read(FIRST_DATA, 8_200, 8_300)
    assert read(log, 0, 5_000)[0] == wanted[0]
    lost = [block for block in wanted if log.damaged_at(block.first_offset)]
    assert 2 <= len(lost) <= 8, "those of one page, and up to the next entry of the index"
    with pytest.raises(CorruptLog, match=r"\.data is damaged at byte"):
        read(log, lost[0].first_offset)
    assert read(log, lost[-1].end_offset), "and what is behind them is served"
    while log.damaged:
        first, end = log.damaged[0][:2]
        log.replace([block for block in wanted if first <= block.first_offset < end])
    assert read_all(log) == wanted == kept(disk.reopen(), segment_bytes=1 << 20)


@pytest.mark.parametrize("end", [512, 4_096])
def test_i26_a_note_that_cannot_be_read_is_as_one_that_is_lost(end: int) -> None:
    disk = FakeDisk()
    wanted = blocks(0, 30)
    settle(open_data(disk), *wanted)
    disk = disk.reopen()
    disk.cannot_read(f"{DATA}/settled", 0, end)
    log = open_data(disk)
    assert read_all(log) == wanted
    settle(log, *blocks(30, 36))
    assert kept(disk.reopen()) == blocks(0, 36)
    assert disk.reopen().exists(f"{DATA}/settled.damaged")


def test_what_stands_behind_the_note_and_cannot_be_read_is_left_there() -> None:
    disk = FakeDisk()
    log = open_data(disk)
    settle(log, *blocks(0, 30))
    size = len(disk.bytes_of(FIRST_DATA))
    log.append(blocks(30, 36))
    disk.kill()
    disk = disk.reopen()
    disk.cannot_read(FIRST_DATA, size - 1, size + 50)
    log = open_data(disk)
    assert log.settled_end == 30
    settle(log, *blocks(30, 36))
    assert read(log, 30) == blocks(30, 36)
    assert open_data(disk.reopen()).settled_end == 36
