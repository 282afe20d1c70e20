"""Who may begin transactions: the producer's registration, its session, its one open transaction.

A named producer is one at a time: a later instance of the name fences this one (PRODUCER_FENCED).
Without a name it is a fresh producer in a group of its own, and any number may run; then the
consumer group's `from` guards the input (design §7).

The session: InitProducer travels on the coordinator's stream and asks for a session, so that what a
dead process left open is aborted after 10 s and not at the timeout. When the stream breaks, this
instance takes its session over on the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from oncelog._core.messages import Identity
from oncelog._core.routing import Endpoint, Key, Kind, PartitionKey
from oncelog._core.transaction import DEFAULT_TIMEOUT_MS, ONE_SHOT_BYTES_MAX, ProducerCore
from oncelog.aio.outcomes import CommitSeq, wait_of
from oncelog.aio.recorder import Deliver, Recorder, Sticky
from oncelog.aio.sender import Sender
from oncelog.aio.transactions import Transaction
from oncelog.errors import Closed
from oncelog.options import ProducerOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2

if TYPE_CHECKING:
    from oncelog.aio.consumer import Consumer

# How long a broken session is tried to be taken over: the coordinator's grace, milliseconds.
SESSION_GRACE_MS: Final = 10_000
# How long an abort is tried; what it does not reach ends at its timeout, milliseconds.
ABORT_MS: Final = 10_000


class TransactionalProducer:
    """Made by `Log.transactional_producer`. One transaction at a time."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        options: ProducerOptions,
        *,
        name: str | None,
        group: str | None,
    ) -> None:
        self.protocol = protocol
        self.name = name
        # Producers of one transaction group share a coordinator and one order.
        self.group = group or name or f"unnamed-{protocol.entropy(16).hex()}"
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._sticky = Sticky(protocol.chance)
        self._instance_id = protocol.entropy(16)
        self._identity: ProducerCore | None = None
        self._starting: asyncio.Lock = asyncio.Lock()
        self._fenced: errors.ProducerFenced | None = None
        # Transactions whose outcome nobody could say, and in whose name they were begun.
        self._doubtful: list[tuple[ProducerCore, int]] = []
        self._closed = False
        # Called once it is: for who keeps it.
        self.on_closed: Callable[[], object] = lambda: None
        self._current: Transaction | None = None
        self._watched: tuple[Endpoint, Callable[[], None]] | None = None
        self._takeover: asyncio.Task[None] | None = None

    def transaction(
        self,
        consumer: Consumer | None = None,
        *,
        commit_seq: CommitSeq | tuple[str, int] | None = None,
        wait: str = "prepared",
        timeout_ms: int | None = None,
    ) -> Transaction:
        """The next transaction, for `async with`. With a consumer, its progress commits along.
        `commit_seq`: see CommitSeq. `wait`: prepared or visible. `timeout_ms`: idle time after
        which it is aborted. Raises InvalidArgument, Closed, ProducerFenced."""
        self._require_usable()
        if consumer is not None and consumer.group is None:
            raise errors.InvalidArgument(
                "the consumer has no group to commit its progress in", field="consumer"
            )
        return Transaction(
            self,
            consumer,
            commit_seq=None if commit_seq is None else CommitSeq(*commit_seq),
            wait=wait_of(wait),
            timeout_ms=self._options.transaction_timeout_ms if timeout_ms is None else timeout_ms,
        )

    async def start(self) -> None:
        """Registers, once; what an earlier instance of the name left open is decided then. Done by
        the first transaction, too. Raises ProducerFenced, Unavailable."""
        await self.identity()

    async def close(self) -> None:
        """Aborts what is open, gives the session back. A commit under way is waited for. Safe to
        repeat."""
        if self._closed:
            return
        self._closed = True
        current, identity = self._current, self._identity
        try:
            if current is not None:
                await current.give_up(Closed("this producer is closed"))
        finally:
            self._let_go()
        if identity is not None and identity.adopted is not None:
            await self._abort(identity, identity.adopted.tx_id, [])

    def _let_go(self) -> None:
        if self._takeover is not None:
            self._takeover.cancel()
        if self._watched is not None:
            self._watched[1]()
            self._watched = None
        self.on_closed()

    async def __aenter__(self) -> TransactionalProducer:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @property
    def started(self) -> bool:
        """True where a transaction can be entered without asking anybody."""
        return self._identity is not None and not self._closed

    # ---------------------------------------------------------------- what its transactions use

    async def identity(self) -> ProducerCore:
        """Id, generation and request numbers. Registers where that is due."""
        self._require_usable()
        if self._identity is not None:
            return self._identity
        async with self._starting:
            if self._identity is None:
                self._identity = await self._register(self.protocol.options.timeout_ms)
        return self._identity

    def occupy(self, transaction: Transaction) -> None:
        """Raises InvalidArgument where another transaction is under way."""
        self._require_usable()
        # One that has ended may not have been left: an interrupt came before its block.
        if self._current is not None and not self._current.ended:
            raise errors.InvalidArgument(
                "this producer has a transaction under way: abort it, or use another producer"
            )
        self._current = transaction

    def vacate(self, transaction: Transaction) -> None:
        if self._current is transaction:
            self._current = None

    def recorder(
        self, deliver: Deliver, on_failed: Callable[[errors.OncelogError], None]
    ) -> Recorder:
        return Recorder(
            self.protocol,
            self._options,
            self._sticky,
            chunk_bytes=min(self._options.batch_bytes, ONE_SHOT_BYTES_MAX),
            linger_ms=None,
            loop=self._loop,
            deliver=deliver,
            on_failed=on_failed,
        )

    def sender(
        self,
        identity: Identity,
        *,
        on_settled: Callable[[int], None],
        on_failed: Callable[[errors.OncelogError], None],
    ) -> Sender:
        return Sender(
            self.protocol,
            identity,
            delivery_timeout_ms=self._options.delivery_timeout_ms,
            on_settled=on_settled,
            on_failed=on_failed,
        )

    @property
    def batch_bytes(self) -> int:
        return self._options.batch_bytes

    @property
    def has_adopted(self) -> bool:
        """The last commit has begun the next transaction already."""
        return self._identity is not None and self._identity.adopted is not None

    async def adopt(self, timeout_ms: int, commit_seq: CommitSeq | None) -> int:
        """The TxId that the last commit has begun; 0 where there is none, or none that may be used.
        One that may not is aborted: a producer has one open transaction."""
        identity = await self.identity()
        adopted = identity.take_adopted(int(self.protocol.now_ms()), timeout_ms)
        if adopted is None:
            return 0
        tx_id, usable = adopted
        if usable and commit_seq is None:
            return tx_id
        await self.abort_open(tx_id, [])
        return 0

    async def abort_open(self, tx_id: int, partitions: Iterable[PartitionKey]) -> None:
        """Ends an open transaction. Does not raise: what cannot be reached ends at its timeout, and
        this producer registers anew before it begins again."""
        if self._identity is not None:
            await self._abort(self._identity, tx_id, partitions)

    def doubt(self, tx_id: int) -> None:
        """Something of this producer may be open or decided, and nobody could say. The next
        transaction registers a new instance, which decides it (a named producer), or aborts it."""
        if self._identity is not None and tx_id:
            self._doubtful.append((self._identity, tx_id))
        self._identity = None
        self._instance_id = self.protocol.entropy(16)

    def fence(self, error: errors.ProducerFenced) -> None:
        """A later instance took over: nothing may be begun any more."""
        self._fenced = error

    # ---------------------------------------------------------------------------------- session

    async def _register(self, timeout_ms: int) -> ProducerCore:
        request = coordinator_pb2.InitProducerRequest(
            group=self.group, name=self.name or "", instance_id=self._instance_id, session=True
        )
        try:
            reply = await self.protocol.call("coordinator.init_producer", request, timeout_ms)
        except errors.ProducerFenced as error:
            self.fence(error)
            raise
        self._watch()
        doubtful, self._doubtful = self._doubtful, []
        if self.name is None:
            for identity, tx_id in doubtful:
                await self._abort(identity, tx_id, [])
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
        identity = self._identity
        try:
            again = await self._register(SESSION_GRACE_MS)
        except errors.OncelogError:
            # The coordinator aborts what is open; whoever commits it is told.
            return
        if identity is None or identity is not self._identity:
            return
        if (again.producer_id, again.generation) != (identity.producer_id, identity.generation):
            # The coordinator had forgotten this unnamed producer: what it holds open has ended.
            self._identity = again

    async def _abort(
        self, identity: ProducerCore, tx_id: int, partitions: Iterable[PartitionKey]
    ) -> None:
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
            self.fence(error)
        except errors.OncelogError:
            if identity is self._identity:
                self.doubt(0)
        except asyncio.CancelledError:
            # It may be open still: who registers anew ends it.
            if identity is self._identity:
                self.doubt(tx_id)
            raise

    def _require_usable(self) -> None:
        if self._closed:
            raise Closed("this producer is closed")
        if self._fenced is not None:
            raise self._fenced
