"""CommitTransaction and AbortTransaction (docs/protocol.md, "A transaction's life"). PURE.

Order of precedence for a commit: the transaction is not kept here (ELSEWHERE: the service looks
into the outcome file) · PRODUCER_MISMATCH · it is committed: the same answer · PRODUCER_FENCED ·
TRANSACTION_ENDED · contradicting commit_seq · ALREADY_COMMITTED or DUPLICATE_COMMIT_SEQ · what the
outside has against it · MANIFEST_MISMATCH · THROTTLED · PREPARE_COMMIT.

A repeat of a commit that happened is answered before the fence: the outcome is a fact, and the
client that asks again must learn it (I4). Nothing new happens for an old generation (I16). For the
same reason a commit's answer never depends on `begin_next`, which came along with it: what refuses
the next transaction is told beside the commit.
"""

from __future__ import annotations

from collections.abc import Iterable

from oncelog_server.coordinator.commands import (
    ELSEWHERE,
    AbortAnswer,
    AbortTransaction,
    CommitAnswer,
    CommitTransaction,
    FinishTransactions,
)
from oncelog_server.coordinator.decide_begin import Closing, begin, require_participants
from oncelog_server.coordinator.identify import concurrent, require_owner, require_producer
from oncelog_server.coordinator.producers import Producer
from oncelog_server.coordinator.records import (
    Aborted,
    Committed,
    PreparedAbort,
    PreparedCommit,
    Record,
)
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.transactions import State, Transaction
from oncelog_server.coordinator.values import AbortCause, CommitSeq, Refusal
from oncelog_server.core.ids import CONSUMER_OFFSETS_ID, PartitionId, TxId
from oncelog_server.core.machine import Decision
from oncelogpb.errors import (
    DuplicateCommitSeq,
    InvalidArgument,
    ManifestMismatch,
    OncelogError,
    TransactionEnded,
)


def decide_commit(state: CoordinatorState, command: CommitTransaction) -> Decision[Record]:
    transaction = state.transactions.get(command.tx_id)
    if transaction is None:
        return Decision((), ELSEWHERE)
    require_owner(transaction, command.producer)
    if transaction.state is State.PREPARE_COMMIT:
        return _repeat_commit(state, transaction, command)
    producer = require_producer(state, command.producer)
    if transaction.state is State.PREPARE_ABORT:
        raise ended(transaction.tx_id, "aborted", transaction.cause)
    if transaction.state is State.STAGED:
        raise concurrent(transaction.tx_id, "a one-shot commits by itself; wait for its answer")
    seq = command.commit_seq if command.commit_seq is not None else transaction.commit_seq
    if transaction.commit_seq is not None and seq != transaction.commit_seq:
        raise InvalidArgument("commit_seq is not the one given to Begin", field="commit_seq")
    if _is_committed_before(producer, command, seq):
        # Nothing changes: the transaction stays open, so a next one is CONCURRENT_TRANSACTION.
        return _with_next(state, command, CommitAnswer(already_committed=True))
    if command.unfit is not None:
        raise command.unfit
    _require_announced(state, transaction, command)
    _require_room(state, transaction, command)
    record = PreparedCommit(
        transaction.tx_id,
        transaction.producer_id,
        transaction.generation,
        transaction.begin_ms,
        transaction.timeout_ms,
        seq,
        command.manifest,
    )
    return _with_next(state, command, CommitAnswer(), (record,), closing=Closing(seq))


def decide_abort(state: CoordinatorState, command: AbortTransaction) -> Decision[Record]:
    """Order: ELSEWHERE · PRODUCER_MISMATCH · aborted: the same answer · PRODUCER_FENCED ·
    committed: TRANSACTION_ENDED · staged: CONCURRENT_TRANSACTION · what the outside has against it
    · PREPARE_ABORT."""
    transaction = state.transactions.get(command.tx_id)
    if transaction is None:
        return Decision((), ELSEWHERE)
    if command.producer is not None:
        require_owner(transaction, command.producer)
    if transaction.state is State.PREPARE_ABORT:
        return Decision((), AbortAnswer(transaction.cause))
    if command.producer is not None:
        require_producer(state, command.producer)
    if transaction.state is State.PREPARE_COMMIT:
        raise ended(transaction.tx_id, "committed")
    if transaction.state is State.STAGED:
        raise concurrent(transaction.tx_id, "only the offset manager's answer ends a staged one")
    if command.unfit is not None:
        raise command.unfit
    cause = AbortCause.OPERATOR if command.producer is None else AbortCause.PRODUCER
    return Decision((abort_record(state, transaction, cause, command.parts),), AbortAnswer(cause))


def decide_finish(state: CoordinatorState, command: FinishTransactions) -> Decision[Record]:
    """What every participant has acknowledged is over. Asked twice it does nothing."""
    return Decision(
        [
            _finish(state, state.transactions[tx_id])
            for tx_id in command.tx_ids
            if state.deliveries.is_visible(tx_id)
        ]
    )


def abort_record(
    state: CoordinatorState,
    transaction: Transaction,
    cause: AbortCause,
    parts: Iterable[PartitionId] = (),
    refusal: Refusal | None = None,
) -> PreparedAbort:
    """An ABORT needs markers only at partitions that are known; others ask. So hints that find no
    room are left out."""
    known = {*transaction.parts, *state.asked.get(transaction.tx_id, ())}
    hinted = known.union(parts)
    if state.participants + len(hinted) - len(known) <= state.config.participants_max:
        known = hinted
    return PreparedAbort(
        transaction.tx_id,
        transaction.producer_id,
        transaction.generation,
        transaction.begin_ms,
        transaction.timeout_ms,
        cause,
        tuple(sorted(known)),
        refusal,
    )


def ended(tx_id: TxId, outcome: str, cause: AbortCause = AbortCause.NONE) -> TransactionEnded:
    why = f" ({cause.name})" if cause else ""
    return TransactionEnded(
        f"the transaction is {outcome}{why}", tx_id=tx_id, outcome=outcome, cause=cause.name
    )


def _finish(state: CoordinatorState, transaction: Transaction) -> Committed | Aborted:
    if transaction.state is State.PREPARE_ABORT:
        return Aborted(transaction.tx_id)
    delivered = state.deliveries.delivered(transaction.tx_id)
    damaged = () if delivered is None else tuple(delivered.damaged)
    return Committed(transaction.tx_id, damaged)


def _repeat_commit(
    state: CoordinatorState, transaction: Transaction, command: CommitTransaction
) -> Decision[Record]:
    if not transaction.is_one_shot and command.manifest != transaction.manifest:
        if transaction.commit_seq is not None:
            raise _duplicate_seq(transaction.tx_id)
        raise ManifestMismatch(
            "the transaction is committed with another manifest", tx_id=transaction.tx_id
        )
    visible = state.deliveries.is_visible(transaction.tx_id)
    return _with_next(state, command, CommitAnswer(visible=visible))


def _is_committed_before(
    producer: Producer, command: CommitTransaction, seq: CommitSeq | None
) -> bool:
    last = producer.last_commit
    if last is None or not last.commit_seq.covers(seq):
        return False
    same = last.commit_seq == seq and last.generation == producer.generation
    if same and last.manifest_digest not in (b"", command.manifest.digest()):
        raise _duplicate_seq(command.tx_id)
    return True


def _duplicate_seq(tx_id: TxId) -> DuplicateCommitSeq:
    return DuplicateCommitSeq(
        "this commit_seq is committed with another manifest: two different commits have one number",
        tx_id=tx_id,
    )


def _require_announced(
    state: CoordinatorState, transaction: Transaction, command: CommitTransaction
) -> None:
    """Else the question is answered "committed without you": the offsets are dropped, and the data
    is committed."""
    announced = {*transaction.parts, *state.asked.get(transaction.tx_id, ())}
    offsets = {part for part in announced if part.topic_id == CONSUMER_OFFSETS_ID}
    if not offsets:
        return
    named = command.manifest.participants()
    missing = sorted(part.number for part in offsets - named)
    if missing:
        raise ManifestMismatch(
            "the transaction has offsets that the manifest does not name; name the participant "
            "that CommitTransactionOffsets answered",
            offsets_partitions=",".join(map(str, missing)),
        )


def _require_room(
    state: CoordinatorState, transaction: Transaction, command: CommitTransaction
) -> None:
    """For its markers, in the place of what is remembered of it while it is open."""
    own = len(transaction.parts) + len(state.asked.get(transaction.tx_id, ()))
    require_participants(state, len(command.manifest.participants()) - own)


def _with_next(
    state: CoordinatorState,
    command: CommitTransaction,
    answer: CommitAnswer,
    records: tuple[Record, ...] = (),
    *,
    closing: Closing | None = None,
) -> Decision[Record]:
    """The commit's answer, and beside it what becomes of `begin_next`: the commit is a fact, or
    becomes one here, whether there is a next transaction or not (docs/adr/0010)."""
    if command.begin_next is None:
        return Decision(records, answer)
    try:
        producer = require_producer(state, command.producer)
        begin_answer, begun = begin(state, producer, command.begin_next, closing=closing)
    except OncelogError as refusal:
        return Decision(records, answer._replace(next_refusal=refusal))
    return Decision((*records, *begun), answer._replace(next=begin_answer))
