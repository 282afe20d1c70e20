"""Batches of transactions that have no marker yet: integer columns per (TxId, writer), never
objects per batch: a transaction may have a million of them. PURE.

Invariant: sequences of a writer are dense from 0, so a batch's first sequence is the number of
records before it, and a column of them says where each batch lies inside its part.
Invariant: a TxId is bound to the (producer, generation) of its first batch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

import msgspec

from oncelog_server.core.frame import At, Frame
from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.partition_leader.sequences import Seen
from oncelogpb.errors import OncelogError, ProducerMismatch
from oncelogpb.ids import show_generation, show_id

COLUMNS: Final = ("journal", "sequence", "payload_bytes", "running_max_us")


class WriterColumns:
    """The batches of one writer, one entry of each column per batch."""

    __slots__ = (*COLUMNS, "records")

    def __init__(self) -> None:
        # Journal offset of the first record.
        self.journal = array("q")
        # Sequence of the first record: how many records of this writer stand before it.
        self.sequence = array("q")
        self.payload_bytes = array("q")
        # Highest record time of the writer up to and with this batch.
        self.running_max_us = array("q")
        self.records = 0

    def __len__(self) -> int:
        return len(self.journal)

    def append(self, frame: Frame, journal_offset: JournalOffset) -> None:
        assert frame.base_sequence == self.records, "decide lets no gap through"
        highest = frame.max_timestamp_us
        if self.running_max_us:
            highest = max(highest, self.running_max_us[-1])
        self.journal.append(journal_offset)
        self.sequence.append(self.records)
        self.payload_bytes.append(len(frame.payload))
        self.running_max_us.append(highest)
        self.records += frame.record_count

    def has_boundary_at(self, count: int) -> bool:
        """The first `count` records are whole batches."""
        return count == self.records or self.find(count) is not None

    def until(self, count: int) -> WriterColumns:
        """The batches of the first `count` records."""
        assert self.has_boundary_at(count), "a batch is exposed whole or not"
        if count == self.records:
            return self
        first = WriterColumns()
        batches = bisect_left(self.sequence, count)
        for name in COLUMNS:
            getattr(first, name).extend(getattr(self, name)[:batches])
        first.records = count
        return first

    def find(self, base_sequence: int) -> Seen | None:
        """The batch that begins at exactly this sequence."""
        index = bisect_left(self.sequence, base_sequence)
        if index == len(self.sequence) or self.sequence[index] != base_sequence:
            return None
        following = index + 1
        end = self.sequence[following] if following < len(self.sequence) else self.records
        return Seen(base_sequence, end - base_sequence, JournalOffset(self.journal[index]), None)


class OpenTransaction:
    """What one transaction has written here so far."""

    __slots__ = (
        "began_ms",
        "bytes_received",
        "first_position",
        "generation",
        "producer_id",
        "tx_id",
        "writers",
    )

    def __init__(self, tx_id: int, producer_id: int, generation: int, began: At) -> None:
        self.tx_id = tx_id
        self.producer_id = producer_id
        self.generation = generation
        # Journal offset of its first batch.
        self.first_position = began.offset
        # Time of its first frame here.
        self.began_ms = began.time_ms
        self.writers: dict[int, WriterColumns] = {}
        self.bytes_received = 0

    @property
    def records(self) -> int:
        return sum(columns.records for columns in self.writers.values())

    def is_of(self, producer_id: int, generation: int) -> bool:
        return self.producer_id == producer_id and self.generation == generation

    def refusal(self, batch: Frame) -> OncelogError | None:
        """A batch of another producer or generation than the TxId's first one is refused."""
        if self.is_of(batch.producer_id, batch.generation):
            return None
        return ProducerMismatch(
            f"transaction {show_id(self.tx_id)} belongs to producer {show_id(self.producer_id)} "
            f"generation {show_generation(self.generation)}; use the TxId that your own Begin "
            "returned",
            tx_id=self.tx_id,
        )

    def holds(self, parts: Iterable[tuple[int, int]]) -> bool:
        """Do the batches here begin with what the manifest counts, writer by writer? What stands
        behind came after the decision. Writers that it does not name are left-overs of failed
        attempts: a manifest names the winners."""
        writers = self.writers
        return all(
            columns.has_boundary_at(count)
            if (columns := writers.get(writer)) is not None
            else count == 0
            for writer, count in parts
        )

    def surplus(self, writer: int, count: int) -> int:
        """How many records of the writer stand behind the first `count`."""
        columns = self.writers.get(writer)
        return columns.records - count if columns is not None else 0


class DumpedTransaction(msgspec.Struct, frozen=True, array_like=True):
    """An open transaction in a snapshot."""

    tx_id: int
    producer_id: int
    generation: int
    began: At
    bytes_received: int
    # Writer, records, and the four columns as bytes.
    writers: tuple[tuple[int, int, bytes, bytes, bytes, bytes], ...]


class Pending:
    """The open transactions of a partition, in the order of their first batch."""

    def __init__(self) -> None:
        self.open: dict[int, OpenTransaction] = {}

    def append(self, frame: Frame, at: At) -> bool:
        """True: it opened the transaction."""
        transaction = self.open.get(frame.tx_id)
        opened = transaction is None
        if transaction is None:
            transaction = self.open[frame.tx_id] = OpenTransaction(
                frame.tx_id, frame.producer_id, frame.generation, at
            )
        columns = transaction.writers.get(frame.writer)
        if columns is None:
            columns = transaction.writers[frame.writer] = WriterColumns()
        columns.append(frame, at.offset)
        transaction.bytes_received += len(frame.payload)
        return opened

    def first_open_position(self) -> JournalOffset | None:
        """Journal offset of the earliest batch of an open transaction (the seeds' "transactional
        HW"). Readers do not care; retention will."""
        for transaction in self.open.values():
            return transaction.first_position
        return None

    def check(self, next_offset: int) -> None:
        position = -1
        for tx_id, transaction in self.open.items():
            assert transaction.tx_id == tx_id
            assert position < transaction.first_position < next_offset, "ordered by first batch"
            position = transaction.first_position
            assert transaction.writers, "an open transaction has written something"
            for columns in transaction.writers.values():
                _check_columns(columns, next_offset)
            first = min(columns.journal[0] for columns in transaction.writers.values())
            assert first == position, f"{show_id(tx_id)} begins at {first}, not at {position}"


def _check_columns(columns: WriterColumns, next_offset: int) -> None:
    lengths = {len(getattr(columns, name)) for name in COLUMNS}
    assert len(lengths) == 1, f"columns of different lengths: {lengths}"
    ends = [*columns.sequence[1:], columns.records]
    counts = [end - first for first, end in zip(columns.sequence, ends, strict=True)]
    assert columns.sequence[0] == 0
    assert all(count > 0 for count in counts), "sequences are dense"
    for offset, count, following in zip(columns.journal, counts, columns.journal[1:], strict=False):
        assert offset + count <= following, "batches overlap in the journal"
    assert columns.journal[-1] + counts[-1] <= next_offset


def dump(transaction: OpenTransaction) -> DumpedTransaction:
    return DumpedTransaction(
        transaction.tx_id,
        transaction.producer_id,
        transaction.generation,
        At(transaction.first_position, LeaderEpoch(0), transaction.began_ms),
        transaction.bytes_received,
        tuple(
            (
                writer,
                columns.records,
                columns.journal.tobytes(),
                columns.sequence.tobytes(),
                columns.payload_bytes.tobytes(),
                columns.running_max_us.tobytes(),
            )
            for writer, columns in transaction.writers.items()
        ),
    )


def load(dumped: DumpedTransaction) -> OpenTransaction:
    transaction = OpenTransaction(dumped.tx_id, dumped.producer_id, dumped.generation, dumped.began)
    transaction.bytes_received = dumped.bytes_received
    for writer, records, journal, sequence, payload_bytes, running_max_us in dumped.writers:
        columns = transaction.writers[writer] = WriterColumns()
        columns.records = records
        columns.journal.frombytes(journal)
        columns.sequence.frombytes(sequence)
        columns.payload_bytes.frombytes(payload_bytes)
        columns.running_max_us.frombytes(running_max_us)
    return transaction
