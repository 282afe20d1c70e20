"""From records to batches: how a chunk is sealed.

A chunk is a cell of `buffers`, or a user's Arrow data. Sealing makes *pieces* of it: batches of one
partition each, and records that are refused, alone: one bad record takes no other along.

Invariants:
- records of one topic are sealed in the order in which they were sent, none is lost or repeated:
  each is in one piece;
- a sealed batch is of one partition, holds 1 or more records and at most `batch_bytes`, but for a
  single record that is larger, and never more than the topic's `max.batch.bytes`;
- the records of a chunk that name neither key nor partition go to one, the sticky partition.

Left out: who sends the batches, and sequence numbers (`sequencing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncelog._core.buffers import BARE, KEYED, RECORD_BYTES_MAX, Cell, Extra
from oncelog._core.deliveries import Order
from oncelog._core.partitioners import KeyHash, assign
from oncelogpb import errors, records

# Size at which a batch is sealed: larger messages gain nothing.
BATCH_BYTES: Final = 1024 * 1024
# The topic's setting that bounds its batches.
MAX_BATCH_BYTES_CONFIG: Final = "max.batch.bytes"

assert BATCH_BYTES <= RECORD_BYTES_MAX


class Sealed(NamedTuple):
    """A batch of one partition, encoded."""

    partition: int
    encoding: int
    record_count: int
    crc32c: int
    max_timestamp_us: int
    payload: bytes
    # About how large it is once it is loaded: a compressed payload is smaller.
    loaded_bytes: int = 0


class Refused(NamedTuple):
    """One record that cannot go."""

    error: errors.OncelogError
    record_count: int = 1


Piece: TypeAlias = Sealed | Refused


class Pieces(NamedTuple):
    """What became of a chunk: its pieces, and which rows they hold, one after the other (None: all
    in their order)."""

    pieces: list[Piece]
    order: Order | None
    # Of each row, microseconds: one for all, or a column.
    times: Any

    def batches(self) -> list[Sealed]:
        """Without what was refused."""
        return [piece for piece in self.pieces if isinstance(piece, Sealed)]


class Layout(NamedTuple):
    """What sealing must know of the topic and the producer."""

    topic: str
    partitions: int
    # Where records without key and partition go, this time.
    sticky: int
    key_hash: KeyHash
    # For records that name no timestamp: the time of sealing.
    now_us: int
    batch_bytes: int
    compression: records.Compression
    # The largest payload that the topic takes.
    max_batch_bytes: int = records.DEFAULT_LIMITS.max_batch_bytes


class Columns(NamedTuple):
    """Records of a chunk, by column."""

    # None: nobody has one.
    keys: list[bytes | None] | None
    values: list[bytes | None]
    times: int | list[int]
    headers: list[Any] | None

    def part(self, rows: slice | Sequence[int]) -> Columns:
        def chosen(column: list[Any]) -> list[Any]:
            return column[rows] if isinstance(rows, slice) else [column[row] for row in rows]

        return Columns(
            None if self.keys is None else chosen(self.keys),
            chosen(self.values),
            self.times if isinstance(self.times, int) else chosen(self.times),
            None if self.headers is None else chosen(self.headers),
        )

    def batch(self) -> pa.RecordBatch:
        keys = pa.nulls(len(self.values), pa.binary()) if self.keys is None else self.keys
        return records.make_batch(keys, self.values, self.times, self.headers)

    def rows(self) -> bytes:
        keys = [None] * len(self.values) if self.keys is None else self.keys
        return records.make_rows(keys, self.values, self.times, self.headers).SerializeToString()

    def fit(self, size: int) -> bool:
        keys = 0 if self.keys is None else sum(map(len, filter(None, self.keys)))
        return sum(map(len, filter(None, self.values))) + keys <= size


def seal_cell(cell: Cell, layout: Layout) -> Pieces:
    """What was taken, as pieces: those of one partition in order."""
    values, times = cell.column(0), layout.now_us
    keys = None if cell.width == BARE else cell.column(1)
    if cell.width <= KEYED:
        return _timed(_seal(Columns(keys, values, times, None), None, layout), times)
    count = len(values)
    extras, chosen = cell.column(2), cell.column(3)
    if extras.count(None) == count:
        columns = Columns(keys, values, times, None)
    else:
        columns = Columns(keys, values, *_spread(extras, times))
    return _timed(_seal_chosen(columns, chosen, layout), columns.times)


def _seal_chosen(columns: Columns, chosen: list[int | None], layout: Layout) -> Pieces:
    """Refuses those who chose a partition that is not there."""
    count = len(chosen)
    if chosen.count(None) == count:
        return _seal(columns, None, layout)
    refused = _refuse_chosen(chosen, layout)
    if not refused:
        return _seal(columns, chosen, layout)
    kept = [row for row in range(count) if row not in refused]
    rows = np.array(kept, dtype=np.int64)
    good = _seal(columns.part(kept), [chosen[row] for row in kept], layout)
    return _with_refused(good, rows, refused)


def seal_arrow(batch: pa.RecordBatch, layout: Layout) -> Pieces:
    """A user's Arrow batch as pieces. Columns: value, and any of key, timestamp, headers,
    partition. No Python work per record but for the hash of keys. Raises InvalidArgument where
    the columns are not those, or of other types."""
    wanted: list[int | None] | None = None
    if "partition" in batch.schema.names:
        wanted = batch.column("partition").to_pylist()
        batch = batch.drop_columns(["partition"])
    batch = records.conform(batch, default_timestamp_us=layout.now_us)
    times = batch.column(2)
    refused = {} if wanted is None else _refuse_chosen(wanted, layout)
    rows = np.arange(0)
    if refused and wanted is not None:
        kept = [row for row in range(batch.num_rows) if row not in refused]
        rows = np.array(kept, dtype=np.int64)
        wanted = [wanted[row] for row in kept]
        batch = batch.take(pa.array(rows))
    good = _seal_batch(batch, wanted, layout) if batch.num_rows else Pieces([], None, None)
    return _timed(_with_refused(good, rows, refused) if refused else good, times)


def _timed(pieces: Pieces, times: Any) -> Pieces:
    return Pieces(pieces.pieces, pieces.order, times)


def max_batch_bytes_of(configs: Any) -> int:
    """The largest payload that a topic of these settings takes."""
    most = records.DEFAULT_LIMITS.max_batch_bytes
    chosen = configs.get(MAX_BATCH_BYTES_CONFIG, "")
    return min(most, int(chosen)) if chosen.isdigit() else most


def _refuse_chosen(chosen: Sequence[int | None], layout: Layout) -> dict[int, Refused]:
    """By row: those who chose a partition that the topic does not have."""
    return {
        row: Refused(
            errors.UnknownPartition(
                f"topic {layout.topic!r} has partitions 0 to {layout.partitions - 1}, "
                f"not {partition}",
                topic=layout.topic,
            )
        )
        for row, partition in enumerate(chosen)
        if partition is not None and not 0 <= partition < layout.partitions
    }


def _with_refused(good: Pieces, rows: Order, refused: dict[int, Refused]) -> Pieces:
    """The pieces of the rows that were kept, and those that were not behind them."""
    order = rows if good.order is None else rows[good.order]
    bad = np.array(list(refused), dtype=np.int64)
    return Pieces([*good.pieces, *refused.values()], np.concatenate([order, bad]), None)


def _seal(columns: Columns, chosen: Sequence[int | None] | None, layout: Layout) -> Pieces:
    """Records whose partitions are there. What cannot be encoded is looked for by halves: the rest
    goes."""
    count = len(columns.values)
    if not count:
        return Pieces([], None, None)
    try:
        return _seal_columns(columns, chosen, layout)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if count == 1:
            why = errors.InvalidArgument(f"the record cannot be encoded: {error}")
            return Pieces([Refused(why)], None, None)
    half = count // 2
    halves = [
        _seal(columns.part(part), None if chosen is None else chosen[part], layout)
        for part in (slice(0, half), slice(half, count))
    ]
    order = [
        np.arange(size) if pieces.order is None else pieces.order
        for pieces, size in zip(halves, (half, count - half), strict=True)
    ]
    joined = np.concatenate([order[0], order[1] + half])
    return Pieces([*halves[0].pieces, *halves[1].pieces], joined, None)


def _seal_columns(columns: Columns, chosen: Sequence[int | None] | None, layout: Layout) -> Pieces:
    count = len(columns.values)
    unkeyed = columns.keys is None or columns.keys.count(None) == count
    if layout.partitions == 1 or (chosen is None and unkeyed):
        assert layout.sticky < layout.partitions, "the only partition is number 0"
        return Pieces(list(_seal_one(columns, layout.sticky, layout)), None, None)
    few = count < records.ROWS_BELOW
    if few and chosen is not None and (unkeyed or chosen.count(None) == 0):
        where = [layout.sticky if partition is None else partition for partition in chosen]
        return _seal_few(columns, where, layout)
    assigned = assign(
        [None] * count if columns.keys is None else columns.keys,
        [None] * count if chosen is None else chosen,
        partitions=layout.partitions,
        sticky=layout.sticky,
        key_hash=layout.key_hash,
    )
    if few:
        return _seal_few(columns, assigned.tolist(), layout)
    if (assigned == assigned[0]).all():
        return Pieces(list(_seal_one(columns, int(assigned[0]), layout)), None, None)
    return _seal_split(columns.batch(), assigned, layout)


def _seal_batch(
    batch: pa.RecordBatch, wanted: Sequence[int | None] | None, layout: Layout
) -> Pieces:
    keyed = batch.column(0).null_count < batch.num_rows
    if wanted is None and (not keyed or layout.partitions == 1):
        return Pieces(list(seal_slices(batch, layout.sticky, layout)), None, None)
    where = assign(
        batch.column(0).to_pylist(),
        [None] * batch.num_rows if wanted is None else wanted,
        partitions=layout.partitions,
        sticky=layout.sticky,
        key_hash=layout.key_hash,
    )
    return _seal_split(batch, where, layout)


def _spread(
    extras: Sequence[Extra | None], now_us: int
) -> tuple[int | list[int], list[Any] | None]:
    """Columns of the rare parts: timestamps, and headers where there are any."""
    times = [
        now_us if extra is None or extra.timestamp_us is None else extra.timestamp_us
        for extra in extras
    ]
    headers = [None if extra is None else extra.headers for extra in extras]
    return times, None if headers.count(None) == len(headers) else headers


def _seal_one(columns: Columns, partition: int, layout: Layout) -> Iterator[Piece]:
    """Columns of one partition. A few small records become rows, which are smaller and quicker."""
    count, times = len(columns.values), columns.times
    if count < records.ROWS_BELOW and columns.fit(layout.batch_bytes):
        rows = columns.rows()
        if len(rows) <= layout.max_batch_bytes:
            latest = times if isinstance(times, int) else max(times)
            yield _sealed(partition, records.ROWS, count, latest, rows, len(rows))
            return
    latest_us = times if isinstance(times, int) else None
    yield from seal_slices(columns.batch(), partition, layout, latest_us)


def _seal_few(columns: Columns, where: Sequence[int], layout: Layout) -> Pieces:
    """Fewer records than make an Arrow message worth while; the partition of each. Without numpy,
    which takes longer over so few."""
    rows_of: dict[int, list[int]] = {}
    for row, partition in enumerate(where):
        rows_of.setdefault(partition, []).append(row)
    if len(rows_of) == 1:
        return Pieces(list(_seal_one(columns, where[0], layout)), None, None)
    pieces: list[Piece] = []
    order: list[int] = []
    for partition, rows in sorted(rows_of.items()):
        pieces.extend(_seal_one(columns.part(rows), partition, layout))
        order.extend(rows)
    return Pieces(pieces, np.array(order, dtype=np.int64), None)


def _seal_split(batch: pa.RecordBatch, where: npt.NDArray[np.uint32], layout: Layout) -> Pieces:
    """One stable sort by partition, then slices: the order inside a partition is kept."""
    order = np.argsort(where, kind="stable")
    ordered = where[order]
    if ordered[0] != ordered[-1]:
        batch = batch.take(pa.array(order))
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    ends = np.r_[starts[1:], len(ordered)]
    pieces: list[Piece] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        part = batch.slice(start, end - start)
        pieces.extend(seal_slices(part, int(ordered[start]), layout))
    return Pieces(pieces, order, None)


def seal_slices(
    batch: pa.RecordBatch, partition: int, layout: Layout, latest_us: int | None = None
) -> Iterator[Piece]:
    """One partition's records in pieces of at most batch_bytes, halved until they fit. `latest_us`:
    the timestamp of all, where they have one: Arrow takes a while to find it, and lets go of the
    interpreter meanwhile."""
    loaded = batch.nbytes
    if batch.num_rows == 1 or loaded <= layout.batch_bytes + layout.batch_bytes // 4:
        if batch.num_rows < records.ROWS_BELOW:
            payload, encoding = records.arrow_to_rows(batch).SerializeToString(), records.ROWS
        else:
            payload = records.encode_arrow(batch, layout.compression).to_pybytes()
            encoding = records.ARROW_V1
        if len(payload) <= layout.max_batch_bytes:
            latest = records.max_timestamp(batch) if latest_us is None else latest_us
            yield _sealed(partition, encoding, batch.num_rows, latest, payload, loaded)
            return
        if batch.num_rows == 1:
            yield Refused(_too_large(len(payload), layout))
            return
    half = batch.num_rows // 2
    yield from seal_slices(batch.slice(0, half), partition, layout, latest_us)
    yield from seal_slices(batch.slice(half), partition, layout, latest_us)


def _too_large(size: int, layout: Layout) -> errors.TooLarge:
    return errors.TooLarge(
        f"a record of {size} bytes is above {MAX_BATCH_BYTES_CONFIG} = {layout.max_batch_bytes} "
        f"of topic {layout.topic!r}",
        limit=MAX_BATCH_BYTES_CONFIG,
        maximum=layout.max_batch_bytes,
    )


def _sealed(
    partition: int, encoding: int, count: int, latest_us: int, payload: bytes, loaded: int
) -> Sealed:
    crc = records.checksum(payload)
    return Sealed(partition, encoding, count, crc, latest_us, payload, loaded)
