"""Applications with several transactions in flight: members that copy what they read, one that
stands alone, and one whose transactions rely on each other without a consumer (I10, I21, I23)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from oncelog.batch import Record
from oncelog.checker.recorder import (
    RecordedConsumer,
    RecordedLog,
    RecordedTransactionalProducer,
)
from oncelogpb import errors
from tests.simulation.applications.consuming import PENDING_MS, POLL_S
from tests.simulation.applications.producing import FATAL
from tests.simulation.applications.transacting import transact
from tests.simulation.day import Day
from tests.simulation.moments import LARGE_IN_FLIGHT, SEVERAL_IN_FLIGHT, TAKEN_BACK_TOGETHER

NAME: Final = "pipeline"
IN_FLIGHT: Final = (2, 3, 4, 8, 16)


async def copy_together(day: Day, log: RecordedLog) -> None:
    """Members of one group, who come and go with what they have in flight."""
    producer = await _producer(day, log, None)
    consumer = await log.consumer(
        ["in"], day.group("piped", "in"), batch_records_max=2, pending_timeout_ms=PENDING_MS
    )
    await _copy(day, producer, consumer)
    await consumer.close()
    await _last(day, producer)


async def copy_alone(day: Day, log: RecordedLog) -> None:
    """Of all partitions, under a name that another instance may take over."""
    producer = await _producer(day, log, day.random.choice([None, NAME]))
    consumer = await log.consumer(
        ["in"],
        day.group("piped alone", "in"),
        partitions="all",
        batch_records_max=2,
        pending_timeout_ms=PENDING_MS,
    )
    await _copy(day, producer, consumer)
    if day.happens(0.5):
        await consumer.close()
    await _last(day, producer)


async def write_in_order(day: Day, log: RecordedLog) -> None:
    """Each relies on the one before: of what is in flight, what is committed is a beginning."""
    producer = await _producer(day, log, day.random.choice([None, "piped writer"]))
    while day.goes_on(NAME) and not day.is_tired():
        await _one(day, producer, None, [None] * day.random.randint(1, 2))
        if day.happens(0.2):
            await _last(day, producer)
        await day.pause()
    await _last(day, producer)


async def _producer(day: Day, log: RecordedLog, name: str | None) -> RecordedTransactionalProducer:
    return await log.transactional_producer(
        name, in_flight=day.random.choice(IN_FLIGHT), **day.transactional_options()
    )


async def _copy(
    day: Day, producer: RecordedTransactionalProducer, consumer: RecordedConsumer
) -> None:
    while day.goes_on(NAME) and not day.is_tired():
        try:
            batch = await consumer.poll(POLL_S)
        except FATAL:
            raise
        except errors.OncelogError as error:
            day.world.say(f"{NAME}: {error.reason} {error.message}")
            await day.pause()
            continue
        if batch is None:
            # Who rests finds out what became of what is in flight.
            await _last(day, producer)
            day.succeeded(NAME)
            continue
        await _one(day, producer, consumer, list(batch))


async def _one(
    day: Day,
    producer: RecordedTransactionalProducer,
    consumer: RecordedConsumer | None,
    inputs: Sequence[Record | None],
) -> None:
    try:
        await transact(day, NAME, producer, consumer, inputs)
        if len(producer.inner.line) > 1:
            day.world.moments.add(SEVERAL_IN_FLIGHT)
        if producer.inner.line.has_large:
            day.world.moments.add(LARGE_IN_FLIGHT)
        if producer.inner.line.taken_back > 1:
            day.world.moments.add(TAKEN_BACK_TOGETHER)
    except FATAL:
        raise
    except errors.OncelogError as error:
        day.world.say(f"{NAME}: {error.reason} {error.message}")
        await asyncio.sleep(0)


async def _last(day: Day, producer: RecordedTransactionalProducer) -> None:
    try:
        await producer.flush()
    except FATAL:
        raise
    except errors.OncelogError as error:
        day.world.say(f"{NAME}: {error.reason} {error.message}")
