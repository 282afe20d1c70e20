"""One range of a partition's committed log, as Arrow batches.

The next fetch is under way while Spark takes the rows of the last. Batches of the log are not cut
by the server: what lies outside of the range is sliced off here. Small batches of one fetch are
joined, so that a topic of many small transactions does not become many small batches in Spark.

In a compacted topic a range has fewer records than offsets: those that were taken out are no loss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from oncelog._core import holes
from oncelog_spark.schema import joined
from oncelog_spark.subscription import raise_for
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2 as leader_pb
from oncelogpb.v1 import types_pb2 as pb

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

log = logging.getLogger(__name__)

# Of each fetch. Large enough for bulk, small enough that a few tasks fit beside the JVM.
FETCH_BYTES: Final = 4 * 1024 * 1024
# The range is committed, so data come at once; while a leader is away, nothing does.
FETCH_WAIT_MS: Final = 1_000
FETCH_TIMEOUT_MS: Final = 60_000
# Fetches in a row that bring nothing, before the read gives up.
EMPTY_FETCHES_MAX: Final = 60


class DataLoss(RuntimeError):
    """Records that a query should read are not there (any more)."""


class Chunk(NamedTuple):
    """Records with the offset of each, ascending, as batch of `records.SCHEMA_V1`."""

    offsets: pa.Int64Array
    rows: pa.RecordBatch


def read_range(
    protocol: Protocol,
    partition: pb.Partition,
    start: int,
    end: int,
    *,
    name: str,
    fail_on_data_loss: bool,
) -> Iterator[Chunk]:
    """The records at offsets [start, end) of the partition that users call `name`. Raises DataLoss,
    or an OncelogError."""
    ahead = ThreadPoolExecutor(max_workers=1, thread_name_prefix="oncelog-fetch")
    try:
        position, empty = start, 0
        under_way = ahead.submit(_fetch, protocol, partition, position)
        while position < end:
            fetched = under_way.result()
            begins = _begins_behind(fetched, position)
            if begins is not None:
                lost = f"{name}: offsets {position} to {min(begins, end) - 1} are deleted"
                if fail_on_data_loss:
                    raise DataLoss(
                        f"what this task should read is not there: {lost}, it begins at {begins}. "
                        "With failOnDataLoss=false the query goes on with what is there"
                    )
                log.warning("goes on with what is there (failOnDataLoss=false): %s", lost)
                position = begins
                under_way = ahead.submit(_fetch, protocol, partition, position)
                continue
            following = _end_of(fetched, position)
            empty = empty + 1 if following == position else 0
            if empty >= EMPTY_FETCHES_MAX:
                raise DataLoss(f"nothing can be read at offset {position}, though {end} is the end")
            if following < end:
                under_way = ahead.submit(_fetch, protocol, partition, following)
            yield from _chunks(fetched, position, min(following, end))
            position = following
    finally:
        # Also reached when Spark has enough of this range (LIMIT, cancelled job).
        ahead.shutdown(wait=False, cancel_futures=True)


def _fetch(protocol: Protocol, partition: pb.Partition, offset: int) -> leader_pb.FetchedPartition:
    request = leader_pb.FetchRequest(
        partitions=[
            leader_pb.FetchPartition(partition=partition, offset=offset, max_bytes=FETCH_BYTES)
        ],
        isolation=leader_pb.ISOLATION_COMMITTED,
        max_wait_ms=FETCH_WAIT_MS,
        with_offsets=True,
    )
    reply = protocol.call("partition_leader.fetch", request, timeout_ms=FETCH_TIMEOUT_MS)
    fetched: leader_pb.FetchedPartition = reply.partitions[0]
    return fetched


def _begins_behind(fetched: leader_pb.FetchedPartition, position: int) -> int | None:
    """Where the log begins now, where that is behind the position; None: it can be read there.
    Raises DataLoss where the log ends before it."""
    try:
        raise_for(fetched)
    except errors.OffsetOutOfRange as error:
        log_start = max(fetched.start_offset, int(error.metadata.get("start", 0)))
        if log_start <= position:
            raise DataLoss(f"offset {position} cannot be read: {error}") from error
        return log_start
    return None


def _end_of(fetched: leader_pb.FetchedPartition, position: int) -> int:
    if not fetched.batches:
        return position
    last = fetched.batches[-1]
    return holes.next_offset(last.first_offset, last.record_count, holes.offsets_of(last))


def _chunks(fetched: leader_pb.FetchedPartition, start: int, end: int) -> Iterator[Chunk]:
    """The records at offsets [start, end) of a fetch, joined."""
    parts: list[pa.RecordBatch] = []
    offsets: list[pa.Int64Array] = []
    for batch in fetched.batches:
        before, chosen = holes.within(batch, start, end)
        if len(chosen):
            rows = records.decode(batch.encoding, batch.payload)
            parts.append(rows.slice(before, len(chosen)))
            offsets.append(pa.array(chosen))
    if parts:
        yield Chunk(pa.concat_arrays(offsets), joined(parts))
