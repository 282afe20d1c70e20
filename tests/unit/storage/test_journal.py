"""Rules of appending, reading, cutting; the memory tail; files that fail."""

from __future__ import annotations

import asyncio
import contextlib
from errno import EIO, ENOSPC

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelogpb.errors import CorruptLog, OffsetOutOfRange
from services.core.frame import Frame, Kind, StoredFrame
from services.core.machine import Snapshot
from services.runtime.storage.epochs import EpochTable
from services.runtime.storage.frames import HEADER_BYTES, encoded_bytes
from services.runtime.storage.identity import SyncedEnd
from services.runtime.storage.journal import SEALED_SEGMENTS_OPEN_MAX, Journal
from services.runtime.storage.tail import MemoryTail
from tests.simulation.disk import FakeDisk, Tear
from tests.unit.storage.journals import (
    DIRECTORY,
    EPOCH_START,
    FIRST_SEGMENT,
    append,
    data,
    open_journal,
    record,
    replayed,
    start,
    sync,
    texts,
    write_without_sync,
)


def read(journal: Journal, at: int, max_bytes: int = 1 << 20, *, below: int) -> list[StoredFrame]:
    return asyncio.run(journal.read(at, max_bytes, below=below))


def read_frames(journal: Journal, offsets: list[int]) -> list[StoredFrame]:
    return asyncio.run(journal.read_frames(offsets))


def without_tail(journal: Journal) -> Journal:
    """Reads come from the files, as after a restart."""
    journal._tail = MemoryTail(journal.synced_end)
    return journal


# -------------------------------------------------------------------------------------- appending


def test_a_batch_takes_as_many_offsets_as_it_has_records() -> None:
    journal = open_journal(FakeDisk())
    frames = [EPOCH_START, data(b"abc", 3), record("r"), Frame(Kind.ONE_SHOT, b"x", 2, tx_id=5)]
    marker = Frame(Kind.MARKER, tx_id=9)
    assert append(journal, *frames, marker) == [0, 1, 4, 5, 7]
    assert journal.log_end == 8


def test_the_first_frame_is_an_epoch_start() -> None:
    with pytest.raises(AssertionError, match="has no EPOCH_START"):
        append(open_journal(FakeDisk()), record("a"))


@pytest.mark.parametrize(
    ("frame", "epoch", "skip_to", "why"),
    [
        (EPOCH_START, 1, None, "epoch 1 begins after 1"),
        (EPOCH_START, 2, 1, "never goes back"),
        (record("a"), 2, None, "epoch 2 has no EPOCH_START"),
        (record("a"), 0, None, "epoch 0 has no EPOCH_START"),
        (record("a"), 1, 9, "only an EPOCH_START jumps ahead"),
        (Frame(Kind.DATA), 1, None, "no records"),
    ],
)
def test_what_does_not_belong_is_not_appended(
    frame: Frame, epoch: int, skip_to: int | None, why: str
) -> None:
    journal = start(FakeDisk(), "x")
    with pytest.raises(AssertionError, match=why):
        journal.append(frame, epoch=epoch, time_ms=1, skip_to=skip_to)
    assert journal.log_end == 2


def test_frame_times_never_go_back_not_even_over_a_restart() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    append(journal, EPOCH_START, time_ms=500)
    assert journal.append(record("a"), epoch=1, time_ms=400).time_ms == 500
    sync(journal, disk)
    disk.kill()
    again = open_journal(disk.reopen())
    assert again.append(EPOCH_START, epoch=2, time_ms=1).time_ms == 500


def test_append_does_no_io() -> None:
    disk = FakeDisk()
    journal = start(disk, "a", segment_bytes=400)
    disk.kill()
    append(journal, *map(record, "bcdefgh"))
    assert texts(read(journal, 0, below=journal.log_end))[-1] == "h"


def test_segments_roll_and_are_named_by_the_offset_that_was_next() -> None:
    disk = FakeDisk()
    start(disk, *"abcdefg", segment_bytes=3 * (HEADER_BYTES + 1))
    logs = [name for name in disk.list(DIRECTORY) if name.endswith(".log")]
    assert logs == [f"{base:020d}.log" for base in (0, 3, 6)]


def test_a_frame_larger_than_a_segment_gets_one_of_its_own() -> None:
    disk = FakeDisk()
    journal = start(disk, "a", "b" * 1000, "c", segment_bytes=300)
    disk.crash()
    assert replayed(open_journal(disk.reopen())) == ["a", "b" * 1000, "c"]
    assert journal.log_end == 4


# ----------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("source", ["tail", "files"])
@pytest.mark.parametrize(
    ("from_offset", "below", "expected"),
    [
        (0, 8, [0, 1, 4, 5, 7]),
        (1, 8, [1, 4, 5, 7]),
        (2, 8, [1, 4, 5, 7]),
        (3, 8, [1, 4, 5, 7]),
        (4, 8, [4, 5, 7]),
        (6, 8, [5, 7]),
        (0, 5, [0, 1, 4]),
        (0, 4, [0, 1]),
        (0, 3, [0]),
        (7, 8, [7]),
        (8, 8, []),
        (5, 5, []),
    ],
)
def test_i27_a_read_gives_the_frame_that_holds_its_offset_and_nothing_above_below(
    source: str, from_offset: int, below: int, expected: list[int]
) -> None:
    disk = FakeDisk()
    journal = open_journal(disk, segment_bytes=330)
    append(journal, EPOCH_START, data(b"abc", 3), record("r"), data(b"de", 2), record("s"))
    sync(journal, disk)
    if source == "files":
        without_tail(journal)
    got: list[int] = []
    while from_offset < below:
        frames = read(journal, from_offset, below=below)
        if not frames:
            break
        got += [stored.at.offset for stored in frames]
        from_offset = frames[-1].end
    assert got == expected


@pytest.mark.parametrize("source", ["tail", "files"])
def test_a_read_keeps_to_max_bytes_but_gives_at_least_one_frame(source: str) -> None:
    disk = FakeDisk()
    journal = start(disk, "a" * 100, "b" * 100, "c" * 5000)
    if source == "files":
        without_tail(journal)
    two = 2 * (HEADER_BYTES + 100)
    assert len(read(journal, 1, two, below=4)) == 2
    assert len(read(journal, 1, two - 1, below=4)) == 1
    assert texts(read(journal, 3, 1, below=4)) == ["c" * 5000]


@pytest.mark.parametrize("source", ["tail", "files"])
def test_a_read_in_a_hole_gives_the_frame_behind_it(source: str) -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    journal.append(EPOCH_START, epoch=2, time_ms=5, skip_to=100)
    sync(journal, disk)
    if source == "files":
        without_tail(journal)
    assert [stored.at.offset for stored in read(journal, 50, below=101)] == [100]
    assert read(journal, 50, below=60) == []


def test_a_read_before_the_log_start_says_where_it_begins() -> None:
    journal = start(FakeDisk(), "a")
    journal.log_start = 1
    with pytest.raises(OffsetOutOfRange) as caught:
        read(journal, 0, below=2)
    assert caught.value.metadata == {"log_start": "1"}


def test_i26_a_damaged_frame_is_never_read_and_is_named() -> None:
    disk = FakeDisk()
    journal = without_tail(start(disk, "a", "b", "c"))
    position = 2 * HEADER_BYTES + 1
    disk.damage(FIRST_SEGMENT, lambda content: content.__setitem__(position + HEADER_BYTES, 0))
    for reading in (journal.read(2, 1000, below=4), journal.read_frames([1, 2])):
        with pytest.raises(CorruptLog) as caught:
            asyncio.run(reading)
        assert caught.value.metadata == {"file": FIRST_SEGMENT, "position": str(position)}
    assert texts(read_frames(journal, [1, 3])) == ["a", "c"]


def test_read_frames_keeps_the_order_of_the_question() -> None:
    disk = FakeDisk()
    journal = without_tail(start(disk, *"abcdef"))
    append(journal, record("g"))
    sync(journal, disk)
    assert texts(read_frames(journal, [7, 2, 5, 2, 1])) == ["g", "b", "e", "b", "a"]
    assert read_frames(journal, []) == []


@pytest.mark.parametrize("offset", [2, 9, -1])
def test_read_frames_refuses_an_offset_where_no_frame_begins(offset: int) -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    append(journal, EPOCH_START, data(b"abc", 3))
    sync(journal, disk)
    with pytest.raises(OffsetOutOfRange):
        read_frames(without_tail(journal), [offset])


class _CountingDisk(FakeDisk):
    reads = 0

    async def read(self, file: object, position: int, length: int) -> bytes:
        self.reads += 1
        return await super().read(file, position, length)  # type: ignore[arg-type]


def test_neighbours_share_a_disk_read_and_strangers_do_not() -> None:
    disk = _CountingDisk()
    journal = open_journal(disk)
    append(journal, EPOCH_START, *(record("x" * 4000) for _ in range(500)))
    sync(journal, disk)
    without_tail(journal)
    assert len(read_frames(journal, list(range(1, 200)))) == 199
    assert disk.reads == 1
    assert len(read_frames(journal, [1, 450])) == 2
    assert disk.reads == 3


def test_the_tail_serves_without_the_disk_and_keeps_to_its_limit() -> None:
    disk = _CountingDisk()
    journal = open_journal(disk)
    journal._tail = MemoryTail(0, max_bytes=1000)
    append(journal, EPOCH_START, *map(record, "abcdefghijklmnop"))
    assert texts(read(journal, 0, below=17)) == list("abcdefghijklmnop"), "unsynced stays"
    sync(journal, disk)
    assert texts(read(journal, 10, below=17)) == list("jklmnop")
    assert disk.reads == 0
    assert texts(read(journal, 3, below=17))[0] == "c"
    assert disk.reads == 1


def test_few_files_of_old_segments_stay_open() -> None:
    disk = FakeDisk()
    journal = without_tail(start(disk, *map(str, range(10, 60)), segment_bytes=220))
    for offset in range(51):
        assert read(journal, offset, 1, below=51)
    opened = [segment for segment in journal._segments if segment._file is not None]
    # The active one, and those that were written since the start, rest only after a read.
    assert len(opened) <= SEALED_SEGMENTS_OPEN_MAX + 1


# --------------------------------------------------------------------------------- epochs and cuts


def epochs_journal(disk: FakeDisk, segment_bytes: int = 1 << 20) -> Journal:
    """Epoch 1: offsets 0-3, epoch 3: 4-6, epoch 4: 100-101 (after a jump)."""
    journal = open_journal(disk, segment_bytes=segment_bytes)
    append(journal, EPOCH_START, *map(record, "abc"), epoch=1)
    append(journal, EPOCH_START, *map(record, "de"), epoch=3)
    journal.append(EPOCH_START, epoch=4, time_ms=1, skip_to=100)
    append(journal, record("f"), epoch=4)
    sync(journal, disk)
    return journal


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(0, (0, 0)), (1, (1, 4)), (2, (1, 4)), (3, (3, 7)), (4, (4, 102)), (9, (4, 102))],
)
def test_the_end_of_an_epoch_is_where_its_last_frame_ended(
    asked: int, answer: tuple[int, int]
) -> None:
    disk = FakeDisk()
    assert epochs_journal(disk).end_of_epoch(asked) == answer
    disk.crash()
    assert open_journal(disk.reopen()).end_of_epoch(asked) == answer


@pytest.mark.parametrize("segment_bytes", [1 << 20, 330, 100])
@pytest.mark.parametrize(
    ("end", "left", "last_epoch"),
    [(101, "abcde", 4), (7, "abcde", 3), (6, "abcd", 3), (4, "abc", 1), (1, "", 1), (0, "", 0)],
)
def test_a_cut_is_durable_and_the_log_goes_on_behind_it(
    segment_bytes: int, end: int, left: str, last_epoch: int
) -> None:
    disk = FakeDisk()
    journal = epochs_journal(disk, segment_bytes)
    journal.note_synced_end()
    sync(journal, disk)
    journal.cut(end)
    assert (journal.log_end, journal.synced_end, journal.last_epoch) == (end, end, last_epoch)
    assert texts(read(journal, 0, below=end)) in ([], list(left)) or segment_bytes < 1 << 20
    disk.crash()
    disk = disk.reopen()
    again = open_journal(disk, segment_bytes=segment_bytes, seed=2)
    assert "".join(replayed(again)) == left
    assert (again.log_end, again.last_epoch) == (end, last_epoch)
    assert again.incarnation == journal.incarnation, "a cut that was asked for is no damage"
    append(again, EPOCH_START, record("z"), epoch=9)
    sync(again, disk)
    disk.crash()
    assert "".join(replayed(open_journal(disk.reopen()))) == left + "z"


def test_a_cut_keeps_what_only_memory_had_below_it() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    append(journal, *map(record, "bc"))
    journal.cut(3)
    assert journal.synced_end == 3
    disk.crash()
    assert replayed(open_journal(disk.reopen())) == ["a", "b"]


def test_a_cut_inside_a_frame_is_refused() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    append(journal, EPOCH_START, data(b"abc", 3))
    sync(journal, disk)
    with pytest.raises(CorruptLog):
        journal.cut(2)


def test_a_cut_lowers_the_promise_before_the_log() -> None:
    disk = FakeDisk()
    journal = start(disk, *"abc")
    journal.note_synced_end()
    sync(journal, disk)
    disk.fail_next()
    with pytest.raises(OSError, match="told to fail"):
        journal.cut(2)
    disk.crash()
    assert replayed(open_journal(disk.reopen())) == ["a", "b", "c"]


# ------------------------------------------------------------------------------------ failed writes


@pytest.mark.parametrize("segment_bytes", [1 << 20, 200])
def test_after_a_failed_write_the_log_goes_on_from_the_last_sync_in_a_new_file(
    segment_bytes: int,
) -> None:
    disk = FakeDisk()
    journal = start(disk, "a", "b", segment_bytes=segment_bytes)
    append(journal, *map(record, "xyz"))
    write_without_sync(journal, disk)
    journal.mark_failed()
    with pytest.raises(OSError) as caught:
        append(journal, record("w"))
    assert caught.value.errno == EIO
    assert texts(read(journal, 2, below=3)) == ["b"], "reads go on"
    journal.abandon_unsynced()
    assert (journal.log_end, journal.synced_end) == (3, 3)
    append(journal, EPOCH_START, record("c"), epoch=2)
    sync(journal, disk)
    assert replayed(journal) == ["a", "b", "c"]
    disk.kill()
    disk = disk.reopen()
    again = open_journal(disk, segment_bytes=segment_bytes, seed=2)
    assert replayed(again) == ["a", "b", "c"], "what was in doubt does not come back"
    assert again.incarnation == journal.incarnation
    logs = [name for name in disk.list(DIRECTORY) if name.endswith(".log")]
    assert f"{3:020d}.log" in logs


def test_in_doubt_bytes_do_not_come_back_when_the_process_dies_right_after() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    append(journal, record("x"))
    write_without_sync(journal, disk)
    journal.mark_failed()
    journal.abandon_unsynced()
    disk.kill()
    assert replayed(open_journal(disk.reopen())) == ["a"]


def test_a_journal_that_cannot_be_written_anew_stays_failed() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    append(journal, record("x"))
    write_without_sync(journal, disk)
    journal.mark_failed()
    disk.full = True
    with pytest.raises(OSError) as caught:
        journal.abandon_unsynced()
    assert caught.value.errno == ENOSPC
    with pytest.raises(OSError):
        append(journal, record("y"))
    assert texts(read(journal, 0, below=2)) == ["a"], "reads go on (I28)"
    disk.full = False
    journal.abandon_unsynced()
    append(journal, EPOCH_START, record("b"), epoch=2)
    sync(journal, disk)
    assert replayed(journal) == ["a", "b"]


# ------------------------------------------------------------------------------------- closing etc.


def test_close_notes_the_synced_end_and_drops_what_was_not_synced() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    append(journal, record("b"))
    journal.close()
    journal.close()
    disk.crash()
    disk = disk.reopen()
    noted = SyncedEnd(disk, DIRECTORY).noted
    assert noted is not None
    assert noted.synced_end == 2
    assert replayed(open_journal(disk)) == ["a"]


def test_a_broken_disk_does_not_keep_a_journal_from_closing() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    disk.kill()
    journal.close()


def test_a_note_goes_down_with_the_next_commit_and_says_only_what_is_synced() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    journal.note_synced_end()
    append(journal, record("b"))
    sync(journal, disk)
    noted = SyncedEnd(disk, DIRECTORY).noted
    assert noted is not None
    assert noted.synced_end == 2
    journal.note_synced_end()
    assert len(journal.take_writes()[0]) == 1
    journal.mark_synced(3)
    journal.note_synced_end()
    assert journal.take_writes() == ([], 3), "nothing new to say"


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=40),
    segment_bytes=st.sampled_from([500, 5000, 50_000]),
    max_bytes=st.integers(1, 9000),
    tail_bytes=st.sampled_from([0, 2000, 1 << 20]),
)
def test_every_way_to_read_gives_the_same_frames(
    sizes: list[int], segment_bytes: int, max_bytes: int, tail_bytes: int
) -> None:
    disk = FakeDisk()
    journal = open_journal(disk, segment_bytes=segment_bytes)
    journal._tail = MemoryTail(0, max_bytes=tail_bytes)
    frames = [EPOCH_START, *(data(bytes([size % 251]) * size, 1 + size % 7) for size in sizes)]
    offsets = append(journal, *frames)
    sync(journal, disk)
    assert [stored.frame for stored in journal.replay(0)] == frames
    assert [stored.frame for stored in read_frames(journal, offsets)] == frames
    got: list[StoredFrame] = []
    at = 0
    while at < journal.log_end:
        part = read(journal, at, max_bytes, below=journal.log_end)
        assert len(part) == 1 or sum(encoded_bytes(stored.frame) for stored in part) <= max_bytes
        got += part
        at = got[-1].end
    assert [stored.frame for stored in got] == frames
    assert [stored.at.offset for stored in got] == offsets
    middle = offsets[len(offsets) // 2]
    assert next(iter(journal.replay(middle))).at.offset == middle


# ------------------------------------------------------------- what a cut must not leave behind it


def test_after_a_cut_the_index_points_to_the_new_frames() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    append(journal, EPOCH_START, *(record("old" * 3000) for _ in range(30)))
    sync(journal, disk)
    journal.note_synced_end()
    sync(journal, disk)
    journal.cut(5)
    append(journal, EPOCH_START, *(record(f"{number:5}" * 1700) for number in range(30)), epoch=2)
    sync(journal, disk)
    journal.note_synced_end()
    sync(journal, disk)
    for reader in (journal, None):
        if reader is None:
            disk.crash()
            reader = open_journal(disk.reopen())
        without_tail(reader)
        for number in range(30):
            assert texts(read(reader, 6 + number, 1, below=36)) == [f"{number:5}" * 1700]
            assert texts(read_frames(reader, [6 + number])) == [f"{number:5}" * 1700]


def test_after_a_cut_the_epochs_are_those_of_the_log_now_and_after_a_restart() -> None:
    disk = FakeDisk()
    journal = epochs_journal(disk)
    journal.cut(3)
    ends = [(0, 0), (1, 3), (1, 3), (1, 3), (1, 3)]
    assert [journal.end_of_epoch(epoch) for epoch in range(5)] == ends
    append(journal, EPOCH_START, epoch=6)
    sync(journal, disk)
    ends = [*ends, (1, 3), (6, 4), (6, 4)]
    assert [journal.end_of_epoch(epoch) for epoch in range(8)] == ends
    disk.crash()
    disk = disk.reopen()
    table = EpochTable.decode(disk.bytes_of(f"{DIRECTORY}/epochs"))
    assert table is not None
    assert [entry.epoch for entry in table.entries] == [1, 6]
    again = open_journal(disk)
    assert [again.end_of_epoch(epoch) for epoch in range(8)] == ends


def test_after_a_cut_below_the_tail_what_follows_is_read_from_it() -> None:
    disk = FakeDisk()
    journal = start(disk, *"abcdef")
    journal._tail = MemoryTail(journal.log_end)
    journal.cut(3)
    append(journal, record("x"))
    sync(journal, disk)
    assert texts(read(journal, 3, below=4)) == ["x"]
    assert journal._tail.start == 3


def test_only_what_the_commit_had_counts_as_synced() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    journal._tail = MemoryTail(journal.log_end, max_bytes=0)
    append(journal, record("b"))
    writes, end = journal.take_writes()
    append(journal, record("c"))
    for write in writes:
        disk.write_and_sync(write.file, write.position, b"".join(write.chunks))
    journal.mark_synced(end)
    assert (journal.synced_end, journal.log_end) == (3, 4)
    assert texts(read(journal, 0, below=4)) == ["a", "b"]
    assert texts(read(journal, 3, below=4)) == ["c"]


@pytest.mark.parametrize("tear", Tear)
@pytest.mark.parametrize("steps", range(12))
def test_a_cut_that_was_cut_off_leaves_a_log_as_it_was_or_shorter(steps: int, tear: Tear) -> None:
    disk = FakeDisk(seed=steps)
    journal = epochs_journal(disk, segment_bytes=200)
    journal.save_snapshot(101, Snapshot(b"", {}))
    journal.note_synced_end()
    sync(journal, disk)
    disk.fail_next(after=steps)
    with contextlib.suppress(OSError):
        journal.cut(2)
    disk.crash(tear)
    again = open_journal(disk.reopen(), segment_bytes=200, seed=2)
    left = "".join(replayed(again))
    assert left.startswith("a")
    assert "abcdef".startswith(left)
    assert again.incarnation == journal.incarnation
    assert again.log_end >= 2


@pytest.mark.parametrize("tear", Tear)
@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("segment_bytes", [1 << 20, 200])
def test_i25_whoever_dies_while_it_abandons_keeps_what_was_synced(
    segment_bytes: int, steps: int, tear: Tear
) -> None:
    disk = FakeDisk(seed=steps)
    journal = start(disk, *"abc", segment_bytes=segment_bytes)
    journal.note_synced_end()
    sync(journal, disk)
    append(journal, *map(record, "xyz"))
    write_without_sync(journal, disk)
    journal.mark_failed()
    disk.fail_next(after=steps)
    with contextlib.suppress(OSError):
        journal.abandon_unsynced()
    disk.crash(tear)
    again = open_journal(disk.reopen(), segment_bytes=segment_bytes, seed=2)
    left = "".join(replayed(again))
    assert left.startswith("abc")
    assert "abcxyz".startswith(left)
    assert again.incarnation == journal.incarnation


def test_a_note_outlives_the_process_at_once_and_a_loss_of_power_after_a_commit() -> None:
    for end_of_it, expected in ((FakeDisk.kill, 2), (FakeDisk.crash, 0)):
        disk = FakeDisk()
        start(disk, "a").note_synced_end()
        end_of_it(disk)
        noted = SyncedEnd(disk.reopen(), DIRECTORY).noted
        assert noted is not None
        assert noted.synced_end == expected
