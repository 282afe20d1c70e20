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

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from oncelog import aio
from oncelog._calls import Calls, close_calls, drain
from oncelog._leaving import flush_at_the_end
from oncelog._loop import LoopThread
from oncelog._plain_access import Access
from oncelog.aio.admin import GroupInfo, GroupOffset, NodeInfo, TopicInfo, TransactionInfo
from oncelog.aio.consumer import IDLE_S, GroupMetadata
from oncelog.aio.front import Front
from oncelog.aio.outcomes import CommitSeq, ExposedPart
from oncelog.aio.producer import OnDelivery
from oncelog.aio.receipts import TableReceipt
from oncelog.batch import Batch, TopicPartition
from oncelog.errors import Closed, OncelogError
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
        topics: Sequence[str],
        group: str | None = None,
        *,
        partitions: Sequence[TopicPartition | tuple[str, int]] | None = None,
        **options: Any,
    ) -> Consumer:
        """See `aio.Log.consumer`."""
        made = self._loop.run(self._twin.consumer(topics, group, partitions=partitions, **options))
        return Consumer(self._loop, made)

    def run(
        self,
        consumer: Consumer,
        step: Callable[[Batch, Transaction], object],
        producer: TransactionalProducer,
        *,
        idle_timeout_s: float | None = None,
    ) -> int:
        """See `aio.Log.run`. `step` is called in this thread."""
        return self._loop.run_serving(
            lambda serve: self._twin.run(
                consumer.twin,
                lambda batch, tx: serve(step, batch, Transaction(self._loop, tx)),
                producer.twin,
                idle_timeout_s=idle_timeout_s,
            )
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
            self._loop.run(self._twin.close())
        except Closed:
            pass
        finally:
            self._loop.close()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exception: object) -> None:
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
        """See `aio.Producer.send_arrow`."""
        receipt = self._recorder.put_arrow(topic, table)
        self._loop.run(self._twin.room())
        return receipt

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
        """See `aio.Transaction.send_arrow`."""
        receipt = self._recorder.put_arrow(topic, table)
        self._loop.run(self._twin.room())
        return receipt

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
    """Reads assigned partitions. See `aio.Consumer`."""

    def __init__(self, loop: LoopThread, twin: aio.Consumer) -> None:
        self._loop = loop
        self.twin = twin

    @property
    def group(self) -> str | None:
        """Whose offsets it continues and commits."""
        return self.twin.group

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads."""
        return self.twin.assignment

    def poll(self, timeout_s: float = 1.0) -> Batch | None:
        """See `aio.Consumer.poll`. After a KeyboardInterrupt in it, go on with another consumer of
        the group: what this one was about to give may have been lost on its way to you."""
        return self._loop.run(self.twin.poll(timeout_s))

    def __iter__(self) -> Iterator[Batch]:
        """Waits as long as it takes; ends when the consumer is closed."""
        while not self.twin.closed:
            batch = self.poll(IDLE_S)
            if batch is not None:
                yield batch

    def position(self, topic: str, partition: int) -> int:
        """See `aio.Consumer.position`."""
        return self._loop.run(self.twin.position(topic, partition))

    def committed(self, topic: str, partition: int) -> int | None:
        """See `aio.Consumer.committed`."""
        return self._loop.run(self.twin.committed(topic, partition))

    def end_offset(self, topic: str, partition: int) -> int:
        """See `aio.Consumer.end_offset`."""
        return self._loop.run(self.twin.end_offset(topic, partition))

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

    def commit(self) -> None:
        """See `aio.Consumer.commit`."""
        self._loop.run(self.twin.commit())

    def group_metadata(self) -> GroupMetadata:
        """See `aio.Consumer.group_metadata`."""
        return self.twin.group_metadata()

    def close(self) -> None:
        """See `aio.Consumer.close`."""
        self._loop.run(self.twin.close())

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Admin:
    """Topics, transactions, groups, nodes. See `aio.Admin`."""

    def __init__(self, loop: LoopThread, twin: aio.Admin) -> None:
        self._loop = loop
        self._twin = twin
        self._access = Access(loop, twin.access)

    @property
    def access(self) -> Access:
        """Who may do what, and how much of it."""
        return self._access

    def create_topic(
        self,
        name: str,
        partitions: int = 0,
        *,
        replication_factor: int = 0,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicInfo:
        """See `aio.Admin.create_topic`."""
        return self._loop.run(
            self._twin.create_topic(
                name,
                partitions,
                replication_factor=replication_factor,
                configs=configs,
                validate_only=validate_only,
            )
        )

    def topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """See `aio.Admin.topics`."""
        return self._loop.run(self._twin.topics(internal=internal))

    def describe_topic(self, name: str) -> TopicInfo:
        """See `aio.Admin.describe_topic`."""
        return self._loop.run(self._twin.describe_topic(name))

    def alter_topic(
        self, name: str, configs: Mapping[str, str] | None = None, *, partitions: int = 0
    ) -> TopicInfo:
        """See `aio.Admin.alter_topic`."""
        return self._loop.run(self._twin.alter_topic(name, configs, partitions=partitions))

    def delete_topic(self, name: str) -> None:
        """See `aio.Admin.delete_topic`."""
        self._loop.run(self._twin.delete_topic(name))

    def offsets(
        self, topic: str, at: str | int = "latest", *, isolation: str = "committed"
    ) -> list[int]:
        """See `aio.Admin.offsets`."""
        return self._loop.run(self._twin.offsets(topic, at, isolation=isolation))

    def transactions(
        self,
        *,
        states: Sequence[str] = (),
        min_age_ms: int = 0,
        name: str = "",
        group: str = "",
        limit: int = 0,
    ) -> list[TransactionInfo]:
        """See `aio.Admin.transactions`."""
        return self._loop.run(
            self._twin.transactions(
                states=states, min_age_ms=min_age_ms, name=name, group=group, limit=limit
            )
        )

    def describe_transaction(
        self,
        transaction: int | str | OncelogError = 0,
        *,
        producer_id: int = 0,
        generation: int = 0,
        request_number: int = 0,
    ) -> TransactionInfo:
        """See `aio.Admin.describe_transaction`."""
        return self._loop.run(
            self._twin.describe_transaction(
                transaction,
                producer_id=producer_id,
                generation=generation,
                request_number=request_number,
            )
        )

    def abort_transaction(self, tx_id: int) -> None:
        """See `aio.Admin.abort_transaction`."""
        self._loop.run(self._twin.abort_transaction(tx_id))

    def resolve_transaction(self, tx_id: int, topic: str, partition: int, action: str) -> int:
        """See `aio.Admin.resolve_transaction`."""
        return self._loop.run(self._twin.resolve_transaction(tx_id, topic, partition, action))

    def groups(self, prefix: str = "") -> list[GroupInfo]:
        """See `aio.Admin.groups`."""
        return self._loop.run(self._twin.groups(prefix))

    def group_offsets(self, group: str) -> list[GroupOffset]:
        """See `aio.Admin.group_offsets`."""
        return self._loop.run(self._twin.group_offsets(group))

    def delete_group(self, group: str) -> None:
        """See `aio.Admin.delete_group`."""
        self._loop.run(self._twin.delete_group(group))

    def nodes(self) -> list[NodeInfo]:
        """See `aio.Admin.nodes`."""
        return self._loop.run(self._twin.nodes())


def _face(loop: LoopThread, twin: aio.Producer | aio.Transaction) -> None:
    """Threads put into the twin's buffers, and wait in themselves."""
    twin.recorder.run_here = loop.run_held


async def _rewind(consumer: aio.Consumer) -> None:
    consumer.rewind()


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
