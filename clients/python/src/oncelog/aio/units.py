"""Whole transactions, one after the other: what `Consumer.transactions` gives.

    async for transaction in consumer.transactions():
        for batch in transaction:
            ...

The consumer's positions are behind a transaction from the moment that it is given: a commit covers
it, an abort brings it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from oncelog._core import holes
from oncelog._core.pending import HeldBatch
from oncelog._core.units import Unit, pieces_of
from oncelog.aio.gathering import IDLE_S, Gathering
from oncelog.batch import Batch, Chunk, TopicPartition
from oncelogpb import errors
from oncelogpb.ids import show_id

if TYPE_CHECKING:
    from oncelog._held import HeldBatches

__all__ = ["IDLE_S", "CommittedTransaction", "Transactions"]


class CommittedTransaction:
    """All records that one transaction has in one partition; or, with a `tx_id` of 0, a batch of
    plain records. Its records can be read until the next one is asked for, for they may lie on
    disk: `for batch in transaction`, as often as one likes only where it is kept (`read`)."""

    def __init__(self, place: TopicPartition, unit: Unit, held: HeldBatches) -> None:
        self.topic = place.topic
        self.partition = place.partition
        self.tx_id = unit.written.tx_id
        self.producer_id = unit.written.producer_id
        self.generation = unit.written.generation
        # When it became readable, milliseconds since 1970.
        self.committed_ms = unit.written.time_ms
        # Of its first record, and how many there are. Where this consumer began in the middle of
        # the transaction: of the rest; in a compacted topic: of what is left of it.
        self.first_offset = unit.first_offset
        self.record_count = unit.record_count
        self._unit = unit
        self._held = held
        self._is_begun = False

    def __iter__(self) -> Iterator[Batch]:
        """Its records, in batches as they were sent, each once. Raises InvalidArgument where they
        were read, or another transaction was asked for; BufferFailed: leave the
        transaction that you are in by it, or seek to `first_offset`."""
        unit = self._unit
        self._require_there(is_begun=self._is_begun)
        self._is_begun = True
        for offset, skip, batch in pieces_of(unit, self._batches()):
            offsets = holes.unpacked(batch.offsets)
            chunk = Chunk(
                self.topic,
                self.partition,
                first_offset=offset,
                encoding=batch.encoding,
                payload=batch.payload,
                skip=skip,
                count=batch.record_count - skip,
                offsets=None if offsets is None else offsets[skip:],
            )
            yield Batch([chunk])

    def _batches(self) -> Iterator[HeldBatch]:
        left = self._unit.record_count + self._unit.skip
        for batch in self._held.take(self._unit.part, left):
            yield batch
            left -= batch.record_count
            if left > 0:
                self._require_there()

    def _require_there(self, *, is_begun: bool = False) -> None:
        if is_begun or self._unit.is_over:
            raise errors.InvalidArgument(
                f"the records of {self!r} are let go of: go through them once, before the next "
                "transaction is asked for, or keep what `read` gives",
                field="transaction",
            )

    def read(self) -> Batch:
        """All its records, in memory. Raises as iterating does."""
        return Batch([chunk for batch in self for chunk in batch.chunks])

    def __repr__(self) -> str:
        return (
            f"<CommittedTransaction {show_id(self.tx_id)} {self.topic}/{self.partition}"
            f"@{self.first_offset}+{self.record_count}>"
        )


class Transactions(Gathering[CommittedTransaction]):
    """Made by `Consumer.transactions`. Used by one task at a time."""

    def _settle(self) -> bool:
        return self._units.is_one_whole

    def _give(self) -> CommittedTransaction | None:
        self._positions.require_plain()
        unit = self._units.take()
        if unit is None:
            return None
        self._given.append(unit)
        self._positions.given(unit.partition, unit.next_offset)
        return CommittedTransaction(self._consumer.place(unit.partition), unit, self._held)
