"""The coordinator's machine for one partition of `__transaction_control`. PURE.

    command              records                                   what decides
    InitProducer         PreparedAbort?, ProducerInitialized       `decide_producer`
    BeginTransaction     Begun                                     `decide_begin`
    CommitTransaction    PreparedCommit, Begun?                    `decide_end`
    AbortTransaction     PreparedAbort                             `decide_end`
    Transact             OneShotPrepared | OneShotStaged | ...     `decide_one_shot`
    FindOneShot          -                                         `decide_one_shot`
    AnswerOffsets        PreparedCommit | PreparedAbort, ...       `decide_one_shot`
    FinishTransactions   Committed | Aborted, ...                  `decide_end`
    ProveLogEnd          LogEndProved                              `unborn`
    Tick                 PreparedAbort, ..., ProducersForgotten,   `decide_time`
                         TimePassed

Owed to the outside, below the HW: markers in PREPARE order (`deliveries`), offsets of staged
one-shots in request order (`one_shots`), and the record that a transaction is over.

Leaves out: outcomes of ended transactions (`outcomes`, read by the service).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, assert_never

from oncelog_server.coordinator.commands import (
    AbortTransaction,
    AnswerOffsets,
    BeginTransaction,
    Command,
    CommitTransaction,
    FindOneShot,
    FinishPlanned,
    FinishTransactions,
    InitProducer,
    MarkersAnswered,
    MarkersSent,
    OffsetsSent,
    Owed,
    OweDecision,
    OweFinish,
    OweOffsets,
    PartitionAsked,
    ProveLogEnd,
    SessionEnded,
    SessionOpened,
    Transact,
    UnbornAsked,
    UnbornTold,
)
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.decide_begin import decide_begin
from oncelog_server.coordinator.decide_end import decide_abort, decide_commit, decide_finish
from oncelog_server.coordinator.decide_one_shot import (
    decide_answer,
    decide_transact,
    find_one_shot,
    has_lost_its_chain,
)
from oncelog_server.coordinator.decide_producer import decide_init
from oncelog_server.coordinator.decide_time import decide_tick, prove_log_end
from oncelog_server.coordinator.producers import (
    Chain,
    LastCommit,
    OneShotRequest,
    OneShotState,
    Producer,
)
from oncelog_server.coordinator.records import (
    Aborted,
    Begun,
    Committed,
    LogEndProved,
    OneShotPrepared,
    OneShotSkipped,
    OneShotStaged,
    PreparedAbort,
    PreparedCommit,
    ProducerInitialized,
    ProducersForgotten,
    Record,
)
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.transactions import State, Transaction
from oncelog_server.coordinator.unborn import Claim
from oncelog_server.coordinator.values import AbortCause, content_digest
from oncelog_server.core.age import TimePassed
from oncelog_server.core.frame import At
from oncelog_server.core.ids import (
    JournalOffset,
    PartitionId,
    ProducerId,
    TxId,
    compose_tx_id,
    journal_offset_of,
)
from oncelog_server.core.machine import (
    NOTHING_SAVED,
    Decision,
    EpochStart,
    Instant,
    Snapshot,
    Tick,
    refuse,
    rest_ms,
)
from oncelogpb.errors import OncelogError

# The state diagram (docs/protocol.md): each arrow is one record. None: not begun.
TRANSITIONS: Final[Mapping[tuple[State | None, type[Record]], State]] = {
    (None, Begun): State.ONGOING,
    (None, OneShotStaged): State.STAGED,
    (None, OneShotPrepared): State.PREPARE_COMMIT,
    (State.ONGOING, PreparedCommit): State.PREPARE_COMMIT,
    (State.ONGOING, PreparedAbort): State.PREPARE_ABORT,
    (State.STAGED, PreparedCommit): State.PREPARE_COMMIT,
    (State.STAGED, PreparedAbort): State.PREPARE_ABORT,
    (State.PREPARE_COMMIT, Committed): State.COMMITTED,
    (State.PREPARE_ABORT, Aborted): State.ABORTED,
}


class ImpossibleTransition(Exception):
    """A record that contradicts the state diagram: the journal or this program is wrong, so the
    process must end."""


class CoordinatorMachine:
    """See the module. `state` may be read by services and outboxes."""

    def __init__(self, partition: PartitionId, config: CoordinatorConfig) -> None:
        self.state = CoordinatorState(partition.number, config)

    @property
    def next_offset(self) -> JournalOffset:
        return self.state.next_offset

    # -------------------------------------------------------------------------------------- decide

    def decide(self, command: Command, now: Instant) -> Decision[Record]:
        try:
            return self._decide(command, now)
        except OncelogError as error:
            return refuse(error)

    def _decide(self, command: Command, now: Instant) -> Decision[Record]:
        match command:
            case InitProducer():
                return decide_init(self.state, command)
            case BeginTransaction():
                return decide_begin(self.state, command)
            case CommitTransaction():
                return decide_commit(self.state, command)
            case AbortTransaction():
                return decide_abort(self.state, command)
            case Transact():
                return decide_transact(self.state, command)
            case FindOneShot():
                return Decision((), find_one_shot(self.state, command))
            case AnswerOffsets():
                return decide_answer(self.state, command)
            case ProveLogEnd():
                return Decision(prove_log_end(self.state))
            case FinishTransactions():
                return decide_finish(self.state, command)
            case Tick():
                return decide_tick(self.state, now)
        assert_never(command)

    # --------------------------------------------------------------------------------------- apply

    def apply(self, record: Record | EpochStart, at: At) -> None:
        self.state.next_offset = JournalOffset(at.offset + 1)
        if isinstance(record, TimePassed):
            self.state.age.passed(at.time_ms)
        else:
            self.state.age.saw(at.time_ms)
        self.state.grow_older(at.offset)
        match record:
            case EpochStart():
                assert at.epoch > self.state.epoch, "epochs only grow"
                self.state.epoch = at.epoch
                self.state.epoch_start = at.offset
                self.state.forget_volatile()
            case ProducerInitialized():
                self._initialize(record, at)
            case Begun():
                self._begin(record, at)
            case PreparedCommit():
                self._prepare_commit(record, at)
            case PreparedAbort():
                self._prepare_abort(record, at)
            case OneShotStaged():
                self._stage(record, at)
            case OneShotPrepared():
                self._prepare_one_shot(record, at)
            case OneShotSkipped():
                self._active(record.producer_id, at).asked_one_shot(
                    OneShotRequest(
                        record.request_number,
                        TxId(0),
                        OneShotState.SKIPPED,
                        digest=record.digest,
                    ),
                    record.chain_first,
                )
            case Committed() | Aborted():
                self._over(record)
            case ProducersForgotten():
                for producer_id in record.producer_ids:
                    self.state.producers.remove(producer_id)
                    self.state.sessions.forget(producer_id)
            case LogEndProved():
                self.state.unborn.proved(at.offset)
            case TimePassed():
                self.state.watch.wants_record = False
            case _:
                assert_never(record)

    def _initialize(self, record: ProducerInitialized, at: At) -> None:
        producer = self.state.producers.get(record.producer_id)
        if producer is None:
            producer = Producer(
                record.producer_id,
                record.generation,
                record.group,
                record.name,
                record.instance_id,
                active_offset=at.offset,
                active_ms=self.state.age.aged_ms,
                owner=record.owner,
            )
            self.state.producers.add(producer)
            return
        config = self.state.config
        producer.take_over(
            record.generation,
            record.instance_id,
            record.owner,
            at_ms=self.state.age.aged_ms,
            keep_ms=config.replaced_instance_retention_ms,
            keep_max=config.replaced_instances_max,
        )
        self._active(record.producer_id, at)

    def _begin(self, record: Begun, at: At) -> None:
        transaction = Transaction(
            record.tx_id,
            record.producer_id,
            record.generation,
            self._enter(record, record.tx_id, at),
            at.time_ms,
            record.timeout_ms,
            record.request_id,
            record.commit_seq,
            record.parts,
        )
        self.state.transactions.add(transaction)
        self.state.named_parts += len(record.parts)
        self._active(record.producer_id, at).began(record.request_id, record.tx_id)
        self.state.unarmed[record.tx_id] = None

    def _stage(self, record: OneShotStaged, at: At) -> None:
        transaction = self._one_shot(record, at)
        transaction.offsets = record.offsets
        self.state.transactions.add(transaction)
        producer = self._active(record.producer_id, at)
        digest = content_digest(record.batches, record.offsets, record.commit_seq)
        producer.asked_one_shot(_asked(record, OneShotState.STAGED, digest), record.chain_first)
        producer.staged.append(record.tx_id)
        if len(producer.staged) == 1:
            self.state.first_staged.became_head(record.tx_id, gate=at.offset)

    def _prepare_one_shot(self, record: OneShotPrepared, at: At) -> None:
        transaction = self._one_shot(record, at)
        transaction.prepare_offset, transaction.prepare_ms = at.offset, at.time_ms
        self.state.transactions.add(transaction)
        self.state.outcome_ages.decided(at.offset)
        producer = self._active(record.producer_id, at)
        digest = content_digest(record.batches, None, record.commit_seq)
        producer.asked_one_shot(_asked(record, OneShotState.COMMITTED, digest), record.chain_first)
        self._committed(transaction, producer, b"")

    def _one_shot(self, record: OneShotStaged | OneShotPrepared, at: At) -> Transaction:
        return Transaction(
            record.tx_id,
            record.producer_id,
            record.generation,
            self._enter(record, record.tx_id, at),
            at.time_ms,
            0,
            record.request_number,
            record.commit_seq,
            batches=record.batches,
            chain_first=record.chain_first,
        )

    def _prepare_commit(self, record: PreparedCommit, at: At) -> None:
        transaction = self._decided(record, at)
        transaction.manifest = record.manifest
        transaction.commit_seq = record.commit_seq
        producer = self._active(record.producer_id, at)
        has_digest = record.commit_seq is not None and not transaction.is_one_shot
        self._committed(transaction, producer, record.manifest.digest() if has_digest else b"")
        self._answer(producer, transaction, AbortCause.NONE, record)
        self._unstage(producer, transaction, at)

    def _prepare_abort(self, record: PreparedAbort, at: At) -> None:
        transaction = self._decided(record, at)
        transaction.parts = record.parts
        transaction.cause = record.cause
        if record.cause is AbortCause.SESSION:
            # Its session has done what it could: the producer's next transaction is another story.
            self.state.sessions.forget(record.producer_id)
        self.state.deliveries.add(transaction)
        producer = self._active(record.producer_id, at)
        if transaction.chain_first:
            producer.broken_chain = Chain(transaction.generation, transaction.chain_first)
        self._answer(producer, transaction, record.cause, record)
        self._unstage(producer, transaction, at)

    def _over(self, record: Committed | Aborted) -> None:
        known = self.state.transactions[record.tx_id]
        _next_state(known.state, record)
        transaction = self.state.transactions.remove(record.tx_id)
        self.state.deliveries.remove(transaction)
        self.state.first_staged.over(transaction)
        if isinstance(record, Committed) and record.damaged:
            self.state.remember_damaged(record.tx_id, record.damaged)

    # ---------------------------------------------------------------------- what several records do

    def _enter(self, record: Begun | OneShotStaged | OneShotPrepared, tx_id: TxId, at: At) -> State:
        assert tx_id == compose_tx_id(self.state.journal_partition, at.offset), (
            "a TxId is the place of its first record"
        )
        return _next_state(None, record)

    def _active(self, producer_id: ProducerId, at: At) -> Producer:
        producer = self.state.producers[producer_id]
        aged_ms = self.state.age.aged_ms
        self.state.producers.active(producer, offset=at.offset, aged_ms=aged_ms)
        return producer

    def _decided(self, record: PreparedCommit | PreparedAbort, at: At) -> Transaction:
        transaction = self.state.transactions[record.tx_id]
        # A staged one-shot names none.
        self.state.named_parts -= len(transaction.parts)
        self.state.transactions.decided(transaction, _next_state(transaction.state, record))
        transaction.prepare_offset, transaction.prepare_ms = at.offset, at.time_ms
        self.state.outcome_ages.decided(journal_offset_of(record.tx_id))
        self.state.forget_open(record.tx_id)
        return transaction

    def _committed(self, transaction: Transaction, producer: Producer, digest: bytes) -> None:
        producer.last_committed = transaction.tx_id
        if transaction.commit_seq is not None:
            producer.last_commit = LastCommit(
                transaction.commit_seq, transaction.generation, digest
            )
        self.state.deliveries.add(transaction)
        self.state.first_staged.committed(transaction)

    def _answer(
        self,
        producer: Producer,
        transaction: Transaction,
        cause: AbortCause,
        record: PreparedCommit | PreparedAbort,
    ) -> None:
        """What a repeated request is told from now on."""
        if producer.open_tx == transaction.tx_id:
            producer.open_tx = TxId(0)
        is_current = producer.generation == transaction.generation
        committed = isinstance(record, PreparedCommit)
        if transaction.is_one_shot:
            number = transaction.request
            request = (
                producer.one_shot_request(number)
                if is_current
                else producer.former_one_shot(transaction.generation, number)
            )
            assert request is not None, "answers of undecided one-shots are all remembered"
            request.state = OneShotState.COMMITTED if committed else OneShotState.ABORTED
            request.refusal = record.refusal if isinstance(record, PreparedAbort) else None
            return
        if not is_current:
            return
        begun = producer.begin_request(transaction.request)
        assert begun is not None, "the open transaction's request id is the newest"
        begun.committed, begun.cause = committed, cause

    def _unstage(self, producer: Producer, transaction: Transaction, at: At) -> None:
        if not transaction.is_one_shot:
            return
        assert producer.staged[0] == transaction.tx_id, "one-shots are decided in request order"
        producer.staged.pop(0)
        self.state.first_staged.decided(transaction.tx_id)
        if producer.staged:
            self.state.first_staged.became_head(producer.staged[0], gate=at.offset)

    # ------------------------------------------------------------------------------------ volatile

    def seen(self, signal: object, now: Instant) -> None:
        state = self.state
        match signal:
            case Tick():
                state.turn_timers(now.monotonic_ms)
                state.watch.look(state.age, now)
            case MarkersSent():
                state.deliveries.sent(signal.participant)
            case MarkersAnswered():
                state.deliveries.answered(signal)
            case OffsetsSent():
                state.first_staged.sent(signal.tx_id)
            case FinishPlanned():
                state.deliveries.finish_planned(signal.tx_ids)
            case PartitionAsked():
                state.partition_asked(signal, now.monotonic_ms)
            case UnbornAsked():
                claim, end = Claim(*signal), self.next_offset
                state.unborn.asked(claim, log_end=end, now_ms=now.monotonic_ms)
            case UnbornTold():
                state.unborn.claimed(Claim(*signal))
            case SessionOpened():
                state.sessions.opened(signal)
            case SessionEnded():
                state.sessions.ended(signal, now.monotonic_ms)
            case _:
                raise AssertionError(f"no signal of a coordinator: {signal!r}")

    # ---------------------------------------------------------------------------------------- owed

    def owed(self, below: JournalOffset) -> Sequence[Owed]:
        """Not what is under way already. Costs what it gives, not what is open."""
        return [*self.state.deliveries.due(below), *self.owed_beside_markers(below)]

    def owed_beside_markers(self, below: JournalOffset) -> list[Owed]:
        """What nobody may hold back."""
        owed: list[Owed] = []
        for tx_id in self.state.first_staged.due(below):
            head = self.state.transactions[tx_id]
            if head.offsets is None or has_lost_its_chain(self.state, head):
                owed.append(OweDecision(tx_id))
                continue
            after = self.state.first_staged.chains_on(head)
            owed.append(OweOffsets(tx_id, head.identity, head.offsets, after))
        finishable = self.state.deliveries.finishable(below)
        if finishable:
            owed.append(OweFinish(finishable))
        return owed

    def checkpoint_offset(self) -> JournalOffset:
        """Journal offset of the oldest open transaction (the seeds' journal HW): a hint for tools.
        Recovery never begins there: request ids, generations and commit_seq are older."""
        oldest = self.state.transactions.oldest_undecided()
        return self.next_offset if oldest is None else journal_offset_of(oldest.tx_id)

    # ---------------------------------------------------------------------- front of the journal

    def needed_from(self) -> JournalOffset:
        """Nothing: what is not over stands whole in the state and so in every snapshot, payloads
        and manifests included. So a participant that is away for weeks does not hold the journal.
        """
        return self.next_offset

    def wanted_from(self) -> JournalOffset:
        """GetTransaction reads parts from the journal for as long as outcomes are told."""
        return self.state.outcome_ages.told_from

    def slots_from(self) -> JournalOffset:
        return self.state.outcome_ages.told_from

    def settled(self) -> None:
        """It has no committed log."""

    # ---------------------------------------------------------------------------------- snapshots

    @property
    def rests_ms(self) -> int:
        """Producers are forgotten after days."""
        if self.state.has_timers:
            return 0
        return rest_ms(self.state.config.unnamed_producer_retention_ms)

    def check(self) -> None:
        self.state.check()

    def snapshot(self, rows_saved: Mapping[str, int] = NOTHING_SAVED) -> Snapshot:
        return Snapshot(self.state.encode(), {})

    def restore(self, state: bytes, tables: Mapping[str, bytes]) -> None:
        assert not tables, "a coordinator has no tables"
        assert self.next_offset == 0, "restore into a fresh machine"
        self.state.decode(state)


def _asked(
    record: OneShotStaged | OneShotPrepared, state: OneShotState, digest: bytes
) -> OneShotRequest:
    return OneShotRequest(record.request_number, record.tx_id, state, digest=digest)


def _next_state(state: State | None, record: Record) -> State:
    try:
        return TRANSITIONS[state, type(record)]
    except KeyError:
        before = "nothing" if state is None else state.name
        raise ImpossibleTransition(f"{type(record).__name__} after {before}") from None
