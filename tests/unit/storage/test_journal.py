"""Rules of appending and reading; the memory tail; notes and closing."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.frame import Frame, FrameKind, StoredFrame
from oncelog_server.runtime.storage.frames import HEADER_BYTES, encoded_bytes
from oncelog_server.runtime.storage.identity import SyncedEnd
from oncelog_server.runtime.storage.segment import INDEX_INTERVAL_BYTES, SEGMENT_BYTES
from oncelog_server.runtime.storage.segments import SEALED_SEGMENTS_OPEN_MAX
from oncelog_server.runtime.storage.tail import MemoryTail
from oncelogpb.errors import CorruptLog, OffsetOutOfRange
from tests.simulation.disk import FakeDisk
from tests.unit.storage.journals import (
    DIRECTORY,
    EPOCH_START,
    FIRST_SEGMENT,
    append,
    data,
    open_journal,
    read,
    read_frames,
    record,
    replayed,
    start,
    sync,
    texts,
    without_tail,
)

# -------------------------------------------------------------------------------------- appending


def test_a_batch_takes_as_many_offsets_as_it_has_records() -> None:
    journal = open_journal(FakeDisk())
    frames = [
        EPOCH_START,
        data(b"abc", 3),
        record("r"),
        Frame(FrameKind.ONE_SHOT, b"x", 2, tx_id=5),
    ]
    marker = Frame(FrameKind.MARKER, tx_id=9)
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
        (Frame(FrameKind.DATA), 1, None, "no records"),
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
    assert caught.value.metadata == {"start": "1"}


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
    opened = [segment for segment in journal._segments.all if segment._file is not None]
    # The active one, and those that were written since the start, rest only after a read.
    assert len(opened) <= SEALED_SEGMENTS_OPEN_MAX + 1


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


def test_a_note_outlives_the_process_at_once_and_a_loss_of_power_after_a_commit() -> None:
    for end_of_it, expected in ((FakeDisk.kill, 2), (FakeDisk.crash, 0)):
        disk = FakeDisk()
        start(disk, "a").note_synced_end()
        end_of_it(disk)
        noted = SyncedEnd(disk.reopen(), DIRECTORY).noted
        assert noted is not None
        assert noted.synced_end == expected


def test_i35_a_replay_skips_nothing_where_memory_gives_way_meanwhile() -> None:
    """Between two of its steps others are written to, and the node's budget is theirs."""
    disk = FakeDisk()
    journal = start(disk, *map(str, range(50)), segment_bytes=2_000)
    journal._tail.give_way(20_000)
    assert 0 < journal._tail.start < 51
    replay = journal.replay(0)
    seen = [next(replay).at.offset for _ in range(5)]
    journal._tail.give_way(1 << 20)
    assert journal._tail.start == 51
    assert seen + [stored.at.offset for stored in replay] == list(range(51))


@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES, 200_000])
@given(between=st.tuples(st.integers(0, 401), st.integers(0, 401)).map(sorted))
def test_how_many_bytes_stand_between_two_offsets_is_known_by_the_index(
    segment_bytes: int, between: list[int]
) -> None:
    journal = LONG[segment_bytes]
    start_at, end = between
    frames = [stored for stored in journal.replay(0) if start_at <= stored.at.offset < end]
    size = sum(encoded_bytes(stored.frame) for stored in frames)
    assert abs(journal.bytes_between(start_at, end) - size) <= 2 * INDEX_INTERVAL_BYTES


def test_there_is_nothing_between_offsets_that_go_back() -> None:
    journal = LONG[200_000]
    assert journal.bytes_between(300, 0) == journal.bytes_between(400, 390) == 0
    assert open_journal(FakeDisk()).bytes_between(0, 10) == 0


LONG: Final = {
    segment_bytes: start(
        FakeDisk(), *("x" * 3_000 for _ in range(400)), segment_bytes=segment_bytes
    )
    for segment_bytes in (SEGMENT_BYTES, 200_000)
}
