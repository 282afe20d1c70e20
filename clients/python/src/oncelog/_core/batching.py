"""From records to batches: what `send` fills, and how it is sealed.

`send` extends one flat list per topic by four entries a record,

    [value, key, extra, partition,  value, key, extra, partition,  ...]

and sealing takes the columns out by `items[0::4]`, `[1::4]`, `[2::4]`, `[3::4]`. A tuple per record
would be tracked by the garbage collector and costs three times as much (measured: 282 against
890 ns a record); `extend` of a temporary leaves nothing to track. `list.extend` and `del items[:n]`
are atomic under the GIL, so several threads may send without a lock, and only sealing takes one: a
free-threaded Python needs another way.

Invariants:
- records of one topic are sealed in the order in which they were sent, none is lost or repeated;
- a sealed batch is of one partition, holds 1 or more records and at most `batch_bytes`, but for a
  single record that is larger;
- the records of a chunk that name neither key nor partition go to one, the sticky partition.

Left out: who sends the batches, and sequence numbers (`sequencing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncelog._core.partitioners import KeyHash, assign
from oncelogpb import errors, records

# Entries of the flat list per record.
COLUMNS: Final = 4
# What a record costs beside its key and value, bytes: for the accounting of memory and batch sizes.
RECORD_OVERHEAD_BYTES: Final = 16
# The largest record (key and value): the batch around it must stay below `max_batch_bytes`, 16 MiB.
RECORD_BYTES_MAX: Final = 15 * 1024 * 1024
# Size at which a batch is sealed: larger messages gain nothing (perf_facts "Bulk").
BATCH_BYTES: Final = 1024 * 1024

assert records.DEFAULT_LIMITS.max_batch_bytes > RECORD_BYTES_MAX
assert BATCH_BYTES <= RECORD_BYTES_MAX

# What users may give as headers: pairs, or a mapping where no name repeats.
HeadersLike = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]


class Extra(NamedTuple):
    """The rare parts of a record: kept in one entry so that the common record stays four wide."""

    headers: tuple[tuple[str, bytes | None], ...] | None
    timestamp_us: int | None


class Sealed(NamedTuple):
    """A batch of one partition, encoded."""

    partition: int
    encoding: int
    record_count: int
    crc32c: int
    max_timestamp_us: int
    payload: bytes


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


class TopicBuffer:
    """What was sent to one topic and is not sealed yet. A slots object: `send` touches it for every
    record."""

    __slots__ = ("armed", "batch_bytes", "items", "room", "topic")

    def __init__(self, topic: str, batch_bytes: int) -> None:
        self.topic = topic
        self.items: list[Any] = []
        # Bytes until it is worth sealing. Several threads may lose an update: it is a hint.
        self.room = batch_bytes
        self.batch_bytes = batch_bytes
        # True where somebody is due to seal it (the linger timer).
        self.armed = False

    def take(self) -> tuple[list[Any], int]:
        """All records so far, in order, and about how many bytes they are; the buffer is empty of
        them. Under the sealing lock."""
        count = len(self.items)
        assert count % COLUMNS == 0, "extend adds a record at once"
        taken = self.items[:count]
        del self.items[:count]
        size = self.batch_bytes - self.room
        self.room = self.batch_bytes
        return taken, size


def check_bytes(name: str, value: object) -> bytes | None:
    """`value` as bytes or None. Raises InvalidArgument: PyArrow would take a str without a word."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise errors.InvalidArgument(
        f"{name} is {type(value).__name__}, not bytes: encode it first", field=name
    )


def make_extra(headers: HeadersLike | None, timestamp_us: int | None) -> Extra | None:
    """The rare parts, checked; None where there are none. Raises InvalidArgument."""
    if timestamp_us is not None and (
        not isinstance(timestamp_us, int) or not -(1 << 63) <= timestamp_us < 1 << 63
    ):
        raise errors.InvalidArgument(
            "timestamp_us is a whole number of microseconds since 1970", field="timestamp_us"
        )
    if not headers:
        return None if timestamp_us is None else Extra(None, timestamp_us)
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    checked = tuple((_header_name(name), check_bytes("a header", value)) for name, value in pairs)
    return Extra(checked, timestamp_us)


def refuse_size(size: int) -> None:
    """Raises TooLarge."""
    raise errors.TooLarge(
        f"a record of {size} bytes is above record_bytes_max = {RECORD_BYTES_MAX}",
        limit="record_bytes_max",
    )


def seal_records(items: list[Any], layout: Layout) -> list[Sealed]:
    """What `TopicBuffer.take` gave, as batches: those of one partition in order. Raises
    UnknownPartition for a chosen partition that the topic does not have."""
    values, keys, extras, chosen = (items[column::COLUMNS] for column in range(COLUMNS))
    count = len(values)
    times: int | list[int] = layout.now_us
    headers: list[Any] | None = None
    if extras.count(None) != count:
        times, headers = _spread(extras, layout.now_us)
    unchosen = chosen.count(None) == count
    if not unchosen:
        _check_chosen(chosen, layout)
    if layout.partitions == 1 or (unchosen and keys.count(None) == count):
        assert layout.sticky < layout.partitions, "the only partition is number 0"
        return list(_seal_columns(keys, values, times, headers, layout.sticky, layout))
    where = assign(
        keys,
        chosen,
        partitions=layout.partitions,
        sticky=layout.sticky,
        key_hash=layout.key_hash,
    )
    if (where == where[0]).all():
        return list(_seal_columns(keys, values, times, headers, int(where[0]), layout))
    if count < records.ROWS_BELOW:
        return _seal_few(keys, values, times, headers, where, layout)
    return list(_seal_split(records.make_batch(keys, values, times, headers), where, layout))


def seal_arrow(batch: pa.RecordBatch, layout: Layout) -> list[Sealed]:
    """A user's Arrow batch as batches. Columns: value, and any of key, timestamp, headers,
    partition. No Python work per record but for the hash of keys. Raises InvalidArgument,
    UnknownPartition, TooLarge."""
    chosen: pa.Array | None = None
    if "partition" in batch.schema.names:
        chosen = batch.column("partition")
        batch = batch.drop_columns(["partition"])
    batch = records.conform(batch, default_timestamp_us=layout.now_us)
    if batch.num_rows == 0:
        return []
    keyed = batch.column(0).null_count < batch.num_rows
    if chosen is None and (not keyed or layout.partitions == 1):
        return list(_seal_slices(batch, layout.sticky, layout))
    wanted = [None] * batch.num_rows if chosen is None else chosen.to_pylist()
    _check_chosen(wanted, layout)
    where = assign(
        batch.column(0).to_pylist(),
        wanted,
        partitions=layout.partitions,
        sticky=layout.sticky,
        key_hash=layout.key_hash,
    )
    return list(_seal_split(batch, where, layout))


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


def _seal_columns(
    keys: list[bytes | None],
    values: list[bytes | None],
    times: int | list[int],
    headers: list[Any] | None,
    partition: int,
    layout: Layout,
) -> Iterator[Sealed]:
    """Columns of one partition. A few small records become rows, which are smaller and quicker."""
    if len(values) >= records.ROWS_BELOW or not _fits(keys, values, layout.batch_bytes):
        batch = records.make_batch(keys, values, times, headers)
        yield from _seal_slices(batch, partition, layout)
        return
    rows = records.make_rows(keys, values, times, headers)
    latest = times if isinstance(times, int) else max(times)
    yield _sealed(partition, records.ROWS, len(values), latest, rows.SerializeToString())


def _fits(keys: list[bytes | None], values: list[bytes | None], batch_bytes: int) -> bool:
    return sum(map(len, filter(None, values))) + sum(map(len, filter(None, keys))) <= batch_bytes


def _seal_few(
    keys: list[bytes | None],
    values: list[bytes | None],
    times: int | list[int],
    headers: list[Any] | None,
    where: npt.NDArray[np.uint32],
    layout: Layout,
) -> list[Sealed]:
    """Fewer records than make an Arrow message worth while, of several partitions."""
    sealed: list[Sealed] = []
    for partition in np.unique(where):
        at = [int(index) for index in np.flatnonzero(where == partition)]
        sealed.extend(
            _seal_columns(
                [keys[index] for index in at],
                [values[index] for index in at],
                times if isinstance(times, int) else [times[index] for index in at],
                None if headers is None else [headers[index] for index in at],
                int(partition),
                layout,
            )
        )
    return sealed


def _seal_split(
    batch: pa.RecordBatch, where: npt.NDArray[np.uint32], layout: Layout
) -> Iterator[Sealed]:
    """One stable sort by partition, then slices: the order inside a partition is kept."""
    order = np.argsort(where, kind="stable")
    ordered = where[order]
    if ordered[0] != ordered[-1]:
        batch = batch.take(pa.array(order))
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    ends = np.r_[starts[1:], len(ordered)]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield from _seal_slices(batch.slice(start, end - start), int(ordered[start]), layout)


def _seal_slices(batch: pa.RecordBatch, partition: int, layout: Layout) -> Iterator[Sealed]:
    """One partition's records in pieces of at most batch_bytes, halved until they fit."""
    if batch.num_rows > 1 and batch.nbytes > layout.batch_bytes + layout.batch_bytes // 4:
        half = batch.num_rows // 2
        yield from _seal_slices(batch.slice(0, half), partition, layout)
        yield from _seal_slices(batch.slice(half), partition, layout)
        return
    if batch.num_rows < records.ROWS_BELOW:
        payload, encoding = records.arrow_to_rows(batch).SerializeToString(), records.ROWS
    else:
        payload = records.encode_arrow(batch, layout.compression).to_pybytes()
        encoding = records.ARROW_V1
    if len(payload) > records.DEFAULT_LIMITS.max_batch_bytes:
        raise errors.TooLarge(
            f"a record of {len(payload)} bytes is above max_batch_bytes", limit="max_batch_bytes"
        )
    yield _sealed(partition, encoding, batch.num_rows, records.max_timestamp(batch), payload)


def _sealed(partition: int, encoding: int, count: int, latest_us: int, payload: bytes) -> Sealed:
    return Sealed(partition, encoding, count, records.checksum(payload), latest_us, payload)


def _check_chosen(chosen: Sequence[int | None], layout: Layout) -> None:
    for partition in chosen:
        if partition is not None and not 0 <= partition < layout.partitions:
            raise errors.UnknownPartition(
                f"topic {layout.topic!r} has partitions 0 to {layout.partitions - 1}, "
                f"not {partition}",
                topic=layout.topic,
            )


def _header_name(name: object) -> str:
    if not isinstance(name, str):
        raise errors.InvalidArgument(
            f"the name of a header is {type(name).__name__}, not str", field="headers"
        )
    return name
