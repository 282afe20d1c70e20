"""Who a transactional producer is: its registration at the coordinator, its session, and what of it
may still be open there.

A registration is of an *instance id*. A new one takes the name over from whoever holds it, so a new
one is drawn only where this producer itself must end what it left in doubt, and it says which
generation it held: where somebody else took the name over meanwhile, PRODUCER_FENCED comes back to
this producer, and the living one is left alone (I16).

Invariants:
- one registration is under way at a time;
- an instance id that was answered is used until `doubt`; one that was not is asked for again, so
  that two doubts with no answer between them cost one generation;
- an answer, or a refusal, for an instance id or an identity that is not ours any more changes
  nothing.

The session: InitProducer travels on the coordinator's stream and asks for a session, so that what a
dead process left open is aborted after 10 s and not at the timeout. When the stream breaks, this
instance takes its session over on the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from oncelog._core.routing import Endpoint, Key, Kind, PartitionKey
from oncelog._core.transaction import DEFAULT_TIMEOUT_MS, Adopted, ProducerCore
from oncelog.errors import Closed
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2

# How long a broken session is tried to be taken over: the coordinator's grace, milliseconds.
SESSION_GRACE_MS: Final = 10_000
# How long an abort is tried; what it does not reach ends at its timeout, milliseconds.
ABORT_MS: Final = 10_000

R = TypeVar("R")


class Registration:
    """Of one producer, named or not. Belongs to one event loop."""

    def __init__(self, protocol: AsyncProtocol, *, name: str | None, group: str | None) -> None:
        self.protocol = protocol
        self.name = name
        # Producers of one transaction group share a coordinator and one order.
        self.group = group or name or f"unnamed-{protocol.entropy(16).hex()}"
        self._instance_id = protocol.entropy(16)
        self._identity: ProducerCore | None = None
        # What the last identity's generation was; 0 before the first.
        self._held_generation = 0
        self._registering = asyncio.Lock()
        self._fenced: errors.ProducerFenced | None = None
        # Transactions whose outcome nobody could say, and in whose name they were begun.
        self._doubtful: list[tuple[ProducerCore, int]] = []
        self._closed = False
        self._watched: tuple[Endpoint, Callable[[], None]] | None = None
        self._takeover: asyncio.Task[None] | None = None

    # ----------------------------------------------------------------------------------- identity

    @property
    def is_known(self) -> bool:
        """Nobody has to be asked for the identity."""
        return self._identity is not None and not self._closed

    async def identity(self) -> ProducerCore:
        """Id, generation and request numbers. Registers where that is due. Raises Closed,
        ProducerFenced, Unavailable, UnknownOutcome."""
        self.require_usable()
        if self._identity is None:
            async with self._registering:
                self.require_usable()
                if self._identity is None:
                    self._identity = await self._register(self.protocol.options.timeout_ms)
        return self._identity

    async def asking(self, ask: Callable[[ProducerCore], Awaitable[R]]) -> tuple[ProducerCore, R]:
        """The reply to what is asked in this producer's name, and the name. A coordinator forgets
        producers without a name that were idle for long: they register again."""
        identity = await self.identity()
        try:
            return identity, await ask(identity)
        except errors.UnknownProducer:
            # It is told so only where no answer was lost: nothing happened.
            self.begin_anew(identity)
        identity = await self.identity()
        return identity, await ask(identity)

    def begin_anew(self, identity: ProducerCore) -> None:
        """The coordinator does not know it any more: the next one registers."""
        self._begin_anew(identity, 0)

    def doubt(self, identity: ProducerCore, tx_id: int) -> None:
        """Something of this identity may be open or decided, and nobody could say. The next
        transaction registers a new instance, which decides it (a named producer), or aborts it."""
        if tx_id:
            self._doubtful.append((identity, tx_id))
        self._begin_anew(identity, identity.generation)

    def fence(self, error: errors.ProducerFenced, identity: ProducerCore) -> None:
        """A later instance took over from this identity: nothing may be begun any more. Unless the
        later one is ours."""
        if identity is self._identity:
            self._fenced = error

    def require_usable(self) -> None:
        """Raises Closed, ProducerFenced."""
        if self._closed:
            raise Closed("this producer is closed")
        if self._fenced is not None:
            raise self._fenced

    def shut(self) -> None:
        """From now on nobody may use it."""
        self._closed = True

    async def close(self) -> None:
        """Gives the session back, and ends what was begun for nobody."""
        self.shut()
        if self._takeover is not None:
            self._takeover.cancel()
        if self._watched is not None:
            self._watched[1]()
            self._watched = None
        await self.end_what_nobody_takes()

    async def end_what_nobody_takes(self) -> None:
        """Once it is closed, what a commit has begun for the next one is ended: a close that was
        interrupted does not wait for commits under way."""
        identity = self._identity
        if identity is None or not self._closed:
            return
        adopted = identity.take_adopted()
        if adopted is not None and adopted.tx_id:
            await self.abort_open(identity, adopted.tx_id, [])

    def _begin_anew(self, identity: ProducerCore, held_generation: int) -> None:
        if identity is not self._identity:
            return
        self._identity = None
        self._instance_id = self.protocol.entropy(16)
        self._held_generation = held_generation
        if self._takeover is not None:
            self._takeover.cancel()

    # ---------------------------------------------------------------------- what is open already

    @property
    def has_adopted(self) -> bool:
        """The last commit has begun the next transaction already, or may have."""
        return self._identity is not None and self._identity.adopted is not None

    async def adopt(self, timeout_ms: int, *, for_commit_seq: bool) -> tuple[ProducerCore, int]:
        """Who begins, and the TxId that the last commit has begun for it; 0 where there is none, or
        none that may be used. One that may not is aborted: a producer has one open transaction."""
        identity = await self.identity()
        adopted = identity.take_adopted()
        if adopted is None:
            return identity, 0
        now_ms = int(self.protocol.now_ms())
        wanted_ms = timeout_ms or identity.default_timeout_ms
        if adopted.serves(now_ms, wanted_ms) and not for_commit_seq:
            tx_id = adopted.tx_id or await self._find_adopted(identity, adopted)
            if tx_id:
                return identity, tx_id
        else:
            await self._end_adopted(identity, adopted)
        return await self.identity(), 0

    def keep_next(
        self,
        identity: ProducerCore,
        reply: coordinator_pb2.CommitTransactionReply,
        asked: coordinator_pb2.BeginNext,
    ) -> None:
        """The transaction that a commit has begun. That it was refused does not touch the commit;
        where the commit was looked up, nobody said whether it is open."""
        if reply.HasField("next_error"):
            error = errors.from_status(reply.next_error)
            if isinstance(error, errors.ProducerFenced):
                self.fence(error, identity)
            return
        begun = coordinator_pb2.BeginTransactionReply
        if reply.already_committed or (
            reply.HasField("next") and reply.next.result != begun.RESULT_OPEN
        ):
            return
        now_ms = int(self.protocol.now_ms())
        identity.keep_adopted(reply.next.tx_id, asked.request_id, now_ms, asked.timeout_ms)

    async def abort_open(
        self, identity: ProducerCore, tx_id: int, partitions: Iterable[PartitionKey]
    ) -> None:
        """Ends an open transaction. Does not raise: what cannot be reached ends at its timeout, and
        this producer registers anew before it begins again."""
        request = coordinator_pb2.AbortTransactionRequest(
            tx_id=tx_id,
            producer=identity.wire(),
            parts=[partition.wire() for partition in partitions],
        )
        try:
            await self.protocol.call("coordinator.abort_transaction", request, ABORT_MS)
        except (errors.TransactionEnded, errors.UnknownTransaction):
            return
        except errors.ProducerFenced as error:
            self.fence(error, identity)
        except errors.OncelogError:
            self.doubt(identity, 0)
        except asyncio.CancelledError:
            # It may be open still: who registers anew ends it.
            if identity is self._identity:
                self.doubt(identity, tx_id)
            raise

    async def _end_adopted(self, identity: ProducerCore, adopted: Adopted) -> None:
        tx_id = adopted.tx_id or await self._find_adopted(identity, adopted)
        if tx_id:
            await self.abort_open(identity, tx_id, [])

    async def _find_adopted(self, identity: ProducerCore, adopted: Adopted) -> int:
        """The TxId of a `begin_next` of which no answer came: its request id tells. 0 where nobody
        says, or it has ended."""
        request = coordinator_pb2.BeginTransactionRequest(
            producer=identity.wire(),
            request_id=adopted.request_id,
            timeout_ms=adopted.asked_timeout_ms,
        )
        begun = coordinator_pb2.BeginTransactionReply
        try:
            reply = await self.protocol.call("coordinator.begin_transaction", request)
        except errors.OncelogError as error:
            if isinstance(error, errors.ProducerFenced):
                self.fence(error, identity)
            self.doubt(identity, 0)
            return 0
        except asyncio.CancelledError:
            # Nobody else knows of it any more.
            self.doubt(identity, 0)
            raise
        return int(reply.tx_id) if reply.result == begun.RESULT_OPEN else 0

    # ---------------------------------------------------------------------------------- session

    async def _register(self, timeout_ms: int) -> ProducerCore:
        instance_id = self._instance_id
        request = coordinator_pb2.InitProducerRequest(
            group=self.group, name=self.name or "", instance_id=instance_id, session=True
        )
        if self.name is not None:
            held = self._held_generation if self._identity is None else self._identity.generation
            request.held_generation = held
        try:
            reply = await self.protocol.call("coordinator.init_producer", request, timeout_ms)
        except errors.ProducerFenced as error:
            if instance_id == self._instance_id:
                self._fenced = error
            raise
        self._watch()
        doubtful, self._doubtful = self._doubtful, []
        if self.name is None:
            for identity, tx_id in doubtful:
                await self.abort_open(identity, tx_id, [])
        return ProducerCore(
            reply.producer.producer_id,
            reply.producer.generation,
            default_timeout_ms=reply.default_timeout_ms or DEFAULT_TIMEOUT_MS,
        )

    def _watch(self) -> None:
        """Listens for the end of the stream that carries the session."""
        endpoint = self.protocol.directory.route(Key(Kind.TRANSACTION_GROUP, self.group))
        if endpoint is None or (self._watched is not None and self._watched[0] == endpoint):
            return
        if self._watched is not None:
            self._watched[1]()
        remove = self.protocol.transport.on_end(endpoint, "coordinator", self._session_ended)
        self._watched = (endpoint, remove)

    def _session_ended(self) -> None:
        if self._closed or self._identity is None or self._fenced is not None:
            return
        if self._takeover is None or self._takeover.done():
            self._takeover = asyncio.get_running_loop().create_task(self._take_over())

    async def _take_over(self) -> None:
        """The same instance on a new stream: the same generation, and the session goes on."""
        async with self._registering:
            identity, instance_id = self._identity, self._instance_id
            if identity is None:
                return
            try:
                again = await self._register(SESSION_GRACE_MS)
            except errors.OncelogError:
                # The coordinator aborts what is open; whoever commits it is told.
                return
            if identity is not self._identity or instance_id != self._instance_id:
                return
            if (again.producer_id, again.generation) != (
                identity.producer_id,
                identity.generation,
            ):
                # The coordinator had forgotten this unnamed producer: what it holds open has ended.
                self._identity = again
