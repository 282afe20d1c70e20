"""A client that writes a history of what it asked and was told, for `oncelog.checker`.

    history = HistoryWriter("history.jsonl", client="worker-1")
    log = RecordedLog(await oncelog.aio.connect(...).__aenter__(), history)
    producer = await log.transactional_producer("enricher")
    async with producer.transaction(consumer) as tx:
        await tx.send("out", history.fresh("v").encode(), partition=0)
    await log.settle()
    await log.read_everything(["out"])
    report = oncelog.checker.check(history.events)

It has the names of `oncelog.aio`, and hands each call on to the real client. A record's value is
its id in the history: UTF-8 text that no other record has (`HistoryWriter.fresh`), also not the
same input processed again after an abort.

What it says of an operation that raised: `fail` where the error promises that nothing happened,
else `unknown`. A plain record is acknowledged by the `flush` that covers it.

Left out: `send_arrow`, headers (nothing in a history depends on them), the blocking client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final

from oncelog.aio import Admin, CommitSeq, Consumer, Log, Producer, Transaction
from oncelog.aio import TransactionalProducer as RealProducer
from oncelog.aio.admin import TransactionInfo
from oncelog.batch import Batch, Record, TopicPartition
from oncelog.checker.events import HistoryWriter
from oncelog.errors import OncelogError
from oncelogpb.ids import show_id
from oncelogpb.v1 import offset_manager_pb2

# How long `settle` waits between two looks, seconds.
SETTLE_PAUSE_S: Final = 0.2
# A read to the end that gives nothing for so long is stuck, seconds.
READ_STALLED_S: Final = 60.0


class RecordedLog:
    """See the module. Hands out recorded producers and consumers, and a recorded `admin`."""

    def __init__(self, log: Log, history: HistoryWriter) -> None:
        self.log = log
        self.history = history
        self.admin = RecordedAdmin(log.admin, history)

    async def producer(self, **options: Any) -> RecordedProducer:
        return RecordedProducer(await self.log.producer(**options), self.history)

    async def transactional_producer(
        self, name: str | None = None, group: str | None = None, **options: Any
    ) -> RecordedTransactionalProducer:
        instance = self.history.fresh("instance")
        op = self.history.invoke("init_producer", name=name, group=group, instance=instance)
        try:
            inner = await self.log.transactional_producer(name, group, **options)
        except BaseException as error:
            _raised(self.history, op, error)
            raise
        producer = RecordedTransactionalProducer(inner, self.history, instance)
        await producer.registered(op)
        return producer

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, **options: Any
    ) -> RecordedConsumer:
        inner = await self.log.consumer(topics, group, **options)
        return RecordedConsumer(inner, self.history, options.get("isolation", "committed"))

    async def settle(self, timeout_s: float = 120.0) -> None:
        """Waits until no transaction is open or on its way, then marks it: from here on everything
        acknowledged must be readable. Raises TimeoutError naming what is left."""
        protocol = self.log.protocol
        deadline_ms = protocol.now_ms() + timeout_s * 1000
        while True:
            try:
                left = await self.log.admin.transactions()
            except OncelogError as error:
                if not error.retriable or protocol.now_ms() >= deadline_ms:
                    raise
                left = []
            else:
                if not left:
                    self.history.mark("settled")
                    return
            if protocol.now_ms() >= deadline_ms:
                raise TimeoutError(f"still under way: {left}")
            await protocol.back_off(4)

    async def read_everything(
        self, topics: Sequence[str], *, isolation: str = "committed"
    ) -> list[Record]:
        """All records from the earliest to the end as it is now, by a consumer of its own. With
        `settle` before it, this is what lets the checker see that something is missing."""
        ends: dict[TopicPartition, int] = {}
        for topic in topics:
            for number, end in enumerate(await self.admin.offsets(topic, isolation=isolation)):
                ends[TopicPartition(topic, number)] = end
        consumer = await self.consumer(topics, start="earliest", isolation=isolation)
        found: list[Record] = []
        try:
            while any([await consumer.position(*place) < ends[place] for place in ends]):
                batch = await consumer.poll(READ_STALLED_S)
                if batch is None:
                    if isolation != "committed":
                        return found
                    raise TimeoutError(f"nothing came for {READ_STALLED_S} s before {ends}")
                found.extend(batch)
        finally:
            await consumer.close()
        return found

    async def stable_offsets(self, group: str, topics: Sequence[str]) -> None:
        """What the group has committed, once nothing is pending. Raises PendingTransaction."""
        request = offset_manager_pb2.FetchOffsetsRequest(group=group, stable=True)
        names: list[TopicPartition] = []
        for name in topics:
            topic = await self.log.protocol.topic(name)
            for part in topic.partitions:
                request.partitions.add(topic_id=topic.topic_id, number=part.number)
                names.append(TopicPartition(name, part.number))
        op = self.history.invoke("fetch_offsets", group=group, stable=True)
        try:
            reply = await self.log.protocol.call("offset_manager.fetch_offsets", request)
        except BaseException as error:
            _raised(self.history, op, error)
            raise
        self.history.ok(
            op,
            offsets=[
                {**_place(place), "offset": item.offset if item.HasField("offset") else None}
                for place, item in zip(names, reply.offsets, strict=True)
            ],
        )

    async def close(self) -> None:
        await self.log.close()


class RecordedAdmin:
    """Records what says something about promises; the rest is on `inner`."""

    def __init__(self, inner: Admin, history: HistoryWriter) -> None:
        self.inner = inner
        self._history = history

    async def create_topic(self, name: str, partitions: int = 0, **options: Any) -> None:
        op = self._history.invoke("create_topic", topic=name)
        try:
            topic = await self.inner.create_topic(name, partitions, **options)
        except BaseException as error:
            _raised(self._history, op, error)
            raise
        self._history.ok(op, partitions=len(topic.partitions))

    async def offsets(
        self, topic: str, at: str | int = "latest", *, isolation: str = "committed"
    ) -> list[int]:
        op = self._history.invoke("list_offsets", topic=topic, at=at, isolation=isolation)
        try:
            offsets = await self.inner.offsets(topic, at, isolation=isolation)
        except BaseException as error:
            _raised(self._history, op, error)
            raise
        self._history.ok(op, offsets=offsets)
        return offsets

    async def describe_transaction(self, tx_id: int) -> TransactionInfo:
        op = self._history.invoke("get_transaction", tx_id=_hex(tx_id))
        try:
            info = await self.inner.describe_transaction(tx_id)
        except BaseException as error:
            _raised(self._history, op, error)
            raise
        self._history.ok(op, state=info.state, visible=info.visible)
        return info


class RecordedProducer:
    """The plain producer. What `flush` covers is acknowledged by it; where it raises, all of it is
    unknown."""

    def __init__(self, inner: Producer, history: HistoryWriter) -> None:
        self.inner = inner
        self._history = history
        self._unacknowledged: list[str] = []

    async def send(
        self, topic: str, value: bytes, key: bytes | None = None, partition: int | None = None
    ) -> None:
        op = self._history.invoke(
            "produce", topic=topic, partition=partition, values=[value.decode()]
        )
        try:
            await self.inner.send(topic, value, key, partition=partition)
        except BaseException as error:
            # It may be an earlier record's error: what became of this one, nobody says.
            self._history.unknown(op, reason_of(error))
            raise
        self._unacknowledged.append(op)

    async def flush(self) -> None:
        covered, self._unacknowledged = self._unacknowledged, []
        try:
            await self.inner.flush()
        except BaseException as error:
            for op in covered:
                self._history.unknown(op, reason_of(error))
            raise
        for op in covered:
            self._history.ok(op)

    async def close(self) -> None:
        try:
            await self.flush()
        finally:
            await self.inner.close()


class RecordedTransactionalProducer:
    """The transactional producer. Each registration that it makes is an `init_producer`."""

    def __init__(self, inner: RealProducer, history: HistoryWriter, instance: str) -> None:
        self.inner = inner
        self.history = history
        self._instance = instance
        self._known: tuple[int, int] | None = None

    def transaction(
        self,
        consumer: RecordedConsumer | None = None,
        *,
        commit_seq: CommitSeq | tuple[str, int] | None = None,
        wait: str = "prepared",
        timeout_ms: int | None = None,
    ) -> RecordedTransaction:
        inner = self.inner.transaction(
            None if consumer is None else consumer.inner,
            commit_seq=commit_seq,
            wait=wait,
            timeout_ms=timeout_ms,
        )
        seq = None if commit_seq is None else list(CommitSeq(*commit_seq))
        return RecordedTransaction(self, inner, consumer, wait=wait, commit_seq=seq)

    async def start(self) -> None:
        """Registers where that is due, as a new instance."""
        if self.inner.started:
            return
        self._instance = self.history.fresh("instance")
        op = self.history.invoke(
            "init_producer", name=self.inner.name, group=self.inner.group, instance=self._instance
        )
        try:
            await self.inner.start()
        except BaseException as error:
            _raised(self.history, op, error)
            raise
        await self.registered(op)

    async def registered(self, op: str) -> None:
        """The registration `op` was answered."""
        identity = await self.inner.identity()
        self._known = (identity.producer_id, identity.generation)
        self.history.ok(
            op,
            producer=_hex(identity.producer_id),
            generation=identity.generation,
            group=self.inner.group,
        )

    def identity(self) -> dict[str, Any]:
        """As operations carry it."""
        if self._known is None:
            return {}
        return {"producer": _hex(self._known[0]), "generation": self._known[1]}

    async def close(self) -> None:
        await self.inner.close()


class RecordedTransaction:
    """One transaction, for `async with`."""

    def __init__(
        self,
        producer: RecordedTransactionalProducer,
        inner: Transaction,
        consumer: RecordedConsumer | None,
        *,
        wait: str,
        commit_seq: list[Any] | None,
    ) -> None:
        self.inner = inner
        self._producer = producer
        self._history = producer.history
        self._consumer = consumer
        self._wait = wait
        self._commit_seq = commit_seq
        # Of this transaction in the history; the TxId of a one-shot is known only at its end.
        self.name = self._history.fresh("tx")

    async def send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None = None,
        partition: int | None = None,
        of: Record | None = None,
    ) -> None:
        """`of`: the input that this was made of. Where one record says so, all input that the
        group's transactions commit must have become output (I21)."""
        op = self._history.invoke(
            "send",
            tx=self.name,
            topic=topic,
            partition=partition,
            values=[value.decode()],
            of=None if of is None else [of.topic, of.partition, of.offset],
        )
        try:
            await self.inner.send(topic, value, key, partition=partition)
        except BaseException as error:
            _raised(self._history, op, error)
            raise

    async def flush(self) -> None:
        await self.inner.flush()

    async def commit(self) -> None:
        offsets = None if self._consumer is None else self._consumer.offsets_to_commit()
        op = self._history.invoke(
            "commit",
            tx=self.name,
            **self._producer.identity(),
            wait=self._wait,
            commit_seq=self._commit_seq,
            offsets=offsets or None,
        )
        try:
            await self.inner.commit()
        except BaseException as error:
            _raised(self._history, op, error, tx_id=_hex(self.inner.tx_id) or None)
            raise
        self._history.ok(
            op,
            tx_id=_hex(self.inner.tx_id) or None,
            visible=self.inner.visible or None,
            already_committed=self.inner.already_committed or None,
            exposed=[list(part) for part in self.inner.exposed] or None,
        )

    async def abort(self) -> None:
        """`ok` says that it never commits; where its commit is in doubt, that stays so."""
        if self.inner.state in ("committed", "aborted", "in doubt"):
            return
        op = self._history.invoke(
            "abort",
            tx=self.name,
            **self._producer.identity(),
            tx_id=_hex(self.inner.tx_id) or None,
        )
        try:
            await self.inner.abort()
        except BaseException as error:
            _raised(self._history, op, error)
            raise
        if self.inner.state == "aborted":
            self._history.ok(op)
        else:
            self._history.unknown(op, f"the transaction is {self.inner.state}")

    async def __aenter__(self) -> RecordedTransaction:
        await self._producer.start()
        self._history.ok(self._history.invoke("begin", tx=self.name, **self._producer.identity()))
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                await self.abort()
                return
            try:
                await self.commit()
            except BaseException:
                await self.abort()
                raise
        finally:
            # It has ended: this only gives the producer's place back.
            await self.inner.leave(error)


class RecordedConsumer:
    """A consumer. Before each poll it is asked where it stands, so that a jump is in the history
    with its place in time."""

    def __init__(self, inner: Consumer, history: HistoryWriter, isolation: str) -> None:
        self.inner = inner
        self.name = history.fresh("consumer")
        self._history = history
        self._isolation = isolation
        self._expected: dict[TopicPartition, int] = {}
        # What the next commit starts from: it changes with a commit, and where the group was asked.
        self._since: Mapping[TopicPartition, object] = {}

    @property
    def group(self) -> str | None:
        return self.inner.group

    async def poll(self, timeout_s: float = 1.0) -> Batch | None:
        await self._look_where_it_stands()
        op = self._history.invoke("read", consumer=self.name, isolation=self._isolation)
        try:
            batch = await self.inner.poll(timeout_s)
        except BaseException as error:
            _raised(self._history, op, error)
            raise
        records: dict[TopicPartition, list[list[Any]]] = {}
        for record in batch or ():
            value = "" if record.value is None else record.value.decode()
            place = TopicPartition(record.topic, record.partition)
            records.setdefault(place, []).append([record.offset, value])
        self._history.ok(
            op, parts=[{**_place(place), "records": rows} for place, rows in records.items()]
        )
        for place, next_offset in (batch.next_offsets() if batch is not None else {}).items():
            self._expected[place] = next_offset
        return batch

    async def position(self, topic: str, partition: int) -> int:
        return await self.inner.position(topic, partition)

    async def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset, whatever is pending."""
        op = self._history.invoke("fetch_offsets", group=self.group, stable=False)
        try:
            offset = await self.inner.committed(topic, partition)
        except BaseException as error:
            _raised(self._history, op, error)
            raise
        self._history.ok(op, offsets=[{"topic": topic, "partition": partition, "offset": offset}])
        return offset

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        op = self._history.invoke(
            "seek", consumer=self.name, topic=topic, partition=partition, offset=offset
        )
        await self.inner.seek(topic, partition, offset)
        self._history.ok(op)
        self._expected[TopicPartition(topic, partition)] = offset

    async def commit(self) -> None:
        offsets = self.offsets_to_commit()
        if not offsets:
            return
        op = self._history.invoke("commit_offsets", group=self.group, offsets=offsets)
        try:
            await self.inner.commit()
        except BaseException as error:
            _raised(self._history, op, error)
            raise
        self._history.ok(op)

    async def close(self) -> None:
        await self.inner.close()

    # ------------------------------------------------------------------ what transactions use

    def offsets_to_commit(self) -> list[dict[str, Any]]:
        """What a commit now says: by partition, from where to where."""
        if self.group is None:
            return []
        since = self.inner.group_metadata().since
        commits = []
        for item in self.inner.progress():
            place = self.inner.place(item.partition)
            start = since[place]
            commits.append(
                {
                    "group": self.group,
                    "consumer": self.name,
                    **_place(place),
                    "from": start if isinstance(start, int) else start.value,
                    "base": item.base,
                    "to": item.to,
                }
            )
        return commits

    async def _look_where_it_stands(self) -> None:
        """A `position` where it is not where it was left (it went back), or where the next commit
        starts elsewhere than the last one ended (it asked the group)."""
        at_us = self._history.now_us()
        moved: list[dict[str, Any]] = []
        offsets = {place: await self.inner.position(*place) for place in self.inner.assignment}
        since = {} if self.group is None else self.inner.group_metadata().since
        for place, offset in offsets.items():
            if self._expected.get(place) != offset or self._since.get(place) != since.get(place):
                self._expected[place] = offset
                moved.append({**_place(place), "offset": offset})
        self._since = since
        if moved:
            op = self._history.invoke(
                "position",
                at_us=at_us,
                consumer=self.name,
                group=self.group,
                isolation=self._isolation,
            )
            self._history.ok(op, positions=moved)


def reason_of(error: BaseException) -> str:
    """A service's reason, or the name of the exception."""
    return error.reason if isinstance(error, OncelogError) else type(error).__name__


def _raised(history: HistoryWriter, op: str, error: BaseException, **fields: Any) -> None:
    """Where the error promises that nothing happened it failed; else nobody knows."""
    if isinstance(error, OncelogError) and not error.may_have_applied:
        history.fail(op, reason_of(error), **fields)
    else:
        history.unknown(op, reason_of(error), **fields)


def _place(place: TopicPartition) -> Mapping[str, Any]:
    return {"topic": place.topic, "partition": place.partition}


def _hex(number: int) -> str:
    """Ids as text: JSON's numbers end at 2^53. Empty for 0, which means none."""
    return show_id(number) if number else ""
