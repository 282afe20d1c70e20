"""The plain face: `oncelog.aio` behind one background event loop per connection.

Thin on purpose: every class here holds its asyncio twin and passes on. What a call does, and what
it raises, is written at the twin. Usable from many threads (a consumer and a transaction by one at
a time), not across a fork (Forked).

Every method is written out all the same: a signature that a decorator makes of the twin's
(ParamSpec) is a variable of inferred type, and those a typed package (PEP 561) must not show to
users' checkers and editors. A test holds both faces to the same names and arguments.

`send` does not go to the loop: it fills a buffer in the caller's thread (`aio.front`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

import pyarrow as pa

from oncelog import aio
from oncelog._calls import Calls, close_calls, drain
from oncelog._leaving import flush_at_the_end
from oncelog._loop import LoopThread
from oncelog._plain_admin import Admin
from oncelog._plain_table import TableView
from oncelog._plain_units import Transactions, TransactionsAcross
from oncelog._serving import Serving, run_serving
from oncelog._stopping import stopping
from oncelog.aio.consumer import IDLE_S
from oncelog.aio.feeding import GroupMetadata
from oncelog.aio.front import Front
from oncelog.aio.log import STOPS
from oncelog.aio.member import OnPartitions
from oncelog.aio.outcomes import CommitSeq, ExposedPart
from oncelog.aio.producer import OnDelivery
from oncelog.aio.receipts import TableReceipt
from oncelog.aio.recorder import Recorder
from oncelog.batch import Batch, TopicPartition
from oncelog.errors import Closed, OncelogError
from oncelog.groups import ConsumerPosition, Rows
from oncelog.options import ConnectOptions, make_options


def connect(bootstrap: str | Sequence[str], **options: Any) -> Log:
    """A connection, for `with`. `bootstrap`: host:port[,host:port] of any processes of the cluster,
    or a list. Options: see ConnectOptions. Raises CannotConnect where none of them answers within
    `connect_timeout_ms`, and says why; InvalidArgument."""
    settings = make_options(ConnectOptions, options)
    loop = LoopThread(f"the connection to {bootstrap}")
    try:
        return Log(loop, loop.run(_connect(bootstrap, settings)))
    except BaseException:
        loop.close()
        raise


class Log:
    """A connection to a cluster; made by `connect`. Close it: `with` does."""

    def __init__(self, loop: LoopThread, twin: aio.Log) -> None:
        self._loop = loop
        self._twin = twin
        self.admin = Admin(loop, twin.admin)
        # Of its consumers that call back.
        flush_at_the_end(loop, twin)

    def producer(self, *, on_delivery: OnDelivery | None = None, **options: Any) -> Producer:
        """See `aio.Log.producer`. `on_delivery` is called in a thread of its own, which `flush` and
        `close` wait for."""
        calls = Calls(on_delivery) if on_delivery is not None else None
        made = self._loop.run(
            self._twin.producer(on_delivery=None if calls is None else calls.add, **options)
        )
        return Producer(self._loop, made, calls)

    def transactional_producer(
        self,
        name: str | None = None,
        group: str | None = None,
        *,
        on_delivery: OnDelivery | None = None,
        **options: Any,
    ) -> TransactionalProducer:
        """See `aio.Log.transactional_producer`. `on_delivery` is called in a thread of its own,
        which the end of a transaction waits for."""
        calls = Calls(on_delivery) if on_delivery is not None else None
        made = self._loop.run(
            self._twin.transactional_producer(
                name, group, on_delivery=None if calls is None else calls.add, **options
            )
        )
        return TransactionalProducer(self._loop, made, calls)

    def consumer(
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
        """See `aio.Log.consumer`. The callbacks are called in the thread that polls, or closes."""
        serving = Serving()
        callbacks = {
            "on_assigned": serving.wrap(on_assigned),
            "on_revoked": serving.wrap(on_revoked),
            "on_lost": serving.wrap(on_lost),
        }
        made = serving.call(
            self._loop,
            lambda: self._twin.consumer(
                topics, group, pattern=pattern, partitions=partitions, **callbacks, **options
            ),
        )
        return Consumer(self._loop, made, serving)

    def table(self, topic: str, **options: Any) -> TableView:
        """See `aio.Log.table`. `table.caught_up()` before the first look."""
        return TableView(self._loop, self._loop.run(self._twin.table(topic, **options)))

    def run(
        self,
        consumer: Consumer,
        step: Callable[[Batch, Transaction], object],
        producer: TransactionalProducer,
        *,
        idle_timeout_s: float | None = None,
        stop_on: Sequence[int] = STOPS,
        in_flight: int | None = None,
    ) -> int:
        """See `aio.Log.run`. `step` is called in this thread."""
        told = threading.Event()
        with stopping(stop_on, told.set), producer.twin.line.at_most(in_flight):
            return run_serving(
                self._loop,
                lambda serve: self._twin.run_until(
                    told.is_set,
                    consumer.twin,
                    lambda batch, tx: serve(step, batch, Transaction(self._loop, tx)),
                    producer.twin,
                    idle_timeout_s,
                ),
            )

    def flush(self) -> None:
        """See `aio.Log.flush`."""
        self._loop.run(self._twin.flush())

    @property
    def unsent(self) -> int:
        """See `aio.Log.unsent`."""
        return self._twin.unsent

    def close(self) -> None:
        """See `aio.Log.close`."""
        try:
            run_serving(self._loop, lambda _: self._twin.close())
        except Closed:
            pass
        finally:
            self._loop.close()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is not None:
            self._twin.commit_no_more()
        self.close()


class Producer(Front):
    """Sends records without a transaction. See `aio.Producer`."""

    def __init__(self, loop: LoopThread, twin: aio.Producer, calls: Calls | None = None) -> None:
        super().__init__(twin.recorder)
        self._loop = loop
        self._twin = twin
        self._calls = calls
        _face(loop, twin)

    # The hot path: no call between the user's and the buffer.
    send = Front.send

    def send_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> TableReceipt:
        """See `aio.Producer.send_arrow`. Waits only while more than a batch is on its way."""
        return _send_arrow(self._recorder, self._loop, topic, table)

    def flush(self) -> None:
        """See `aio.Producer.flush`."""
        try:
            self._loop.run(self._twin.flush())
        finally:
            drain(self._calls)

    def close(self) -> None:
        """See `aio.Producer.close`."""
        try:
            self._loop.run(self._twin.close())
        finally:
            close_calls(self._calls)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class TransactionalProducer:
    """Commits records and positions as one. See `aio.TransactionalProducer`."""

    def __init__(
        self, loop: LoopThread, twin: aio.TransactionalProducer, calls: Calls | None = None
    ) -> None:
        self._loop = loop
        self._calls = calls
        self.twin = twin

    @property
    def name(self) -> str | None:
        """None: unnamed, any number may run."""
        return self.twin.name

    @property
    def group(self) -> str:
        """Its transaction group: producers of one commit in one order."""
        return self.twin.group

    def transaction(
        self,
        consumer: Consumer | None = None,
        *,
        commit_seq: CommitSeq | tuple[str, int] | None = None,
        wait: str = "prepared",
        timeout_ms: int | None = None,
    ) -> Transaction:
        """See `aio.TransactionalProducer.transaction`."""
        self._loop.require_usable()
        reading = None if consumer is None else consumer.twin
        try:
            made = self.twin.make_transaction(
                reading, commit_seq=commit_seq, wait=wait, timeout_ms=timeout_ms
            )
        except BaseException:
            if reading is not None:
                self._loop.run(_rewind(reading))
            raise
        return Transaction(self._loop, made, self._calls)

    def flush(self) -> None:
        """See `aio.TransactionalProducer.flush`."""
        try:
            self._loop.run(self.twin.flush())
        finally:
            drain(self._calls)

    def close(self) -> None:
        """See `aio.TransactionalProducer.close`."""
        try:
            self._loop.run(self.twin.close())
        finally:
            close_calls(self._calls)

    def __enter__(self) -> TransactionalProducer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Transaction(Front):
    """One transaction, for `with`. See `aio.Transaction`."""

    def __init__(self, loop: LoopThread, twin: aio.Transaction, calls: Calls | None = None) -> None:
        super().__init__(twin.recorder)
        self._loop = loop
        self._twin = twin
        self._calls = calls
        _face(loop, twin)

    @property
    def tx_id(self) -> int:
        """0 until a server has given one; of a small transaction, until it is committed."""
        return self._twin.tx_id

    @property
    def state(self) -> str:
        """See `aio.Transaction.state`."""
        return self._twin.state

    @property
    def ended(self) -> bool:
        """See `aio.Transaction.ended`."""
        return self._twin.ended

    @property
    def is_in_flight(self) -> bool:
        """See `aio.Transaction.is_in_flight`."""
        return self._twin.is_in_flight

    @property
    def already_committed(self) -> bool:
        """True where an earlier run committed this commit_seq: nothing was changed."""
        return self._twin.already_committed

    @property
    def visible(self) -> bool:
        """True where every participant had exposed it when the commit was answered."""
        return self._twin.visible

    @property
    def exposed(self) -> list[ExposedPart]:
        """Where the records became readable; only with wait="visible"."""
        return self._twin.exposed

    # The hot path: no call between the user's and the buffer.
    send = Front.send

    def send_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> TableReceipt:
        """See `aio.Transaction.send_arrow`. Waits only while more than a batch is on its way."""
        return _send_arrow(self._recorder, self._loop, topic, table)

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int],
        group: GroupMetadata,
    ) -> None:
        """See `aio.Transaction.send_offsets`."""
        self._loop.run(self._twin.send_offsets(offsets, group))

    def flush(self) -> None:
        """See `aio.Transaction.flush`."""
        self._loop.run(self._twin.flush())

    def commit(self) -> None:
        """See `aio.Transaction.commit`."""
        try:
            self._loop.run(self._twin.commit())
        finally:
            drain(self._calls)

    def decided(self) -> None:
        """See `aio.Transaction.decided`."""
        try:
            self._loop.run(self._twin.decided())
        finally:
            drain(self._calls)

    def abort(self) -> None:
        """See `aio.Transaction.abort`."""
        try:
            self._loop.run(self._twin.abort())
        finally:
            drain(self._calls)

    def __enter__(self) -> Transaction:
        if not self._twin.can_enter_at_once:
            self._loop.run(self._twin.__aenter__())
            return self
        try:
            self._twin.enter()
        except BaseException:
            self._loop.run(_turn_back(self._twin))
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._loop.run(self._twin.leave(error))
        finally:
            drain(self._calls)


class Consumer:
    """Reads partitions. See `aio.Consumer`."""

    def __init__(
        self, loop: LoopThread, twin: aio.Consumer, serving: Serving | None = None
    ) -> None:
        self._loop = loop
        self.twin = twin
        self.serving = serving or Serving()

    @property
    def group(self) -> str | None:
        """Whose offsets it continues and commits."""
        return self.twin.group

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads."""
        return self.twin.assignment

    def subscribe(
        self, topics: Sequence[str] = (), *, pattern: str | re.Pattern[str] | None = None
    ) -> None:
        """See `aio.Consumer.subscribe`."""
        self.serving.call(self._loop, lambda: self.twin.subscribe(topics, pattern=pattern))

    def assign(self, partitions: Sequence[TopicPartition | tuple[str, int]]) -> None:
        """See `aio.Consumer.assign`."""
        self._loop.run(self.twin.assign(partitions))

    @property
    def skipped(self) -> dict[TopicPartition, int]:
        """See `aio.Consumer.skipped`."""
        return self.twin.skipped

    def lag(self) -> dict[TopicPartition, int]:
        """See `aio.Consumer.lag`."""
        return self._loop.run(self.twin.lag())

    def poll(self, timeout_s: float = 1.0) -> Batch | None:
        """See `aio.Consumer.poll`. After a KeyboardInterrupt in it, go on with another consumer of
        the group: what this one was about to give may have been lost on its way to you."""
        batch = self.serving.call(self._loop, lambda: self.twin.poll(timeout_s))
        self.twin.auto_commit.polled_here()
        return batch

    def __iter__(self) -> Iterator[Batch]:
        """Waits as long as it takes; ends when the consumer is closed."""
        while not self.twin.closed:
            batch = self.poll(IDLE_S)
            if batch is not None:
                yield batch

    @overload
    def transactions(self, *, across: Literal[False] = False) -> Transactions: ...
    @overload
    def transactions(self, *, across: Literal[True]) -> TransactionsAcross: ...
    def transactions(self, *, across: bool = False) -> Transactions | TransactionsAcross:
        """See `aio.Consumer.transactions`; for a plain `for`."""
        if across:
            whole = self.twin.transactions(across=True)
            return TransactionsAcross(self._loop, whole, self.serving)
        return Transactions(self._loop, self.twin.transactions(), self.serving)

    def position(self, topic: str, partition: int) -> int:
        """See `aio.Consumer.position`."""
        return self._loop.run(self.twin.position(topic, partition))

    def committed(self, topic: str, partition: int) -> int | None:
        """See `aio.Consumer.committed`."""
        return self._loop.run(self.twin.committed(topic, partition))

    def end_offset(self, topic: str, partition: int) -> int:
        """See `aio.Consumer.end_offset`."""
        return self._loop.run(self.twin.end_offset(topic, partition))

    def positions(self) -> Rows[ConsumerPosition]:
        """See `aio.Consumer.positions`."""
        return self._loop.run(self.twin.positions())

    def wait_for_commit(
        self,
        group: str,
        transaction: int | str | OncelogError,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        """See `aio.Consumer.wait_for_commit`."""
        self._loop.run(self.twin.wait_for_commit(group, transaction, timeout_s=timeout_s))

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """See `aio.Consumer.seek`."""
        self._loop.run(self.twin.seek(topic, partition, offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """See `aio.Consumer.seek_to_beginning`."""
        self._loop.run(self.twin.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """See `aio.Consumer.seek_to_end`."""
        self._loop.run(self.twin.seek_to_end(*partitions))

    def pause(self, *partitions: TopicPartition) -> None:
        """See `aio.Consumer.pause`."""
        self._loop.run(self.twin.pause(*partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """See `aio.Consumer.resume`."""
        self._loop.run(self.twin.resume(*partitions))

    def commit(
        self, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """See `aio.Consumer.commit`."""
        self._loop.run(self.twin.commit(offsets))

    def group_metadata(self) -> GroupMetadata:
        """See `aio.Consumer.group_metadata`."""
        return self._loop.ask(self.twin.group_metadata)

    def close(self) -> None:
        """See `aio.Consumer.close`."""
        self.serving.call(self._loop, self.twin.close)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is not None:
            self.twin.commit_no_more()
        self.close()


def _face(loop: LoopThread, twin: aio.Producer | aio.Transaction) -> None:
    """Threads put into the twin's buffers, and wait in themselves."""
    twin.recorder.run_here = loop.run_held


def _send_arrow(
    recorder: Recorder, loop: LoopThread, topic: str, table: pa.Table | pa.RecordBatch
) -> TableReceipt:
    """A small table costs no turn of the loop that somebody waits for."""
    loop.require_usable()
    receipt = recorder.put_arrow(topic, table)
    if recorder.is_crowded:
        loop.run(recorder.room())
    return receipt


async def _rewind(consumer: aio.Consumer) -> None:
    consumer.feeding.rewind()


async def _turn_back(transaction: aio.Transaction) -> None:
    transaction.turn_back()


async def _connect(bootstrap: str | Sequence[str], settings: ConnectOptions) -> aio.Log:
    log = aio.Log(bootstrap, settings)
    try:
        await log.start()
    except BaseException:
        await log.close()
        raise
    return log
