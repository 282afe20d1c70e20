"""A client that behaves, on a cluster that others abuse: it must notice nothing.

It consumes, transforms and produces in transactions, between a topic, a group and a producer that
the fuzzer does not know: those are a user's own, and without mTLS everybody may use them.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from oncelog.aio import Consumer, Log, TransactionalProducer, connect
from oncelog.batch import Record
from oncelog_server.core.ids import partition_of_name

TOPIC_IN: Final = "witness-in"
TOPIC_OUT: Final = "witness-out"
# Ids that the fuzzer makes up never belong to these control partitions.
CONTROL_PARTITION: Final = 7
RECORDS_PER_ROUND: Final = 5
COMES_WITHIN_S: Final = 30.0


def name_in(control_partition: int, prefix: str) -> str:
    """A group or producer that is led by this control partition."""
    names = (f"{prefix}-{number}" for number in itertools.count())
    return next(name for name in names if partition_of_name(name) == control_partition)


class Witness:
    """Start it, abuse the cluster, and `finish`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stopping = False
        self._task: asyncio.Task[int] | None = None

    async def start(self) -> None:
        """Returns when its topics stand, and it is the member of its group: what comes then may
        take a machine that has much else to do for longer than anybody waits to be let in."""
        log = connect(self._bootstrap)
        for topic in (TOPIC_IN, TOPIC_OUT):
            await log.admin.create_topic(topic, partitions=2)
        producer = await log.transactional_producer(name_in(CONTROL_PARTITION, "witness"))
        consumer = await log.consumer(
            [TOPIC_IN], start="earliest", group=name_in(CONTROL_PARTITION, "witnesses")
        )
        self._task = asyncio.create_task(self._work(log, producer, consumer))

    async def finish(self) -> int:
        """How many rounds it made. Raises what it met, and where records are missing or twice."""
        assert self._task is not None, "started"
        self._stopping = True
        return await self._task

    async def _work(self, log: Log, producer: TransactionalProducer, consumer: Consumer) -> int:
        plain = await log.producer()
        rounds = 0
        while not self._stopping:
            for number in range(RECORDS_PER_ROUND):
                value = b"%d" % (rounds * RECORDS_PER_ROUND + number)
                await plain.send(TOPIC_IN, value, key=value)
            await plain.flush()
            left = RECORDS_PER_ROUND
            while left:
                batch = await consumer.poll(COMES_WITHIN_S)
                assert batch is not None, "what was acknowledged can be read"
                async with producer.transaction(consumer) as tx:
                    for record in batch:
                        await tx.send(TOPIC_OUT, record.value or b"", key=record.key)
                        left -= 1
            rounds += 1
        await self._verify(log, rounds * RECORDS_PER_ROUND)
        await log.close()
        return rounds

    async def _verify(self, log: Log, count: int) -> None:
        found: list[Record] = []
        reader = await log.consumer([TOPIC_OUT], start="earliest")
        while len(found) < count:
            batch = await reader.poll(COMES_WITHIN_S)
            assert batch is not None, f"{len(found)} of {count} records came"
            found += list(batch)
        values = sorted(int(record.value or b"") for record in found)
        assert values == list(range(count)), "each record once (I21)"
