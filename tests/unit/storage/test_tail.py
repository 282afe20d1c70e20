"""What the memory tail holds, and what it lets go."""

from __future__ import annotations

import weakref
from typing import Final

import pytest

from oncelog_server.core.frame import At, Frame, Kind, StoredFrame
from oncelog_server.runtime.storage.frames import HEADER_BYTES
from oncelog_server.runtime.storage.tail import MemoryTail

MAX_BYTES: Final = 64 * 1024


@pytest.mark.parametrize("payload_bytes", [10, 4_000, 30_000])
def test_what_is_dropped_is_let_go_soon_however_large_frames_are(payload_bytes: int) -> None:
    """A list of dropped frames that only counts them would hold a thousand of a MiB."""
    tail = MemoryTail(0, max_bytes=MAX_BYTES)
    payloads: list[weakref.ref[memoryview]] = []
    for offset in range(20 * MAX_BYTES // (payload_bytes + HEADER_BYTES)):
        payload = memoryview(bytes(payload_bytes))
        payloads.append(weakref.ref(payload))
        stored = StoredFrame(Frame(Kind.DATA, payload, record_count=1), At(offset, 1, 0))
        tail.append(stored, synced_end=offset)
        del payload, stored
    held = sum(payload() is not None for payload in payloads)
    frame_bytes = payload_bytes + HEADER_BYTES
    assert held * frame_bytes <= MAX_BYTES + MAX_BYTES // 4 + 2 * frame_bytes
    assert len(tail.read(tail.start, MAX_BYTES, below=len(payloads))) * frame_bytes <= MAX_BYTES
    assert len(payloads) - tail.start <= held, "everything from its start on is there"
