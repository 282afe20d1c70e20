"""What became of a transaction, as far as it is below the HW. PURE reads.

An answer that makes a participant abort is given only from below the HW and only for a TxId below
it: a paused coordinator does not know T, which began at its successor; p aborts T; T commits. For a
TxId above the log end it is given once this coordinator has proved that it has no successor
(`unborn`). docs/protocol.md, "Questions".
"""

from __future__ import annotations

from enum import IntEnum

from oncelog_server.coordinator.commands import ProducerIdentity
from oncelog_server.coordinator.outcomes import Outcome
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.transactions import DECIDED, State, Transaction
from oncelog_server.coordinator.unborn import Claim
from oncelog_server.core.ids import JournalOffset, PartitionId, TxId, journal_offset_of


class AnswerCode(IntEnum):
    """The numbers of oncelogpb.v1.Answer.Verdict."""

    LATER = 1
    ONGOING = 2
    COMMITTED_WITH_YOU = 3
    COMMITTED_WITHOUT_YOU = 4
    ABORTED = 5
    EXPIRED = 6
    NEVER = 7


def verdict(
    state: CoordinatorState,
    tx_id: TxId,
    producer: ProducerIdentity,
    partition: PartitionId,
    *,
    below: JournalOffset,
) -> AnswerCode | None:
    """None: the machine does not keep it. It ended, or never was: `verdict_of` its outcome."""
    if below <= journal_offset_of(tx_id):
        claim = Claim(tx_id, producer, partition)
        unborn = is_unborn(state, tx_id) and state.unborn.is_disproved(claim, below=below)
        return AnswerCode.NEVER if unborn else AnswerCode.LATER
    transaction = state.transactions.get(tx_id)
    if transaction is None:
        if partition in state.damaged.get(tx_id, ()):
            return AnswerCode.COMMITTED_WITH_YOU
        return None
    if transaction.identity != producer:
        return AnswerCode.NEVER
    if not is_decided(transaction, below=below):
        return AnswerCode.ONGOING
    if transaction.state is State.PREPARE_ABORT:
        return AnswerCode.ABORTED
    if transaction.takes_part(partition):
        return AnswerCode.COMMITTED_WITH_YOU
    return AnswerCode.COMMITTED_WITHOUT_YOU


def verdict_of(outcome: Outcome | None, producer: ProducerIdentity) -> AnswerCode:
    """Of a transaction that the machine does not keep and whose TxId is below the HW."""
    if outcome is None:
        return AnswerCode.NEVER
    if outcome.expired:
        return AnswerCode.EXPIRED
    if outcome.producer != producer:
        return AnswerCode.NEVER
    # Over means that every partition in the manifest has acknowledged its marker: one that still
    # holds data of it is not in the manifest.
    return AnswerCode.COMMITTED_WITHOUT_YOU if outcome.committed else AnswerCode.ABORTED


def is_unborn(state: CoordinatorState, tx_id: TxId) -> bool:
    """It lies at or above the log end."""
    return journal_offset_of(tx_id) >= state.next_offset


def is_decided(transaction: Transaction, *, below: JournalOffset) -> bool:
    """Its PREPARE is durable."""
    return transaction.state in DECIDED and transaction.prepare_offset < below
