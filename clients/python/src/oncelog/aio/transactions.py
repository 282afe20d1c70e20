"""One transaction of a transactional producer.

    async with producer.transaction(consumer) as tx:
        await tx.send("enriched", value)

At the end of the block the records and the consumer's progress are committed as one; on an
exception the transaction is aborted and the consumer goes back to where it began (I21). Small
transactions are one `Transact`, larger ones Begin, produce, offsets and commit:
`_core.transaction` draws the states.

Of a producer with several in flight (`in_flight`) one is left before it is decided: it stands in
the `line`, which tells what became of it. Small ones go on their way together; a large one ends
while the next is filled.

A commit whose answer is lost is asked again (it is idempotent) and looked up, until the deadline;
only then UnknownOutcome reaches the user, with the consumer's positions forgotten and asked of the
group again: a stable fetch waits for the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from oncelog._core import transaction as core
from oncelog._core.buffers import HeadersLike
from oncelog._core.messages import Identity
from oncelog._core.positions import Progress
from oncelog._core.transaction import Event, State
from oncelog.aio.consumed import Consumed
from oncelog.aio.ending import Ending, not_all_sent
from oncelog.aio.front import Front
from oncelog.aio.outcomes import (
    CommitSeq,
    ExposedPart,
    commit,
    committed_before,
    transact,
    why_aborted,
)
from oncelog.aio.place import Place
from oncelog.aio.receipts import Receipt, TableReceipt
from oncelog.aio.terms import Terms
from oncelog.aio.written import Written
from oncelog.batch import TopicPartition
from oncelogpb import errors
from oncelogpb.ids import show_id
from oncelogpb.v1 import coordinator_pb2, offset_manager_pb2, types_pb2

if TYPE_CHECKING:
    from oncelog.aio.consumer import Consumer
    from oncelog.aio.feeding import GroupMetadata

Begun = coordinator_pb2.BeginTransactionReply
R = TypeVar("R")


class Transaction(Ending):
    """Made by `TransactionalProducer.transaction`. One use: entered, filled, left."""

    def __init__(
        self,
        place: Place,
        consumer: Consumer | None,
        *,
        commit_seq: CommitSeq | None,
        wait: types_pb2.Wait.ValueType,
        timeout_ms: int,
    ) -> None:
        super().__init__()
        self._place = place
        self._registration = place.registration
        self._protocol = place.registration.protocol
        self._consumed = Consumed(self._protocol, None if consumer is None else consumer.feeding)
        session_ms = 0 if consumer is None else consumer.feeding.session_timeout_ms
        self._terms = Terms(
            place, commit_seq=commit_seq, wait=wait, timeout_ms=timeout_ms, session_ms=session_ms
        )
        # True where commit_seq was committed by an earlier run: this transaction changed nothing.
        self.already_committed = False
        # True where every participant had exposed it when the commit was answered.
        self.visible = False
        # Where the records became readable; only with wait="visible".
        self.exposed: list[ExposedPart] = []
        self._opening: asyncio.Task[None] | None = None
        # All before it are decided: from now on something may be open.
        self._has_begun = False
        # Why its producer ended it, for whoever leaves it afterwards.
        self._given_up: errors.OncelogError | None = None
        self._ending = False
        # Done when the decision that was asked for is answered, or nobody could say.
        self._deciding: asyncio.Future[None] | None = None
        # True where it began before its end, too large for a one-shot or flushed: then the next
        # one will, too, and begins with this one's commit (begin_next).
        self._began_early = False
        self._written = Written(
            self._protocol,
            place.options,
            place.sticky,
            one_shot_bytes_max=core.one_shot_bytes_max(place.line.limit),
            loop=place.loop,
            takes=self._takes_records,
            on_held=self._held_more,
            on_failed=self._spoil,
            on_delivery=place.on_delivery,
        )
        self.recorder = self._written.recorder
        # `send` without waiting, from any thread.
        self._put = Front(self.recorder).send

    # ------------------------------------------------------------------------------------ filling

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
    ) -> Receipt:
        """Takes in a record, and returns its receipt, which knows what became of it once the
        transaction has ended: its offset with wait="visible". Raises InvalidArgument, TooLarge, or
        what spoiled the transaction."""
        receipt = self._put(topic, value, key, headers, partition, timestamp_us)
        if self.recorder.is_pressed:
            await self.room()
        return receipt

    async def send_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> TableReceipt:
        """Takes in a table with the columns value and any of key, timestamp, headers, partition,
        behind what was sent to the topic before. As `send`."""
        receipt = self.recorder.put_arrow(topic, table)
        await self.room()
        return receipt

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int],
        group: GroupMetadata,
    ) -> None:
        """Commits, with this transaction, the next offsets to read of a consumer that was not given
        to `transaction`. `group` is its `group_metadata()`, taken before the records were read: it
        says where it started, which the group checks. Of a partition that is named twice the last
        offset counts. Raises UnknownTopic; UnknownMember, IllegalGeneration, FencedInstance where
        something that this transaction has consumed is another one's now, InvalidTimeout where it
        began, by large sends, with more than the member's session, InvalidArgument where another
        open transaction commits what that consumer gives. `abort` then, whatever it was."""
        self._require_open()
        identity = await self._own_identity()
        try:
            self._terms.keep_within(
                group.session_timeout_ms, identity, has_begun=self._opening is not None
            )
            await self._consumed.add(offsets, group, identity.producer_id)
        except BaseException as error:
            # Its output without these offsets is made again by whoever reads on.
            self._spoil(error if isinstance(error, errors.OncelogError) else not_all_sent())
            raise

    async def flush(self) -> None:
        """Begins now and waits until all that was sent is durable, and pending until the commit.
        For long transactions, whose errors should show early."""
        self._require_open()
        self._began_early = True
        await self.recorder.seal_all()
        await self._open()
        await self._written.drain()
        self._require_open()

    # ------------------------------------------------------------------------------------- ending

    async def commit(self) -> None:
        """Decides. At return it is committed for ever, visible shortly after (or already, with
        wait="visible"). Raises what spoiled it (then `abort`), TransactionEnded, StalePosition,
        ProducerFenced, or UnknownOutcome where nobody could say until the deadline. Of a producer
        with several in flight it may be on its way at return: `decided`, and why an earlier one was
        not committed is raised, too."""
        self._require_open()
        self._end()
        try:
            await self.recorder.seal_last()
            self._require_open()
            line = self._place.line
            # A thread may have begun this one while the loop heard of an earlier one.
            line.require_no_trouble()
            progress = self._consumed.progress()
            self._began_early |= self._written.overflows
            if line.is_on:
                if await self._go_ahead(progress):
                    return
            elif len(line):
                # How many may be on their way was lowered meanwhile.
                await line.empty()
                self._require_open()
            if not (self._is_one_shot(progress) and await self._commit_at_once(progress)):
                await self._commit_opened(progress)
        except errors.OncelogError as error:
            if error is self._untold:
                self._untold = None
            told = self._consumed.told(error)
            if self._flight is None and self._core.state not in core.ENDED:
                self._spoil(told)
            if told is error:
                raise
            raise told from error
        except BaseException:
            self._interrupted()
            raise
        finally:
            if self._flight is None:
                self._release()

    async def abort(self) -> None:
        """Drops all records, and sends the consumer back to where the transaction began. Safe to
        repeat. A coordinator that cannot be reached aborts by itself, at the timeout. Comes too
        late for a commit that was asked for: who asked is told how it ends."""
        if self._core.state in core.ENDED or self._flight is not None:
            return
        self._end()
        try:
            if self._opening is not None and self._core.state not in core.DECIDING:
                if not self._has_begun:
                    self._opening.cancel()
                await asyncio.gather(self._opening, return_exceptions=True)
        except BaseException:
            # Whoever goes on must get the same input again, and what may be open is ended by the
            # producer's next instance.
            if self._drop():
                self._doubt(self._core.tx_id)
            raise
        if self._drop() and self._identity is not None and self._core.tx_id:
            await self._registration.abort_open(
                self._identity, self._core.tx_id, self._partitions()
            )

    async def __aenter__(self) -> Transaction:
        try:
            await self._registration.identity()
            self.enter()
        except BaseException:
            self.turn_back()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.leave(error)

    # --------------------------------------------------- what the plain face shares with this

    @property
    def can_enter_at_once(self) -> bool:
        """True where `enter` does: nobody has to be asked."""
        return self._registration.is_known

    def enter(self) -> None:
        """Takes its place as the producer's one transaction. Raises InvalidArgument; `turn_back` is
        due then."""
        self._place.line.require_no_trouble()
        self._consumed.require_line(self._place.line)
        self._consumed.begins()
        self._place.occupy(self)

    def turn_back(self) -> None:
        """It cannot be entered: what its consumer gave for it is given again (I21)."""
        self._consumed.aborted(None)

    async def leave(self, error: BaseException | None) -> None:
        """Commits, or aborts where the block raised; a failing abort does not hide the cause."""
        try:
            if error is None and self._given_up is not None:
                raise self._given_up
            if self._core.state in core.ENDED or self._flight is not None:
                return
            if error is None:
                try:
                    await self.commit()
                except BaseException:
                    if self._core.state not in core.ENDED:
                        await self.abort()
                    raise
            else:
                await self.abort()
        finally:
            if self._flight is None:
                self._consumed.ended()
            self._place.vacate(self)

    async def give_up(self, why: errors.OncelogError) -> None:
        """Its producer is closed. A commit that was asked for is waited for: it is bounded, and
        cannot be taken back. All else is aborted, and who sends or commits is told why."""
        if self._deciding is not None and not self._deciding.done():
            await asyncio.wait([self._deciding])
        if self._core.state not in core.ENDED:
            self._given_up = why
        self._spoil(why)
        await self.leave(why)

    async def room(self) -> None:
        """Waits until less than `buffer_bytes_max` is outstanding."""
        await self.recorder.room()

    def _end(self) -> None:
        """From now on nothing may be put."""
        self._ending = True
        self._written.halt(self._refuse_records)

    # ------------------------------------------------------------------------------------ opening

    def _takes_records(self) -> bool:
        return self._core.state in core.TAKES_RECORDS and not self.already_committed

    def _held_more(self) -> None:
        if not self._ending and self._opening is None and self._written.overflows:
            self._began_early = True
            self._opening = asyncio.get_running_loop().create_task(self._begin())

    async def _open(self) -> None:
        """Begins, unless somebody did."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._begin())
        await asyncio.wait([self._opening])
        if self._opening.cancelled():
            raise errors.InvalidArgument("this transaction was aborted meanwhile: begin another")
        self._opening.result()
        self._core.require_open()

    async def _begin(self) -> None:
        """Opens the transaction at the coordinator, or takes the one that is open already. Never
        raises: an error spoils the transaction."""
        await self._place.line.empty()
        self._has_begun = True
        try:
            self._identity, adopted = await self._registration.adopt(
                self._terms.timeout_ms, for_commit_seq=self._terms.commit_seq is not None
            )
            if adopted:
                spoiled = self._core.state is State.SPOILED
                self._core.opened(adopted, Event.OPENED if spoiled else Event.ADOPT)
            elif self._core.state is State.SPOILED:
                return
            else:
                self._core.on(Event.BEGIN)
                self._identity, reply = await self._registration.asking(self._ask_to_begin)
                if reply.result == Begun.RESULT_ALREADY_COMMITTED:
                    self.already_committed = True
                    self._written.drop_held()
                    return
                if reply.result != Begun.RESULT_OPEN:
                    raise errors.TransactionEnded(
                        f"transaction {show_id(reply.tx_id)} ended before it was used",
                        tx_id=reply.tx_id,
                    )
                self._core.opened(reply.tx_id, Event.OPENED)
        except errors.OncelogError as error:
            if self._core.state is not State.BUFFERING and error.may_have_applied:
                # Something may be open that we know no TxId of: a later start decides it.
                self._doubt(0)
            self._spoil(error)
            return
        except asyncio.CancelledError:
            self._doubt(0)
            raise
        if self._core.state is State.SPOILED:
            # By a record that met its error meanwhile: what is open is ended by the abort.
            return
        self._written.open(
            Identity(self._core.tx_id, self._identity.producer_id, self._identity.generation)
        )

    async def _ask_to_begin(
        self, identity: core.ProducerCore
    ) -> coordinator_pb2.BeginTransactionReply:
        # In whose name something may be open, should no answer come.
        self._identity = identity
        reply: coordinator_pb2.BeginTransactionReply = await self._protocol.call(
            "coordinator.begin_transaction", self._terms.begin(identity)
        )
        return reply

    async def _own_identity(self) -> core.ProducerCore:
        """In whose name it is, or would be if it began now."""
        return self._identity or await self._registration.identity()

    # --------------------------------------------------------------------------------- committing

    def _is_one_shot(self, progress: Sequence[Progress]) -> bool:
        """Nothing is open, and all fits into one message with the offsets of one group."""
        return (
            self._opening is None
            and not self._registration.has_adopted
            and len(self._consumed.groups(progress)) <= 1
            and self._written.fits_one_shot
        )

    def _is_nothing(self, progress: Sequence[Progress]) -> bool:
        """There is nothing to decide."""
        return (
            self._written.is_empty
            and not progress
            and not self._consumed.groups(progress)
            and self._terms.commit_seq is None
        )

    async def _commit_at_once(self, progress: Sequence[Progress]) -> bool:
        """False where it turned out to be too much for one message."""
        self._core.on(Event.COMMIT)
        if self._is_nothing(progress):
            self._core.on(Event.DECIDE)
            self._written.committed(())
            return True
        try:
            _, reply = await self._registration.asking(
                lambda identity: self._ask_at_once(identity, progress)
            )
        except errors.TooLarge as error:
            if error.metadata.get("limit") not in core.ONE_SHOT_LIMITS:
                raise
            # This coordinator has lower limits than ours; of a request that was refused so nothing
            # happened.
            self._core.on(Event.OUTGROW)
            return False
        self._core.tx_id = reply.tx_id
        self._decided(reply, progress)
        return True

    async def _ask_at_once(
        self, identity: core.ProducerCore, progress: Sequence[Progress]
    ) -> coordinator_pb2.TransactReply:
        await self._consumed.follow_others(progress, identity.producer_id)
        if self._core.state is not State.ONE_SHOT:
            # Another thread gave it up while it registered.
            self._core.require_open()
        self._identity = identity
        offsets = self._consumed.messages(progress, identity.producer_id)
        request = self._as_one_message(identity, offsets)
        if self._place.line.is_on:
            request.chain_first, identity.chain_first = request.request_number, 0
        reply = await self._await_outcome(transact(self._protocol, identity, request), progress)
        self._place.line.begins(identity, request)
        return reply

    def _as_one_message(
        self,
        identity: core.ProducerCore,
        offsets: Mapping[str, offset_manager_pb2.GroupOffsets],
    ) -> coordinator_pb2.TransactRequest:
        """All of it, with the offsets of one group at most."""
        return self._terms.transact(
            identity, self._written.whole_batches(), next(iter(offsets.values()), None)
        )

    async def _go_ahead(self, progress: Sequence[Progress]) -> bool:
        """True where its commit is on its way, as one of several; False where it goes alone, now
        that all before it are decided."""
        line = self._place.line
        if self._is_nothing(progress):
            return False
        # A large one that is on its way may begin this one with its commit: then it is open.
        await line.nothing_large()
        self._require_open()
        identity = await self._registration.identity()
        is_small = self._is_one_shot(progress)
        alone = self._terms.commit_seq is not None or not self._consumed.may_go_ahead
        if alone or (is_small and not line.chain_first(identity)):
            await line.empty()
            self._require_open()
            return False
        if is_small:
            await line.room()
        else:
            await line.empty()
            await self._open()
            identity = self._own()
        self._require_open()
        await self._consumed.follow_others(progress, identity.producer_id)
        self._require_open()
        offsets = self._consumed.messages(progress, identity.producer_id)
        # From here to the end nothing is awaited: it is sent, and its consumer goes on.
        if is_small:
            self._core.on(Event.COMMIT)
            self._identity = identity
            request = self._as_one_message(identity, offsets)
            request.chain_first = identity.chain_first
            self._flight = line.send(self, identity, request)
        else:
            self._flight = line.send_large(self, identity, self._commit_on_its_way(offsets))
        self._consumed.go_ahead(self._flight, line, progress)
        self._place.vacate(self)
        return True

    async def _commit_on_its_way(
        self, offsets: Mapping[str, offset_manager_pb2.GroupOffsets]
    ) -> coordinator_pb2.TransactReply:
        """Of one that is open, while the next one is filled: what became of it, as a small one is
        told. What is not committed is aborted before this raises, for the next one begins then. The
        line takes the consequences."""
        try:
            reply = await self._ask_to_commit(await self._completed(offsets))
        except errors.OncelogError as error:
            lost = isinstance(error, errors.InDoubt)
            if lost and self.is_asked_for:
                raise
            # What was lost is less than its commit.
            told = self._consumed.told(why_aborted(error) if lost else error)
            self._spoil(told)
            await self._registration.abort_open(self._own(), self._core.tx_id, self._partitions())
            if told is error:
                raise
            raise told from error
        await self._registration.end_what_nobody_takes()
        return coordinator_pb2.TransactReply(
            tx_id=self._core.tx_id, visible=reply.visible, exposed=reply.exposed
        )

    async def _await_outcome(self, decision: Awaitable[R], progress: Sequence[Progress]) -> R:
        """The reply to a commit. Takes the consequences of an answer that is damaged or lost."""
        deciding = self._deciding = asyncio.get_running_loop().create_future()
        try:
            return await decision
        except errors.Damaged:
            # Committed for ever, in part unreadable until an operator acts: the input is consumed.
            self._decided(coordinator_pb2.CommitTransactionReply(visible=True), progress)
            raise
        except errors.InDoubt:
            self._lose()
            raise
        finally:
            deciding.set_result(None)

    async def _commit_opened(self, progress: Sequence[Progress]) -> None:
        await self._open()
        self._core.require_open()
        if self.already_committed:
            self._core.on(Event.KNOWN)
            self._written.failed(committed_before())
            self._consumed.unknown()
            return
        identity = self._own()
        await self._consumed.follow_others(progress, identity.producer_id)
        offsets = self._consumed.messages(progress, identity.producer_id)
        request = await self._completed(offsets)
        reply = await self._await_outcome(self._ask_to_commit(request), progress)
        self._decided(reply, progress)
        await self._registration.end_what_nobody_takes()

    async def _completed(
        self, offsets: Mapping[str, offset_manager_pb2.GroupOffsets]
    ) -> coordinator_pb2.CommitTransactionRequest:
        """All of it is where it is to be, pending; the commit that says so is asked for now."""
        identity = self._own()
        pending = self._consumed.make_pending(
            offsets,
            identity,
            tx_id=self._core.tx_id,
            timeout_ms=self._terms.timeout_ms,
            participants=self._core.offset_participants,
        )
        await asyncio.gather(self._written.drain(), pending)
        self._core.require_open()
        manifest = core.manifest_of(self._written.parts(), self._core.offset_participants)
        request = self._terms.commit(
            identity, self._core.tx_id, manifest, begins_next=self._began_early
        )
        self._core.on(Event.COMMIT)
        return request

    async def _ask_to_commit(
        self, request: coordinator_pb2.CommitTransactionRequest
    ) -> coordinator_pb2.CommitTransactionReply:
        """The reply. The transaction that the commit has begun is kept, also where this one is
        damaged: then nobody says which it is."""
        reply, damaged = coordinator_pb2.CommitTransactionReply(), None
        try:
            reply = await commit(self._protocol, request)
        except errors.Damaged as error:
            damaged = error
        if request.HasField("begin_next"):
            self._registration.keep_next(self._own(), reply, request.begin_next)
        if damaged is not None:
            raise damaged
        return reply

    def _own(self) -> core.ProducerCore:
        """In whose name it is open."""
        assert self._identity is not None, "it is open"
        return self._identity
