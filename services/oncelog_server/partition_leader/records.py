"""What a partition remembers, and the codec to frames. PURE.

A batch is remembered as the frame that it is stored as, so the hot path encodes nothing:

    DATA      the client's batch; tx_id 0 is a plain one
    ONE_SHOT  data and COMMITTED marker of a one-shot transaction, under one CRC
    MARKER    MarkerWritten: COMMITTED, ABORTED or DAMAGED
    RECORD    Resolved (a text), or Settings, LogStart, TimePassed, CompactionPoint (an array that
              begins with a tag)

Frames that bring a marker use two header fields that mean nothing else there:

    base_sequence   PREPARE offset; 0 in an abort that this partition decided on the coordinator's
    answer writer          the coordinator's leader epoch; 0 likewise

The payload of a MARKER lists the parts, 16 bytes each, in the order in which they are exposed:

    0        8              16
    ├────────┼───────────────┤
    │ writer │ record count  │   both unsigned, little-endian
    └────────┴───────────────┘
"""

from __future__ import annotations

import struct
from typing import Final, assert_never

import msgspec

from oncelog_server.core.frame import ControlCode, Frame, FrameKind
from oncelog_server.core.ids import (
    Generation,
    JournalOffset,
    LeaderEpoch,
    Offset,
    ProducerId,
    TxId,
    Writer,
)
from oncelog_server.participant.commands import WriterPart
from oncelog_server.partition_leader.commands import Resolution, Settings

_PART: Final = struct.Struct("<QQ")


class MarkerWritten(msgspec.Struct, frozen=True):
    """The end of a transaction at this partition."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    control: ControlCode
    # 0: decided here, on the coordinator's answer to a question.
    prepare_offset: JournalOffset = JournalOffset(0)
    coordinator_epoch: LeaderEpoch = LeaderEpoch(0)
    # COMMITTED: what it exposes. DAMAGED: what the manifest wanted.
    parts: tuple[WriterPart, ...] = ()


class Resolved(msgspec.Struct, frozen=True):
    """An operator ended a damaged part."""

    tx_id: TxId
    resolution: Resolution


class LogStart(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """Every committed record below was deleted: by retention, or by an operator."""

    offset: Offset


class TimePassed(msgspec.Struct, frozen=True, array_like=True, tag="time"):
    """So much time went by since the record before, although frames do not show it: the partition
    was quiet, or its clock stood. Measured by a clock that never jumps."""

    passed_ms: int
    # End of the committed log when it began to be measured: what was committed since may have come
    # at the end of that time, and counts so.
    since_offset: int


class CompactionPoint(msgspec.Struct, frozen=True, array_like=True, tag="compacted"):
    """Who decided it had removed what is superseded. From here on nobody serves it below the first
    offset, and tombstones below the second may go."""

    compacted_below: int
    # At most the other one.
    tombstones_below: int


Remembered = Settings | LogStart | TimePassed | CompactionPoint
Record = Frame | MarkerWritten | Resolved | Remembered

_SAID: Final[msgspec.msgpack.Decoder[Resolution | Remembered]] = msgspec.msgpack.Decoder(
    Resolution | Remembered
)


class PartitionCodec:
    """`decode(encode(record)) == record`, and the other way round."""

    def encode(self, record: Record) -> Frame:
        if isinstance(record, Frame):
            return record
        if isinstance(record, MarkerWritten):
            return Frame(
                FrameKind.MARKER,
                b"".join(_PART.pack(*part) for part in record.parts),
                producer_id=record.producer_id,
                generation=record.generation,
                writer=record.coordinator_epoch,
                base_sequence=record.prepare_offset,
                tx_id=record.tx_id,
                control=record.control,
            )
        if isinstance(record, Resolved):
            payload = msgspec.msgpack.encode(record.resolution)
            return Frame(FrameKind.RECORD, payload, tx_id=record.tx_id)
        if isinstance(record, Remembered):
            return Frame(FrameKind.RECORD, msgspec.msgpack.encode(record))
        assert_never(record)

    def decode(self, frame: Frame) -> Record:
        """Raises ValueError for a payload of another format."""
        if frame.kind is FrameKind.DATA or frame.kind is FrameKind.ONE_SHOT:
            return frame
        if frame.kind is FrameKind.MARKER:
            return MarkerWritten(
                TxId(frame.tx_id),
                ProducerId(frame.producer_id),
                Generation(frame.generation),
                ControlCode(frame.control),
                prepare_offset=JournalOffset(frame.base_sequence),
                coordinator_epoch=LeaderEpoch(frame.writer),
                parts=parts_of(frame),
            )
        if frame.kind is FrameKind.RECORD:
            said = _SAID.decode(frame.payload)
            return Resolved(TxId(frame.tx_id), said) if isinstance(said, Resolution) else said
        raise ValueError(f"a {FrameKind(frame.kind).name} frame is no record of a partition")


def parts_of(frame: Frame) -> tuple[WriterPart, ...]:
    """What a MARKER frame lists. Raises ValueError where its payload is not made of whole parts."""
    if len(frame.payload) % _PART.size:
        raise ValueError(f"a marker of {len(frame.payload)} bytes is not made of whole parts")
    return tuple(
        WriterPart(Writer(writer), count) for writer, count in _PART.iter_unpack(frame.payload)
    )


def resolution_of(frame: Frame) -> Resolution | None:
    """What a RECORD frame says of a damaged part; None: it is about something else. Raises
    ValueError for a payload of another format."""
    said = _SAID.decode(frame.payload)
    return said if isinstance(said, Resolution) else None


def one_shot(
    batch: Frame, *, prepare_offset: JournalOffset, coordinator_epoch: LeaderEpoch
) -> Frame:
    """The one frame of a one-shot transaction. `batch` holds the records and their header."""
    return batch._replace(
        kind=FrameKind.ONE_SHOT,
        base_sequence=prepare_offset,
        writer=coordinator_epoch,
    )
