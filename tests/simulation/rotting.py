"""A bit of a journal flips on a disk that nobody uses: what was synced is not what is read."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import NamedTuple

from oncelog_server.runtime.storage.frames import FrameError, step
from oncelog_server.runtime.storage.identity import SyncedEnd
from oncelog_server.runtime.storage.segment import INDEX_SUFFIX, base_of
from tests.simulation.disk import FakeDisk


class Stands(NamedTuple):
    """A frame in a file."""

    # Journal offset behind it.
    end: int
    # Bytes of the file.
    at: int
    size: int


def flip_a_bit(disk: FakeDisk, directory: str, chance: random.Random) -> bool:
    """Of a frame that the replica in this directory noted as synced. Without its indexes a log is
    read from the front when it is opened, so the damage is found then. False: it has no such
    frame."""
    noted = SyncedEnd(disk, directory).noted
    below = 0 if noted is None else noted.synced_end
    paths = [f"{directory}/{name}" for name in disk.list(directory) if base_of(name) is not None]
    frames = [
        (path, frame)
        for path in paths
        for frame in _frames(disk.bytes_of(path))
        if frame.end <= below
    ]
    if not frames:
        return False
    path, frame = chance.choice(frames)
    byte, bit = frame.at + chance.randrange(frame.size), chance.randrange(8)

    def flip(content: bytearray) -> None:
        content[byte] ^= 1 << bit

    disk.damage(path, flip)
    for name in disk.list(directory):
        if name.endswith(INDEX_SUFFIX):
            disk.remove(f"{directory}/{name}")
    return True


def _frames(content: bytes) -> Iterator[Stands]:
    block, at = memoryview(content), 0
    with contextlib.suppress(FrameError):
        while True:
            _, end, size = step(block, at)
            yield Stands(end, at, size)
            at += size
