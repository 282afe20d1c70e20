"""What one task attempt writes: its rows, under a writer number of its own.

Rows are collected up to a size, split by partition, and handed to the client's writer, which
delivers them in order while the next ones are being collected. Where no row says where it goes,
there is nothing to split: the rows of a message are enough then, and a large batch of Spark goes as
it is. A batch that a leader refuses fails the task.

Invariants: sequences count from 0 per partition of this writer; what `finish` reports stands in the
journals, durable; nothing of it is visible before the driver names this writer in the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from oncelog._core.batching import BATCH_BYTES
from oncelog.writer import Writer
from oncelog_spark.batch_transaction import Entered, TransactionLost
from oncelog_spark.manifest import PartCount
from oncelog_spark.routing import route, says_nothing_of_where, topics_of
from oncelog_spark.schema import joined
from oncelogpb import errors

if TYPE_CHECKING:
    from oncelog.protocol import Protocol

# Rows are collected up to this size, then split by partition.
COLLECT_BYTES: Final = 4 * 1024 * 1024


class TaskProducer:
    """Sends one attempt's rows. Use as a context manager; `finish` at the end."""

    def __init__(
        self, protocol: Protocol, entered: Entered, *, writer: int, topic: str | None, unkeyed: int
    ) -> None:
        self._topic = topic
        # Takes the rows without key; moves on with every split.
        self._unkeyed = unkeyed
        self._collected: list[pa.RecordBatch] = []
        self._collected_bytes = 0
        self._writer = Writer(
            protocol, tx_id=entered.tx_id, producer=entered.producer, writer=writer
        )

    def __enter__(self) -> TaskProducer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._writer.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes a DataFrame's batch. Raises what went wrong so far."""
        if batch.num_rows == 0:
            return
        self._collected.append(batch)
        self._collected_bytes += batch.nbytes
        goes_together = says_nothing_of_where(batch)
        if self._collected_bytes >= (BATCH_BYTES if goes_together else COLLECT_BYTES):
            self._send_collected()

    def finish(self) -> tuple[PartCount, ...]:
        """Sends the rest, waits until all of it is durable, and says what stands where."""
        if self._collected:
            self._send_collected()
        with _lost():
            parts = self._writer.finish()
        counts = (PartCount(*part.partition, part.record_count) for part in parts)
        return tuple(sorted(counts))

    def _send_collected(self) -> None:
        rows = joined(self._collected)
        self._collected, self._collected_bytes = [], 0
        counts = {
            name: len(self._writer.topic(name).partitions) for name in topics_of(rows, self._topic)
        }
        with _lost():
            for piece in route(
                rows, topic=self._topic, partition_counts=counts, unkeyed=self._unkeyed
            ):
                self._writer.send(piece.topic, piece.partition, piece.rows)
        self._unkeyed += 1


@contextmanager
def _lost() -> Iterator[None]:
    """Says of a transaction that has ended what that means here."""
    try:
        yield
    except errors.TransactionEnded as error:
        raise TransactionLost(
            f"the batch's transaction ended while a task was writing ({error}): it was idle "
            "for too long, aborted by an operator, or a later run took over"
        ) from error
