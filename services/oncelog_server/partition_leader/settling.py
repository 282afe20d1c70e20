"""How the committed log of a partition is settled: where its records lie, as of a snapshot, and the
frames found there merged into blocks (core/settling.Settler). PURE.

A block holds neighbours up to BLOCK_BYTES, as they are once loaded. What is large by itself is a
block by itself, with its payload as it was sent. What is merged is compressed as most of it was.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, compress, pairwise
from typing import Final, NamedTuple, cast

import msgspec

from oncelog_server.core.block import NO_TIMESTAMP_US, Block, Units, block_of
from oncelog_server.core.cleaning import Keyed
from oncelog_server.core.frame import FrameKind, StoredFrame
from oncelog_server.core.machine import Settled
from oncelog_server.core.settling import BLOCK_BYTES, LARGE_UNIT_BYTES, RUN, Stretch, Weight
from oncelog_server.partition_leader.committed_log import (
    COMMITTED_TABLE,
    ROW,
    ROW_BYTES,
    DumpedLog,
)
from oncelog_server.partition_leader.topic_configs import settings_of
from oncelogpb import arrow_message, records
from oncelogpb.arrow_message import Malformed
from oncelogpb.errors import CorruptBatch
from oncelogpb.records import ARROW_V1, ROWS, Compression

_ROW: Final = struct.Struct(f"<{len(ROW)}q")
_CODECS: Final = {
    None: Compression.NONE,
    arrow_message.LZ4_FRAME: Compression.LZ4,
    arrow_message.ZSTD: Compression.ZSTD,
}
# What an Arrow message has beside its records: its head, and the least of its 17 buffers.
ARROW_HEAD_BYTES: Final = 512

assert _ROW.size == ROW_BYTES


class _DumpedHead(msgspec.Struct, frozen=True, array_like=True):
    """How the state of a snapshot begins (`machine.DumpedMachine`): all that is needed here."""

    next_offset: int
    next_sweep_ms: int
    committed: DumpedLog


_DECODER: Final = msgspec.msgpack.Decoder(_DumpedHead)


class PartitionSettler:
    """See the module."""

    table = COMMITTED_TABLE

    def asked(self, configs: Mapping[str, str]) -> Settled:
        settings = settings_of(0, configs)
        return Settled(
            wanted=settings.is_settled,
            auto=settings.is_auto,
            short_lived=settings.is_short_lived,
        )

    def weigh(self, rows: Iterable[bytes]) -> Iterator[Weight]:
        for piece in rows:
            table, columns = memoryview(piece).cast("q"), len(ROW)
            base, relative, _, exposed_at, payload_bytes = (table[n::columns] for n in range(5))
            # A run says how many frames it has behind its first one.
            in_runs = sum(compress(relative, map(RUN.__eq__, exposed_at)))
            batches = len(base) + in_runs
            yield Weight(base[0] + relative[0], batches, sum(payload_bytes))

    def row_offset(self, row: bytes) -> int:
        base, relative = _ROW.unpack(row)[:2]
        return int(base + relative)

    def stretches(self, state: bytes, rows: Iterable[bytes], from_offset: int) -> Iterator[Stretch]:
        log = _DECODER.decode(state).committed
        if log.last_row is None or from_offset >= log.end_offset:
            return
        behind = (log.end_offset, *[0] * (len(ROW) - 1))
        entries = chain(_entries(rows, from_offset, _first(log.last_row)), (log.last_row, behind))
        for row, following in pairwise(entries):
            end = _first(following)
            if end > from_offset:
                yield _stretch(row, end, from_offset)

    def blocks(self, frames: Iterable[tuple[Stretch, StoredFrame]]) -> Iterator[Block]:
        return map(_merged, _groups(_piece(stretch, stored) for stretch, stored in frames))

    def split(self, block: Block) -> Sequence[Block]:
        if block.unit_count <= 1:
            return [block]
        return [_merged([piece]) for piece in _pieces(block)]

    def joined(self, blocks: Sequence[Block]) -> Block:
        return _merged([_whole(block) for block in blocks])

    def tail(self, block: Block, from_offset: int) -> Block | None:
        stay = range(bisect_left(block.offsets, from_offset), block.record_count)
        if not _parts_at(block.units.record_count, stay.start):
            return None
        return _merged([_thinned(block, stay)._replace(first_offset=from_offset)])

    def keyed(self, block: Block) -> Keyed:
        if not block.record_count:
            return Keyed((), ())
        # Imported here: it loads PyArrow.
        from oncelog_server.partition_leader import merging

        return merging.keyed(_payload(block.encoding, block.payload))

    def thinned(self, blocks: Iterable[tuple[Block, Sequence[int] | None]]) -> Iterator[Block]:
        pieces = (_whole(it) if stay is None else _thinned(it, stay) for it, stay in blocks)
        return map(_merged, _groups(pieces))


# -------------------------------------------------------------------------------------- rows


def _first(row: Sequence[int]) -> int:
    return row[0] + row[1]


def _entries(rows: Iterable[bytes], from_offset: int, below: int) -> Iterator[tuple[int, ...]]:
    """Rows from the one that holds an offset on, as far as they begin below `below`."""
    for piece in rows:
        table = memoryview(piece).cast("q")
        columns = len(ROW)
        first = bisect_right(
            range(len(table) // columns),
            from_offset,
            key=lambda row: table[row * columns] + table[row * columns + 1],
        )
        for row in _ROW.iter_unpack(memoryview(piece)[max(first - 1, 0) * ROW_BYTES :]):
            if _first(row) >= below:
                return
            yield row


def _stretch(row: Sequence[int], end: int, from_offset: int) -> Stretch:
    entry = dict(zip(ROW, row, strict=True))
    first, journal_offset, size = _first(row), entry["journal"], entry["payload_bytes"]
    if entry["exposed_at"] != RUN:
        time_ms, exposed_at = entry["time_ms"], entry["exposed_at"]
        return Stretch(first, journal_offset, end - first, time_ms, exposed_at, size)
    skipped = max(from_offset - first, 0)
    return Stretch(first + skipped, journal_offset + skipped, end - first - skipped, RUN, RUN, size)


# ------------------------------------------------------------------------------------- pieces


class Payload(NamedTuple):
    """Records in an encoding."""

    encoding: int
    content: bytes | memoryview
    compression: Compression
    # How much of a block it fills: what is compressed counts as it is once loaded, for readers load
    # a block as a whole.
    loaded_bytes: int


_NOTHING: Final = Payload(ROWS, b"", Compression.NONE, 0)
_NO_UNITS: Final = Units(*[()] * len(Units._fields))


def _payload(encoding: int, content: bytes | memoryview) -> Payload:
    """Raises CorruptBatch."""
    if encoding != ARROW_V1:
        return Payload(encoding, content, Compression.NONE, len(content))
    message = memoryview(content)
    try:
        codec = arrow_message.codec_of(message)
        if codec is None:
            # A message of one record is far larger than what it adds to another one.
            loaded_bytes = max(len(content) - ARROW_HEAD_BYTES, 0)
        else:
            head = arrow_message.read_head(message)
            loaded_bytes = arrow_message.decompressed_bytes(message, head)
    except Malformed as error:
        raise CorruptBatch(f"not an Arrow RecordBatch message: {error}") from None
    return Payload(encoding, content, _CODECS[codec], loaded_bytes)


# Fields of a row of `Units`.
_Unit = tuple[int, ...]


class _Piece(NamedTuple):
    """Records of neighbouring units, on their way into a block."""

    first_offset: int
    end_offset: int
    units: Sequence[_Unit]
    exposed_below: int
    max_timestamp_us: int
    # When the last unit became visible, which may be gone.
    time_ms: int
    client_crc: int
    payload: Payload
    # Of each record.
    offsets: Sequence[int]


def _piece(stretch: Stretch, stored: StoredFrame) -> _Piece:
    """One frame of a stretch."""
    frame, at = stored
    # In a one-shot these two fields of the frame hold what its marker says.
    is_data = frame.kind is FrameKind.DATA
    unit = (
        frame.record_count,
        frame.tx_id,
        frame.producer_id,
        frame.generation,
        frame.writer if is_data else 0,
        frame.base_sequence if is_data else 0,
        at.offset,
        at.time_ms if stretch.is_run else stretch.time_ms,
    )
    first_offset = stretch.first_offset + at.offset - stretch.journal_offset
    end_offset = first_offset + frame.record_count
    return _Piece(
        first_offset,
        end_offset,
        (unit,),
        at.offset + frame.record_count if stretch.is_run else stretch.exposed_at + 1,
        frame.max_timestamp_us,
        unit[-1],
        frame.client_crc,
        _payload(frame.encoding, frame.payload),
        range(first_offset, end_offset),
    )


def _whole(block: Block) -> _Piece:
    return _Piece(
        block.first_offset,
        block.end_offset,
        list(zip(*block.units, strict=True)),
        block.exposed_below,
        block.max_timestamp_us,
        block.time_ms,
        block.client_crc,
        _payload(block.encoding, block.payload),
        block.offsets,
    )


def _parts_at(counts: Sequence[int], number: int) -> bool:
    """The record of that number is the first one of a unit, or behind the last one."""
    return number in accumulate(counts, initial=0)


def _thinned(block: Block, stay: Sequence[int]) -> _Piece:
    """The records of these numbers, and the units that have any of them."""
    # Imported here: it loads PyArrow.
    from oncelog_server.partition_leader import merging

    whole, old_offsets = _whole(block), block.offsets
    ends = list(accumulate(block.units.record_count))
    left = Counter(bisect_right(ends, number) for number in stay)
    # A unit's first field says how many records it has.
    units = [(left[number], *whole.units[number][1:]) for number in sorted(left)]
    content = merging.taken(whole.payload, stay) if stay else b""
    return whole._replace(
        units=units,
        max_timestamp_us=records.max_timestamp_of(block.encoding, content)
        if stay
        else NO_TIMESTAMP_US,
        client_crc=records.checksum(content),
        payload=_payload(block.encoding, content) if stay else _NOTHING,
        offsets=[old_offsets[number] for number in stay],
    )


def _pieces(block: Block) -> Iterator[_Piece]:
    """A block's units, each by itself. What became readable when is known of all of it only."""
    # Imported here: it loads PyArrow.
    from oncelog_server.partition_leader import merging

    whole = _whole(block)
    counts, offsets = block.units.record_count, block.offsets
    begins = list(accumulate(counts, initial=0))
    # Where offsets are missing between two units, nobody can tell whose they were.
    firsts = [block.first_offset, *(offsets[it] for it in begins[1:-1]), block.end_offset]
    for number, part in enumerate(merging.pieces(whole.payload, counts)):
        yield _Piece(
            firsts[number],
            firsts[number + 1],
            (whole.units[number],),
            block.exposed_below,
            records.max_timestamp_of(block.encoding, part),
            block.units.time_ms[number],
            records.checksum(part),
            _payload(block.encoding, part),
            offsets[begins[number] : begins[number + 1]],
        )


# ------------------------------------------------------------------------------------- merging


def _groups(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """What becomes one block each."""
    group: list[_Piece] = []
    size = 0
    for piece in pieces:
        loaded = piece.payload.loaded_bytes
        is_large = len(piece.payload.content) >= LARGE_UNIT_BYTES or loaded >= BLOCK_BYTES
        is_next = not group or group[-1].end_offset == piece.first_offset
        if group and (is_large or not is_next or size + loaded > BLOCK_BYTES):
            yield group
            group, size = [], 0
        group.append(piece)
        size += loaded
        if is_large:
            yield group
            group, size = [], 0
    if group:
        yield group


def _merged(pieces: Sequence[_Piece]) -> Block:
    first_offset, last = pieces[0].first_offset, pieces[-1]
    # Of those that cover offsets only nothing is left to be merged.
    full = [piece for piece in pieces if piece.units]
    record_count = sum(len(piece.offsets) for piece in full)
    is_dense = record_count == last.end_offset - first_offset
    encoding, content, client_crc = int(ROWS), cast("bytes | memoryview", b""), 0
    if len(full) == 1:
        payload = full[0].payload
        encoding, content, client_crc = payload.encoding, payload.content, full[0].client_crc
    elif full:
        encoding, content = _merged_payload(full, record_count)
        client_crc = records.checksum(content)
    rows = list(chain.from_iterable(piece.units for piece in full))
    return block_of(
        Units(*zip(*rows, strict=True)) if rows else _NO_UNITS,
        content,
        first_offset=first_offset,
        end_offset=last.end_offset,
        offsets=() if is_dense else list(chain.from_iterable(it.offsets for it in full)),
        exposed_below=last.exposed_below,
        max_timestamp_us=max((it.max_timestamp_us for it in full), default=NO_TIMESTAMP_US),
        time_ms=last.time_ms,
        encoding=encoding,
        client_crc=client_crc,
    )


def _merged_payload(pieces: Sequence[_Piece], record_count: int) -> tuple[int, bytes | memoryview]:
    # Imported here: it loads PyArrow.
    from oncelog_server.partition_leader import merging

    sizes: dict[Compression, int] = {}
    for piece in pieces:
        codec = piece.payload.compression
        sizes[codec] = sizes.get(codec, 0) + piece.payload.loaded_bytes
    parts = [piece.payload for piece in pieces]
    return merging.merge(parts, record_count, max(sizes, key=sizes.__getitem__))
