"""Transactions in words for clients and operators: what the machine keeps, or what the outcome file
and the PREPARE record say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oncelog_server.coordinator import wire
from oncelog_server.coordinator.commands import ProducerIdentity
from oncelog_server.coordinator.outcomes import Outcome
from oncelog_server.coordinator.questions import is_decided
from oncelog_server.coordinator.records import (
    OneShotPrepared,
    OneShotStaged,
    PreparedAbort,
    PreparedCommit,
    Record,
)
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.transactions import State, Transaction
from oncelog_server.coordinator.values import CommitSeq, Manifest, TopicParts
from oncelog_server.core.ids import JournalOffset, PartitionId, ProducerId, TxId
from oncelog_server.core.wire import partition_message
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types


def kept(
    state: CoordinatorState, transaction: Transaction, *, below: JournalOffset
) -> pb.TransactionDescription:
    """Of a transaction that the machine keeps, as far as it is durable."""
    decided = is_decided(transaction, below=below)
    producer = state.producers[transaction.producer_id]
    delivered = state.deliveries.delivered(transaction.tx_id)
    manifest = _manifest_of([*transaction.parts, *state.asked.get(transaction.tx_id, ())])
    if decided and transaction.is_committed:
        manifest = _manifest(transaction)
    return pb.TransactionDescription(
        tx_id=transaction.tx_id,
        state=state_outside(transaction, below=below),
        visible=decided and state.deliveries.is_visible(transaction.tx_id),
        cause=types.AbortCause.ValueType(transaction.cause if decided else 0),
        producer=wire.producer_message(transaction.identity),
        group=producer.group,
        name=producer.name,
        begin_time_ms=transaction.begin_ms,
        end_time_ms=transaction.prepare_ms if decided else 0,
        timeout_ms=transaction.timeout_ms,
        commit_seq=wire.commit_seq_message(transaction.commit_seq),
        parts=wire.manifest_message(manifest),
        unacknowledged=[
            partition_message(p) for p in state.deliveries.unacknowledged(transaction.tx_id)
        ]
        if decided
        else [],
        damaged=_damaged([] if delivered is None else list(delivered.damaged)),
        staged=transaction.state is State.STAGED or (transaction.is_one_shot and not decided),
        prepare_offset=transaction.prepare_offset if decided else 0,
    )


def over(
    state: CoordinatorState, tx_id: TxId, outcome: Outcome, records: Sequence[Record]
) -> pb.TransactionDescription:
    """Of one that ended; `records` are its first and its PREPARE, as far as the journal still holds
    them. What only they tell is not guessed: the reply says that it is forgotten."""
    if outcome.expired:
        return pb.TransactionDescription(tx_id=tx_id, state=types.TRANSACTION_STATE_EXPIRED)
    producer = state.producers.get(outcome.producer.producer_id)
    ended = (
        types.TRANSACTION_STATE_COMMITTED if outcome.committed else types.TRANSACTION_STATE_ABORTED
    )
    return pb.TransactionDescription(
        tx_id=tx_id,
        state=ended,
        visible=True,
        cause=types.AbortCause.ValueType(outcome.cause),
        producer=wire.producer_message(outcome.producer),
        group="" if producer is None else producer.group,
        name="" if producer is None else producer.name,
        begin_time_ms=outcome.begin_ms,
        end_time_ms=outcome.end_ms,
        timeout_ms=outcome.timeout_ms,
        commit_seq=wire.commit_seq_message(_seq_of(records)),
        parts=wire.manifest_message(_manifest_in(records)),
        damaged=_damaged(list(state.damaged.get(tx_id, ()))),
        prepare_offset=outcome.prepare_offset,
        parts_forgotten=not _tell_parts(records, outcome),
    )


def visibility(
    state: CoordinatorState,
    tx_id: TxId,
    producer_id: ProducerId,
    prepare_offset: JournalOffset,
    may_name: Callable[[PartitionId], bool],
) -> pb.TransactionDescription:
    """Of a transaction that is committed and of all that its producer committed before: the first
    that is not visible, else the last."""
    first = state.deliveries.first_invisible(producer_id, prepare_offset)
    waiting: Sequence[PartitionId] = ()
    if first is not None:
        tx_id, waiting = first
    return pb.TransactionDescription(
        tx_id=tx_id,
        state=types.TRANSACTION_STATE_COMMITTED,
        visible=first is None,
        unacknowledged=[
            partition_message(partition) for partition in waiting if may_name(partition)
        ],
    )


def forgotten(producer: ProducerIdentity) -> pb.TransactionDescription:
    """Of a one-shot whose request number is no longer remembered: nobody knows."""
    return pb.TransactionDescription(
        state=types.TRANSACTION_STATE_EXPIRED, producer=wire.producer_message(producer)
    )


def part_count(described: pb.TransactionDescription) -> int:
    """Of parts, and of participants that are waited for: what it costs to put it into words."""
    in_topics = sum(len(topic.partition) for topic in described.parts.topics)
    return in_topics + len(described.unacknowledged)


def state_outside(
    transaction: Transaction, *, below: JournalOffset
) -> types.TransactionState.ValueType:
    """PREPARE_COMMIT is COMMITTED (not yet visible) to the outside, PREPARE_ABORT is ABORTED; what
    is not durable has not happened."""
    if not is_decided(transaction, below=below):
        return types.TRANSACTION_STATE_ONGOING
    if transaction.is_committed:
        return types.TRANSACTION_STATE_COMMITTED
    return types.TRANSACTION_STATE_ABORTED


def _manifest(transaction: Transaction) -> Manifest:
    if not transaction.is_one_shot:
        return transaction.manifest
    return _manifest_of(
        [batch.partition for batch in transaction.batches],
        [batch.record_count for batch in transaction.batches],
    )


def _manifest_in(records: Sequence[Record]) -> Manifest:
    for record in records:
        match record:
            case PreparedCommit() if record.manifest.topics:
                return record.manifest
            case PreparedAbort():
                return _manifest_of(record.parts)
            case OneShotPrepared() | OneShotStaged():
                return _manifest_of(
                    [batch.partition for batch in record.batches],
                    [batch.record_count for batch in record.batches],
                )
    return Manifest()


def _tell_parts(records: Sequence[Record], outcome: Outcome) -> bool:
    """A PREPARE tells them, but for a one-shot that was staged: its first record does."""
    if outcome.is_one_shot:
        return any(isinstance(r, OneShotPrepared | OneShotStaged) for r in records)
    return any(isinstance(r, PreparedCommit | PreparedAbort) for r in records)


def _seq_of(records: Sequence[Record]) -> CommitSeq | None:
    seqs = (r.commit_seq for r in records if isinstance(r, PreparedCommit | OneShotPrepared))
    return next(seqs, None)


def _manifest_of(
    partitions: Sequence[PartitionId], counts: Sequence[int] | None = None
) -> Manifest:
    """Partitions known to take part, each with writer 0."""
    numbers = dict(zip(partitions, counts or [0] * len(partitions), strict=True))
    topics: dict[bytes, list[PartitionId]] = {}
    for partition in sorted(numbers):
        topics.setdefault(partition.topic_id, []).append(partition)
    return Manifest(
        tuple(
            TopicParts(
                of[0].topic_id,
                tuple(partition.number for partition in of),
                (0,) * len(of),
                tuple(numbers[partition] for partition in of),
            )
            for of in topics.values()
        )
    )


def _damaged(partitions: list[PartitionId]) -> list[types.ExposedPart]:
    return [
        types.ExposedPart(partition=partition_message(partition), damaged=True)
        for partition in partitions
    ]
