"""The connection: `oncelog.aio.connect` gives a Log, a Log gives producers, consumers and admin."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import re
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, TypeVar

from oncelog._core import retries
from oncelog._core.retries import Action
from oncelog._core.routing import PartitionKey
from oncelog._stopping import stopping
from oncelog.aio.admin import Admin
from oncelog.aio.consumer import IDLE_S, Consumer
from oncelog.aio.member import Callbacks, OnPartitions
from oncelog.aio.producer import OnDelivery, Producer
from oncelog.aio.table_view import TableView
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.aio.transactions import Transaction
from oncelog.batch import Batch, TopicPartition
from oncelog.errors import BufferFailed, CannotConnect
from oncelog.options import (
    ConnectOptions,
    ConsumerOptions,
    ProducerOptions,
    TableOptions,
    make_options,
)
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors

log = logging.getLogger("oncelog.run")

Made = TypeVar("Made", Producer, TransactionalProducer, Consumer, TableView)
# These are closed first: nobody needs them to end.
READERS: Final = (Consumer, TableView)
# Who stops a program in good order sends one of these.
STOPS: Final = (signal.SIGTERM,)
# What `run` does with a batch: writes to the transaction. An exception aborts.
Step = Callable[[Batch, Transaction], Awaitable[object]]


def connect(bootstrap: str | Sequence[str], **options: Any) -> Log:
    """A connection, for `async with`. `bootstrap`: host:port[,host:port] of any processes of the
    cluster, or a list. Options: see ConnectOptions. Call it on the event loop that will use it;
    connects at the first call, or with `async with`. Raises InvalidArgument."""
    return Log(bootstrap, make_options(ConnectOptions, options))


class Log:
    """See the module. Belongs to one event loop."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        options: ConnectOptions,
        *,
        protocol: AsyncProtocol | None = None,
    ) -> None:
        self.protocol = protocol or AsyncProtocol(bootstrap, options)
        self.admin = Admin(self.protocol)
        # What was made and is not closed, in order.
        self._made: dict[int, Producer | TransactionalProducer | Consumer | TableView] = {}
        self._numbers = itertools.count()

    async def start(self) -> None:
        """Finds the cluster. Raises CannotConnect where no process of the bootstrap list answers
        within `connect_timeout_ms`."""
        deadline = self.protocol.deadline()
        attempt = 0
        while True:
            try:
                await self.protocol.refresh(deadline=deadline)
                return
            except errors.TryAgain as error:
                wait_ms = retries.wait_ms(error, attempt, self.protocol.chance())
                if self.protocol.now_ms() + wait_ms >= deadline:
                    raise self.protocol.explained(error, "cluster.get_metadata") from None
                await asyncio.sleep(wait_ms / 1000)
                attempt += 1

    async def producer(self, *, on_delivery: OnDelivery | None = None, **options: Any) -> Producer:
        """A plain producer. `on_delivery` is called with the Delivery of each record, in the order
        in which they become known, on the event loop: it must not wait. Options: see
        ProducerOptions."""
        settings = make_options(ProducerOptions, options)
        return self._keep(Producer(self.protocol, settings, on_delivery))

    async def transactional_producer(
        self,
        name: str | None = None,
        group: str | None = None,
        *,
        on_delivery: OnDelivery | None = None,
        **options: Any,
    ) -> TransactionalProducer:
        """A producer of transactions. With a `name`, one at a time: the newest fences the others.
        Producers of one `group` (default: the name) commit in one order. `on_delivery` is called
        for each record of a transaction when that has ended. Options: see ProducerOptions.
        Registers at once. Raises Unavailable."""
        settings = make_options(ProducerOptions, options)
        producer = TransactionalProducer(
            self.protocol, settings, name=name, group=group, on_delivery=on_delivery
        )
        await producer.start()
        return self._keep(producer)

    async def consumer(
        self,
        topics: Sequence[str] | None = None,
        group: str | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        partitions: Sequence[TopicPartition | tuple[str, int]] | Literal["all"] | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
        **options: Any,
    ) -> Consumer:
        """Reads `topics`, or those that match `pattern` (`Consumer.subscribe`). With a `group` it
        is one of the group's members, who share the partitions among themselves, and continues and
        commits the group's offsets. Without one, or with `partitions`, it stands alone: it reads
        these partitions, or all, those too that are added meanwhile (found within
        `topic_refresh_ms`); a group that has members refuses commits of who stands alone. Without
        topics it reads nothing before `subscribe` or `assign`.

        The callbacks are told which partitions a member was given, has to give away, or has lost,
        from within `poll` and `close`. Options: see ConsumerOptions. Raises UnknownTopic,
        UnknownPartition, PermissionDenied, Unavailable."""
        settings = make_options(ConsumerOptions, options)
        callbacks = Callbacks(on_assigned, on_revoked, on_lost)
        if isinstance(topics, str):
            raise errors.InvalidArgument("topics is a list of names", field="topics")
        if topics is None and partitions is None and pattern is None:
            return self._keep(Consumer(self.protocol, settings, {}, group, callbacks=callbacks))
        if pattern is not None and (topics or partitions is not None or group is None):
            raise errors.InvalidArgument(
                "a pattern is for members of a group, and instead of topics", field="pattern"
            )
        topics = topics or ()
        # Partitions that come to them later are read, too.
        whole = tuple(topics) if partitions in (None, "all") else ()
        assigned: dict[PartitionKey, TopicPartition] = {}
        for name in topics:
            if name.startswith("^"):
                raise errors.InvalidArgument(
                    f"{name!r} is no topic's name: for all that match, say pattern={name[1:]!r} "
                    "(the whole name)",
                    field="topics",
                )
            topic = await self.protocol.topic(name)
            for partition in topic.partitions:
                key = PartitionKey(topic.topic_id, partition.number)
                assigned[key] = TopicPartition(name, partition.number)
        if partitions is not None and partitions != "all":
            assigned = _only(assigned, partitions)
        if not assigned and pattern is None:
            raise errors.InvalidArgument("a consumer needs a topic", field="topics")
        is_member = group is not None and partitions is None
        made = Consumer(
            self.protocol,
            settings,
            {} if is_member else assigned,
            group,
            whole_topics=() if is_member else whole,
            callbacks=callbacks,
        )
        if is_member:
            try:
                await made.subscribe(topics, pattern=pattern)
            except BaseException:
                await made.close()
                raise
        return self._keep(made)

    async def table(self, topic: str, **options: Any) -> TableView:
        """A dictionary that follows a topic: of each key the last committed value. Records without
        a value are tombstones: they remove their key. Begins to read at the first record that is
        kept; `await table.caught_up()` before the first look. Options: see TableOptions. Raises
        UnknownTopic, PermissionDenied, Unavailable."""
        settings = make_options(TableOptions, options)
        described = await self.protocol.topic(topic)
        return self._keep(TableView(self.protocol, described, settings))

    async def run(
        self,
        consumer: Consumer,
        step: Step,
        producer: TransactionalProducer,
        *,
        idle_timeout_s: float | None = None,
        stop_on: Sequence[int] = STOPS,
        in_flight: int | None = None,
    ) -> int:
        """Consumes, calls `step(batch, tx)`, commits both as one; and again, until the consumer is
        closed, `step` raises, or nothing came for `idle_timeout_s`. What passes by itself (aborted
        by a timeout, a leader away, an outcome in doubt, partitions that went to another member) is
        repeated from where the group stands. In the main thread it ends at the first of the signals
        `stop_on` that the program does not handle itself: the batch is finished, and the consumer
        closed, so that its partitions go to others at once. The logger `oncelog.run` warns of each
        repetition: a step that always takes longer than the session, say, never ends. `in_flight`:
        how many transactions may be on their way meanwhile (1 to 16; None: as the producer was
        made): the next batch is polled and processed while they are decided, in order. Where one is
        refused, it and all behind it are repeated. Returns the number of transactions that were
        committed. Raises ProducerFenced, FencedInstance: another one took over."""
        told = threading.Event()
        with stopping(stop_on, told.set), producer.line.at_most(in_flight):
            return await self.run_until(told.is_set, consumer, step, producer, idle_timeout_s)

    async def run_until(
        self,
        is_told: Callable[[], bool],
        consumer: Consumer,
        step: Step,
        producer: TransactionalProducer,
        idle_timeout_s: float | None,
    ) -> int:
        """As `run`, until somebody is told to stop."""
        count = attempt = 0
        taken_back = producer.line.taken_back
        while True:
            try:
                batch = await self._next(consumer, idle_timeout_s, is_told)
                if batch is None:
                    await producer.flush()
                    if is_told():
                        await consumer.close()
                    return count - (producer.line.taken_back - taken_back)
                async with producer.transaction(consumer) as tx:
                    await step(batch, tx)
            except errors.OncelogError as error:
                if not passes_by_itself(error):
                    raise
                log.warning(
                    "run: attempt %d was not committed and is repeated: %s", attempt + 1, error
                )
                await self.protocol.back_off(attempt, error)
                attempt += 1
            else:
                count += 1
                attempt = 0

    async def flush(self) -> None:
        """Flushes what its plain producers hold. Raises the first DeliveryFailed, when all were
        flushed."""
        failure: errors.OncelogError | None = None
        for made in list(self._made.values()):
            if isinstance(made, Producer):
                try:
                    await made.flush()
                except errors.OncelogError as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    async def settle(self) -> list[errors.OncelogError]:
        """Waits until all that its plain producers hold is acknowledged or has failed; what nobody
        was told of failures, one error for each producer. For the end of a program."""
        producers = [made for made in list(self._made.values()) if isinstance(made, Producer)]
        for producer in producers:
            await producer.settle()
        return [failed for producer in producers if (failed := producer.unheard()) is not None]

    @property
    def unsent(self) -> int:
        """Records that its plain producers hold, and that are not acknowledged."""
        return sum(
            made.recorder.unsent for made in list(self._made.values()) if isinstance(made, Producer)
        )

    async def close(self) -> None:
        """Closes the consumers and tables that it made, then the producers, with which `on_revoked`
        may still end a transaction; of each kind all at once (each waits for an answer where nobody
        answers); then the connection. Safe to repeat. Raises what a producer could not deliver, of
        the newest."""
        failures: list[BaseException] = []
        while self._made:
            first = [n for n, made in self._made.items() if isinstance(made, READERS)]
            newest_first = [self._made.pop(n) for n in (first or list(self._made))[::-1]]
            ended = await asyncio.gather(
                *(made.close() for made in newest_first), return_exceptions=True
            )
            failures += [failure for failure in ended if failure is not None]
        await self.protocol.close()
        if failures:
            # A bug of ours before what could not be delivered.
            raise min(failures, key=lambda failure: isinstance(failure, errors.OncelogError))

    async def __aenter__(self) -> Log:
        try:
            await self.start()
        except BaseException:
            await self.protocol.close()
            raise
        return self

    async def __aexit__(self, kind: object, *exception: object) -> None:
        if kind is not None:
            self.commit_no_more()
        await self.close()

    def commit_no_more(self) -> None:
        """No consumer commits by itself any more (`auto_commit_ms`): the block in which they were
        used has raised, so what was given last was not processed."""
        for made in list(self._made.values()):
            if isinstance(made, Consumer):
                made.commit_no_more()

    async def _next(
        self, consumer: Consumer, idle_timeout_s: float | None, is_told: Callable[[], bool]
    ) -> Batch | None:
        """None: it is time to end."""
        left_s = math.inf if idle_timeout_s is None else idle_timeout_s
        while not is_told() and not (idle_timeout_s is None and consumer.closed):
            batch = await consumer.poll(max(0.0, min(left_s, IDLE_S)))
            left_s -= IDLE_S
            if batch is not None or left_s <= 0:
                return batch
        return None

    def _keep(self, made: Made) -> Made:
        number, kept = next(self._numbers), self._made
        kept[number] = made
        made.on_closed = lambda: kept.pop(number, None)
        return made


def passes_by_itself(error: errors.OncelogError) -> bool:
    """May the loop of consume, transform, produce go on after this error? The transaction was
    aborted and the consumer rewound, or the group will be asked where it stands."""
    if isinstance(error, CannotConnect):
        # The cluster is known by now, so what was not met yet may only be starting.
        return error.metadata.get("problem", "").startswith("role_")
    # A buffer's disk may have room again.
    return isinstance(error, BufferFailed) or retries.action_for(error) is not Action.FATAL


def _only(
    assigned: dict[PartitionKey, TopicPartition],
    partitions: Sequence[TopicPartition | tuple[str, int]],
) -> dict[PartitionKey, TopicPartition]:
    keys = {name: key for key, name in assigned.items()}
    chosen: dict[PartitionKey, TopicPartition] = {}
    for place in partitions:
        name = TopicPartition(*place)
        if name not in keys:
            raise errors.UnknownPartition(
                f"{name.topic!r} has no partition {name.partition}, or is not among the topics",
                topic=name.topic,
            )
        chosen[keys[name]] = name
    return chosen
