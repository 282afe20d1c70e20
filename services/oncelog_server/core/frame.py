"""What stands in a journal: a frame. `runtime/storage` turns it into bytes (docs/log_format.md).

A machine's records become frames through the role's codec; the log gives each frame its place.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from oncelog_server.core.ids import JournalOffset, LeaderEpoch


class FrameKind(IntEnum):
    """Kinds of frame. An unknown one stops the replica; it is never skipped."""

    # First frame of a leader epoch. Occupies one journal offset; only it may jump ahead.
    EPOCH_START = 1
    # A batch of records, plain or of a transaction. Occupies record_count offsets.
    DATA = 2
    # COMMITTED, ABORTED or DAMAGED for a TxId. Occupies one offset.
    MARKER = 3
    # Data and COMMITTED marker of a one-shot transaction, under one CRC. Occupies record_count.
    ONE_SHOT = 4
    # A record of the role's own machine (msgpack). Occupies one offset.
    RECORD = 5


OCCUPY_RECORDS: Final = frozenset({FrameKind.DATA, FrameKind.ONE_SHOT})


class ControlCode(IntEnum):
    """What a MARKER says."""

    NONE = 0
    COMMITTED = 1
    ABORTED = 2
    DAMAGED = 3


class Frame(NamedTuple):
    """A frame without its place. Fields that a kind does not use are 0."""

    kind: FrameKind
    # A view of bytes where it was left in the message that brought it (oncelogpb.in_place).
    payload: bytes | memoryview = b""
    record_count: int = 0
    producer_id: int = 0
    generation: int = 0
    writer: int = 0
    base_sequence: int = 0
    tx_id: int = 0
    control: ControlCode = ControlCode.NONE
    # oncelogpb.v1.Encoding of the payload of DATA and ONE_SHOT.
    encoding: int = 0
    # Highest record timestamp of the payload, microseconds.
    max_timestamp_us: int = 0
    # CRC32C of the payload as the client sent it.
    client_crc: int = 0

    @property
    def span(self) -> int:
        """How many journal offsets it occupies."""
        return self.record_count if self.kind in OCCUPY_RECORDS else 1


class At(NamedTuple):
    """The place that the log gave a frame."""

    # Of the frame's first record.
    offset: JournalOffset
    # Under which it was appended.
    epoch: LeaderEpoch
    # max(last, wall clock) of the leader, milliseconds.
    time_ms: int


class StoredFrame(NamedTuple):
    """A frame as read from a journal."""

    frame: Frame
    at: At

    @property
    def end(self) -> JournalOffset:
        """Journal offset after it."""
        return JournalOffset(self.at.offset + self.frame.span)
