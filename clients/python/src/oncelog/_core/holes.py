"""Offsets of records in a compacted topic. PURE.

Compaction takes superseded records out of the committed log and keeps the offsets of the others:
there are *holes* then, offsets without a record. A batch with holes says of each record how far it
stands behind the first one. A batch without any record says that none stands between what came
before it and its first offset: who reads goes on there.

Invariant: who stands in a hole reads on with the first record behind it, and has missed none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from oncelogpb import errors

# Of each record, ascending.
Offsets = npt.NDArray[np.int64]


def offsets_of(batch: Any) -> Offsets | None:
    """Those of a fetched batch; None: its records follow each other. Raises CorruptBatch."""
    if not batch.offsets:
        return None
    behind = np.array(batch.offsets, dtype=np.int64)
    is_told = len(behind) == batch.record_count and not behind[0]
    if not is_told or (np.diff(behind) <= 0).any():
        raise errors.CorruptBatch(
            f"the batch at offset {batch.first_offset} has {batch.record_count} records, and does "
            "not say the offset of each, ascending"
        )
    offsets: Offsets = behind + batch.first_offset
    return offsets


def next_offset(first_offset: int, count: int, offsets: Offsets | None) -> int:
    """Where to read on behind so many records; `offsets` are theirs."""
    return first_offset + count if offsets is None else int(offsets[-1]) + 1


def skipped(wanted: int, first_offset: int, offsets: Offsets | None) -> int:
    """How many records of a batch stand before the wanted offset. Some do not."""
    if offsets is None:
        return max(0, wanted - first_offset)
    return int(np.searchsorted(offsets, wanted))


def within(batch: Any, start: int, end: int) -> tuple[int, Offsets]:
    """Which records of a fetched batch stand at offsets [start, end): how many stand before them,
    and the offset of each. Raises CorruptBatch."""
    offsets, first = offsets_of(batch), batch.first_offset
    if offsets is None:
        low, high = max(first, start), min(first + batch.record_count, end)
        return max(0, low - first), np.arange(low, high, dtype=np.int64)
    low, high = np.searchsorted(offsets, [start, end]).tolist()
    return low, offsets[low:high]


def packed(offsets: Offsets | None) -> bytes:
    """To be kept beside a payload."""
    return b"" if offsets is None else offsets.tobytes()


def unpacked(kept: bytes) -> Offsets | None:
    """The way back."""
    return np.frombuffer(kept, dtype=np.int64) if kept else None
