"""The sparse index of a segment: what it holds, in memory and in its file."""

from __future__ import annotations

from oncelog_server.runtime.storage.segment import INDEX_ENTRY_BYTES, OffsetIndex, Segment
from tests.simulation.disk import FakeDisk
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

FAR_APART = 20_000


def indexed(index: OffsetIndex) -> OffsetIndex:
    """Frames of ten records each, all of them worth an entry."""
    for number in range(3):
        index.saw(number * 10, number * FAR_APART)
    return index


def test_a_cut_takes_the_entry_of_the_frame_that_begins_there() -> None:
    index = indexed(OffsetIndex())
    index.cut(20)
    assert len(index) == 2
    entry, after = index.around(20)
    assert entry is not None
    assert (entry.offset, after) == (10, None)


def test_the_file_is_given_only_entries_below_synced_end() -> None:
    index = indexed(OffsetIndex())
    assert [len(index.unsaved(end)) // INDEX_ENTRY_BYTES for end in (0, 1, 10, 11, 21)] == [
        0,
        1,
        1,
        2,
        3,
    ]


def test_a_segment_at_rest_keeps_the_entries_that_its_file_does_not_have() -> None:
    disk = FakeDisk()
    disk.make_directory(DIRECTORY)
    segment = Segment(disk, DIRECTORY, 0)
    indexed(segment.index)
    segment.save_index(11)
    segment.rest()
    assert len(segment.index) == 3
    segment.save_index(21)
    segment.rest()
    assert len(segment.index) == 3


def test_no_index_is_left_of_a_segment_that_was_cut_away() -> None:
    disk = FakeDisk()
    journal = start(disk, "a", segment_bytes=64)
    append(journal, *map(record, "bcdefgh"))
    sync(journal, disk)
    stems = {name.partition(".")[0] for name in names(disk, ".log")}
    assert len(stems) > 3
    disk.kill()
    disk = disk.reopen()
    journal = open_journal(disk, segment_bytes=64)
    assert names(disk, ".index")
    journal.cut(2)
    left = {name.partition(".")[0] for name in names(disk, ".log")}
    assert {name.partition(".")[0] for name in names(disk, ".index")} <= left < stems


def test_after_a_cut_the_log_replays_to_its_new_end_before_more_is_written() -> None:
    disk = FakeDisk()
    start(disk, "a", "b", "c").close()
    journal = open_journal(disk)
    journal.cut(2)
    assert replayed(journal) == ["a"]


def test_the_index_file_goes_before_the_frames_that_it_points_to() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    append(journal, EPOCH_START, *[record("x" * FAR_APART)] * 5)
    sync(journal, disk)
    journal.close()
    assert names(disk, ".index")
    journal = open_journal(disk)
    journal.cut(2)
    assert names(disk, ".index") == []


def names(disk: FakeDisk, suffix: str) -> list[str]:
    return [name for name in disk.list(DIRECTORY) if name.endswith(suffix)]
