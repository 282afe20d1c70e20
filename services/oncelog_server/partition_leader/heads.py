"""Heads of fetched batches: what readers are told of frames, and of blocks. PURE."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

from oncelog_server.core.block import Block, Units
from oncelog_server.core.frame import OCCUPY_RECORDS, ControlCode, Frame, FrameKind, StoredFrame
from oncelog_server.partition_leader import holes
from oncelog_server.partition_leader.commands import Resolution
from oncelog_server.partition_leader.records import parts_of, resolution_of
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2

Head = pb.FetchedBatch
_CONTROL_KINDS: Final = {
    ControlCode.COMMITTED: Head.KIND_COMMITTED,
    ControlCode.ABORTED: Head.KIND_ABORTED,
    ControlCode.DAMAGED: Head.KIND_DAMAGED,
}
_RESOLUTION_KINDS: Final = {
    Resolution.EXPOSE: Head.KIND_EXPOSED,
    Resolution.DROP: Head.KIND_DROPPED,
}


def of_data(
    stored: StoredFrame,
    first_offset: int,
    time_ms: int,
    *,
    kind: pb.FetchedBatch.Kind.ValueType = Head.KIND_DATA,
) -> Head:
    """Of a frame of records."""
    frame = stored.frame
    fields: dict[str, Any] = {}
    if frame.kind is FrameKind.DATA:
        # In a one-shot these two fields of the frame hold what its marker says.
        fields = {"writer": frame.writer, "base_sequence": frame.base_sequence}
    return Head(
        kind=kind,
        first_offset=first_offset,
        record_count=frame.record_count,
        encoding=frame.encoding,  # type: ignore[arg-type]
        crc32c=frame.client_crc,
        time_ms=time_ms,
        max_timestamp_us=frame.max_timestamp_us,
        tx_id=frame.tx_id,
        producer=types_pb2.Producer(producer_id=frame.producer_id, generation=frame.generation),
        journal_offset=stored.at.offset,
        **fields,
    )


def of_raw(stored: StoredFrame) -> Head:
    """Of any frame, as readers of RAW have it."""
    frame, at = stored
    if frame.kind in OCCUPY_RECORDS:
        kind = Head.KIND_ONE_SHOT if frame.kind is FrameKind.ONE_SHOT else Head.KIND_DATA
        return of_data(stored, at.offset, at.time_ms, kind=kind)
    head = Head(
        kind=_control_kind(frame),
        first_offset=at.offset,
        record_count=1,
        time_ms=at.time_ms,
        tx_id=frame.tx_id,
        producer=types_pb2.Producer(producer_id=frame.producer_id, generation=frame.generation),
        journal_offset=at.offset,
    )
    if frame.kind is FrameKind.MARKER:
        parts = parts_of(frame)
        head.marker_writers.extend(part.writer for part in parts)
        head.marker_counts.extend(part.record_count for part in parts)
    return head


def _control_kind(frame: Frame) -> pb.FetchedBatch.Kind.ValueType:
    if frame.kind is FrameKind.RECORD:
        resolution = resolution_of(frame)
        return Head.KIND_CONTROL if resolution is None else _RESOLUTION_KINDS[resolution]
    return _CONTROL_KINDS.get(frame.control, Head.KIND_CONTROL)


def of_block(block: Block, *, with_units: bool) -> Head:
    """Of what is settled, and has records. One unit is told as the frame was that it came from."""
    head = Head(
        kind=Head.KIND_DATA,
        first_offset=block.first_offset,
        record_count=block.record_count,
        encoding=block.encoding,  # type: ignore[arg-type]
        crc32c=block.client_crc,
        time_ms=block.time_ms,
        max_timestamp_us=block.max_timestamp_us,
    )
    if not block.is_dense:
        holes.tell(block.offsets, head)
    if block.unit_count == 1:
        units = block.units
        # The block's own is that of its last unit, which may have been compacted away.
        head.time_ms = units.time_ms[0]
        head.tx_id = units.tx_id[0]
        head.producer.producer_id = units.producer_id[0]
        head.producer.generation = units.generation[0]
        head.writer = units.writer[0]
        head.base_sequence = units.base_sequence[0]
        head.journal_offset = units.journal_offset[0]
    elif with_units:
        _tell(block.units, head.units)
    return head


def _tell(units: Units, told: pb.Units) -> None:
    """Their journal offsets differ, so one column at least has a value for each of them."""
    told.record_counts.extend(_short(units.record_count))
    told.tx_ids.extend(_short(units.tx_id))
    told.producer_ids.extend(_short(units.producer_id))
    told.generations.extend(_short(units.generation))
    told.writers.extend(_short(units.writer))
    told.base_sequences.extend(_short(units.base_sequence))
    told.journal_offsets.extend(units.journal_offset)
    told.times_ms.extend(_short(units.time_ms))


def _short(column: Sequence[int]) -> Sequence[int]:
    """One value where it holds for all, none where that is 0. Ten thousand units are told on the
    loop, and the ends of a column mostly tell at once that it is no such."""
    first = column[0]
    if first != column[-1] or column != _repeated(first, column):
        return column
    return (first,) if first else ()


def _repeated(value: int, column: Sequence[int]) -> Sequence[int]:
    """As long as a column, and of its type: comparing those is one call."""
    if isinstance(column, array):
        return array(column.typecode, (value,)) * len(column)
    return [value] * len(column)
