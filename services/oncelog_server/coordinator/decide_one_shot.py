"""Transact, and what the offset manager says about it (docs/protocol.md, "One-shots"). PURE.

Order of precedence: a request that was accepted, by this generation or an earlier one: its old
answer, or DUPLICATE_SEQUENCE where its content is another · UNKNOWN_PRODUCER, PRODUCER_FENCED ·
STALE_REQUEST_ID · OUT_OF_ORDER_SEQUENCE · TRANSACTION_ENDED (an earlier one of its chain was
refused) · CONCURRENT_TRANSACTION (open, or another commit_seq in flight) · ALREADY_COMMITTED by
commit_seq (uses the number up) · what the outside has against it · THROTTLED (16 in flight) ·
LIMIT_EXCEEDED · DISK_FULL and THROTTLED of a target · STAGED or
PREPARE_COMMIT.

After PREPARE nobody says no: whatever a participant could refuse is refused before the append. A
refusal does not use the request number up, ALREADY_COMMITTED does.
"""

from __future__ import annotations

from crc32c import crc32c
from msgspec.structs import replace

from oncelog_server.coordinator.commands import (
    AnswerOffsets,
    FindOneShot,
    FoundOneShot,
    ProducerIdentity,
    Transact,
    TransactAnswer,
)
from oncelog_server.coordinator.decide_begin import (
    require_open_slot,
    require_participants,
    throttled,
)
from oncelog_server.coordinator.decide_end import abort_record, ended
from oncelog_server.coordinator.identify import concurrent, require_producer, unknown_producer
from oncelog_server.coordinator.producers import (
    ONE_SHOTS_IN_FLIGHT_MAX,
    Chain,
    OneShotRequest,
    OneShotState,
    Producer,
)
from oncelog_server.coordinator.records import (
    OneShotPrepared,
    OneShotSkipped,
    OneShotStaged,
    PreparedAbort,
    PreparedCommit,
    Record,
)
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.transactions import State, Transaction
from oncelog_server.coordinator.values import NO_PARTS, AbortCause, Refusal, content_digest
from oncelog_server.core.ids import TxId, compose_tx_id
from oncelog_server.core.machine import Decision
from oncelogpb import errors
from oncelogpb.errors import (
    DiskFull,
    DuplicateSequence,
    OncelogError,
    OutOfOrderSequence,
    StaleRequestId,
    TransactionEnded,
    UnknownOutcome,
    UnknownTransaction,
)
from oncelogpb.ids import show_generation, show_id


def decide_transact(state: CoordinatorState, command: Transact) -> Decision[Record]:
    known = _known(state, command.producer, command.request_number)
    if known is not None:
        _require_same(known, command)
        return Decision((), _old_answer(state, known))
    _require_no_doubt(state, command)
    producer = require_producer(state, command.producer)
    _require_next_number(producer, command.request_number)
    _require_chain(producer, command)
    _require_no_rival(state, producer, command)
    last_seq = producer.committed_seq
    if last_seq is not None and last_seq.covers(command.commit_seq):
        skipped = OneShotSkipped(
            producer.producer_id,
            producer.generation,
            command.request_number,
            _digest(command),
            command.chain_first,
        )
        return Decision((skipped,), TransactAnswer(TxId(0), already_committed=True))
    if command.unfit is not None:
        raise command.unfit
    _require_room(state, producer, command)
    return _accept(state, producer, command)


def find_one_shot(state: CoordinatorState, command: FindOneShot) -> FoundOneShot:
    """Never a guess: what is forgotten is told as forgotten, and only what was never accepted is
    UNKNOWN_TRANSACTION."""
    producer = state.producers.get(command.producer.producer_id)
    if producer is None or command.producer.generation > producer.generation:
        raise unknown_producer(command.producer)
    known = _known(state, command.producer, command.request_number)
    if known is not None:
        skipped = known.state is OneShotState.SKIPPED
        return FoundOneShot(known.tx_id, already_committed=skipped)
    if producer.has_forgotten(command.producer.generation, command.request_number):
        return FoundOneShot(TxId(0), forgotten=True)
    raise UnknownTransaction(
        "this request number was not accepted; while the producer is not registered again, a copy "
        "that is still on its way may be"
    )


def decide_answer(state: CoordinatorState, command: AnswerOffsets) -> Decision[Record]:
    """The offset manager's word about a head; then those behind it that need no word are decided
    too: what was chained behind a refused one is refused with it. A repeated answer changes
    nothing."""
    transaction = state.transactions.get(command.tx_id)
    if transaction is None or transaction.state is not State.STAGED:
        return Decision((), ())
    producer = state.producers[transaction.producer_id]
    assert producer.staged[0] == command.tx_id, "one-shots are decided in request order"
    records: list[Record] = []
    broken = producer.broken_chain
    if has_lost_its_chain(state, transaction):
        records.append(_abort_with_its_chain(state, transaction))
    elif command.refusal is None:
        records.append(_prepare(transaction))
    else:
        parts = () if transaction.offsets is None else (transaction.offsets.participant,)
        records.append(abort_record(state, transaction, AbortCause.OFFSETS, parts, command.refusal))
        broken = _chain_of(transaction)
    decided = [command.tx_id]
    for tx_id in producer.staged[1:]:
        follower = state.transactions[tx_id]
        if follower.chain_first and _chain_of(follower) == broken:
            records.append(_abort_with_its_chain(state, follower))
        elif follower.offsets is None:
            records.append(_prepare(follower))
        else:
            break
        decided.append(tx_id)
    return Decision(records, tuple(decided))


def has_lost_its_chain(state: CoordinatorState, transaction: Transaction) -> bool:
    """An earlier one of its chain was refused. It is decided together with that one, but a crash
    can lose the later of two records."""
    producer = state.producers[transaction.producer_id]
    return bool(transaction.chain_first) and _chain_of(transaction) == producer.broken_chain


def _accept(state: CoordinatorState, producer: Producer, command: Transact) -> Decision[Record]:
    tx_id = compose_tx_id(state.journal_partition, state.next_offset)
    if command.offsets is None and not producer.staged:
        prepared = OneShotPrepared(
            tx_id,
            producer.producer_id,
            producer.generation,
            command.request_number,
            command.commit_seq,
            command.batches,
            command.chain_first,
        )
        return Decision((prepared,), TransactAnswer(tx_id))
    staged = OneShotStaged(
        tx_id,
        producer.producer_id,
        producer.generation,
        command.request_number,
        command.commit_seq,
        command.batches,
        command.offsets,
        command.chain_first,
    )
    return Decision((staged,), TransactAnswer(tx_id, staged=True))


def _prepare(transaction: Transaction) -> PreparedCommit:
    return PreparedCommit(
        transaction.tx_id,
        transaction.producer_id,
        transaction.generation,
        transaction.begin_ms,
        transaction.timeout_ms,
        transaction.commit_seq,
        NO_PARTS,
    )


def _chain_of(transaction: Transaction) -> Chain:
    return Chain(transaction.generation, transaction.chain_first)


def _abort_with_its_chain(state: CoordinatorState, transaction: Transaction) -> PreparedAbort:
    """The offset manager was not asked: nobody holds anything of it, so nobody is told."""
    refusal = refusal_of(_chain_is_broken(transaction.tx_id))
    return abort_record(state, transaction, AbortCause.CHAIN, (), refusal)


def _chain_is_broken(tx_id: TxId | None = None) -> TransactionEnded:
    error = TransactionEnded(
        "aborted: an earlier transaction of its chain was refused; rewind to where that one began, "
        "and send all from there on again",
        outcome="aborted",
        cause=AbortCause.CHAIN.name,
    )
    if tx_id is not None:
        error.metadata["tx_id"] = show_id(tx_id)
    return error


def _known(
    state: CoordinatorState, asking: ProducerIdentity, request_number: int
) -> OneShotRequest | None:
    """Also of an earlier generation: PRODUCER_FENCED promises that nothing happened, and to what
    was accepted before the fence that would be a lie (I4)."""
    producer = state.producers.get(asking.producer_id)
    if producer is None:
        return None
    if asking.generation == producer.generation:
        return producer.one_shot_request(request_number)
    return producer.former_one_shot(asking.generation, request_number)


def _require_no_doubt(state: CoordinatorState, command: Transact) -> None:
    """For the same reason: what may have been accepted, and is forgotten, is not refused."""
    asking = command.producer
    producer = state.producers.get(asking.producer_id)
    if producer is None or asking.generation >= producer.generation:
        return
    if producer.has_forgotten(asking.generation, command.request_number):
        raise UnknownOutcome(
            f"generation {show_generation(asking.generation)} was replaced by "
            f"{show_generation(producer.generation)}, and what became of this request of it is no "
            "longer remembered; this instance must stop"
        )


def _require_same(known: OneShotRequest, command: Transact) -> None:
    """Else a second content under a used number is dropped without a word."""
    if known.digest not in (b"", _digest(command)):
        raise DuplicateSequence(
            f"request number {command.request_number} was used with another content, whose outcome "
            "GetTransaction tells; the client has a fault",
            expected=command.request_number + 1,
        )


def _digest(command: Transact) -> bytes:
    """Of what really came."""
    batches = [replace(b, crc32c=crc32c(b.payload)) for b in command.batches]
    return content_digest(batches, command.offsets, command.commit_seq)


def _old_answer(state: CoordinatorState, known: OneShotRequest) -> TransactAnswer | OncelogError:
    match known.state:
        case OneShotState.STAGED:
            return TransactAnswer(known.tx_id, staged=True, duplicate=True)
        case OneShotState.SKIPPED:
            return TransactAnswer(TxId(0), already_committed=True, duplicate=True)
        case OneShotState.ABORTED:
            return _remembered(known)
    over = known.tx_id not in state.transactions
    visible = over or state.deliveries.is_visible(known.tx_id)
    return TransactAnswer(known.tx_id, visible=visible, duplicate=True)


def _remembered(known: OneShotRequest) -> OncelogError:
    if known.refusal is None:
        return ended(known.tx_id, "aborted", AbortCause.OFFSETS)
    error = errors.BY_REASON[known.refusal.reason](known.refusal.message)
    error.metadata = dict(known.refusal.metadata)
    return error


def _require_next_number(producer: Producer, request_number: int) -> None:
    if request_number < producer.next_request_number:
        raise StaleRequestId(
            "this request number is below those that are remembered; its outcome is not known here",
            expected=producer.next_request_number,
        )
    if request_number > producer.next_request_number:
        raise OutOfOrderSequence(
            "request numbers are consecutive; an earlier request is missing",
            expected=producer.next_request_number,
        )


def _require_chain(producer: Producer, command: Transact) -> None:
    """All of its chain before it were accepted, and none is refused: else it is visible although
    what it builds on never will be. For ever: the number before it was used, by no later chain."""
    first = command.chain_first
    if not first or first == command.request_number:
        return
    chain = Chain(producer.generation, first)
    if producer.chain != chain or producer.broken_chain == chain:
        raise _chain_is_broken()


def _require_no_rival(state: CoordinatorState, producer: Producer, command: Transact) -> None:
    """Beside an open transaction its TxId would move "highest ended" past the open one. Behind an
    undecided commit_seq a later one could be committed while that one is aborted: its retry would
    be taken for committed."""
    if producer.open_tx:
        raise concurrent(producer.open_tx, "the producer has an open transaction; end it first")
    if command.commit_seq is None:
        return
    for tx_id in producer.staged:
        if state.transactions[tx_id].commit_seq is not None:
            raise concurrent(tx_id, "a commit_seq is in flight and not decided yet; try again")


def _require_room(state: CoordinatorState, producer: Producer, command: Transact) -> None:
    oldest = producer.oldest_staged_number()
    if oldest is not None and command.request_number - oldest >= ONE_SHOTS_IN_FLIGHT_MAX:
        raise throttled("one_shots_in_flight_max", ONE_SHOTS_IN_FLIGHT_MAX)
    require_open_slot(state)
    require_participants(state, len(command.batches))
    config, deliveries = state.config, state.deliveries
    if state.undelivered_bytes >= config.one_shot_undelivered_bytes_max:
        raise throttled("one_shot_undelivered_bytes_max", config.one_shot_undelivered_bytes_max)
    for batch in command.batches:
        if deliveries.is_disk_full(batch.partition):
            raise DiskFull(
                f"the leader of {batch.partition} has no disk space; it takes no new data",
                partition=batch.partition.number,
                topic_id=batch.partition.topic_id.hex(),
            )
        markers, size_bytes = deliveries.backlog(batch.partition)
        if markers >= config.marker_backlog_max:
            raise throttled("marker_backlog_max", config.marker_backlog_max)
        if size_bytes >= config.marker_backlog_bytes_max:
            raise throttled("marker_backlog_bytes_max", config.marker_backlog_bytes_max)


def refusal_of(error: OncelogError) -> Refusal:
    """What is remembered of the offset manager's no."""
    return Refusal(error.reason, error.message, dict(error.metadata))
