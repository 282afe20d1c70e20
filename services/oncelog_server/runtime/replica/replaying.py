"""How a journal becomes a machine: its newest snapshot, then the frames behind it, in slices.

Invariant: between two turns of the loop no more is applied than a slice, whatever the frames are
like. The loop has a lease to keep, and others to answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from oncelog_server.core.frame import FrameKind, StoredFrame
from oncelog_server.core.machine import EpochStart
from oncelog_server.core.role import Role
from oncelog_server.runtime.storage.frames import encoded_bytes
from oncelog_server.runtime.storage.journal import Journal

# Of a log that is loaded, which others wait for: the first of the two that is reached. Small frames
# cost by their number, large ones by their bytes: read, compared with their CRC, and decoded.
SLICE_FRAMES: Final = 2_000
SLICE_BYTES: Final = 4 << 20


class Slice:
    """What was replayed since the loop had a turn."""

    def __init__(self, *, frames_max: int, bytes_max: int) -> None:
        self._frames_max = frames_max
        self._bytes_max = bytes_max
        self._frames = self._bytes = 0

    def is_full(self, stored: StoredFrame) -> bool:
        """With this frame; then the next slice begins."""
        self._frames += 1
        self._bytes += encoded_bytes(stored.frame)
        if self._frames < self._frames_max and self._bytes < self._bytes_max:
            return False
        self._frames = self._bytes = 0
        return True


class Restored(NamedTuple):
    """Where a machine stands that was brought to a snapshot, and how many bytes that has."""

    offset: int
    size: int


async def restore(
    machine: Any, journal: Journal, offload: Callable[[Callable[[], None]], Awaitable[None]]
) -> Restored:
    """Brings a fresh machine, which nobody else has, to the newest snapshot that is intact, off the
    loop: large tables take a while. Raises OSError."""
    restored = Restored(journal.log_start, 0)

    def blocking() -> None:
        nonlocal restored
        saved = journal.load_snapshot()
        if saved is not None:
            offset, state, tables = saved
            machine.restore(state, tables)
            restored = Restored(offset, len(state) + sum(map(len, tables.values())))

    await offload(blocking)
    return restored


def record_of(role: Role[Any], stored: StoredFrame) -> Any:
    """What a machine applies. Raises ValueError for what no role of this version wrote."""
    if stored.frame.kind is FrameKind.EPOCH_START:
        return EpochStart()
    return role.codec.decode(stored.frame)
