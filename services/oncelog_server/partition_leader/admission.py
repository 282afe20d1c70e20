"""What may be appended: the decision on batches of one producer. PURE.

In order of precedence: what stands here of it is told again; who may write no more is refused; then
the sequence, what the outside has against a batch, and limits. It looks ahead over the batches of
one command, for a later one follows on an earlier one that is not applied yet.

Invariants: nothing of a TxId is accepted after its marker (I20); a repeat is never appended (I6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from oncelog_server.core.frame import Frame
from oncelog_server.core.ids import JournalOffset, Offset
from oncelog_server.core.machine import Decision
from oncelog_server.participant.fences import Fences
from oncelog_server.partition_leader.commands import Placed, Produce
from oncelog_server.partition_leader.committed_log import CommittedLog
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.damage import Damage
from oncelog_server.partition_leader.exposures import Exposures
from oncelog_server.partition_leader.pending import Pending
from oncelog_server.partition_leader.records import Record
from oncelog_server.partition_leader.sequences import PlainSequences, Seen, judge
from oncelogpb.errors import LimitExceeded, OncelogError, TransactionEnded
from oncelogpb.ids import show_id


class Partition(Protocol):
    """What it looks at: the machine."""

    config: PartitionLeaderConfig
    next_offset: JournalOffset
    committed: CommittedLog
    pending: Pending
    plain: PlainSequences
    fences: Fences
    exposures: Exposures
    damage: Damage


def produce(partition: Partition, command: Produce) -> Decision[Record]:
    first = command.batches[0]
    refusal = _producer_refusal(partition, first)
    if refusal is not None:
        return Decision((), tuple(_repeat(partition, b) or refusal for b in command.batches))
    expected, room = _expectation(partition, command)
    offset = None if first.tx_id else partition.committed.end_offset
    position = partition.next_offset
    accepted: list[Frame] = []
    results: list[Placed | OncelogError] = []
    for place, batch in enumerate(command.batches):
        verdict = judge(batch, expected, lambda base: _find(partition, first, base, accepted))
        if verdict is None:
            verdict = command.unfit.get(place)
        if verdict is None and len(accepted) >= room:
            verdict = _limit("batches_per_part_max", partition.config.batches_per_part_max)
        if verdict is None:
            verdict = Placed(position, offset)
            accepted.append(batch)
            expected += batch.record_count
            position = JournalOffset(position + batch.record_count)
            if offset is not None:
                offset = Offset(offset + batch.record_count)
        results.append(verdict)
    return Decision(accepted, tuple(results))


def _producer_refusal(partition: Partition, batch: Frame) -> OncelogError | None:
    """In order of precedence: fenced, ended, another's transaction, limits."""
    if not batch.tx_id:
        if batch.producer_id in partition.plain:
            return None
        if len(partition.plain) < partition.config.producers_max:
            return None
        return _limit("producers_max", partition.config.producers_max)
    refusal = partition.fences.refusal(
        tx_id=batch.tx_id, producer_id=batch.producer_id, generation=batch.generation
    )
    if refusal is not None:
        return refusal
    transaction = partition.pending.open.get(batch.tx_id)
    if transaction is not None:
        limit = partition.config.writers_per_transaction_max
        if batch.writer not in transaction.writers and len(transaction.writers) >= limit:
            return _limit("writers_per_transaction_max", limit)
        return transaction.refusal(batch)
    if _has_marker(partition, batch.tx_id):
        return TransactionEnded(
            f"transaction {show_id(batch.tx_id)} has ended, and it was another producer's; "
            "use the TxId that your own Begin returned",
            tx_id=batch.tx_id,
        )
    if len(partition.pending.open) >= partition.config.open_transactions_max:
        return _limit("open_transactions_max", partition.config.open_transactions_max)
    if partition.damage.held >= partition.config.damaged_max:
        return LimitExceeded(
            f"{partition.damage.held} damaged parts wait in this partition, damaged_max = "
            f"{partition.config.damaged_max}: it takes no new transactions; see `oncelog tx "
            "resolve` and `oncelog topic describe`",
            limit="damaged_max",
            value=partition.config.damaged_max,
        )
    known = batch.producer_id in partition.fences
    if not known and len(partition.fences) >= partition.config.producers_max:
        return _limit("producers_max", partition.config.producers_max)
    return None


def _has_marker(partition: Partition, tx_id: int) -> bool:
    """Fences go by producer: this keeps out another one that writes under this TxId (I20). One
    that comes when the exposure is forgotten is asked about, and dropped."""
    ended = partition.exposures.of(tx_id)
    return bool(ended) or tx_id in partition.damage.parts


def _expectation(partition: Partition, command: Produce) -> tuple[int, int]:
    """The next sequence, and how many more batches there is room for."""
    batch = command.batches[0]
    if not batch.tx_id:
        return partition.plain.next_sequence(batch.producer_id), len(command.batches)
    limit = partition.config.batches_per_part_max
    transaction = partition.pending.open.get(batch.tx_id)
    columns = transaction.writers.get(batch.writer) if transaction is not None else None
    return (columns.records, limit - len(columns)) if columns is not None else (0, limit)


def _find(partition: Partition, first: Frame, base: int, accepted: Sequence[Frame]) -> Seen | None:
    """A batch of this producer that stands in the journal, or came earlier in this command."""
    position = partition.next_offset
    for batch in accepted:
        if batch.base_sequence == base:
            shift = partition.committed.end_offset - partition.next_offset
            offset = None if batch.tx_id else Offset(position + shift)
            return Seen(base, batch.record_count, position, offset)
        position = JournalOffset(position + batch.record_count)
    if not first.tx_id:
        return partition.plain.find(first.producer_id, base)
    transaction = partition.pending.open.get(first.tx_id)
    columns = transaction.writers.get(first.writer) if transaction is not None else None
    return columns.find(base) if columns is not None else None


def _repeat(partition: Partition, batch: Frame) -> Placed | None:
    """Of a producer that may write no more: what stands here of its own is told again."""
    transaction = partition.pending.open.get(batch.tx_id)
    if batch.tx_id and (transaction is None or transaction.refusal(batch) is not None):
        return None
    seen = _find(partition, batch, batch.base_sequence, ())
    if seen is None or seen.record_count != batch.record_count:
        return None
    return Placed(seen.journal_offset, seen.offset, duplicate=True)


def _limit(name: str, value: int) -> OncelogError:
    return LimitExceeded(
        f"this partition is at its limit {name} = {value}; end transactions, or spread the load "
        "over more partitions",
        limit=name,
        value=value,
    )
