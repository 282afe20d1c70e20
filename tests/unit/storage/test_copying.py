"""What a leader's journal gives to a follower's: the same bytes, or nothing."""

from __future__ import annotations

import asyncio

import pytest

from oncelog_server.core.frame import At
from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.runtime.storage.copying import CopyRefused
from oncelog_server.runtime.storage.damage import UnknownFrame
from oncelog_server.runtime.storage.frames import HEADER_BYTES, encode
from oncelog_server.runtime.storage.journal import Journal
from oncelogpb.errors import OffsetOutOfRange
from tests.simulation.disk import FakeDisk
from tests.unit.storage.journals import (
    EPOCH_START,
    append,
    data,
    open_journal,
    record,
    replayed,
    start,
    sync,
    without_tail,
    write_without_sync,
)


def leader(disk: FakeDisk, segment_bytes: int = 1 << 20) -> Journal:
    """Epoch 1: EPOCH_START, a, three records, b; epoch 4 after a jump to 100: c."""
    journal = open_journal(disk, segment_bytes=segment_bytes)
    append(journal, EPOCH_START, record("a"), data(b"abc", 3), record("b"), time_ms=1_000)
    journal.append(EPOCH_START, epoch=4, time_ms=2_000, skip_to=100)
    append(journal, record("c"), epoch=4, time_ms=3_000)
    sync(journal, disk)
    return journal


def copies(journal: Journal, at: int, max_bytes: int = 1 << 20) -> tuple[int, bytes]:
    return asyncio.run(journal.copies(at, max_bytes))


def segments(disk: FakeDisk, size: int) -> bytes:
    return disk.bytes_of(f"partitions/p/{0:020d}.log")[:size]


@pytest.mark.parametrize("is_in_memory", [True, False])
@pytest.mark.parametrize("max_bytes", [1, 250, 1 << 20])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 330])
def test_i7_a_copied_journal_is_the_leaders_byte_by_byte(
    segment_bytes: int, max_bytes: int, *, is_in_memory: bool
) -> None:
    disks = FakeDisk(), FakeDisk()
    origin = leader(disks[0], segment_bytes)
    if not is_in_memory:
        without_tail(origin)
    copy = open_journal(disks[1], segment_bytes=segment_bytes, seed=2)
    sent = 0
    while copy.log_end < origin.log_end:
        end, frames = copies(origin, copy.log_end, max_bytes)
        sent += copy.append_copied(frames, epoch=4)
        assert copy.log_end == end
        sync(copy, disks[1])
    ends = ("log_end", "synced_end", "last_epoch", "last_time_ms")
    assert [getattr(copy, name) for name in ends] == [getattr(origin, name) for name in ends]
    assert [copy.end_of_epoch(n) for n in range(6)] == [origin.end_of_epoch(n) for n in range(6)]
    names = [name for name in disks[0].list("partitions/p") if name.endswith(".log")]
    for name in names:
        path = f"partitions/p/{name}"
        both = zip(disks[0].bytes_of(path), disks[1].bytes_of(path), strict=False)
        assert all(ours == theirs for ours, theirs in both)
    disks[1].crash()
    again = open_journal(disks[1].reopen(), segment_bytes=segment_bytes, seed=3)
    assert replayed(again) == replayed(origin) == ["a", "abc", "b", "c"]
    assert again.end_of_epoch(3) == (1, 6)


def test_a_follower_is_given_what_the_leader_has_not_synced() -> None:
    disk = FakeDisk()
    journal = start(disk, "a")
    append(journal, record("x"))
    end, frames = copies(journal, 2)
    assert (end, frames) == (
        3,
        b"".join(encode(record("x"), At(JournalOffset(2), LeaderEpoch(1), 1_000))),
    )
    assert copies(journal, 3) == (3, b"")
    with pytest.raises(OffsetOutOfRange):
        copies(journal, -1)


def test_i25_copied_frames_are_durable_once_synced_and_not_before() -> None:
    disk, other = FakeDisk(), FakeDisk()
    copy = open_journal(disk)
    copy.append_copied(copies(leader(other), 0, 1)[1], epoch=1)
    sync(copy, disk)
    copy.append_copied(copies(leader(FakeDisk()), 1)[1], epoch=4)
    assert (copy.synced_end, copy.log_end) == (1, 102)
    write_without_sync(copy, disk)
    disk.crash()
    assert replayed(open_journal(disk.reopen())) == []


@pytest.mark.parametrize(
    ("at", "epoch", "why"),
    [
        (0, 4, "journal offset 0 stands where 2 is next"),
        (5, 4, "journal offset 5 stands where 2 is next"),
        (100, 4, None),
        (100, 3, "leader epoch 4 was sent in epoch 3"),
        (101, 4, "journal offset 101 stands where 2 is next"),
    ],
)
def test_i7_only_what_comes_next_is_taken(at: int, epoch: int, why: str | None) -> None:
    copy = start(FakeDisk(), "a")
    frames = copies(leader(FakeDisk()), at)[1]
    if why is None:
        copy.append_copied(frames, epoch=epoch)
        return
    with pytest.raises(CopyRefused, match=why):
        copy.append_copied(frames, epoch=epoch)
    assert copy.log_end == 2


def test_an_epoch_that_goes_back_is_refused() -> None:
    copy = start(FakeDisk(), "a")
    append(copy, EPOCH_START, epoch=6)
    frame = b"".join(encode(record("b"), At(JournalOffset(3), LeaderEpoch(5), 1_000)))
    with pytest.raises(CopyRefused, match="leader epoch 5 follows 6"):
        copy.append_copied(frame, epoch=6)


@pytest.mark.parametrize("byte", [0, 5, 9, 25, HEADER_BYTES + 1, -1])
def test_i26_a_bit_that_flipped_on_the_way_is_seen_and_nothing_is_appended(byte: int) -> None:
    frames = bytearray(copies(leader(FakeDisk()), 1)[1])
    frames[byte] ^= 4
    copy = start(FakeDisk())
    with pytest.raises(CopyRefused):
        copy.append_copied(bytes(frames), epoch=4)
    with pytest.raises(CopyRefused):
        copy.append_copied(bytes(frames[:-1]), epoch=4)
    assert copy.log_end == 1


def test_an_intact_frame_that_is_newer_than_this_version_is_never_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("oncelog_server.runtime.storage.frames.VERSION", 2)
        frame = b"".join(encode(record("b"), At(JournalOffset(1), LeaderEpoch(1), 1_000)))
    with pytest.raises(UnknownFrame, match="what the leader sent"):
        start(FakeDisk()).append_copied(frame, epoch=1)
