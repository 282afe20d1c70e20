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

Left out: headers (nothing in a history depends on them), the blocking client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from oncelog._core.routing import Endpoint
from oncelog.aio import Admin, Log, group_resetting
from oncelog.aio.admin_transactions import TransactionInfo
from oncelog.batch import Record, TopicPartition
from oncelog.checker.events import HistoryWriter
from oncelog.checker.recorded_consumer import RecordedConsumer
from oncelog.checker.recorded_producers import (
    RecordedProducer,
    RecordedTransaction,
    RecordedTransactionalProducer,
)
from oncelog.checker.recorded_transport import RecordedTransport
from oncelog.checker.telling import placed, telling
from oncelog.errors import OncelogError
from oncelog.groups import Where, Wheres
from oncelog.protocol import AsyncProtocol
from oncelogpb.ids import show_id
from oncelogpb.v1 import offset_manager_pb2

__all__ = [
    "RecordedAdmin",
    "RecordedConsumer",
    "RecordedLog",
    "RecordedProducer",
    "RecordedTransaction",
    "RecordedTransactionalProducer",
]

# A read to the end that gives nothing for so long is stuck, seconds.
READ_STALLED_S: Final = 60.0


class RecordedLog:
    """See the module. Hands out recorded producers and consumers, and a recorded `admin`.

    Its connection is recorded, too: who acknowledged what. `leader_name` names who answers at an
    address, None for nobody in particular."""

    def __init__(
        self,
        log: Log,
        history: HistoryWriter,
        *,
        leader_name: Callable[[Endpoint], str | None] = str,
    ) -> None:
        self.log = log
        self.history = history
        protocol = log.protocol
        if not isinstance(protocol.transport, RecordedTransport):
            protocol.transport = RecordedTransport(
                protocol.transport, history, protocol.directory, leader_name
            )
        self.admin = RecordedAdmin(log.admin, history, protocol)

    async def producer(self, **options: Any) -> RecordedProducer:
        return RecordedProducer(await self.log.producer(**options), self.history)

    async def transactional_producer(
        self, name: str | None = None, group: str | None = None, **options: Any
    ) -> RecordedTransactionalProducer:
        instance = self.history.fresh("instance")
        op = self.history.invoke("init_producer", name=name, group=group, instance=instance)
        with telling(self.history, op):
            inner = await self.log.transactional_producer(name, group, **options)
        producer = RecordedTransactionalProducer(inner, self.history, instance)
        await producer.registered(op)
        return producer

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, **options: Any
    ) -> RecordedConsumer:
        made_us = self.history.now_us()
        inner = await self.log.consumer(topics, group, **options)
        isolation = options.get("isolation", "committed")
        return RecordedConsumer(inner, self.history, isolation, made_us)

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
        # What retention deletes meanwhile is not missed.
        consumer = await self.consumer(
            topics, start="earliest", isolation=isolation, if_deleted="earliest"
        )
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
        with telling(self.history, op):
            reply = await self.log.protocol.call("offset_manager.fetch_offsets", request)
        self.history.ok(
            op,
            offsets=[
                {**placed(place), "offset": item.offset if item.HasField("offset") else None}
                for place, item in zip(names, reply.offsets, strict=True)
            ],
        )

    async def close(self) -> None:
        await self.log.close()


class RecordedAdmin:
    """Records what says something about promises; the rest is on `inner`."""

    def __init__(self, inner: Admin, history: HistoryWriter, protocol: AsyncProtocol) -> None:
        self.inner = inner
        self._protocol = protocol
        self._history = history

    async def create_topic(self, name: str, partitions: int = 0, **options: Any) -> None:
        configs = dict(options.get("configs") or {})
        op = self._history.invoke("create_topic", topic=name, configs=configs)
        with telling(self._history, op):
            topic = await self.inner.create_topic(name, partitions, **options)
        self._history.ok(op, partitions=len(topic.partitions))

    async def alter_topic(self, name: str, configs: Mapping[str, str]) -> None:
        op = self._history.invoke("alter_topic", topic=name, configs=dict(configs))
        with telling(self._history, op):
            await self.inner.alter_topic(name, configs)
        self._history.ok(op)

    async def reset_offsets(self, group: str, to: Where | Wheres) -> None:
        """Recorded as what it is: a commit of nobody's, from where the group was seen. Raises as
        the real one."""
        plan = await group_resetting.plan(self._protocol, group, to)
        offsets = [
            {
                "group": group,
                "topic": row.topic,
                "partition": row.partition,
                "from": "none" if row.before is None else row.before,
                "to": row.after,
            }
            for row in plan.rows()
            if row.before != row.after
        ]
        op = self._history.invoke("commit_offsets", group=group, offsets=offsets)
        with telling(self._history, op):
            await group_resetting.execute(self._protocol, plan)
        self._history.ok(op)

    async def offsets(
        self, topic: str, at: str | int = "latest", *, isolation: str = "committed"
    ) -> list[int]:
        op = self._history.invoke("list_offsets", topic=topic, at=at, isolation=isolation)
        with telling(self._history, op):
            offsets = await self.inner.offsets(topic, at, isolation=isolation)
        self._history.ok(op, offsets=offsets)
        return offsets

    async def describe_transaction(self, tx_id: int) -> TransactionInfo:
        op = self._history.invoke("get_transaction", tx_id=show_id(tx_id))
        with telling(self._history, op):
            info = await self.inner.describe_transaction(tx_id)
        self._history.ok(op, state=info.state, visible=info.visible)
        return info
