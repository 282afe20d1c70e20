"""The transactional producer: makes transactions, one at a time; with `in_flight` above 1, the next
one is filled while those before it are decided, in order (`line`).

A named producer is one at a time: a later instance of the name fences this one (PRODUCER_FENCED).
Without a name it is a fresh producer in a group of its own, and any number may run; then the
consumer group's `from` guards the input. Who it is at the coordinator: `registration`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from oncelog._core.transaction import ProducerCore
from oncelog.aio.line import Line
from oncelog.aio.outcomes import CommitSeq, wait_of
from oncelog.aio.place import Place
from oncelog.aio.producer import OnDelivery
from oncelog.aio.recorder import Sticky
from oncelog.aio.registration import Registration
from oncelog.aio.transactions import Transaction
from oncelog.errors import Closed
from oncelog.options import ProducerOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors

if TYPE_CHECKING:
    from oncelog.aio.consumer import Consumer


class TransactionalProducer:
    """Made by `Log.transactional_producer`. One transaction at a time."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        options: ProducerOptions,
        *,
        name: str | None,
        group: str | None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        self.protocol = protocol
        self.registration = Registration(protocol, name=name, group=group)
        self._options = options
        self._place = Place(self.registration, options, Sticky(protocol.chance), on_delivery)
        self._closed = False
        # Called once it is: for who keeps it.
        self.on_closed: Callable[[], object] = lambda: None

    @property
    def name(self) -> str | None:
        """None: unnamed, any number may run."""
        return self.registration.name

    @property
    def group(self) -> str:
        """Its transaction group: producers of one commit in one order."""
        return self.registration.group

    def transaction(
        self,
        consumer: Consumer | None = None,
        *,
        commit_seq: CommitSeq | tuple[str, int] | None = None,
        wait: str = "prepared",
        timeout_ms: int | None = None,
    ) -> Transaction:
        """The next transaction, for `async with`. With a consumer, its progress commits along; the
        consumer goes back to where that began, also where this raises. `commit_seq`: see CommitSeq.
        `wait`: prepared or visible. `timeout_ms`: idle time after which it is aborted. Raises
        InvalidArgument, Closed, ProducerFenced."""
        try:
            return self.make_transaction(
                consumer, commit_seq=commit_seq, wait=wait, timeout_ms=timeout_ms
            )
        except BaseException:
            if consumer is not None:
                consumer.feeding.rewind()
            raise

    def make_transaction(
        self,
        consumer: Consumer | None,
        *,
        commit_seq: CommitSeq | tuple[str, int] | None,
        wait: str,
        timeout_ms: int | None,
    ) -> Transaction:
        """As `transaction`, for who sends the consumer back himself: the plain face, which has to
        do so on the loop."""
        self.registration.require_usable()
        if consumer is not None and consumer.group is None:
            raise errors.InvalidArgument(
                "the consumer has no group to commit its progress in", field="consumer"
            )
        if consumer is not None:
            consumer.feeding.require_its_own_commits()
        if timeout_ms is None:
            timeout_ms = self._options.transaction_timeout_ms
        return Transaction(
            self._place,
            consumer,
            commit_seq=None if commit_seq is None else CommitSeq(*commit_seq),
            wait=wait_of(wait),
            timeout_ms=timeout_ms,
        )

    async def start(self) -> None:
        """Registers, once; what an earlier instance of the name left open is decided then. Done by
        the first transaction, too. Raises ProducerFenced, Unavailable."""
        await self.registration.identity()

    async def flush(self) -> None:
        """Returns when all that is in flight is decided: at once, unless `in_flight` is above 1.
        Raises why the first that was not committed was not, where nobody was told; those behind it
        were not either, and their consumers stand where it began."""
        await self._place.line.empty()
        self._place.line.require_no_trouble()

    @property
    def line(self) -> Line:
        """Its transactions in flight."""
        return self._place.line

    async def close(self) -> None:
        """Aborts what is open, gives the session back. Commits under way are waited for. Safe to
        repeat. Raises as `flush`."""
        if self._closed:
            return
        self._closed = True
        self.registration.shut()
        try:
            await self._place.give_up(Closed("this producer is closed"))
        finally:
            await self.registration.close()
            self.on_closed()
        self._place.line.require_no_trouble()

    async def __aenter__(self) -> TransactionalProducer:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @property
    def started(self) -> bool:
        """True where a transaction can be entered without asking anybody."""
        return self.registration.is_known

    async def identity(self) -> ProducerCore:
        """Id and generation. Registers where that is due."""
        return await self.registration.identity()
