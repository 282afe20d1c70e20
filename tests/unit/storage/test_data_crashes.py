"""The data log when the power goes, or a step fails, at one named place each."""

from __future__ import annotations

from errno import EIO

import pytest

from oncelogpb.errors import OffsetOutOfRange
from tests.simulation.disk import FakeDisk, Tear
from tests.unit.storage.data_logs import (
    DIRECTORY,
    block,
    blocks,
    kept,
    open_data,
    read,
    read_all,
    settle,
)

SEGMENT_BYTES = 2_000


def test_i25_what_is_noted_is_synced() -> None:
    disk = FakeDisk()
    settle(open_data(disk, segment_bytes=SEGMENT_BYTES), *blocks(0, 60, payload_bytes=300))
    disk.crash(Tear.NOTHING)
    assert kept(disk.reopen()) == blocks(0, 60, payload_bytes=300)


def test_i25_what_a_start_found_beyond_the_note_is_durable_before_it_counts() -> None:
    disk = FakeDisk()
    log = open_data(disk)
    settle(log, *blocks(0, 6))
    log.append(blocks(6, 12))
    disk = disk.reopen()
    assert open_data(disk).settled_end == 12, "the process died, and the page cache has them"
    disk.crash(Tear.NOTHING)
    assert kept(disk.reopen()) == blocks(0, 12)


@pytest.mark.parametrize("seed", range(20))
def test_i26_what_a_crash_left_before_the_first_note_is_not_taken_for_what_was_promised(
    seed: int,
) -> None:
    disk = FakeDisk(seed=seed)
    open_data(disk, segment_bytes=SEGMENT_BYTES).append(blocks(0, 60, payload_bytes=300))
    disk.crash(Tear.SCATTER)
    held = kept(disk.reopen())
    assert held == blocks(0, 60, payload_bytes=300)[: len(held)]


@pytest.mark.parametrize("step", range(8))
def test_i7_a_crash_in_a_cut_leaves_what_was_or_what_is_left(step: int) -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    settle(log, *blocks(0, 60, payload_bytes=300))
    disk.fail_next(EIO, after=step)
    with pytest.raises(OSError, match="told to fail"):
        log.cut(2 * 30, journal_start=0)
    disk.crash(Tear.NOTHING)
    log = open_data(disk.reopen(), segment_bytes=SEGMENT_BYTES)
    assert log.settled_end == (60 if step == 0 else 30), "once the note says so, nothing comes back"
    log.cut(2 * 30, journal_start=0)
    settle(log, *blocks(30, 36))
    assert read_all(log) == blocks(0, 30, payload_bytes=300) + blocks(30, 36)


@pytest.mark.parametrize("step", range(1, 8))
def test_i7_a_crash_where_a_log_begins_anew_leaves_nothing_of_the_old_one(step: int) -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    settle(log, *blocks(0, 60, payload_bytes=300))
    # Where a file of it begins, so that its name would be the right one.
    begin = log._files[2].base
    disk.fail_next(EIO, after=step)
    with pytest.raises(OSError, match="told to fail"):
        log.begin_at(begin, begun_at=0)
    disk.crash(Tear.NOTHING)
    log = open_data(disk.reopen(), segment_bytes=SEGMENT_BYTES)
    assert (log.begin, log.settled_end) == (begin, begin)
    settle(log, *blocks(begin, begin + 6))
    assert read_all(log) == blocks(begin, begin + 6)


@pytest.mark.parametrize("step", range(8))
def test_i7_a_cut_that_failed_is_done_before_anything_is_added(step: int) -> None:
    """What is added stands where a file of the old history would be found again."""
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    settle(log, *blocks(0, 60, payload_bytes=300))
    disk.fail_next(EIO, after=step)
    with pytest.raises(OSError, match="told to fail"):
        log.cut(2 * 30, journal_start=0)
    assert read_all(log) == blocks(0, log.settled_end, payload_bytes=300), "reads go on"
    if log.settled_end == 60:
        log.cut(2 * 30, journal_start=0)
    settle(log, *blocks(30, 36, payload_bytes=299))
    disk.crash(Tear.NOTHING)
    assert kept(disk.reopen()) == blocks(0, 30, payload_bytes=300) + blocks(
        30, 36, payload_bytes=299
    )


def test_i25_after_a_failed_sync_the_blocks_are_written_again() -> None:
    disk = FakeDisk()
    log = open_data(disk)
    settle(log, *blocks(0, 6))
    for failing in range(2):
        log.append(blocks(6, 12))
        disk.fail_next(EIO, after=failing)
        with pytest.raises(OSError, match="told to fail"):
            log.sync_and_note(24)
        assert (log.settled_end, read_all(log)) == (6, blocks(0, 6))
    settle(log, *blocks(6, 12))
    disk.crash(Tear.NOTHING)
    assert kept(disk.reopen()) == blocks(0, 12)


def test_i26_a_slot_that_rots_leaves_none_that_says_a_begin_of_which_nothing_is_left() -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    settle(log, *blocks(0, 60, payload_bytes=300))
    log.remove_before(31, begun_at=0)
    for slot in (0, 512):
        copy = FakeDisk()
        copy.make_directory(DIRECTORY)
        for name in disk.list(DIRECTORY):
            copy.replace_file(f"{DIRECTORY}/{name}", disk.bytes_of(f"{DIRECTORY}/{name}"))

        def rot(content: bytearray, at: int = slot) -> None:
            content[at + 30] ^= 1

        copy.damage(f"{DIRECTORY}/settled", rot)
        again = open_data(copy, segment_bytes=SEGMENT_BYTES)
        assert again.begin == 31, "the other slot says it, too"
        with pytest.raises(OffsetOutOfRange):
            read(again, 30)


def test_i25_a_file_that_takes_the_next_block_may_be_written_anew() -> None:
    """The note speaks of a place in the old one."""
    disk = FakeDisk()
    log = open_data(disk)
    wanted = blocks(0, 30)
    settle(log, *wanted)
    larger = block(3, 3, payload=b"larger" * 99, exposed=wanted[1].exposed_below)
    log.replace([larger])
    disk.crash(Tear.NOTHING)
    assert kept(disk.reopen()) == [wanted[0], larger, *wanted[2:]]


@pytest.mark.parametrize("step", range(4))
def test_i25_a_crash_while_a_file_is_written_anew_leaves_the_old_or_the_new(step: int) -> None:
    disk = FakeDisk()
    log = open_data(disk)
    wanted = blocks(0, 30, payload_bytes=3_000)
    settle(log, *wanted)
    one = block(3, 6, payload=b"one", exposed=wanted[2].exposed_below)
    disk.fail_next(EIO, after=step)
    with pytest.raises(OSError, match="told to fail"):
        log.replace([one])
    disk.crash(Tear.NOTHING)
    disk = disk.reopen()
    assert kept(disk) == wanted
    assert not [name for name in disk.list(DIRECTORY) if name.endswith(".rewritten")]
