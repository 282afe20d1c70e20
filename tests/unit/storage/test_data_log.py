"""The data log: blocks that are appended, noted, read, cut, removed in front and copied."""

from __future__ import annotations

import asyncio
from array import array
from errno import ENOSPC

import pytest

from oncelog_server.core.block import Units, block_of
from oncelog_server.runtime.storage.copying import CopyRefused
from oncelog_server.runtime.storage.data_file import OpenDataFiles
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.port import File
from oncelogpb.errors import CorruptLog, OffsetOutOfRange
from tests.simulation.disk import FakeDisk
from tests.unit.storage.data_logs import (
    DIRECTORY,
    block,
    blocks,
    open_data,
    read,
    read_all,
    settle,
)


def test_what_was_noted_is_read_as_it_was_appended() -> None:
    log = open_data(FakeDisk())
    wanted = blocks(0, 30)
    settle(log, *wanted)
    assert (log.begin, log.settled_end, log.settled_at) == (0, 30, 60)
    assert read_all(log) == wanted
    assert read(log, 7)[0] == wanted[2], "from the block that holds it"
    assert read(log, 7, 1) == wanted[2:3], "at least one"
    assert read(log, 30) == []


def test_what_is_appended_is_read_once_it_is_noted() -> None:
    log = open_data(FakeDisk())
    log.append(blocks(0, 6))
    assert read(log, 0) == []
    log.append(blocks(6, 12))
    log.sync_and_note(24)
    assert read_all(log) == blocks(0, 12)


@pytest.mark.parametrize("copied", [False, True])
def test_who_begins_again_at_the_settled_end_gives_up_what_was_not_noted(copied: bool) -> None:
    """A step that was cancelled between its two halves; its successor knows nothing of it."""
    disk = FakeDisk()
    log = open_data(disk)
    settle(log, *blocks(0, 6))
    log.append(blocks(6, 12, payload_bytes=9))
    other = open_data(FakeDisk())
    settle(other, *blocks(0, 12))
    if copied:
        assert log.append_copied(other.parts_from(6, 1 << 20)) == 12
    else:
        log.append(blocks(6, 12))
    log.sync_and_note(24)
    assert read_all(log) == blocks(0, 12)
    assert read_all(open_data(disk.reopen())) == blocks(0, 12)


def test_a_read_ends_below_where_it_is_told() -> None:
    log = open_data(FakeDisk())
    settle(log, *blocks(0, 30))
    assert asyncio.run(log.read(3, 1 << 20, below=11)) == blocks(3, 9)
    assert asyncio.run(log.read(3, 1 << 20, below=4)) == []


def test_every_field_of_a_block_and_of_its_units_comes_back() -> None:
    log = open_data(FakeDisk())
    largest = 2**64 - 1
    units = Units(
        array("Q", [3, 1, 1]),
        array("Q", [0, largest, 5]),
        array("Q", [largest, largest - 1, largest]),
        array("Q", [0, 255, 256]),
        array("Q", [7, 7, 7]),
        array("Q", [0, 65_535, 65_536]),
        array("Q", [1, 2**32 - 1, 2**32]),
        array("q", [-(2**63), 0, 2**62]),
    )
    with_holes = block_of(
        units,
        b"five records",
        first_offset=0,
        end_offset=1_000,
        offsets=[0, 1, 2, 700, 999],
        exposed_below=largest,
        max_timestamp_us=-(2**63),
        encoding=1,
        client_crc=2**32 - 1,
    )
    emptied = block_of(
        Units(*[[]] * 8),
        b"",
        first_offset=1_000,
        end_offset=1_003,
        time_ms=77,
        exposed_below=largest,
        max_timestamp_us=0,
        encoding=1,
        client_crc=0,
    )
    settle(log, with_holes, emptied, block(1_003, 4))
    found = read_all(log)
    assert found[:2] == [with_holes, emptied]
    assert [list(column) for column in found[0].units] == [list(column) for column in units]
    assert list(found[0].offsets) == [0, 1, 2, 700, 999]
    assert list(found[1].offsets) == []
    assert list(found[2].offsets) == [1_003, 1_004, 1_005, 1_006]
    assert found[0].time_ms == 2**62


def test_a_log_that_nothing_was_appended_to_has_no_directory() -> None:
    disk = FakeDisk()
    log = open_data(disk)
    log.cut(0, journal_start=0)
    assert not log.goes_before(7)
    log.remove_before(7, begun_at=0)
    log.close()
    assert read(log, 0) == []
    assert not disk.exists(DIRECTORY)


def test_blocks_go_into_files_of_bounded_size() -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=2_000)
    for at in range(0, 60, 6):
        settle(log, *blocks(at, at + 6, payload_bytes=300))
    names = [name for name in disk.list(DIRECTORY) if name.endswith(".data")]
    assert len(names) > 3
    assert all(len(disk.bytes_of(f"{DIRECTORY}/{name}")) <= 2_000 for name in names)
    log.append([block(60, 1, payload=b"x" * 5_000)])
    log.sync_and_note(200)
    assert read_all(log)[-1].payload == b"x" * 5_000, "a large one has a file of its own"
    there = read_all(log)
    assert read_all(open_data(disk.reopen(), segment_bytes=2_000)) == there


def test_a_start_goes_on_where_the_note_says() -> None:
    disk = FakeDisk()
    settle(open_data(disk), *blocks(0, 12))
    log = open_data(disk.reopen())
    assert (log.settled_end, log.settled_at) == (12, 24)
    settle(log, *blocks(12, 18))
    assert read_all(log) == blocks(0, 18)


def test_a_cut_drops_blocks_that_became_readable_behind_it() -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=2_000)
    for at in range(0, 60, 6):
        settle(log, *blocks(at, at + 6, payload_bytes=300))
    log.cut(2 * 31, journal_start=0)
    assert (log.settled_end, log.settled_at) == (30, 62)
    assert read_all(log) == blocks(0, 30, payload_bytes=300)
    settle(log, *blocks(30, 36))
    assert [it.first_offset for it in read_all(log)] == list(range(0, 36, 3))
    log = open_data(disk.reopen(), segment_bytes=2_000)
    assert [it.first_offset for it in read_all(log)] == list(range(0, 36, 3))
    log.cut(0, journal_start=0)
    assert (log.begin, log.settled_end) == (0, 0)
    settle(log, *blocks(0, 6))
    assert read_all(log) == blocks(0, 6)


def test_what_is_deleted_goes_with_whole_files() -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=2_000)
    for at in range(0, 60, 6):
        settle(log, *blocks(at, at + 6, payload_bytes=300))
    assert not log.goes_before(3)
    log.remove_before(3, begun_at=0)
    assert log.begin == 0, "no file is wholly below"
    assert log.goes_before(31)
    log.remove_before(31, begun_at=0)
    assert log.begin == 31
    with pytest.raises(OffsetOutOfRange) as refused:
        read(log, 30)
    assert refused.value.metadata["start"] == "31"
    assert read(log, 31)[0].first_offset == 30
    again = open_data(disk.reopen(), segment_bytes=2_000)
    assert (again.begin, again.settled_end) == (31, 60)
    assert read(again, 31)[0].first_offset == 30


def test_a_log_whose_end_was_deleted_begins_anew_behind_that() -> None:
    disk = FakeDisk()
    log = open_data(disk)
    settle(log, *blocks(0, 30))
    log.remove_before(41, begun_at=0)
    assert (log.begin, log.settled_end) == (41, 41)
    settle(log, *blocks(39, 48))
    assert read(log, 41)[0].first_offset == 39, "the first one may begin below"
    names = disk.list(DIRECTORY)
    assert [name for name in names if name.endswith(".data")] == [f"{39:020d}.data"]
    again = open_data(disk.reopen())
    assert (again.begin, again.settled_end) == (41, 48)


def test_a_log_that_has_nothing_begins_where_its_first_block_does() -> None:
    """What was deleted before anything was settled costs nothing."""
    disk = FakeDisk()
    log = open_data(disk)
    settle(log, *blocks(30, 36))
    assert (log.begin, log.settled_end) == (30, 36)
    with pytest.raises(OffsetOutOfRange):
        read(log, 29)
    with pytest.raises(AssertionError, match="is not what follows"):
        log.append(blocks(39, 42))
    log.remove_before(36, begun_at=0)
    assert not log.goes_before(50)
    settle(log, *blocks(48, 54))
    log = open_data(disk.reopen())
    assert (log.begin, log.settled_end) == (48, 54)
    assert read_all(log) == blocks(48, 54)


def test_a_log_that_was_closed_leaves_the_next_one_in_its_place_alone() -> None:
    disk, shared = FakeDisk(), OpenDataFiles(1)
    log = DataLog.open(disk, DIRECTORY, open_files=shared)
    settle(log, *blocks(0, 60, payload_bytes=3_000))
    assert read_all(log)
    log.close()
    disk.rename(DIRECTORY, "orphan")
    settle(open_data(disk), *blocks(0, 6))
    other = DataLog.open(disk, "other", open_files=shared)
    settle(other, *blocks(0, 6))
    assert read(other, 0), "and the first one's file rests"
    index = disk.bytes_of(f"{DIRECTORY}/{0:020d}.index")
    assert len(index) == 16, "the entries of the first one are not among them"


def test_a_node_keeps_few_files_open() -> None:
    disk, shared = FakeDisk(), OpenDataFiles(3)
    logs = [DataLog.open(disk, f"p{n}", segment_bytes=2_000, open_files=shared) for n in range(5)]
    for log in logs:
        settle(log, *blocks(0, 60, payload_bytes=300))
        assert read_all(log) == blocks(0, 60, payload_bytes=300)
    held = [file for log in logs for file in log._files if file._file or file._index]
    assert len(held) <= 3


class NotesFiles(FakeDisk):
    """By which open files blocks were written, and synced."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[File] = []
        self.synced: list[File] = []

    def write_unsynced(self, file: File, position: int, data: bytes) -> None:
        super().write_unsynced(file, position, data)
        self.written.append(file)

    def sync(self, file: File) -> None:
        super().sync(file)
        self.synced.append(file)


def test_i25_what_was_appended_is_synced_by_the_file_that_it_was_written_with() -> None:
    """Who reads much meanwhile lets other files rest: an error of writing back is told to who had
    the file open."""
    disk, shared = NotesFiles(), OpenDataFiles(1)
    log, other = (DataLog.open(disk, path, open_files=shared) for path in ("p", "q"))
    settle(other, *blocks(0, 6))
    settle(log, *blocks(0, 6))
    log.append(blocks(6, 12))
    written = disk.written[-1]
    assert (read(log, 0), read(other, 0)) == (blocks(0, 6), blocks(0, 6))
    disk.synced.clear()
    log.sync_and_note(24)
    assert disk.synced[0] is written
    assert log._files[-1]._file is None, "then it rests"


def test_what_was_given_up_does_not_keep_its_file_open() -> None:
    disk, shared = FakeDisk(), OpenDataFiles(1)
    log, other = (DataLog.open(disk, path, open_files=shared) for path in ("p", "q"))
    settle(other, *blocks(0, 6))
    settle(log, *blocks(0, 6))
    log.append(blocks(6, 12))
    disk.fail_files(".data", ENOSPC)
    with pytest.raises(OSError, match="told to fail"):
        log.sync_and_note(24)
    disk.fail_files("", 0)
    settle(log, *blocks(6, 12))
    assert (read(log, 0), read(other, 0)) == (blocks(0, 6), blocks(0, 6))
    assert all(file._file is None for file in log._files)


def test_a_log_of_which_nothing_is_settled_begins_behind_what_was_deleted() -> None:
    """And what could not be written there is not there to be deleted."""
    disk = FakeDisk()
    log = open_data(disk)
    log.begin_at(5, begun_at=0)
    assert (log.begin, log.settled_end) == (5, 5)
    assert not log.goes_before(5)
    disk.fail_files(".data", ENOSPC)
    with pytest.raises(OSError, match="told to fail"):
        log.append(blocks(5, 8))
    assert not log.goes_before(5)
    again = open_data(disk.reopen())
    assert (again.begin, again.settled_end) == (5, 5)


def test_what_could_not_be_written_is_not_there_to_be_deleted() -> None:
    disk = FakeDisk()
    log = open_data(disk)
    disk.fail_files(".data", ENOSPC)
    with pytest.raises(OSError, match="told to fail"):
        log.append(blocks(0, 6))
    assert not log.goes_before(0)
    assert not log.goes_before(9)
    disk.fail_files("", 0)
    settle(log, *blocks(9, 12))
    assert (log.begin, read_all(log)) == (9, blocks(9, 12))


def test_a_copy_has_the_same_bytes() -> None:
    log = open_data(FakeDisk(), segment_bytes=2_000)
    for at in range(0, 60, 6):
        settle(log, *blocks(at, at + 6, payload_bytes=300))
    log.remove_before(31, begun_at=0)
    copy = open_data(FakeDisk(), segment_bytes=9_000)
    copy.begin_at(log.begin, begun_at=0)
    offset = log.begin
    while part := log.parts_from(offset, 1_000):
        offset = copy.append_copied(part)
        copy.sync_and_note(log.settled_at)
    assert (copy.begin, copy.settled_end) == (31, 60)
    assert read_all(copy) == read_all(log)


@pytest.mark.parametrize("byte", [3, 60, 200, 500])
def test_a_copy_that_is_not_what_was_sent_is_refused(byte: int) -> None:
    log = open_data(FakeDisk())
    settle(log, *blocks(0, 6, payload_bytes=300))
    part = bytearray(log.parts_from(0, 1 << 20))
    copy = open_data(FakeDisk())
    with pytest.raises(CopyRefused):
        copy.append_copied(bytes(part[:-1]))
    with pytest.raises(CopyRefused):
        copy.append_copied(log.parts_from(3, 1 << 20))
    part[byte] ^= 1
    with pytest.raises(CopyRefused):
        copy.append_copied(bytes(part))
    part[byte] ^= 1
    assert copy.append_copied(bytes(part)) == 6


def test_i26_a_damaged_block_is_refused_and_no_other() -> None:
    disk = FakeDisk()
    log = open_data(disk)
    wanted = blocks(0, 30, payload_bytes=300)
    settle(log, *wanted)
    path = f"{DIRECTORY}/{0:020d}.data"
    size = len(disk.bytes_of(path)) // 10

    def flip(content: bytearray) -> None:
        content[4 * size + 200] ^= 1

    disk.damage(path, flip)
    assert read(log, 0) == wanted[:4]
    for offset in (12, 14):
        with pytest.raises(CorruptLog) as refused:
            read(log, offset)
        said = refused.value.metadata
        assert (said["file"], said["position"]) == (path, str(4 * size))
        assert log.damaged_at(offset) == (12, 15)
    assert read(log, 15) == wanted[5:]
    assert [log.damaged_at(offset) for offset in (11, 15, 30)] == [None, None, None]
