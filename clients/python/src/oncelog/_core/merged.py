"""Batches that a leader has merged from several: whose each of their records are, and when they
became readable. PURE.

A *unit* is what was one batch as it was sent. Neighbours of one transaction are one *run*: nobody
needs to know how it was cut into batches. Plain batches are runs of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from oncelog._core.units import Written
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2


class Run(NamedTuple):
    """Records of the payload, [start, start + record_count), that became readable at once."""

    written: Written
    start: int
    record_count: int


class Merged:
    """Of one payload."""

    __slots__ = ("_columns", "_counts")

    def __init__(self, units: partition_leader_pb2.Units, record_count: int) -> None:
        """Raises CorruptBatch where the units are not all of the batch."""
        counts = units.record_counts
        columns = units.tx_ids, units.producer_ids, units.generations, units.times_ms
        # Batches of one transaction may differ in their places alone, which nobody asks for here.
        places = units.writers, units.base_sequences, units.journal_offsets
        size = max(map(len, (counts, *places, *columns)))
        self._counts = _column(counts, size)
        if sum(self._counts) != record_count:
            raise errors.CorruptBatch(
                f"a batch of {record_count} records says that it was merged from "
                f"{sum(self._counts)}"
            )
        self._columns = tuple(_column(column, size) for column in columns)

    def runs(self, start: int, count: int) -> Iterator[Run]:
        """Of the records [start, start + count) of the payload, in order."""
        end = start + count
        at = 0
        begun: Run | None = None
        for records, *fields in zip(self._counts, *self._columns, strict=True):
            low, at = max(at, start), at + records
            high = min(at, end)
            if low >= high:
                continue
            written = Written(*fields)
            if begun is not None and written.tx_id and written.tx_id == begun.written.tx_id:
                begun = begun._replace(record_count=begun.record_count + high - low)
                continue
            if begun is not None:
                yield begun
            begun = Run(written, low, high - low)
        if begun is not None:
            yield begun


def moments(runs: Iterator[Run]) -> Iterator[Run]:
    """For who asks only what is whole, and when it became readable: the first and the last run as
    they are (what they belong to may go on before and behind), those between them as plain ones,
    where they became readable at the same time as one."""
    first = next(runs, None)
    if first is None:
        return
    yield first
    last = next(runs, None)
    between: Run | None = None
    for following in runs:
        assert last is not None, "something follows it"
        if between is not None and between.written.time_ms == last.written.time_ms:
            between = between._replace(record_count=between.record_count + last.record_count)
        else:
            if between is not None:
                yield between
            between = last._replace(written=Written(0, 0, 0, last.written.time_ms))
        last = following
    if between is not None:
        yield between
    if last is not None:
        yield last


def _column(values: Sequence[int], size: int) -> list[int]:
    """One value for each of so many units; one holds for all, none says 0."""
    if len(values) == size:
        return list(values)
    if len(values) > 1:
        raise errors.CorruptBatch(f"{len(values)} values are told of {size} units of a batch")
    return [values[0] if values else 0] * size
