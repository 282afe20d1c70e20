"""Reads of large frames: each byte once, and payloads that are not copied once more."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from oncelog_server.runtime.storage.frames import HEADER_BYTES
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.port import File
from oncelog_server.runtime.storage.segment import INDEX_INTERVAL_BYTES
from tests.simulation.disk import FakeDisk
from tests.unit.storage.journals import append, data, read, start, sync


class _Asked(FakeDisk):
    """What was read of files of segments: where, and how much."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int]] = []

    async def read(self, file: File, position: int, length: int) -> bytes:
        self.asked.append((position, length))
        return await super().read(file, position, length)


def _large_frames(disk: FakeDisk, payload_bytes: int, count: int) -> Journal:
    journal = start(disk)
    for number in range(count):
        append(journal, data(bytes([number]) * payload_bytes, 10))
        sync(journal, disk)
    # Out of memory: the rest is about files.
    journal._tail.give_way(1 << 40)
    return journal


@pytest.mark.parametrize("payload_bytes", [300_000, 1_065_000, 3_000_000])
@pytest.mark.parametrize("max_bytes", [1, 1 << 20, 2 << 20])
def test_a_reader_of_large_frames_reads_each_byte_once(payload_bytes: int, max_bytes: int) -> None:
    disk = _Asked()
    journal = _large_frames(disk, payload_bytes, 8)
    position, got = 1, []
    while position < journal.log_end:
        found = read(journal, position, max_bytes, below=journal.log_end)
        got += [stored.frame.payload for stored in found]
        position = found[-1].end
    assert [bytes(payload) for payload in got] == [bytes([n]) * payload_bytes for n in range(8)]
    frames_bytes = 8 * (payload_bytes + HEADER_BYTES)
    # The last frame has no entry behind it: how large it is its header says.
    slack = min(max_bytes, payload_bytes) + INDEX_INTERVAL_BYTES + 2 * HEADER_BYTES
    assert sum(length for _, length in disk.asked) <= frames_bytes + slack


def test_i27_an_index_that_ends_inside_a_frame_costs_a_read_and_no_frame() -> None:
    disk = _Asked()
    journal = _large_frames(disk, 100_000, 6)
    index = journal._segments.all[0].index
    # Every entry says one byte less than is true, but for the one to begin at.
    raw = bytearray()
    for number in range(len(index)):
        entry = index._entry(number)
        assert entry is not None
        wrong = entry.position - (number > 0)
        packed = struct.pack("<QI", entry.offset, wrong)
        raw += packed + struct.pack("<I", crc32c(packed))
    index._raw[:] = raw
    found = read(journal, 1, 300_000, below=journal.log_end)
    assert found
    assert [stored.at.offset for stored in found] == [1 + 10 * n for n in range(len(found))]
    assert bytes(found[0].frame.payload) == bytes(100_000)


def test_a_payload_that_is_most_of_what_was_read_is_left_there_and_a_small_one_is_not() -> None:
    large = read(_large_frames(FakeDisk(), 300_000, 3), 1, 400_000, below=40)
    assert all(isinstance(stored.frame.payload, memoryview) for stored in large)
    small = read(_large_frames(FakeDisk(), 2_000, 9), 1, 1 << 20, below=100)
    assert len(small) > 4
    assert all(isinstance(stored.frame.payload, bytes) for stored in small)
