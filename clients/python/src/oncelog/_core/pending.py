"""Puts a journal in commit order: the PendingTransactionMap of one partition. PURE.

What a partition leader does for the readers of the committed log, done by its reader. Batches of
open transactions are held, by TxId and writer; markers say what becomes of them:

    DATA         without a TxId: exposed at once; else held
    ONE_SHOT     exposed at once: data and COMMITTED marker in one
    COMMITTED    exposes exactly the writers that it names, in its order, each up to its count
    ABORTED      drops what is held of its TxId
    DAMAGED      exposes nothing; what its manifest named is held until an operator has decided
    EXPOSED      ... that all of it is exposed, whatever the manifest counted
    DROPPED      ... that it is dropped

Invariant: what `see` returns, in its order, is the committed log, record by record and with its
offsets, from the offset on that the map was begun for.
Invariant: a marker of somebody else's transaction (another producer or generation than that of the
TxId's first batch) drops what is held, and exposes nothing of it.

Left out: where held batches lie, in memory or on disk (`oncelog._held`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from oncelog._core.resume_points import ResumePoint, ResumePoints
from oncelogpb import errors
from oncelogpb.ids import show_id
from oncelogpb.v1 import partition_leader_pb2

Kind = partition_leader_pb2.FetchedBatch
# A point to resume at is kept after so many bytes of the journal, so that a consumer that commits
# seldom does not keep one for every batch.
POINT_EVERY_BYTES: Final = 64 * 1024
# Above all journal offsets.
NEVER: Final = 1 << 64


class HeldBatch(NamedTuple):
    """Records as they came."""

    record_count: int
    encoding: int
    crc32c: int
    payload: bytes
    # Of each record (`oncelog._core.holes`), as bytes; none where they follow each other.
    offsets: bytes = b""


class Arrived(NamedTuple):
    """One batch of the journal, or a control record."""

    kind: int
    journal_offset: int
    # Journal offsets that it takes.
    length: int
    tx_id: int
    producer_id: int
    generation: int
    writer: int
    time_ms: int
    # Of a control record: None.
    batch: HeldBatch | None
    # Of COMMITTED and DAMAGED: (writer, record count), in order.
    parts: Sequence[tuple[int, int]] = ()


class Part:
    """The batches of one writer of a transaction, in order: first what was moved to disk, then what
    is in memory. `oncelog._held` fills and empties it."""

    __slots__ = ("file", "held", "held_bytes", "read_bytes", "records", "spilled_bytes")

    def __init__(self) -> None:
        self.records = 0
        self.held: deque[HeldBatch] = deque()
        self.held_bytes = 0
        # Number of its file; 0: it has none.
        self.file = 0
        # Of the file: how long it is, and how much of that was read back.
        self.spilled_bytes = 0
        self.read_bytes = 0


class Exposure(NamedTuple):
    """Records that are committed, at their offsets: a transaction's, or one batch that stands
    alone."""

    # Of the first record, the skipped ones included.
    first_offset: int
    record_count: int
    # Records at the front that were given before.
    skip: int
    # 0: plain.
    tx_id: int
    producer_id: int
    generation: int
    time_ms: int
    # Each part, up to so many records; or, of what stands alone, the batch.
    parts: Sequence[tuple[Part, int]]
    batch: HeldBatch | None = None


class _Transaction:
    """What one TxId has written here so far."""

    __slots__ = ("first_position", "generation", "parts", "producer_id", "wanted")

    def __init__(self, first: Arrived) -> None:
        self.producer_id = first.producer_id
        self.generation = first.generation
        self.first_position = first.journal_offset
        self.parts: dict[int, Part] = {}
        # Of a damaged one: the writers that its manifest named, in order.
        self.wanted: list[int] = []

    def is_of(self, marker: Arrived) -> bool:
        return (self.producer_id, self.generation) == (marker.producer_id, marker.generation)


class Holder(NamedTuple):
    """Where held batches lie: `oncelog._held`."""

    hold: Callable[[Part, HeldBatch], None]
    release: Callable[[Part], None]


class PendingTransactions:
    """See the module. `points` are told where one may resume."""

    def __init__(
        self, holder: Holder, points: ResumePoints, *, resume: ResumePoint, offset: int
    ) -> None:
        """`resume` leads to `offset`, the first one that shall be given."""
        self._holder = holder
        self._points = points
        self._iterator = resume.iterator
        self._wanted = offset
        # Next journal offset to see.
        self.next = resume.earliest
        # One past the last offset that was exposed.
        self.end = offset - resume.given
        # By TxId, in the order of their first batch.
        self._open: dict[int, _Transaction] = {}
        self._damaged: dict[int, _Transaction] = {}
        self._bytes_since_point = POINT_EVERY_BYTES

    def see(self, arrived: Arrived) -> Exposure | None:
        """The next of the journal; what it exposes. What lies before `next` was seen already."""
        if arrived.journal_offset < self.next:
            return None
        if arrived.batch is not None:
            self._bytes_since_point += len(arrived.batch.payload)
        exposure = self._expose(arrived)
        self.next = arrived.journal_offset + arrived.length
        return exposure

    def point(self) -> ResumePoint | None:
        """Leads to `end`; None while that is not known: before what was given before is passed."""
        if self.next < self._iterator:
            return None
        return ResumePoint(min(self._earliest(), self.next), self.next, 0)

    def clear(self) -> None:
        """Lets go of all that is held."""
        for transactions in (self._open, self._damaged):
            for transaction in transactions.values():
                self._drop(transaction)
            transactions.clear()

    # ------------------------------------------------------------------------------------- inside

    def _expose(self, arrived: Arrived) -> Exposure | None:
        match arrived.kind:
            case Kind.KIND_DATA if arrived.tx_id:
                self._hold(arrived)
                return None
            case Kind.KIND_DATA:
                return self._alone(arrived)
            case Kind.KIND_ONE_SHOT:
                self._drop(self._end(arrived))
                return self._alone(arrived)
            case Kind.KIND_COMMITTED:
                return self._committed(arrived)
            case Kind.KIND_ABORTED:
                self._drop(self._end(arrived))
                return None
            case Kind.KIND_DAMAGED:
                self._keep_damaged(arrived)
                return None
            case Kind.KIND_EXPOSED:
                return self._resolved(arrived)
            case Kind.KIND_DROPPED:
                self._drop(self._damaged.pop(arrived.tx_id, None))
                return None
            case Kind.KIND_CONTROL:
                return None
        raise errors.Unsupported(
            f"a journal record of kind {arrived.kind} at {arrived.journal_offset}: this client is "
            "older than the cluster, upgrade it, or read with delivery='leader'"
        )

    def _hold(self, arrived: Arrived) -> None:
        assert arrived.batch is not None
        transaction = self._open.get(arrived.tx_id)
        if transaction is None:
            transaction = self._open[arrived.tx_id] = _Transaction(arrived)
        part = transaction.parts.get(arrived.writer)
        if part is None:
            part = transaction.parts[arrived.writer] = Part()
        self._holder.hold(part, arrived.batch)

    def _end(self, marker: Arrived) -> _Transaction | None:
        """What its producer holds here; what somebody else does is dropped."""
        transaction = self._open.pop(marker.tx_id, None)
        if transaction is None or transaction.is_of(marker):
            return transaction
        self._drop(transaction)
        return None

    def _committed(self, marker: Arrived) -> Exposure | None:
        self._require_whole(marker)
        earliest = min(self._earliest(), marker.journal_offset)
        transaction = self._end(marker)
        if transaction is None:
            return None
        if marker.journal_offset < self._iterator:
            self._drop(transaction)
            return None
        parts = [
            (transaction.parts.pop(writer), count)
            for writer, count in marker.parts
            if writer in transaction.parts
        ]
        # Writers that the manifest does not name are what failed attempts left.
        self._drop(transaction)
        return self._at(marker, earliest, sum(count for _, count in parts), parts)

    def _require_whole(self, marker: Arrived) -> None:
        """Before anything is changed: it is said again to whoever asks again. The leader has
        counted, too."""
        transaction = self._open.get(marker.tx_id)
        if transaction is None or not transaction.is_of(marker):
            return
        for writer, count in marker.parts if marker.journal_offset >= self._iterator else ():
            part = transaction.parts.get(writer)
            if part is not None and part.records < count:
                raise errors.Internal(
                    f"transaction {show_id(marker.tx_id)}: the marker at {marker.journal_offset} "
                    f"counts {count} records of a writer, and {part.records} came; read with "
                    "delivery='leader', and report it"
                )

    def _keep_damaged(self, marker: Arrived) -> None:
        transaction = self._end(marker)
        if transaction is None:
            return
        for writer in [writer for writer, _ in marker.parts]:
            if writer in transaction.parts:
                transaction.wanted.append(writer)
        for writer in transaction.parts.keys() - set(transaction.wanted):
            self._holder.release(transaction.parts.pop(writer))
        self._damaged[marker.tx_id] = transaction

    def _resolved(self, record: Arrived) -> Exposure | None:
        """All that there is of it: that is what the operator decided."""
        earliest = min(self._earliest(), record.journal_offset)
        transaction = self._damaged.pop(record.tx_id, None)
        if transaction is None:
            return None
        if record.journal_offset < self._iterator:
            self._drop(transaction)
            return None
        parts = [
            (transaction.parts[writer], transaction.parts[writer].records)
            for writer in transaction.wanted
        ]
        of_producer = record._replace(
            producer_id=transaction.producer_id, generation=transaction.generation
        )
        return self._at(of_producer, earliest, sum(count for _, count in parts), parts)

    def _alone(self, arrived: Arrived) -> Exposure | None:
        if arrived.journal_offset < self._iterator:
            return None
        assert arrived.batch is not None
        earliest = min(self._earliest(), arrived.journal_offset)
        return self._at(arrived, earliest, arrived.batch.record_count, (), arrived.batch)

    def _at(
        self,
        by: Arrived,
        earliest: int,
        count: int,
        parts: Sequence[tuple[Part, int]],
        batch: HeldBatch | None = None,
    ) -> Exposure | None:
        """The next `count` records of the committed log."""
        first, self.end = self.end, self.end + count
        if self._bytes_since_point >= POINT_EVERY_BYTES or parts:
            self._points.add(first, ResumePoint(earliest, by.journal_offset, 0))
            self._bytes_since_point = 0
        skip = min(count, max(0, self._wanted - first))
        if skip == count:
            for part, _ in parts:
                self._holder.release(part)
            return None
        return Exposure(
            first, count, skip, by.tx_id, by.producer_id, by.generation, by.time_ms, parts, batch
        )

    def _earliest(self) -> int:
        """Where the earliest begins that is held; above all, where none is."""
        held = [transaction.first_position for transaction in self._damaged.values()]
        for transaction in self._open.values():
            held.append(transaction.first_position)
            break
        return min(held, default=NEVER)

    def _drop(self, transaction: _Transaction | None) -> None:
        if transaction is not None:
            for part in transaction.parts.values():
                self._holder.release(part)
