"""One flipped bit in every field of a frame, in the head, the middle and the tail of a log of
several segments: whoever opens, replays or reads gets what was written, or an error that names file
and byte; never anything else (I26)."""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable, Iterator, Sequence

import pytest

from oncelog_server.core.frame import StoredFrame
from oncelog_server.runtime.storage.frames import HEADER_BYTES, encoded_bytes
from oncelog_server.runtime.storage.journal import Journal, JournalDamaged
from oncelog_server.runtime.storage.segment import INDEX_INTERVAL_BYTES
from oncelogpb.errors import CorruptLog
from tests.simulation.disk import FakeDisk
from tests.unit.storage.journals import (
    DIRECTORY,
    EPOCH_START,
    append,
    data,
    open_journal,
    read,
    read_frames,
    sync,
    without_tail,
)

# docs/log_format.md, "Frame".
FIELDS = {
    "magic": (0, 4),
    "crc": (4, 4),
    "version": (8, 1),
    "kind": (9, 1),
    "control": (10, 1),
    "encoding": (11, 1),
    "header length": (12, 2),
    "reserved": (14, 2),
    "payload length": (16, 4),
    "epoch": (20, 4),
    "offset": (24, 8),
    "timestamp": (32, 8),
    "record count": (40, 4),
    "client's crc": (44, 4),
    "producer": (48, 8),
    "generation": (56, 8),
    "writer": (64, 8),
    "base sequence": (72, 8),
    "tx id": (80, 8),
    "highest time": (88, 8),
    "payload": (96, 256),
}
FRAMES = 90
# Several index entries in each: opening looks only behind the last one.
SEGMENT_BYTES = 5 * INDEX_INTERVAL_BYTES
PAYLOAD_BYTES = SEGMENT_BYTES // 30
# Frame number: in the first segment, in the middle one, the last of all.
PLACES = {"head": 2, "middle": FRAMES // 2, "tail": FRAMES}

assert PAYLOAD_BYTES >= 256
assert sum(size for _, size in FIELDS.values()) == HEADER_BYTES + 256


def written() -> tuple[FakeDisk, list[StoredFrame]]:
    """A log that is synced and noted, and its frames."""
    disk = FakeDisk()
    journal = open_journal(disk, segment_bytes=SEGMENT_BYTES)
    append(journal, EPOCH_START)
    for number in range(FRAMES):
        append(journal, data(bytes([number]) * (PAYLOAD_BYTES + number % 7), 1 + number % 5))
        sync(journal, disk)
    frames = list(journal.replay(0))
    journal.close()
    return disk.reopen(), frames


def place_of(disk: FakeDisk, wanted: StoredFrame, frames: Sequence[StoredFrame]) -> tuple[str, int]:
    """File and byte."""
    bases = sorted(
        int(name.removesuffix(".log")) for name in disk.list(DIRECTORY) if name.endswith(".log")
    )
    base = max(base for base in bases if base <= wanted.at.offset)
    before = [f for f in frames if base <= f.at.offset < wanted.at.offset]
    path, position = f"{DIRECTORY}/{base:020d}.log", sum(encoded_bytes(f.frame) for f in before)
    (offset,) = struct.unpack_from("<Q", disk.bytes_of(path), position + FIELDS["offset"][0])
    assert offset == wanted.at.offset
    return path, position


# Given the number of the frame that is damaged: from far away it is the same.
Look = Callable[[Journal, list[StoredFrame], int], Iterator[Callable[[], None]]]
NEAR = 7


def replays(
    journal: Journal, frames: list[StoredFrame], victim: int
) -> Iterator[Callable[[], None]]:
    """As a leader does without a snapshot."""

    def look() -> None:
        for found, expected in zip(journal.replay(0), frames, strict=True):
            assert found == expected, "replayed something else"

    yield look


def reads_on(
    journal: Journal, frames: list[StoredFrame], victim: int
) -> Iterator[Callable[[], None]]:
    """As a RAW reader does, from each frame's first and last record on; also where it had to step
    over the damage."""

    def look(first: int, offset: int) -> None:
        found = read(journal, offset, 3 * PAYLOAD_BYTES, below=journal.log_end)
        assert found, "nothing is served where something stands"
        assert found == frames[first : first + len(found)], "read something else"

    for first in range(max(victim - NEAR, 0), min(victim + NEAR, len(frames))):
        for offset in {frames[first].at.offset, frames[first].end - 1}:
            yield functools.partial(look, first, offset)


def reads_each(
    journal: Journal, frames: list[StoredFrame], victim: int
) -> Iterator[Callable[[], None]]:
    """As readers of the committed log do: exactly these frames."""

    def look(*wanted: StoredFrame) -> None:
        assert read_frames(journal, [stored.at.offset for stored in wanted]) == list(wanted)

    near = frames[max(victim - NEAR, 0) : victim + NEAR]
    for stored in near:
        yield functools.partial(look, stored)
    for first, second in zip(near, near[2:], strict=False):
        yield functools.partial(look, first, second)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("look", [replays, reads_on, reads_each])
def test_i26_a_flipped_bit_is_detected_never_served(look: Look, field: str, place: str) -> None:
    chance = random.Random(f"{field} {place}")
    start, size = FIELDS[field]
    # The lowest bits make values that could be.
    disk, frames = written()
    victim = PLACES[place]
    path, position = place_of(disk, frames[victim], frames)
    for bit in [*range(8), chance.randrange(size * 8)]:
        flip = flip_bit(position + start + bit // 8, bit % 8)
        disk.damage(path, flip)
        errors = errors_of(look, disk, frames, victim)
        disk = disk.reopen()
        disk.damage(path, flip)
        assert errors, f"bit {bit} of {field} was not noticed"
        for file, at in errors:
            assert (file, at <= position) == (path, True), "one has to look before this"


def errors_of(
    look: Look, disk: FakeDisk, frames: list[StoredFrame], victim: int
) -> list[tuple[str, int]]:
    """File and byte that each error names. Whatever comes without an error is right."""
    found: list[tuple[str, int]] = []
    try:
        journal = without_tail(open_journal(disk, segment_bytes=SEGMENT_BYTES, seed=2))
    except JournalDamaged as damaged:
        return [(damaged.file, damaged.position)]
    for attempt in look(journal, frames, victim):
        try:
            attempt()
        except JournalDamaged as damaged:
            found.append((damaged.file, damaged.position))
        except CorruptLog as corrupt:
            found.append((corrupt.metadata["file"], int(corrupt.metadata["position"])))
    return found


def flip_bit(position: int, bit: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[position] ^= 1 << bit

    return change
