"""Transactions of one producer whose commits are on their way, in the order of their requests.

    1 ──► 2 ──► 3 ──► 4        small ones: each is a `Transact` of one chain, and takes effect only
    head              tail     where all before it do (ADR 78)
    1                          or a large one, alone: the next one is filled, and sent when this is
                               decided, for leaders know one of a producer at a time (ADR 98)

Who leaves a transaction puts it at the tail and goes on. What becomes of it is taken in from the
head on, whatever order answers come in (ADR 79):

- *committed*: it leaves the line;
- *refused*: it and all behind it are taken back, the last one first, and their consumers stand
  where the refused one began. The answers of those behind are not waited for: nothing of them can
  take effect any more;
- *in doubt*: once all behind it were answered. Where one of them is committed, so is this. Else
  nobody knows of any of them: their consumers ask the group, the producer registers anew.

What was refused is told once, as the trouble of the line: by the transaction that is being filled,
else by the next one, by `flush`, or by `close`.

The first of a chain goes alone (`Transaction.commit` waits for it, as for every transaction of a
producer without a line). So a number that an earlier chain did not use up begins a new one safely,
and what a coordinator wants to say first (that it has forgotten the producer, that its one-shots
are smaller) is said of one that nothing builds on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, Protocol

from oncelog._core import transaction as core
from oncelog._core.transaction import ProducerCore
from oncelog.aio.outcomes import is_out_of_order, look_up_one_shot, why_aborted
from oncelog.aio.registration import Registration
from oncelog.options import require_in_flight
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.doubt import Doubt
from oncelogpb.v1 import coordinator_pb2

# After so long with nothing on its way the next one begins a chain, and goes alone: an unnamed
# producer that was idle may be forgotten.
CHAIN_IDLE_MS_MAX: Final = 60_000


class Passenger(Protocol):
    """A transaction, as the line sees it."""

    @property
    def is_asked_for(self) -> bool: ...

    def told_of(self, error: errors.OncelogError) -> errors.OncelogError: ...

    def has_landed(self, reply: coordinator_pb2.TransactReply) -> None: ...

    def was_interrupted(self) -> None: ...

    def was_taken_back(self, error: errors.OncelogError) -> None: ...

    def was_lost(self) -> None: ...


class Flight:
    """One of them."""

    def __init__(
        self,
        transaction: Passenger,
        identity: ProducerCore,
        before: Flight | None,
        *,
        is_large: bool = False,
    ) -> None:
        self.transaction = transaction
        self.identity = identity
        # It stands alone in the line: what is behind it is not sent before it is decided.
        self.is_large = is_large
        # Not decided when this was sent; let go of once this is answered.
        self.before = before
        self.answering: asyncio.Task[Any] | None = None
        # Done when it is known what became of it.
        self.decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # True: it took effect, or what was asked for had before.
        self.has_landed = False

    @property
    def is_answered(self) -> bool:
        return self.answering is not None and self.answering.done()

    def answer(self) -> coordinator_pb2.TransactReply | errors.OncelogError:
        """Where it is answered. Of what was interrupted, or is a fault of this client, nobody knows
        what became."""
        assert self.answering is not None, "it was sent"
        if self.answering.cancelled():
            return errors.UnknownOutcome("it was interrupted")
        error = self.answering.exception()
        if error is None:
            reply: coordinator_pb2.TransactReply = self.answering.result()
            return reply
        if isinstance(error, errors.OncelogError):
            return error
        told = errors.UnknownOutcome(f"a fault of this client: {error!r}")
        told.__cause__ = error
        return told


class Line:
    """Of one producer. Belongs to one event loop."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        registration: Registration,
        limit: int,
        *,
        on_trouble: Callable[[errors.OncelogError], bool],
    ) -> None:
        """`on_trouble`: what was refused; True where somebody is told by it."""
        self._protocol = protocol
        self._registration = registration
        self._on_trouble = on_trouble
        # How many may be on their way; 1: each is waited for, and there is no line.
        self.limit = limit
        self._flights: deque[Flight] = deque()
        # Who waits, in the order in which they came.
        self._changes: dict[asyncio.Future[None], None] = {}
        self._active_ms = protocol.now_ms()
        # What was refused, until somebody is told.
        self._trouble: errors.OncelogError | None = None
        # Transactions that were sent and taken back.
        self.taken_back = 0

    @property
    def is_on(self) -> bool:
        return self.limit > 1

    @contextlib.contextmanager
    def at_most(self, limit: int | None) -> Iterator[None]:
        """Within it, so many; None: as before. Raises InvalidArgument."""
        if limit is None:
            yield
            return
        require_in_flight(limit)
        before, self.limit = self.limit, limit
        try:
            yield
        finally:
            self.limit = before

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def has_large(self) -> bool:
        """A large one is on its way, alone."""
        return bool(self._flights) and self._flights[0].is_large

    def chain_first(self, identity: ProducerCore) -> int:
        """The request number with which the chain began that the next one continues; 0: it goes
        alone, and begins one."""
        idle_ms = self._protocol.now_ms() - self._active_ms
        if not self._flights and idle_ms >= CHAIN_IDLE_MS_MAX:
            identity.chain_first = 0
        return identity.chain_first

    def begins(self, identity: ProducerCore, request: coordinator_pb2.TransactRequest) -> None:
        """That one is answered, and what comes may build on it."""
        self._active_ms = self._protocol.now_ms()
        identity.chain_first = request.chain_first

    # ------------------------------------------------------------------------------------- waiting

    async def room(self) -> None:
        """Until one more may be sent."""
        while len(self._flights) >= self.limit:
            await self._change()

    async def nothing_large(self) -> None:
        """Until no large one is on its way."""
        while self.has_large:
            await self._change()

    async def empty(self) -> None:
        """Until nothing is on its way."""
        while self._flights:
            await self._change()

    def require_no_trouble(self) -> None:
        """Raises what was refused, once."""
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    def was_not_told(self, refused: errors.OncelogError) -> None:
        """Who was to tell it has ended without: the next one does."""
        if self._trouble is None:
            self._trouble = refused

    async def _change(self) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes[change] = None
        try:
            await change
        finally:
            self._changes.pop(change, None)

    # ------------------------------------------------------------------------------------- sending

    def send(
        self,
        transaction: Passenger,
        identity: ProducerCore,
        request: coordinator_pb2.TransactRequest,
    ) -> Flight:
        """Puts a small one at the tail. Nothing large is on its way."""
        flight = Flight(transaction, identity, self._flights[-1] if self._flights else None)
        return self._put(flight, self._ask(flight, request))

    def send_large(
        self,
        transaction: Passenger,
        identity: ProducerCore,
        commit: Coroutine[Any, Any, coordinator_pb2.TransactReply],
    ) -> Flight:
        """Puts an open one, whose `commit` says what became of it. Nothing else is on its way."""
        assert not self._flights, "a large one goes when all before it are decided"
        return self._put(Flight(transaction, identity, None, is_large=True), commit)

    def _put(
        self, flight: Flight, answer: Coroutine[Any, Any, coordinator_pb2.TransactReply]
    ) -> Flight:
        flight.answering = asyncio.get_running_loop().create_task(answer)
        flight.answering.add_done_callback(lambda _: self._look())
        self._flights.append(flight)
        return flight

    async def _ask(
        self, flight: Flight, request: coordinator_pb2.TransactRequest
    ) -> coordinator_pb2.TransactReply:
        """The reply, once it is decided. Where an earlier one has not arrived yet (it was told to
        come back, or met another process), again when that one is answered: also where nobody knows
        what became of that one, for this one may prove it, and that one waits for it."""
        doubt = Doubt("coordinator.transact", request)
        try:
            try:
                return await self._call(request)
            except errors.OncelogError as error:
                if not is_out_of_order(error) or flight.before is None:
                    raise
                doubt.as_reported(error)
            before, answering = flight.before, flight.before.answering
            assert answering is not None, "it was sent"
            either: list[asyncio.Future[Any]] = [before.decided, answering]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if before.decided.done() and not before.has_landed:
                raise taken_back(None)
            try:
                return await self._call(request)
            except errors.OncelogError as error:
                doubt.give_up(error)
        except errors.Damaged:
            raise
        except errors.InDoubt as error:
            return await look_up_one_shot(self._protocol, request, error)

    async def _call(
        self, request: coordinator_pb2.TransactRequest
    ) -> coordinator_pb2.TransactReply:
        reply: coordinator_pb2.TransactReply = await self._protocol.call(
            "coordinator.transact", request
        )
        return reply

    # ---------------------------------------------------------------------------- what became of it

    def _look(self) -> None:
        """Takes in what is known, from the head on."""
        while self._flights and self._flights[0].is_answered:
            head = self._flights[0]
            answer = head.answer()
            if isinstance(answer, errors.Damaged):
                # Committed for ever, in part unreadable until an operator acts.
                self._land(head, coordinator_pb2.TransactReply(visible=True))
                self._is_troubled(answer)
            elif isinstance(answer, coordinator_pb2.TransactReply):
                self._land(head, answer)
            elif not isinstance(answer, errors.InDoubt):
                self._take_back(answer)
            elif not head.transaction.is_asked_for:
                head.transaction.was_interrupted()
                self._take_back(why_aborted(answer))
            elif any(_took_effect(flight) for flight in self._flights):
                # Of a chain nothing takes effect whose earlier part does not.
                self._land(head, coordinator_pb2.TransactReply())
            elif all(flight.is_answered for flight in self._flights):
                self._lose(answer)
            else:
                return

    def _land(self, flight: Flight, reply: coordinator_pb2.TransactReply) -> None:
        self._flights.popleft()
        flight.has_landed = True
        self._active_ms = self._protocol.now_ms()
        try:
            flight.transaction.has_landed(reply)
        finally:
            # Whatever fails here, as below: nobody waits for it for ever.
            self._over(flight)

    def _take_back(self, error: errors.OncelogError) -> None:
        """The head was refused, and all behind it with it."""
        flights = list(self._flights)
        self._flights.clear()
        head, told = flights[0], error
        head.identity.chain_first = 0
        try:
            error = head.transaction.told_of(error)
            if isinstance(error, errors.UnknownProducer):
                # A coordinator forgets producers without a name that were idle for long.
                self._registration.begin_anew(head.identity)
            told = self._told(error, len(flights))
            for flight in reversed(flights):
                flight.transaction.was_taken_back(error if flight is head else taken_back(error))
        finally:
            self._end(flights, told)

    def _lose(self, error: errors.OncelogError) -> None:
        """Nobody could say of the head, nor of any behind it that they took effect."""
        flights = list(self._flights)
        self._flights.clear()
        told = self._told(error, len(flights))
        try:
            for flight in reversed(flights):
                flight.transaction.was_lost()
        finally:
            self._end(flights, told)

    def _end(self, flights: list[Flight], told: errors.OncelogError) -> None:
        self.taken_back += len(flights)
        for flight in flights:
            if flight.answering is not None:
                flight.answering.cancel()
            self._over(flight)
        self._is_troubled(told)

    def _told(self, error: errors.OncelogError, count: int) -> errors.OncelogError:
        """By whom it is heard, it was not asked for."""
        if isinstance(error, errors.TooLarge) and error.metadata.get("limit") in (
            core.ONE_SHOT_LIMITS
        ):
            # This coordinator has lower limits than ours: each finds out by itself.
            self.limit = 1
            error = errors.TransactionEnded(f"{error.message}; from now on they go one by one")
        behind = f", and {count - 1} that came behind it with it" if count > 1 else ""
        told = type(error)(f"a transaction in flight was not committed{behind}: {error.message}")
        told.metadata = dict(error.metadata)
        told.__cause__ = error
        return told

    def _is_troubled(self, error: errors.OncelogError) -> None:
        if not self._on_trouble(error):
            self._trouble = error

    def _over(self, flight: Flight) -> None:
        flight.before = None
        if not flight.decided.done():
            flight.decided.set_result(None)
        for change in list(self._changes):
            if not change.done():
                change.set_result(None)


def taken_back(cause: errors.OncelogError | None) -> errors.TransactionEnded:
    """What becomes of one behind a refused one."""
    why = "" if cause is None else f": {cause}"
    ended = errors.TransactionEnded(
        f"an earlier transaction of its producer was not committed{why}", outcome="ABORTED"
    )
    ended.__cause__ = cause
    return ended


def _took_effect(flight: Flight) -> bool:
    if not flight.is_answered:
        return False
    return isinstance(flight.answer(), coordinator_pb2.TransactReply | errors.Damaged)


async def until_decided(flights: list[Flight], timeout_ms: float) -> None:
    """Of all of them, or until the time is over."""
    if flights:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.wait([flight.decided for flight in flights])
