"""Handlers of the Coordinator service: authorize, decode, submit, encode.

Who may call at all is decided before a handler runs (`access`); which producer may do what is
decided by the machine. InitProducer is led by the group's journal partition, everything after it by
the one in the top 16 bits of the producer id or TxId.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from oncelog_server.coordinator import describe, wire
from oncelog_server.coordinator.access import without_refused
from oncelog_server.coordinator.commands import (
    AbortAnswer,
    BeginAnswer,
    BeginResult,
    CommitAnswer,
    CommitTransaction,
    Elsewhere,
    Exposure,
    FoundOneShot,
    PartitionAsked,
    ProducerGranted,
    ProveLogEnd,
    SessionEnded,
    SessionOpened,
    Transact,
    TransactAnswer,
    UnbornAsked,
    UnbornTold,
)
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.ended_transactions import EndedTransactions, state_of
from oncelog_server.coordinator.fitness import Fitness, UnheardOf
from oncelog_server.coordinator.listing import Listing
from oncelog_server.coordinator.ports import CoordinatorEnv, CoordinatorReplica
from oncelog_server.coordinator.questions import (
    AnswerCode,
    is_decided,
    is_unborn,
    verdict,
    verdict_of,
)
from oncelog_server.coordinator.state import CoordinatorState
from oncelog_server.coordinator.transactions import DECIDED
from oncelog_server.coordinator.waiting import Waiting
from oncelog_server.core.access import Need, ResourceKind, Verb
from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    CONTROL_PARTITIONS,
    TRANSACTION_CONTROL_ID,
    JournalOffset,
    PartitionId,
    TxId,
    control_partition,
    journal_offset_of,
    journal_partition_of,
)
from oncelog_server.core.ports import Call
from oncelog_server.core.wire import partition_id
from oncelogpb.errors import (
    Damaged,
    InDoubt,
    InvalidArgument,
    OncelogError,
    TooLarge,
    TransactionEnded,
    TryAgain,
    UnknownOutcome,
)
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types

QUESTIONS_MAX: Final = 1_000


class CoordinatorService:
    """One per process."""

    def __init__(
        self,
        config: CoordinatorConfig,
        env: CoordinatorEnv,
        waiting: Waiting,
        ended_transactions: Callable[[CoordinatorReplica], EndedTransactions],
    ) -> None:
        self._config = config
        self._env = env
        self._waiting = waiting
        self._ended_transactions_of = ended_transactions
        self._fitness = Fitness(config, env)
        self._listing = Listing(env)
        # Sessions whose stream tells its end. Invariant: one per producer and stream.
        self._held: set[SessionOpened] = set()

    # ----------------------------------------------------------------------------------- producers

    async def init_producer(
        self, request: pb.InitProducerRequest, call: Call
    ) -> pb.InitProducerReply:
        command = wire.init_producer(request, call.identity)
        if request.session and not call.stream_id:
            raise InvalidArgument("a session needs a stream to be held on", field="session")
        replica = self._env.replicas.lead(control_partition(TRANSACTION_CONTROL_ID, command.group))
        granted: ProducerGranted = await replica.submit(command)
        if request.session:
            self._hold_session(replica, granted, call)
        self._env.reporter.count("producers_initialized")
        return wire.granted(granted, self._config)

    def _hold_session(
        self, replica: CoordinatorReplica, granted: ProducerGranted, call: Call
    ) -> None:
        session = SessionOpened(granted.producer, call.stream_id)
        replica.signal(session)
        if session in self._held:
            # Asked for again on its stream: one end is enough.
            return
        self._held.add(session)

        def ended() -> None:
            self._held.discard(session)
            replica.signal(SessionEnded(*session))

        call.on_stream_end(ended)

    # -------------------------------------------------------------------------------- transactions

    async def begin_transaction(
        self, request: pb.BeginTransactionRequest, call: Call
    ) -> pb.BeginTransactionReply:
        command = wire.begin_transaction(request, self._config)
        command = replace(command, unfit=self._fitness.of_begin(command))
        replica = self._lead(command.producer.producer_id, "producer")
        before = replica.log_end
        answer: BeginAnswer = await self._submit(replica, command)
        self._count_begun(answer, before)
        return wire.begun(answer)

    async def commit_transaction(
        self, request: pb.CommitTransactionRequest, call: Call
    ) -> pb.CommitTransactionReply:
        without_refused(request.begin_next.parts, call)
        command = wire.commit_transaction(request, self._config)
        following = command.begin_next
        if following is not None:
            following = replace(following, unfit=self._fitness.of_begin(following))
        command = replace(command, begin_next=following, unfit=self._fitness.of_commit(command))
        replica = self._lead(command.tx_id, "tx_id")
        arrived_ms = self._env.clock.now().monotonic_ms
        before = replica.log_end
        answer: CommitAnswer | Elsewhere = await self._submit(replica, command)
        if isinstance(answer, Elsewhere):
            answer = await self._repeat_commit(replica, command)
        if isinstance(answer.next_refusal, UnheardOf):
            answer = await self._explain_next(answer, answer.next_refusal)
        self._observe("commit_prepare", arrived_ms)
        if answer.next is not None:
            self._count_begun(answer.next, before)
        visible = answer.visible
        exposed: Sequence[Exposure] = ()
        if answer.already_committed:
            self._env.reporter.count("already_committed")
        elif request.wait == types.WAIT_VISIBLE:
            exposed = await self._visible(replica, command.tx_id, call)
            visible = True
            self._observe("commit_visible", arrived_ms)
        return wire.committed(answer, visible=visible, exposed=exposed)

    async def _repeat_commit(
        self, replica: CoordinatorReplica, command: CommitTransaction
    ) -> CommitAnswer:
        answer = await self._ended_transactions(replica).repeat_commit(command)
        if command.begin_next is None:
            return answer
        try:
            # Idempotent by its own request id.
            return answer._replace(next=await replica.submit(command.begin_next))
        except OncelogError as refusal:
            return answer._replace(next_refusal=refusal)

    async def _explain_next(self, answer: CommitAnswer, unheard: UnheardOf) -> CommitAnswer:
        try:
            await self._fitness.explain(unheard)
        except OncelogError as refusal:
            return answer._replace(next_refusal=refusal)

    async def abort_transaction(
        self, request: pb.AbortTransactionRequest, call: Call
    ) -> pb.AbortTransactionReply:
        without_refused(request.parts, call)
        command = wire.abort_transaction(request, self._config)
        command = replace(command, unfit=self._fitness.of_abort(command))
        replica = self._lead(command.tx_id, "tx_id")
        answer: AbortAnswer | Elsewhere = await self._submit(replica, command)
        if isinstance(answer, Elsewhere):
            self._ended_transactions(replica).repeat_abort(command)
        return pb.AbortTransactionReply(state=types.TRANSACTION_STATE_ABORTED)

    async def transact(self, request: pb.TransactRequest, call: Call) -> pb.TransactReply:
        command = wire.transact(request)
        try:
            return await self._transact(command, request.wait, call)
        except (InDoubt, TransactionEnded) as error:
            # Its caller knows no TxId that it could ask about.
            raise _naming(error, command) from error

    async def _transact(
        self, command: Transact, wait: types.Wait.ValueType, call: Call
    ) -> pb.TransactReply:
        replica = self._lead(command.producer.producer_id, "producer")
        command = replace(command, unfit=self._fitness.of_one_shot(command, replica))
        arrived_ms = self._env.clock.now().monotonic_ms
        before = replica.log_end
        answer = await self._decided(replica, command, call)
        self._observe("commit_prepare", arrived_ms)
        self._count_one_shot(answer, before)
        visible = answer.visible
        exposed: Sequence[Exposure] = ()
        if wait == types.WAIT_VISIBLE and not answer.already_committed:
            exposed = await self._visible(replica, answer.tx_id, call)
            visible = True
            self._observe("commit_visible", arrived_ms)
        return pb.TransactReply(
            tx_id=answer.tx_id,
            already_committed=answer.already_committed,
            visible=visible,
            exposed=[wire.exposed_message(part) for part in exposed],
            duplicate=answer.duplicate,
        )

    async def _decided(
        self, replica: CoordinatorReplica, command: Transact, call: Call
    ) -> TransactAnswer:
        """A staged one-shot is answered once the offset manager has spoken. Asking again is
        idempotent by its request number, and gives the durable answer."""
        answer: TransactAnswer = await self._submit(replica, command)
        duplicate = answer.duplicate
        while answer.staged:
            staged = _still_led(replica).transactions.get(answer.tx_id)
            if staged is not None and staged.state not in DECIDED:
                await self._waiting.wait(answer.tx_id, call.timeout_ms)
            _still_led(replica)
            try:
                answer = await replica.submit(command)
            except TryAgain as error:
                # It is journaled: "nothing happened" would be a lie.
                raise UnknownOutcome(f"{error.message}; repeat the call") from error
        return answer._replace(duplicate=duplicate)

    async def _visible(
        self, replica: CoordinatorReplica, tx_id: TxId, call: Call
    ) -> Sequence[Exposure]:
        """Until every participant has acknowledged it. Raises Damaged."""
        state = _still_led(replica)
        with self._waiting.hurrying(replica.partition.number):
            while tx_id in state.transactions and not state.deliveries.is_visible(tx_id):
                await self._waiting.wait(tx_id, call.timeout_ms)
                state = _still_led(replica)
        delivered = state.deliveries.delivered(tx_id)
        damaged = state.damaged.get(tx_id) or (delivered.damaged if delivered is not None else ())
        if damaged:
            raise Damaged(
                "committed, but a part did not match the manifest: nothing of it is exposed there; "
                "see `oncelog tx describe`",
                tx_id=tx_id,
                partitions=",".join(str(partition) for partition in damaged),
            )
        return () if delivered is None else delivered.exposed

    # --------------------------------------------------------------------------------------- reads

    async def get_transaction(
        self, request: pb.GetTransactionRequest, call: Call
    ) -> pb.GetTransactionReply:
        if not request.tx_id:
            return await self._get_one_shot(request)
        if request.HasField("producer"):
            raise InvalidArgument("ask by tx_id or by producer, not both", field="producer")
        tx_id = wire.tx_id(request.tx_id)
        replica = self._lead(tx_id, "tx_id")
        if request.only_visibility:
            return pb.GetTransactionReply(transaction=self._visibility(replica, tx_id, call))
        description = await self._described(replica, tx_id)
        return pb.GetTransactionReply(transaction=description)

    async def _get_one_shot(self, request: pb.GetTransactionRequest) -> pb.GetTransactionReply:
        command = wire.find_one_shot(request)
        replica = self._lead(command.producer.producer_id, "producer")
        # A command, so that the answer waits until what it was read from is durable.
        found: FoundOneShot = await replica.submit(command)
        if found.already_committed:
            return pb.GetTransactionReply(already_committed=True)
        if found.forgotten:
            return pb.GetTransactionReply(transaction=describe.forgotten(command.producer))
        return pb.GetTransactionReply(transaction=await self._described(replica, found.tx_id))

    def _visibility(
        self, replica: CoordinatorReplica, tx_id: TxId, call: Call
    ) -> pb.TransactionDescription:
        replica.require_lease()
        state = state_of(replica)
        transaction = state.transactions.get(tx_id)
        below = replica.high_watermark
        if transaction is not None and journal_offset_of(tx_id) < below:
            if not is_decided(transaction, below=below) or not transaction.is_committed:
                return pb.TransactionDescription(
                    tx_id=tx_id, state=describe.state_outside(transaction, below=below)
                )
            producer_id, prepare_offset = transaction.producer_id, transaction.prepare_offset
        else:
            outcome = self._ended_transactions(replica).known_outcome(tx_id)
            if outcome.expired:
                return describe.over(state, tx_id, outcome, ())
            if not outcome.committed:
                return pb.TransactionDescription(tx_id=tx_id, state=types.TRANSACTION_STATE_ABORTED)
            producer_id = outcome.producer.producer_id
            prepare_offset = JournalOffset(outcome.prepare_offset)
        may_name = partial(self._may_name, call)
        told = describe.visibility(state, tx_id, producer_id, prepare_offset, may_name)
        if not told.visible:
            self._waiting.asked(replica.partition.number)
        return told

    def _may_name(self, call: Call, partition: PartitionId) -> bool:
        """What the caller may not see is not told; offsets are of no topic of a user's."""
        topic = self._env.metadata.topic_by_id(partition.topic_id)
        if topic is None:
            return partition.topic_id == CONSUMER_OFFSETS_ID
        return call.sees(Need(Verb.DESCRIBE, ResourceKind.TOPIC, topic.name))

    async def _described(
        self, replica: CoordinatorReplica, tx_id: TxId
    ) -> pb.TransactionDescription:
        replica.require_lease()
        state = state_of(replica)
        below = replica.high_watermark
        transaction = state.transactions.get(tx_id)
        if transaction is not None and journal_offset_of(tx_id) < below:
            return describe.kept(state, transaction, below=below)
        ended_transactions = self._ended_transactions(replica)
        outcome = ended_transactions.known_outcome(tx_id)
        found = [] if outcome.expired else await ended_transactions.records(tx_id, outcome)
        described = describe.over(state, tx_id, outcome, found)
        if described.parts_forgotten:
            self._env.reporter.count("parts_forgotten")
        return described

    async def list_transactions(
        self, request: pb.ListTransactionsRequest, call: Call
    ) -> pb.ListTransactionsReply:
        return await self._listing.page(request, call)

    async def ask_transactions(
        self, request: pb.AskTransactionsRequest, call: Call
    ) -> pb.AskTransactionsReply:
        if len(request.questions) > QUESTIONS_MAX:
            raise TooLarge(
                f"{len(request.questions)} questions are above questions_max ({QUESTIONS_MAX})",
                limit="questions_max",
            )
        replica = self._env.replicas.lead(
            PartitionId(TRANSACTION_CONTROL_ID, request.journal_partition)
        )
        replica.require_lease()
        return pb.AskTransactionsReply(
            answers=[self._answer(replica, question) for question in request.questions]
        )

    def _answer(self, replica: CoordinatorReplica, question: pb.Question) -> pb.Answer:
        tx_id = wire.tx_id(question.tx_id)
        if journal_partition_of(tx_id) != replica.partition.number:
            raise InvalidArgument("the question is for another journal partition", field="tx_id")
        producer = wire.identity(question.producer)
        partition = partition_id(question.partition, "questions.partition")
        state = state_of(replica)
        found = verdict(state, tx_id, producer, partition, below=replica.high_watermark)
        if found is None:
            found = verdict_of(self._ended_transactions(replica).outcome(tx_id), producer)
        if is_unborn(state, tx_id):
            self._about_unborn(replica, UnbornAsked(tx_id, producer, partition), found)
        elif found is AnswerCode.ONGOING:
            replica.signal(PartitionAsked(tx_id, producer, partition, question.bytes_received))
        self._env.reporter.count("questions_answered", verdict=found.name.lower())
        return pb.Answer(
            tx_id=tx_id,
            partition=question.partition,
            verdict=pb.Answer.Verdict.ValueType(found),
        )

    def _about_unborn(
        self, replica: CoordinatorReplica, asked: UnbornAsked, told: AnswerCode
    ) -> None:
        if told is AnswerCode.NEVER:
            replica.signal(UnbornTold(*asked))
            return
        replica.signal(asked)
        if state_of(replica).unborn.wants_proof:
            # Its answer is that it becomes durable; whoever asked asks again.
            replica.submit(ProveLogEnd())

    # --------------------------------------------------------------------------------------- parts

    async def _submit(self, replica: CoordinatorReplica, command: object) -> Any:
        try:
            return await replica.submit(command)
        except UnheardOf as unheard:
            await self._fitness.explain(unheard)

    def _lead(self, identity: int, field: str) -> CoordinatorReplica:
        number = journal_partition_of(identity)
        if number >= CONTROL_PARTITIONS:
            raise InvalidArgument(
                f"{field} was not granted by a coordinator; call InitProducer first", field=field
            )
        return self._env.replicas.lead(PartitionId(TRANSACTION_CONTROL_ID, number))

    def _ended_transactions(self, replica: CoordinatorReplica) -> EndedTransactions:
        return self._ended_transactions_of(replica)

    def _count_begun(self, answer: BeginAnswer, before: int) -> None:
        """A repeated request id begins nothing: its TxId is older than the call."""
        if answer.result is BeginResult.OPEN and journal_offset_of(answer.tx_id) >= before:
            self._env.reporter.count("transactions_begun")
        if answer.result is BeginResult.ALREADY_COMMITTED:
            self._env.reporter.count("already_committed")

    def _count_one_shot(self, answer: TransactAnswer, before: int) -> None:
        if answer.already_committed:
            self._env.reporter.count("already_committed")
        elif journal_offset_of(answer.tx_id) >= before:
            self._env.reporter.count("transactions_begun")
            self._env.reporter.count("one_shots")

    def _observe(self, name: str, since_ms: int) -> None:
        self._env.reporter.observe(name, self._env.clock.now().monotonic_ms - since_ms)


def _naming(error: OncelogError, command: Transact) -> OncelogError:
    """The same error, saying which one-shot it is about: GetTransaction finds it by that."""
    return type(error)(
        error.message,
        **{
            **error.metadata,
            "producer_id": command.producer.producer_id,
            "generation": command.producer.generation,
            "request_number": command.request_number,
        },
    )


def _still_led(replica: CoordinatorReplica) -> CoordinatorState:
    """The state that a call goes on with after it has journaled something: from then on "nothing
    happened" would be a lie. Raises UnknownOutcome."""
    if replica.machine is None:
        raise UnknownOutcome("the coordinator changed; repeat the call, it is idempotent")
    return replica.machine.state
