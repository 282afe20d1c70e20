"""A bit of a journal flips on a disk that nobody uses: what was synced is not what is read."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

from oncelog_server.core.frame import FrameKind
from oncelog_server.runtime.storage.frames import FrameError, step
from oncelog_server.runtime.storage.identity import SyncedEnd
from oncelog_server.runtime.storage.segment import (
    INDEX_SUFFIX,
    SEGMENT_SUFFIX,
    OffsetIndex,
    base_of,
)
from tests.simulation.disk import FakeDisk

# Of a frame's header.
KIND_AT: Final = 9


class Where(Enum):
    """What the damaged frame is hidden by."""

    # The log has no index, so it is read from the front when it is opened.
    IN_THE_OPEN = "in the open"
    # An index has an entry behind it: only who reads that very frame finds it.
    BEHIND_AN_INDEX = "behind an index"


class Rotted(NamedTuple):
    """What was done to a frame."""

    where: Where
    # Journal offset behind it: of a log that begins there or later, it is no part.
    end: int


class Stands(NamedTuple):
    """A frame in a file."""

    path: str
    # Journal offsets.
    begin: int
    end: int
    # Bytes of the file.
    at: int
    size: int
    begins_an_epoch: bool


def flip_a_bit(
    disk: FakeDisk, directory: str, chance: random.Random, where: Where
) -> Rotted | None:
    """Of a frame that the replica in this directory noted as synced. What was done; None: the
    replica has no such frame."""
    noted = SyncedEnd(disk, directory).noted
    # What lies before the log begins is nobody's any more.
    start, below = (0, 0) if noted is None else (noted.log_start, noted.synced_end)
    paths = [f"{directory}/{name}" for name in disk.list(directory) if base_of(name) is not None]
    frames = [
        frame
        for path in paths
        for frame in _frames(disk, path)
        if start <= frame.begin and frame.end <= below
    ]
    hidden = [frame for frame in frames if _entry_behind(frame, frames)]
    if where is Where.BEHIND_AN_INDEX and hidden:
        frame = chance.choice(hidden)
        _index_up_to(disk, frame, frames)
    elif frames:
        where = Where.IN_THE_OPEN
        frame = chance.choice(frames)
        drop_indexes(disk, directory)
    else:
        return None
    byte, bit = frame.at + chance.randrange(frame.size), chance.randrange(8)

    def flip(content: bytearray) -> None:
        content[byte] ^= 1 << bit

    disk.damage(frame.path, flip)
    return Rotted(where, frame.end)


def drop_indexes(disk: FakeDisk, directory: str) -> None:
    """Of a log that nobody has open: whoever opens it reads it from the front."""
    for name in disk.list(directory):
        if name.endswith(INDEX_SUFFIX):
            disk.remove(f"{directory}/{name}")


def _entry_behind(rotten: Stands, frames: Sequence[Stands]) -> Stands | None:
    """The last frame behind it that an index of its file may name."""
    behind = [
        frame
        for frame in frames
        if frame.path == rotten.path and frame.at > rotten.at and not frame.begins_an_epoch
    ]
    return behind[-1] if behind else None


def _index_up_to(disk: FakeDisk, rotten: Stands, frames: Sequence[Stands]) -> None:
    """One entry, behind it. The journal itself writes one each INDEX_INTERVAL_BYTES, which is more
    than most journals of a day are long."""
    entry = _entry_behind(rotten, frames)
    assert entry is not None, "chosen of those that have one"
    index = OffsetIndex()
    index.saw(entry.begin, entry.at)
    path = rotten.path.removesuffix(SEGMENT_SUFFIX) + INDEX_SUFFIX
    disk.replace_file(path, index.unsaved(entry.end))


def _frames(disk: FakeDisk, path: str) -> Iterator[Stands]:
    content, at = disk.bytes_of(path), 0
    block = memoryview(content)
    with contextlib.suppress(FrameError):
        while True:
            begin, end, size = step(block, at)
            yield Stands(path, begin, end, at, size, content[at + KIND_AT] == FrameKind.EPOCH_START)
            at += size
