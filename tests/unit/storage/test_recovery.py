"""Recovery: what a crash, rot and a careless hand leave behind (I25, I26)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c

from oncelog_server.core.frame import At, Frame, FrameKind, StoredFrame
from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.runtime.storage.epochs import EPOCHS_FILE
from oncelog_server.runtime.storage.frames import HEADER_BYTES, encode, encoded_bytes
from oncelog_server.runtime.storage.identity import read_incarnation
from oncelog_server.runtime.storage.journal import Journal, JournalDamaged, UnknownFrame
from oncelog_server.runtime.storage.scan import Place, misplaced
from oncelog_server.runtime.storage.segment import INDEX_INTERVAL_BYTES
from tests.simulation.disk import FakeDisk, Tear
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
    write_without_sync,
)

FRAME_OF_ONE = HEADER_BYTES + 1
EPOCHS = f"{DIRECTORY}/{EPOCHS_FILE}"


def set_bytes(position: int, value: bytes) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[position : position + len(value)] = value

    return change


def flip_bit(position: int, bit: int = 0) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[position] ^= 1 << bit

    return change


def cut_to(length: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        del content[length:]

    return change


def test_a_fresh_journal_is_empty_and_has_an_incarnation() -> None:
    disk = FakeDisk()
    journal = open_journal(disk)
    assert (journal.log_start, journal.log_end, journal.synced_end) == (0, 0, 0)
    assert (journal.last_epoch, journal.last_time_ms) == (0, 0)
    assert read_incarnation(disk, DIRECTORY) == journal.incarnation
    assert len(journal.incarnation) == 16


def test_a_restart_finds_everything_synced_under_the_same_incarnation() -> None:
    disk = FakeDisk()
    journal = start(disk, "a", "b")
    incarnation = journal.incarnation
    disk.crash()
    again = open_journal(disk.reopen(), seed=2)
    assert replayed(again) == ["a", "b"]
    assert (again.log_end, again.synced_end, again.last_epoch) == (3, 3, 1)
    assert again.last_time_ms == 1_000
    assert again.incarnation == incarnation


def test_i25_nothing_unsynced_is_reported_after_a_loss_of_power() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    append(journal, record("b"))
    write_without_sync(journal, disk)
    disk.crash()
    assert replayed(open_journal(disk.reopen())) == ["a"]


def test_what_a_killed_process_wrote_is_kept_and_synced_before_the_log_end_is_told() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    append(journal, record("b"))
    write_without_sync(journal, disk)
    disk.kill()
    disk = disk.reopen()
    assert open_journal(disk).log_end == 3
    disk.crash()
    assert replayed(open_journal(disk.reopen())) == ["a", "b"]


def fail_a_sync(journal: Journal, disk: FakeDisk) -> None:
    """The bytes are in the page cache, which counts them as clean from now on."""
    disk.fail_next()
    with pytest.raises(OSError, match="told to fail"):
        asyncio.run(disk.commit(journal.take_writes()[0]))
    journal.mark_failed()


# What of a failed sync the disk has all the same is drawn.
@pytest.mark.parametrize("seed", range(4))
def test_i25_what_a_failed_sync_left_in_the_page_cache_is_written_again(seed: int) -> None:
    disk = FakeDisk(seed=seed)
    journal = start(disk, "a")
    append(journal, record("b"))
    fail_a_sync(journal, disk)
    disk.kill()
    disk = disk.reopen()
    found = replayed(open_journal(disk))
    assert found == ["a", "b"]
    disk.crash()
    assert replayed(open_journal(disk.reopen())) == found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lost", ["incarnation", "synced_end"])
def test_i25_who_lost_its_identity_promises_nothing_that_is_not_synced_yet(
    lost: str, seed: int
) -> None:
    """The first attempt noted the log end, then failed to sync it; the second believed the note."""
    disk = FakeDisk(seed=seed)
    journal = start(disk, "a")
    append(journal, record("b"))
    fail_a_sync(journal, disk)
    disk.kill()
    disk = disk.reopen()
    disk.damage(f"{DIRECTORY}/{lost}", cut_to(0))
    # The incarnation and the note are durable, the log is not.
    disk.fail_next(after=2)
    with pytest.raises(OSError, match="told to fail"):
        open_journal(disk)
    found = replayed(open_journal(disk))
    assert found == ["a", "b"]
    disk.crash()
    assert replayed(open_journal(disk.reopen())) == found


@pytest.mark.parametrize("seed", range(8))
def test_i25_an_epoch_of_a_failed_sync_is_in_the_epoch_table_after_the_next_start(
    seed: int,
) -> None:
    disk = FakeDisk(seed=seed)
    journal = noted(start(disk, "a"), disk)
    append(journal, EPOCH_START, record("b"), epoch=2)
    fail_a_sync(journal, disk)
    disk.kill()
    disk = disk.reopen()
    table = disk.bytes_of(EPOCHS)
    assert open_journal(disk).last_epoch == 2
    disk.crash()
    assert disk.reopen().bytes_of(EPOCHS) == table


@pytest.mark.parametrize("kept", range(FRAME_OF_ONE))
def test_a_torn_tail_is_cut_at_every_byte(kept: int) -> None:
    disk = FakeDisk()
    journal = noted(start(disk, "a"), disk)
    end_of_a = 2 * HEADER_BYTES + 1
    append(journal, record("b"))
    sync(journal, disk)
    torn = bytes(FRAME_OF_ONE - kept)
    disk.damage(FIRST_SEGMENT, set_bytes(end_of_a + kept, torn))
    disk.kill()
    disk = disk.reopen()
    again = open_journal(disk, seed=2)
    assert replayed(again) == ["a"]
    assert again.incarnation == journal.incarnation
    assert not disk.bytes_of(FIRST_SEGMENT)[end_of_a:].strip(b"\0")
    append(again, EPOCH_START, record("c"), epoch=2)
    sync(again, disk)
    disk.crash()
    assert replayed(open_journal(disk.reopen())) == ["a", "c"]


@pytest.mark.parametrize("length", [*range(0, FRAME_OF_ONE, 13), FRAME_OF_ONE - 1])
def test_a_file_that_ends_inside_the_last_frame_is_cut(length: int) -> None:
    disk = FakeDisk()
    journal = noted(start(disk, "a"), disk)
    append(journal, record("b"))
    sync(journal, disk)
    disk.damage(FIRST_SEGMENT, cut_to(2 * HEADER_BYTES + 1 + length))
    disk.kill()
    assert replayed(open_journal(disk.reopen())) == ["a"]


def test_i26_a_file_that_ends_inside_a_synced_frame_is_refused_and_says_so() -> None:
    disk = FakeDisk()
    noted(start(disk, "a", "b"), disk)
    disk.damage(FIRST_SEGMENT, cut_to(2 * HEADER_BYTES + 10))
    disk.kill()
    with pytest.raises(JournalDamaged, match="the file ends inside a frame"):
        open_journal(disk.reopen(), seed=2)


def test_i26_a_frame_that_runs_into_the_next_file_is_refused_and_says_so() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, segment_bytes=2 * HEADER_BYTES)
    append(journal, EPOCH_START, data(b"xyz", 3), data(b"xyz", 3))
    sync(journal, disk)
    noted(journal, disk)
    *_, before, last = segment_paths(disk)
    disk.rename(last, last.replace("4.log", "3.log"))
    disk.kill()
    with pytest.raises(JournalDamaged, match="it runs past journal offset 3") as caught:
        open_journal(disk.reopen(), segment_bytes=2 * HEADER_BYTES, seed=2)
    assert caught.value.file == before


@pytest.mark.parametrize("position", range(HEADER_BYTES, HEADER_BYTES + FRAME_OF_ONE, 3))
def test_i26_a_flipped_bit_below_synced_end_is_refused_by_file_and_byte(position: int) -> None:
    disk = FakeDisk()
    journal = noted(start(disk, "a", "b", "c"), disk)
    disk.damage(FIRST_SEGMENT, flip_bit(position, position % 8))
    before = disk.bytes_of(FIRST_SEGMENT)
    disk.kill()
    disk = disk.reopen()
    with pytest.raises(JournalDamaged) as caught:
        open_journal(disk, seed=2)
    assert (caught.value.file, caught.value.position) == (FIRST_SEGMENT, HEADER_BYTES)
    assert FIRST_SEGMENT in str(caught.value)
    assert f"byte {HEADER_BYTES}" in str(caught.value)
    assert disk.bytes_of(FIRST_SEGMENT) == before
    assert read_incarnation(disk, DIRECTORY) not in (None, journal.incarnation)


def test_a_second_refusal_takes_another_incarnation() -> None:
    disk = FakeDisk()
    noted(start(disk, "a"), disk)
    disk.damage(FIRST_SEGMENT, flip_bit(HEADER_BYTES))
    seen = []
    for seed in (2, 3):
        disk.kill()
        disk = disk.reopen()
        with pytest.raises(JournalDamaged):
            open_journal(disk, seed=seed)
        seen.append(read_incarnation(disk, DIRECTORY))
    assert seen[0] != seen[1]


def test_i26_a_file_cut_below_synced_end_takes_a_new_incarnation_once() -> None:
    disk = FakeDisk()
    journal = noted(start(disk, "a", "b"), disk)
    disk.damage(FIRST_SEGMENT, cut_to(2 * HEADER_BYTES + 1))
    disk.kill()
    disk = disk.reopen()
    shorter = open_journal(disk, seed=2)
    assert replayed(shorter) == ["a"]
    assert shorter.incarnation != journal.incarnation
    disk.crash()
    assert open_journal(disk.reopen(), seed=3).incarnation == shorter.incarnation


def test_i26_an_emptied_directory_never_keeps_its_incarnation() -> None:
    disk = FakeDisk()
    journal = noted(start(disk, "a"), disk)
    disk.remove(FIRST_SEGMENT)
    disk.kill()
    again = open_journal(disk.reopen(), seed=2)
    assert again.log_end == 0
    assert again.incarnation != journal.incarnation


def test_i26_zeros_below_synced_end_with_more_behind_them_are_damage() -> None:
    disk = FakeDisk()
    noted(start(disk, "a", "b", "c"), disk)
    disk.damage(FIRST_SEGMENT, set_bytes(HEADER_BYTES, bytes(FRAME_OF_ONE)))
    disk.kill()
    with pytest.raises(JournalDamaged, match="zeros") as caught:
        open_journal(disk.reopen())
    assert caught.value.position == HEADER_BYTES


@pytest.mark.parametrize("name", ["incarnation", "synced_end"])
@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_replica_that_lost_its_identity_takes_a_new_one(name: str, damage: str) -> None:
    disk = FakeDisk()
    journal = noted(start(disk, "a"), disk)
    path = f"{DIRECTORY}/{name}"
    if damage == "missing":
        disk.remove(path)
    else:
        disk.damage(path, lambda content: content.__setitem__(slice(None), b"?" * len(content)))
    disk.kill()
    again = open_journal(disk.reopen(), seed=2)
    assert replayed(again) == ["a"]
    assert again.incarnation != journal.incarnation


def test_a_torn_note_of_the_synced_end_leaves_the_one_before() -> None:
    disk = FakeDisk()
    journal = noted(start(disk, "a"), disk)
    append(journal, record("b"))
    sync(journal, disk)
    noted(journal, disk)
    # Three notes so far: at creation (slot 1), at 2 (slot 0), at 3 (slot 1).
    disk.damage(f"{DIRECTORY}/synced_end", flip_bit(512 + 30))
    disk.kill()
    again = open_journal(disk.reopen(), seed=2)
    assert replayed(again) == ["a", "b"]
    assert again.incarnation == journal.incarnation


def test_an_unknown_kind_refuses_the_replica_and_costs_it_nothing() -> None:
    disk = FakeDisk()
    journal = noted(start(disk, "a"), disk)
    # An intact frame of kind 6, as a newer version writes it.
    at = journal.append(record("new"), epoch=1, time_ms=1)
    raw = bytearray(b"".join(encode(record("new"), at)))
    raw[9] = 6
    raw[4:8] = crc32c(bytes(raw[8:])).to_bytes(4, "little")
    sync(journal, disk)
    disk.damage(FIRST_SEGMENT, set_bytes(2 * HEADER_BYTES + 1, bytes(raw)))
    disk.kill()
    disk = disk.reopen()
    with pytest.raises(UnknownFrame, match="newer Oncelog") as caught:
        open_journal(disk, seed=2)
    assert caught.value.position == 2 * HEADER_BYTES + 1
    assert read_incarnation(disk, DIRECTORY) == journal.incarnation


# What must not follow: (what, frame, epoch, offset). The tail ends before it.
STRANGERS = [
    ("offset leaves a hole", record("x"), 1, 9),
    ("offset comes again", record("x"), 1, 1),
    ("epoch is lower", record("x"), 0, 2),
    ("epoch begins without EPOCH_START", record("x"), 2, 2),
    ("EPOCH_START of the same epoch", EPOCH_START, 1, 2),
    ("EPOCH_START goes back", EPOCH_START, 2, 1),
    ("no records", Frame(FrameKind.DATA, b"x", 0), 1, 2),
]


@pytest.mark.parametrize(("what", "frame", "epoch", "offset"), STRANGERS)
def test_the_tail_ends_before_an_intact_frame_that_does_not_belong(
    what: str, frame: Frame, epoch: int, offset: int
) -> None:
    disk = FakeDisk()
    start(disk, "a")
    stranger = b"".join(encode(frame, At(JournalOffset(offset), LeaderEpoch(epoch), 1)))
    disk.damage(FIRST_SEGMENT, set_bytes(2 * HEADER_BYTES + 1, stranger))
    disk.kill()
    again = open_journal(disk.reopen())
    assert (again.log_end, replayed(again)) == (2, ["a"]), what


def test_only_an_epoch_start_jumps_ahead_and_recovery_follows() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    journal.append(EPOCH_START, epoch=3, time_ms=5, skip_to=1 << 32)
    append(journal, record("b"), epoch=3)
    sync(journal, disk)
    disk.crash()
    again = open_journal(disk.reopen())
    assert again.log_end == (1 << 32) + 2
    assert replayed(again) == ["a", "b"]
    assert again.end_of_epoch(2) == (1, 2)
    assert again.end_of_epoch(3) == (3, (1 << 32) + 2)


# --------------------------------------------------------------------- several segments and index


def long_journal(disk: FakeDisk, *, segments: int = 4) -> Journal:
    """Full segments of two index intervals each, with an epoch per segment."""
    size = INDEX_INTERVAL_BYTES * 2 + 4096
    journal = open_journal(disk, segment_bytes=size)
    epoch = 0
    while len([name for name in disk.list(DIRECTORY) if name.endswith(".log")]) < segments:
        epoch += 1
        append(journal, EPOCH_START, epoch=epoch)
        for number in range(20):
            append(journal, record(f"{epoch}.{number}." + "x" * 1000), epoch=epoch)
        sync(journal, disk)
    return noted(journal, disk)


def segment_paths(disk: FakeDisk, suffix: str = ".log") -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith(suffix)]


def reopen_long(disk: FakeDisk) -> tuple[FakeDisk, Journal]:
    disk.kill()
    disk = disk.reopen()
    return disk, open_journal(disk, segment_bytes=INDEX_INTERVAL_BYTES * 2 + 4096, seed=2)


def zero_index(disk: FakeDisk, path: str) -> None:
    disk.damage(path, lambda content: content.__setitem__(slice(None), bytes(len(content))))


@pytest.mark.parametrize("index", ["kept", "missing", "zeros", "flipped", "shorter"])
@pytest.mark.parametrize("epochs", ["kept", "missing", "flipped", "shorter"])
def test_a_lost_index_or_epoch_table_is_made_again(index: str, epochs: str) -> None:
    disk = FakeDisk()
    journal = long_journal(disk)
    expected, ends = replayed(journal), [journal.end_of_epoch(epoch) for epoch in range(9)]
    for path in segment_paths(disk, ".index"):
        if index == "missing":
            disk.remove(path)
        elif index == "zeros":
            zero_index(disk, path)
        elif index == "flipped":
            disk.damage(path, flip_bit(len(disk.bytes_of(path)) - 10))
        elif index == "shorter":
            disk.damage(path, cut_to(20))
    table = f"{DIRECTORY}/epochs"
    if epochs == "missing":
        disk.remove(table)
    elif epochs == "flipped":
        disk.damage(table, flip_bit(30))
    elif epochs == "shorter":
        disk.damage(table, cut_to(24))
    disk, again = reopen_long(disk)
    assert again.incarnation == journal.incarnation
    assert replayed(again) == expected
    assert [again.end_of_epoch(epoch) for epoch in range(9)] == ends
    again.close()
    assert all(disk.bytes_of(path) for path in segment_paths(disk, ".index"))


def test_i26_a_segment_missing_in_the_middle_is_refused() -> None:
    disk = FakeDisk()
    long_journal(disk)
    paths = segment_paths(disk)
    disk.remove(paths[1])
    with pytest.raises(JournalDamaged) as caught:
        reopen_long(disk)
    assert caught.value.file == paths[0]


def test_i26_a_first_segment_that_is_missing_is_refused() -> None:
    disk = FakeDisk()
    long_journal(disk)
    paths = segment_paths(disk)
    disk.remove(paths[0])
    with pytest.raises(JournalDamaged, match="journal offset 0 is next") as caught:
        reopen_long(disk)
    assert caught.value.file == paths[1]


def test_i26_a_middle_segment_that_was_cut_is_refused() -> None:
    disk = FakeDisk()
    long_journal(disk)
    path = segment_paths(disk)[1]
    disk.damage(path, cut_to(encoded_bytes(EPOCH_START) + 3 * (HEADER_BYTES + 1004)))
    with pytest.raises(JournalDamaged) as caught:
        reopen_long(disk)
    assert caught.value.file == path


def test_i26_a_flipped_bit_far_back_is_refused_by_replay_with_a_new_incarnation() -> None:
    disk = FakeDisk()
    journal = long_journal(disk)
    path = segment_paths(disk)[0]
    disk.damage(path, flip_bit(HEADER_BYTES + 5))
    disk, again = reopen_long(disk)
    assert again.incarnation == journal.incarnation
    with pytest.raises(JournalDamaged) as caught:
        replayed(again)
    assert (caught.value.file, caught.value.position) == (path, HEADER_BYTES)
    assert read_incarnation(disk, DIRECTORY) == again.incarnation != journal.incarnation


def test_a_torn_roll_is_cut_together_with_the_files_behind_it() -> None:
    disk = FakeDisk()
    size = 4 * FRAME_OF_ONE
    journal = noted(start(disk, "a", segment_bytes=size), disk)
    append(journal, *map(record, "bcdefghij"))
    write_without_sync(journal, disk)
    assert len(segment_paths(disk)) > 2
    # The first file lost its unsynced bytes, the later ones arrived.
    disk.damage(FIRST_SEGMENT, set_bytes(2 * HEADER_BYTES + 1, bytes(FRAME_OF_ONE)))
    disk.kill()
    disk = disk.reopen()
    again = open_journal(disk, segment_bytes=size)
    assert replayed(again) == ["a"]
    assert segment_paths(disk) == [FIRST_SEGMENT]


@pytest.mark.parametrize("tear", Tear)
@pytest.mark.parametrize("steps", range(3))
def test_a_creation_that_was_cut_off_is_finished_by_the_next_start(tear: Tear, steps: int) -> None:
    disk = FakeDisk(seed=steps)
    disk.fail_next(after=steps)
    with pytest.raises(OSError, match="told to fail"):
        open_journal(disk)
    disk.crash(tear)
    assert open_journal(disk.reopen()).log_end == 0


def test_every_file_that_was_kept_is_synced_before_the_log_end_is_told() -> None:
    disk = FakeDisk()
    size = 2 * FRAME_OF_ONE
    journal = start(disk, "a", segment_bytes=size)
    append(journal, *map(record, "bcdefgh"))
    write_without_sync(journal, disk)
    disk.kill()
    disk = disk.reopen()
    assert open_journal(disk, segment_bytes=size).log_end == 9
    disk.crash()
    assert replayed(open_journal(disk.reopen(), segment_bytes=size)) == list("abcdefgh")


def test_i25_a_full_file_of_which_only_the_last_frame_is_unsynced_is_synced_too() -> None:
    """The file behind it has arrived already: what is in it stands on what is not durable."""
    disk = FakeDisk()
    size = 3 * FRAME_OF_ONE
    journal = noted(start(disk, "a", segment_bytes=size), disk)
    append(journal, *map(record, "bcd"))
    write_without_sync(journal, disk)
    assert [path[-5:] for path in segment_paths(disk)] == ["0.log", "3.log"]
    disk.kill()
    disk = disk.reopen()
    assert open_journal(disk, segment_bytes=size).log_end == 5
    disk.crash()
    assert replayed(open_journal(disk.reopen(), segment_bytes=size)) == list("abcd")


def test_an_epoch_whose_first_frame_is_torn_never_began() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    append(journal, EPOCH_START, epoch=2)
    sync(journal, disk)
    disk.damage(FIRST_SEGMENT, flip_bit(2 * HEADER_BYTES + 1 + 30))
    disk.kill()
    disk = disk.reopen()
    again = open_journal(disk)
    assert again.end_of_epoch(2) == (1, 2)
    append(again, EPOCH_START, epoch=3)
    sync(again, disk)
    disk.crash()
    again = open_journal(disk.reopen())
    assert [again.end_of_epoch(epoch) for epoch in (1, 2, 3)] == [(1, 2), (1, 2), (3, 3)]


def test_an_index_that_points_beyond_the_log_is_made_again_from_its_first_byte() -> None:
    disk = FakeDisk()
    long_journal(disk)
    path = segment_paths(disk, ".index")[-1]
    right = disk.bytes_of(path)
    wrong = struct.pack("<QI", 1 << 30, 1 << 20)
    wrong += crc32c(wrong).to_bytes(4, "little")
    disk.damage(path, lambda content: content.extend(wrong * 3))
    disk, _ = reopen_long(disk)
    assert disk.bytes_of(path) == right


def test_a_frame_of_no_records_belongs_nowhere() -> None:
    empty = StoredFrame(Frame(FrameKind.ONE_SHOT, b"x", 0), At(JournalOffset(2), LeaderEpoch(1), 1))
    assert misplaced(empty, Place(0, 2, 1)) == "a frame of records holds none"
