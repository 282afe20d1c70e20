"""What a start reads of a log: little, however large the log is, and however much room its last
file has. A node may have thousands of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.runtime.storage.scan import SCAN_BYTES, SCAN_BYTES_FIRST
from oncelog_server.runtime.storage.segment import INDEX_INTERVAL_BYTES
from tests.simulation.disk import FakeDisk, FakeFile
from tests.unit.storage.journals import (
    FIRST_SEGMENT,
    append,
    data,
    noted,
    open_journal,
    replayed,
    start,
    sync,
)

SEGMENT_BYTES: Final = 64 << 20
# Allocated behind the last frame, and never written.
AHEAD_BYTES: Final = 16 << 20
# The frames behind the last entry, notes, epochs, indexes.
READ_BYTES_MAX: Final = 256 << 10


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes of each read."""
    found: list[int] = []
    read = FakeFile.read

    def counted(file: FakeFile, position: int, length: int) -> bytes:
        result = read(file, position, length)
        found.append(len(result))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(FakeFile, "read", counted)
        yield found


def test_a_start_reads_what_is_behind_the_last_index_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FakeDisk(seed=1)
    journal = start(disk, segment_bytes=SEGMENT_BYTES)
    for _ in range(100):
        append(journal, data(b"v" * INDEX_INTERVAL_BYTES, 1))
    sync(journal, disk)
    end = journal.log_end
    journal.close()
    file = disk.open(FIRST_SEGMENT)
    disk.write_unsynced(file, file.size(), bytes(AHEAD_BYTES))
    disk.sync(file)
    with counting(monkeypatch) as reads:
        journal = open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES)
    assert journal.log_end == end
    assert sum(reads) < READ_BYTES_MAX
    journal.close()


@pytest.mark.parametrize("payload_bytes", [1, 700, SCAN_BYTES_FIRST, SCAN_BYTES + 1])
def test_a_scan_goes_on_from_block_to_block(payload_bytes: int) -> None:
    """Frames that end before, at and behind the end of what is read at once."""
    disk = FakeDisk(seed=1)
    journal = start(disk, segment_bytes=SEGMENT_BYTES)
    frame = Frame(FrameKind.RECORD, b"v" * payload_bytes)
    count = max(3, 3 * SCAN_BYTES_FIRST // payload_bytes) if payload_bytes > 1 else 1_000
    for _ in range(count):
        append(journal, frame)
    sync(journal, disk)
    journal.close()
    journal = open_journal(disk.reopen(), segment_bytes=SEGMENT_BYTES)
    payloads = [stored.frame.payload for stored in journal.replay(1)]
    assert payloads == [frame.payload] * count
    journal.close()


def test_a_start_syncs_nothing_of_a_log_of_which_all_is_noted() -> None:
    """Nor does it cut the room behind its end, which the next frames take."""
    disk = FakeDisk()
    noted(start(disk, "a"), disk)
    size = len(disk.bytes_of(FIRST_SEGMENT))
    disk.kill()
    disk = disk.reopen()
    before = disk.syncs
    assert replayed(open_journal(disk)) == ["a"]
    assert disk.syncs == before
    assert len(disk.bytes_of(FIRST_SEGMENT)) == size
