"""What the tests of the log share: journals over the fake disk, without an event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from oncelog_server.core.frame import Frame, FrameKind, StoredFrame
from oncelog_server.runtime.storage.journal import SEGMENT_BYTES, Journal
from oncelog_server.runtime.storage.tail import MemoryTail
from tests.simulation.disk import FakeDisk

DIRECTORY = "partitions/p"
FIRST_SEGMENT = f"{DIRECTORY}/{0:020d}.log"
EPOCH_START = Frame(FrameKind.EPOCH_START)


def drawn_uuids(seed: int) -> Callable[[int], bytes]:
    """The same incarnations in every run."""
    return random.Random(seed).randbytes


def open_journal(disk: FakeDisk, *, segment_bytes: int = SEGMENT_BYTES, seed: int = 1) -> Journal:
    return Journal.open(
        disk, DIRECTORY, segment_bytes=segment_bytes, random_bytes=drawn_uuids(seed)
    )


def record(text: str) -> Frame:
    return Frame(FrameKind.RECORD, text.encode())


def data(payload: bytes, record_count: int) -> Frame:
    return Frame(FrameKind.DATA, payload, record_count, producer_id=7, base_sequence=3)


def append(journal: Journal, *frames: Frame, epoch: int = 1, time_ms: int = 1_000) -> list[int]:
    """The offsets that they got."""
    return [journal.append(frame, epoch=epoch, time_ms=time_ms).offset for frame in frames]


def sync(journal: Journal, disk: FakeDisk) -> int:
    """What GroupCommit does, at once."""
    writes, end = journal.take_writes()
    for write in writes:
        disk.write_and_sync(write.file, write.position, b"".join(write.chunks))
    journal.mark_synced(end)
    return end


def write_without_sync(journal: Journal, disk: FakeDisk) -> None:
    """As far as a commit had come when the power went."""
    for write in journal.take_writes()[0]:
        disk.write_unsynced(write.file, write.position, b"".join(write.chunks))


def start(disk: FakeDisk, *texts: str, segment_bytes: int = SEGMENT_BYTES) -> Journal:
    """A journal with an EPOCH_START and these records, synced."""
    journal = open_journal(disk, segment_bytes=segment_bytes)
    append(journal, EPOCH_START, *map(record, texts))
    sync(journal, disk)
    return journal


def texts(frames: list[StoredFrame]) -> list[str]:
    return [bytes(stored.frame.payload).decode() for stored in frames if stored.frame.payload]


def noted(journal: Journal, disk: FakeDisk) -> Journal:
    """With its synced end on the disk, as about every second: as often as there is something to
    note."""
    while journal.note_synced_end():
        sync(journal, disk)
    return journal


def replayed(journal: Journal) -> list[str]:
    return texts(list(journal.replay(journal.log_start)))


def read(journal: Journal, at: int, max_bytes: int = 1 << 20, *, below: int) -> list[StoredFrame]:
    return asyncio.run(journal.read(at, max_bytes, below=below))


def read_frames(journal: Journal, offsets: list[int]) -> list[StoredFrame]:
    return asyncio.run(journal.read_frames(offsets))


def without_tail(journal: Journal) -> Journal:
    """Reads come from the files, as after a restart."""
    journal._tail = MemoryTail(journal.synced_end)
    return journal
