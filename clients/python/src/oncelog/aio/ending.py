"""How a transaction ends, as its producer, its consumers and its records see it: what spoils it,
what the answer to its commit means, and what becomes of it where nobody could say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from oncelog._core import transaction as core
from oncelog._core.positions import After, Progress
from oncelog._core.routing import PartitionKey
from oncelog._core.transaction import Event, State, TransactionCore
from oncelog.aio.consumed import Consumed
from oncelog.aio.line import Flight
from oncelog.aio.outcomes import ExposedPart, committed_before, exposed_parts, why_aborted
from oncelog.aio.place import Place
from oncelog.aio.registration import Registration
from oncelog.aio.written import Written
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2


class Ending:
    """Of one transaction, which `Transaction` fills and commits."""

    _place: Place
    _protocol: AsyncProtocol
    _registration: Registration
    _consumed: Consumed
    _written: Written
    already_committed: bool
    visible: bool
    exposed: list[ExposedPart]

    def __init__(self) -> None:
        self._core = TransactionCore()
        # In whose name it was begun, or is committed at once; None before.
        self._identity: core.ProducerCore | None = None
        # Where its commit is on its way, as one of several.
        self._flight: Flight | None = None
        # Why one before it was not committed, until it has raised that.
        self._untold: errors.OncelogError | None = None

    @property
    def tx_id(self) -> int:
        """0 until a server has given one; of a small transaction, until it is committed."""
        return self._core.tx_id

    @property
    def state(self) -> str:
        """buffering, opening, open, one shot, committing, spoiled, committed, aborted, in doubt."""
        return self._core.state.value

    @property
    def ended(self) -> bool:
        """True once it is committed, aborted or in doubt."""
        return self._core.state in core.ENDED

    @property
    def is_in_flight(self) -> bool:
        """Its commit is on its way, as one of several."""
        return self._flight is not None and not self.ended

    @property
    def is_asked_for(self) -> bool:
        """Its commit was sent, so that it may have taken effect."""
        return self._core.state in core.DECIDING

    async def decided(self) -> None:
        """Returns once a commit that was asked for is decided: at once, but of a producer with
        several in flight. Raises why it was not committed."""
        if self._flight is None:
            return
        await asyncio.wait([self._flight.decided])
        why = self._core.spoiled_by
        if self._core.state is State.ABORTED and isinstance(why, errors.InDoubt):
            # Of a record, not of the transaction.
            raise why_aborted(why) from why
        if self._core.state is not State.COMMITTED:
            raise why or nobody_could_say()

    # ------------------------------------------------------------------------- what it meets itself

    def _require_open(self) -> None:
        """Raises what spoiled it, or InvalidArgument where it has ended, or its commit is on its
        way."""
        if self._flight is not None and not self.ended:
            raise errors.InvalidArgument(
                "the commit of this transaction is on its way: begin another", field="transaction"
            )
        self._raises()
        self._core.require_open()

    def _refuse_records(self) -> None:
        """Raises why nothing may be sent any more."""
        self._raises()
        self._core.refuse_records()

    def _raises(self) -> None:
        """What has spoiled it, if anything, is told now."""
        if self._core.state not in core.TAKES_RECORDS:
            self._untold = None

    def _drop(self) -> bool:
        """True where it is aborted now; False where it has ended, or nobody here can say how."""
        if self._core.state in core.ENDED:
            return False
        if self._core.state in core.DECIDING:
            # Interrupted in the middle of its commit, or by another thread: only the group knows.
            self._lose()
            return False
        self._core.on(Event.DROP)
        if self._untold is not None:
            self._place.line.was_not_told(self._untold)
        self._written.failed(why_aborted(self._core.spoiled_by))
        self._release()
        self._consumed.aborted(self._core.spoiled_by)
        return True

    def _doubt(self, tx_id: int) -> None:
        if self._identity is not None:
            self._registration.doubt(self._identity, tx_id)

    def _interrupted(self) -> None:
        """`commit` was cancelled. What was on its way is dropped with it, so a later `commit` must
        not find an open transaction and take the rest of it for the whole (I3)."""
        if self._flight is not None:
            # By another task, and it was sent.
            return
        if self._core.state in core.DECIDING:
            self._lose()
        elif self._core.state not in core.ENDED:
            self._core.spoil(
                errors.InvalidArgument(
                    "the commit of this transaction was interrupted before anything was decided: "
                    "abort it, and begin another"
                )
            )

    def _spoil(self, error: BaseException) -> None:
        """Keeps the error for whoever sends or commits next; nothing more goes out."""
        if self._core.state in core.ENDED:
            return
        self._core.spoil(error)
        self._written.halt(self._refuse_records)
        if isinstance(error, errors.ProducerFenced) and self._identity is not None:
            self._registration.fence(error, self._identity)
        if isinstance(error, errors.GroupMoved):
            self._consumed.group_moved()
        if isinstance(error, errors.UnknownTopic | errors.TooLarge):
            # A coordinator does not say which of the topics in a one-shot is gone, or takes smaller
            # batches now: the next one asks.
            for partition in self._written.held_partitions():
                self._protocol.directory.forget_topic_id(partition.topic_id)
        self._release()

    def _decided(self, reply: Any, progress: Sequence[Progress]) -> None:
        """The commit is durable: the consumer goes on from here, unless another thread gave it up
        meanwhile: then its group is asked."""
        given_up = self._core.state is State.IN_DOUBT
        self.already_committed = reply.already_committed
        self.visible = reply.visible
        self.exposed += exposed_parts(self._protocol, reply.exposed)
        self._core.on(Event.DECIDE)
        if self.already_committed:
            self._written.failed(committed_before())
            self._consumed.unknown()
        else:
            self._written.committed(reply.exposed)
        if self.already_committed or given_up:
            return
        assert self._identity is not None
        after = None if self.visible else After(self._identity.producer_id, self._core.tx_id)
        if self._flight is None:
            self._consumed.committed(progress, after)
        else:
            self._consumed.arrived(after if self._core.tx_id else None)

    def _lose(self) -> None:
        """Nobody could say: the group knows where to go on, the producer starts anew."""
        if self._core.state is State.IN_DOUBT:
            return
        self._core.on(Event.LOSE)
        self._written.failed(nobody_could_say())
        self._doubt(self._core.tx_id)
        self._consumed.unknown()

    # ---------------------------------------------------------------- what the line tells of it

    def build_on(self, refused: errors.OncelogError) -> bool:
        """It is being filled, and one in flight before it was not committed. True: who fills it is
        told so, or it hands that back to the line where it ends before."""
        if self._core.state in core.ENDED:
            return False
        self._spoil(refused)
        if self._core.spoiled_by is not refused:
            # It tells what had spoiled it before.
            return False
        self._untold = refused
        return True

    def told_of(self, error: errors.OncelogError) -> errors.OncelogError:
        """What the user is told of a refusal."""
        return self._consumed.told(error)

    def has_landed(self, reply: coordinator_pb2.TransactReply) -> None:
        """It is committed."""
        self._core.tx_id = reply.tx_id or self._core.tx_id
        self._decided(reply, ())
        self._release()

    def was_interrupted(self) -> None:
        """Before its commit was sent: it may be open still."""
        self._doubt(self._core.tx_id)

    def was_taken_back(self, error: errors.OncelogError) -> None:
        """It was refused, or one before it."""
        self._spoil(error)
        self._core.on(Event.DROP)
        self._written.failed(why_aborted(error))
        self._release()
        self._consumed.taken_back(error)

    def was_lost(self) -> None:
        """Nobody could say."""
        self._core.on(Event.LOSE)
        self._written.failed(nobody_could_say())
        self._doubt(self._core.tx_id)
        self._consumed.lost(nobody_could_say())
        self._release()

    # --------------------------------------------------------------------------------------- parts

    def _partitions(self) -> list[PartitionKey]:
        return [*self._written.partitions(), *sorted(self._core.offset_participants)]

    def _release(self) -> None:
        self._written.stop()
        if self._core.state in core.ENDED:
            self._written.let_go()


def nobody_could_say() -> errors.UnknownOutcome:
    """Of a transaction, for who sent its records."""
    return errors.UnknownOutcome("nobody could say what became of this transaction")


def not_all_sent() -> errors.InvalidArgument:
    """Of a transaction whose `send_offsets` raised."""
    return errors.InvalidArgument(
        "send_offsets was interrupted, so this transaction would not commit all that it has "
        "processed: abort it",
        field="offsets",
    )
