"""Producers and transactions that write what they ask and are told into a history (`recorder`)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

import pyarrow as pa

from oncelog.aio import CommitSeq, Producer, Transaction
from oncelog.aio import TransactionalProducer as RealProducer
from oncelog.aio.receipts import Receipt, TableReceipt
from oncelog.batch import Record
from oncelog.checker.events import HistoryWriter
from oncelog.checker.recorded_consumer import RecordedConsumer
from oncelog.checker.telling import raised, reason_of, telling
from oncelog.errors import OncelogError
from oncelogpb.ids import show_id


class RecordedProducer:
    """The plain producer. What `flush` covers is acknowledged by it; where it raises, each record's
    receipt says what became of it, or nobody does."""

    def __init__(self, inner: Producer, history: HistoryWriter) -> None:
        self.inner = inner
        self._history = history
        # Operations, with the receipt of the record, or of the table they are of.
        self._unacknowledged: list[tuple[str, Receipt | TableReceipt]] = []

    async def send(
        self, topic: str, value: bytes, key: bytes | None = None, partition: int | None = None
    ) -> None:
        op = self._history.invoke(
            "produce",
            topic=topic,
            partition=partition,
            values=[value.decode()],
            sizes=[len(value) + len(key or b"")],
        )
        with telling(self._history, op):
            receipt = await self.inner.send(topic, value, key, partition=partition)
        self._unacknowledged.append((op, receipt))

    async def send_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> None:
        ops = [
            self._history.invoke("produce", topic=topic, partition=partition, values=values)
            for partition, values in sent_by_partition(table)
        ]
        try:
            receipt = await self.inner.send_arrow(topic, table)
        except BaseException as error:
            for op in ops:
                self._history.unknown(op, reason_of(error))
            raise
        self._unacknowledged += [(op, receipt) for op in ops]

    async def flush(self) -> None:
        covered, self._unacknowledged = self._unacknowledged, []
        try:
            await self.inner.flush()
        except BaseException as error:
            for op, receipt in covered:
                self._judge(op, receipt, error)
            raise
        for op, _ in covered:
            self._history.ok(op)

    def _judge(self, op: str, receipt: Receipt | TableReceipt, why: BaseException) -> None:
        """Of a table that failed in part nobody says which operation's rows those were."""
        if not receipt.done():
            self._history.unknown(op, reason_of(why))
            return
        try:
            receipt.result()
        except OncelogError as error:
            if isinstance(receipt, Receipt):
                raised(self._history, op, error)
            else:
                self._history.unknown(op, reason_of(error))
        else:
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
        # The last one whose commit was sent before it was decided, and those whose end is not in
        # the history yet.
        self.in_flight: RecordedTransaction | None = None
        self._telling: set[asyncio.Task[None]] = set()

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
        with telling(self.history, op):
            await self.inner.start()
        await self.registered(op)

    async def registered(self, op: str) -> None:
        """The registration `op` was answered."""
        identity = await self.inner.identity()
        self._known = (identity.producer_id, identity.generation)
        self.history.ok(
            op,
            producer=show_id(identity.producer_id),
            generation=identity.generation,
            group=self.inner.group,
        )

    def identity(self) -> dict[str, Any]:
        """As operations carry it."""
        if self._known is None:
            return {}
        return {"producer": show_id(self._known[0]), "generation": self._known[1]}

    def tell(self, end: Coroutine[Any, Any, None]) -> None:
        """Writes down how one in flight ends, when it does."""
        task = asyncio.get_running_loop().create_task(end)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def flush(self) -> None:
        """Returns when all that is in flight is decided, and told."""
        try:
            await self.inner.flush()
        finally:
            await self._all_told()

    async def close(self) -> None:
        try:
            await self.inner.close()
        finally:
            await self._all_told()

    async def _all_told(self) -> None:
        if self._telling:
            await asyncio.wait(list(self._telling))


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
            sizes=[len(value) + len(key or b"")],
            of=None if of is None else [of.topic, of.partition, of.offset],
        )
        with telling(self._history, op):
            await self.inner.send(topic, value, key, partition=partition)

    async def send_arrow(
        self, topic: str, table: pa.Table | pa.RecordBatch, of: Record | None = None
    ) -> None:
        """`of`: as of `send`, of all rows."""
        made_of = None if of is None else [of.topic, of.partition, of.offset]
        ops = [
            self._history.invoke(
                "send",
                tx=self.name,
                topic=topic,
                partition=partition,
                values=values,
                of=made_of,
            )
            for partition, values in sent_by_partition(table)
        ]
        try:
            await self.inner.send_arrow(topic, table)
        except BaseException as error:
            for op in ops:
                raised(self._history, op, error)
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
            builds_on=self._builds_on(),
        )
        try:
            await self.inner.commit()
        except BaseException as error:
            # Only now may it have a TxId.
            raised(self._history, op, error, tx_id=show(self.inner.tx_id))
            raise
        if self.inner.is_in_flight:
            self._producer.in_flight = self
            self._producer.tell(self._tell(op))
        else:
            self._tell_committed(op)

    def _builds_on(self) -> str | None:
        """The one that was sent before it by its producer, where that is not decided."""
        before = self._producer.in_flight
        return before.name if before is not None and before.inner.is_in_flight else None

    async def _tell(self, op: str) -> None:
        try:
            await self.inner.decided()
        except OncelogError as error:
            raised(self._history, op, error, tx_id=show(self.inner.tx_id))
        else:
            self._tell_committed(op)

    def _tell_committed(self, op: str) -> None:
        self._history.ok(
            op,
            tx_id=show(self.inner.tx_id),
            visible=self.inner.visible or None,
            already_committed=self.inner.already_committed or None,
            exposed=[list(part) for part in self.inner.exposed] or None,
        )

    async def abort(self) -> None:
        """`ok` says that it never commits; where its commit is in doubt, that stays so."""
        if self.inner.is_in_flight or self.inner.state in ("committed", "aborted", "in doubt"):
            return
        op = self._history.invoke(
            "abort",
            tx=self.name,
            **self._producer.identity(),
            tx_id=show(self.inner.tx_id),
        )
        with telling(self._history, op):
            await self.inner.abort()
        if self.inner.state == "aborted":
            self._history.ok(op)
        else:
            self._history.unknown(op, f"the transaction is {self.inner.state}")

    async def __aenter__(self) -> RecordedTransaction:
        try:
            await self._producer.start()
        except BaseException:
            self.inner.turn_back()
            raise
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


def sent_by_partition(table: pa.Table | pa.RecordBatch) -> list[tuple[int | None, list[str]]]:
    """The values that go to each partition, in order. Of a row that does not say where it goes
    nothing is known of its neighbours: it stands alone."""
    values = [value.decode() for value in table.column("value").to_pylist()]
    if "partition" not in table.schema.names:
        return [(None, [value]) for value in values]
    found: dict[int, list[str]] = {}
    for partition, value in zip(table.column("partition").to_pylist(), values, strict=True):
        found.setdefault(partition, []).append(value)
    return list(found.items())


def show(tx_id: int) -> str | None:
    """None for 0: no server has given one."""
    return show_id(tx_id) if tx_id else None
