"""PURE: which rows of a batch go to which partition of which topic.

Keys go where the Python client and librdkafka's `consistent` partitioner put them: CRC-32 modulo
the number of partitions. Rows without a key, and without a number in column `partition`, stay
together: one partition per batch, the next one for the next batch.

Invariants: rows of one partition keep their order; every row goes to exactly one place; no Python
work per record, but one CRC per distinct key of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from oncelog._core.partitioners import crc32_hashes

# Columns that become the record; the others say where it goes.
RECORD_COLUMNS: Final = ("key", "value", "timestamp", "headers")
# Those by which rows may go to several places; without any of them all go to one.
WHERE_COLUMNS: Final = ("key", "partition", "topic")


class RoutingError(ValueError):
    """A row that says no topic, an unknown one, or a partition that does not exist."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows for one partition, with the record's columns only."""

    topic: str
    partition: int
    rows: pa.RecordBatch


def says_nothing_of_where(batch: pa.RecordBatch) -> bool:
    """All rows go to one place: also where none of them has a key, as in a copy of such a topic."""
    return all(
        batch.column(name).null_count == batch.num_rows
        for name in WHERE_COLUMNS
        if name in batch.schema.names
    )


def route(
    batch: pa.RecordBatch,
    *,
    topic: str | None,
    partition_counts: Mapping[str, int],
    unkeyed: int,
) -> Iterator[Piece]:
    """Splits a DataFrame's batch. `topic` wins over the column; `unkeyed` (modulo the partitions)
    takes the rows without key. Raises RoutingError."""
    for name, rows in _by_topic(batch, topic):
        count = partition_counts.get(name)
        if count is None:
            raise RoutingError(f"unknown topic {name!r}")
        numbers = _partition_numbers(rows, name, count, unkeyed % count)
        records = rows.select([column for column in RECORD_COLUMNS if column in rows.schema.names])
        for number, part in _by_number(records, numbers):
            yield Piece(name, number, part)


def topics_of(batch: pa.RecordBatch, topic: str | None) -> list[str]:
    """The topics that a batch names. Raises RoutingError for a row without one."""
    if topic is not None:
        return [topic]
    column = batch.column("topic")
    if column.null_count:
        raise RoutingError("a row has no topic: column `topic` is null")
    return sorted(pc.unique(column).to_pylist())


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    names = topics_of(batch, topic)
    if len(names) == 1:
        yield names[0], batch
        return
    for name in names:
        yield name, batch.filter(pc.equal(batch.column("topic"), name))


def _partition_numbers(rows: pa.RecordBatch, topic: str, count: int, unkeyed: int) -> pa.Array:
    """The partition of each row, int32 without nulls."""
    by_key = pa.nulls(rows.num_rows, pa.int32())
    if "key" in rows.schema.names and count > 1:
        by_key = hash_keys(rows.column("key"), count)
    if "partition" in rows.schema.names:
        asked = rows.column("partition").cast(pa.int32())
        _require_known(asked, topic, count)
        by_key = pc.coalesce(asked, by_key)
    return pc.fill_null(by_key, pa.scalar(unkeyed, pa.int32()))


def hash_keys(keys: pa.Array, count: int) -> pa.Array:
    """CRC-32 of each key modulo `count`, int32; null for a null key."""
    encoded = pc.dictionary_encode(keys.cast(pa.binary()))
    targets = crc32_hashes(encoded.dictionary.to_pylist()) % count
    return pa.array(targets, pa.int32()).take(encoded.indices)


def _require_known(asked: pa.Array, topic: str, count: int) -> None:
    bounds = pc.min_max(asked).as_py()
    if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] < count:
        wrong = bounds["min"] if bounds["min"] < 0 else bounds["max"]
        raise RoutingError(
            f"topic {topic!r} has partitions 0 to {count - 1}, a row asks for {wrong}"
        )


def _by_number(rows: pa.RecordBatch, numbers: pa.Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows grouped by their number, in order within each (the sort is stable)."""
    bounds = pc.min_max(numbers).as_py()
    if rows.num_rows == 0:
        return
    if bounds["min"] == bounds["max"]:
        yield bounds["min"], rows
        return
    order = pc.sort_indices(numbers)
    runs = pc.run_end_encode(numbers.take(order))
    grouped = rows.take(order)
    start = 0
    for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield number, grouped.slice(start, end - start)
        start = end
