"""Transactions that are not over: what is known of each. PURE.

Replicated state. An ended transaction (COMMITTED, ABORTED) is not kept here: its outcome is in the
outcome file (`outcomes`) and, for a while, in its producer's answers (`producers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import msgspec

from oncelog_server.coordinator.commands import ProducerIdentity
from oncelog_server.coordinator.values import (
    NO_PARTS,
    AbortCause,
    CommitSeq,
    Manifest,
    OneShotBatch,
    OneShotOffsets,
    WriterParts,
    one_shot_bytes,
)
from oncelog_server.core.ids import Generation, JournalOffset, PartitionId, ProducerId, TxId


class State(IntEnum):
    """The arrows between them stand in `machine.TRANSITIONS`."""

    ONGOING = 1
    # A one-shot that waits for the offset manager, or behind one that does.
    STAGED = 2
    # Decided; markers are on their way.
    PREPARE_COMMIT = 3
    PREPARE_ABORT = 4
    # Over.
    COMMITTED = 5
    ABORTED = 6


DECIDED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})


class Transaction(msgspec.Struct, array_like=True):
    """One transaction. Changed by `apply` only."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    state: State
    # Journal time of its first record.
    begin_ms: int
    # Idle timeout; 0 for a one-shot, which has none.
    timeout_ms: int
    # Begin's request id, or the one-shot's request number.
    request: int
    commit_seq: CommitSeq | None = None
    # Partitions known to take part, sorted: of Begin, later of the abort.
    parts: tuple[PartitionId, ...] = ()
    manifest: Manifest = NO_PARTS
    batches: tuple[OneShotBatch, ...] = ()
    offsets: OneShotOffsets | None = None
    # Place and journal time of its PREPARE; 0 before.
    prepare_offset: JournalOffset = JournalOffset(0)
    prepare_ms: int = 0
    cause: AbortCause = AbortCause.NONE
    # Of a one-shot: the request number with which its chain begins; 0: of no chain.
    chain_first: int = 0

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.generation)

    @property
    def is_one_shot(self) -> bool:
        return bool(self.batches) or self.offsets is not None

    @property
    def is_committed(self) -> bool:
        return self.state in (State.PREPARE_COMMIT, State.COMMITTED)

    @property
    def one_shot_bytes(self) -> int:
        """What it holds in memory, of a one-shot."""
        return one_shot_bytes(self.batches, self.offsets)

    def takes_part(self, partition: PartitionId) -> bool:
        """Gets its marker. Of a decided one; asked often, so nothing is built for it."""
        if self.state is State.PREPARE_ABORT:
            return partition in self.parts
        if self.is_one_shot:
            return partition in self.participants()
        return any(
            topic.topic_id == partition.topic_id and partition.number in topic.partitions
            for topic in self.manifest.topics
        )

    def participants(self) -> dict[PartitionId, WriterParts]:
        """Who gets its marker, and the parts that a COMMITTED one names there."""
        if self.state is State.PREPARE_ABORT:
            return {participant: WriterParts() for participant in self.parts}
        if not self.is_one_shot:
            return self.manifest.by_participant()
        found = {batch.partition: WriterParts([0], [batch.record_count]) for batch in self.batches}
        if self.offsets is not None:
            found[self.offsets.participant] = WriterParts()
        return found


class Transactions:
    """All that are not over, by TxId in order of their BEGIN."""

    def __init__(self) -> None:
        self._by_id: dict[TxId, Transaction] = {}
        # Open or staged: what `open_transactions_max` counts.
        self._undecided = 0
        # Of one-shots that wait for the offset manager's answer.
        self.staged_bytes = 0

    def get(self, tx_id: TxId) -> Transaction | None:
        return self._by_id.get(tx_id)

    def __getitem__(self, tx_id: TxId) -> Transaction:
        return self._by_id[tx_id]

    def __contains__(self, tx_id: TxId) -> bool:
        return tx_id in self._by_id

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def ids(self) -> list[TxId]:
        """As they are now, ascending."""
        return list(self._by_id)

    @property
    def undecided(self) -> int:
        return self._undecided

    def add(self, transaction: Transaction) -> None:
        assert transaction.tx_id not in self._by_id, "a TxId is never reused"
        self._by_id[transaction.tx_id] = transaction
        self._undecided += transaction.state not in DECIDED
        if transaction.state is State.STAGED:
            self.staged_bytes += transaction.one_shot_bytes

    def decided(self, transaction: Transaction, state: State) -> None:
        assert transaction.state not in DECIDED, "a transaction has one outcome (I4)"
        assert state in DECIDED
        if transaction.state is State.STAGED:
            self.staged_bytes -= transaction.one_shot_bytes
        transaction.state = state
        self._undecided -= 1

    def remove(self, tx_id: TxId) -> Transaction:
        transaction = self._by_id.pop(tx_id)
        assert transaction.state in DECIDED, "only a decided transaction is over"
        return transaction

    def oldest_undecided(self) -> Transaction | None:
        """For the journal's checkpoint hint and the age metric. Costs what is decided before it."""
        return next((t for t in self._by_id.values() if t.state not in DECIDED), None)

    def in_prepare_order(self) -> list[Transaction]:
        decided = [t for t in self._by_id.values() if t.state in DECIDED]
        return sorted(decided, key=lambda t: t.prepare_offset)

    def check(self, next_offset: int) -> None:
        undecided = [t for t in self._by_id.values() if t.state not in DECIDED]
        assert self._undecided == len(undecided)
        staged = [t for t in undecided if t.state is State.STAGED]
        assert self.staged_bytes == sum(t.one_shot_bytes for t in staged)
        prepared = [t.prepare_offset for t in self.in_prepare_order()]
        assert len(set(prepared)) == len(prepared), "a PREPARE decides one transaction"
        assert all(0 < offset < next_offset for offset in prepared)
        assert not any(t.prepare_offset for t in undecided)
        assert list(self._by_id) == sorted(self._by_id), "TxIds grow in the order of BEGIN"
