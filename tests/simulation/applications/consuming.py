"""Applications that read, and commit what they read: in transactions, or plainly."""

from __future__ import annotations

from typing import Final

from oncelog.checker.recorder import (
    RecordedConsumer,
    RecordedLog,
    RecordedTransactionalProducer,
)
from oncelogpb import errors
from tests.simulation.applications.producing import FATAL
from tests.simulation.applications.transacting import transact
from tests.simulation.day import Day

TOPICS: Final = ("in", "out", "side")
PENDING_MS: Final = 6_000
POLL_S: Final = 0.5


async def enrich(day: Day, log: RecordedLog) -> None:
    """`in` becomes `out`, by instances of one name, until another one fences this one."""
    await _enrich(day, log, "enricher", "enricher", day.group("fenced", "in"))


async def enrich_unnamed(day: Day, log: RecordedLog) -> None:
    """Any number of them, guarded by what the group has committed."""
    await _enrich(day, log, "unnamed enricher", None, day.group("shared", "in"))


async def enrich_together(day: Day, log: RecordedLog) -> None:
    """Members of one group, who come and go: each partition is one member's at a time."""
    producer = await log.transactional_producer(None, **day.transactional_options())
    consumer = await log.consumer(
        ["in"], day.group("members", "in"), batch_records_max=4, pending_timeout_ms=PENDING_MS
    )
    while day.goes_on("member") and not day.is_tired():
        await enrich_once(day, "member", producer, consumer)
    await consumer.close()


async def _enrich(
    day: Day, log: RecordedLog, name: str, producer_name: str | None, group: str
) -> None:
    producer = await log.transactional_producer(producer_name, **day.transactional_options())
    consumer = await _input_of(log, group)
    while day.goes_on(name) and not day.is_tired():
        await enrich_once(day, name, producer, consumer)


async def enrich_once(
    day: Day,
    name: str,
    producer: RecordedTransactionalProducer,
    consumer: RecordedConsumer,
) -> None:
    """One batch. Raises what ends the program."""
    try:
        batch = await consumer.poll(POLL_S)
        if batch is None:
            # Nothing to do is a success, too: the group's offsets are known.
            day.succeeded(name)
            return
        await transact(day, name, producer, consumer, list(batch))
    except FATAL:
        raise
    except errors.OncelogError as error:
        day.world.say(f"{name}: {error.reason} {error.message}")
        await day.pause()


async def _input_of(log: RecordedLog, group: str, *, delivery: str = "leader") -> RecordedConsumer:
    return await log.consumer(
        ["in"],
        group,
        partitions="all",
        batch_records_max=4,
        pending_timeout_ms=PENDING_MS,
        delivery=delivery,
    )


async def hop(day: Day, log: RecordedLog) -> None:
    """One consumer, and a new producer whenever the last one is gone: closed between a poll and its
    transaction, or fenced in the background. What was polled for it must come again."""
    consumer = await _input_of(log, day.group("hopped", "in"), delivery="buffered")
    while day.goes_on("hopper") and not day.is_tired():
        producer = await log.transactional_producer(
            day.random.choice([None, "hopper"]), **day.transactional_options()
        )
        for _ in range(day.random.randint(0, 3)):
            await enrich_once(day, "hopper", producer, consumer)
        await _abandon(day, producer, consumer)
    await consumer.close()


async def _abandon(
    day: Day, producer: RecordedTransactionalProducer, consumer: RecordedConsumer
) -> None:
    """A transaction that is refused as it is made, or made and never entered."""
    try:
        batch = await consumer.poll(POLL_S)
        if batch is None:
            return
        if day.happens(0.6):
            await producer.close()
        producer.transaction(consumer)
        await transact(day, "hopper", producer, consumer, list(batch))
    except errors.OncelogError as error:
        day.world.say(f"hopper: {error.reason} {error.message}")


async def listen(day: Day, log: RecordedLog) -> None:
    """Commits what it read, plainly, beside another one of its group."""
    consumer = await log.consumer(
        ["in"],
        group=day.group("plain", "in"),
        partitions="all",
        batch_records_max=6,
        pending_timeout_ms=PENDING_MS,
    )
    while day.goes_on("listener") and not day.is_tired():
        try:
            await consumer.poll(POLL_S)
            await consumer.commit()
            day.succeeded("listener")
        except errors.StalePosition:
            day.world.say("listener: another one was faster")
        await day.pause()


async def read_committed(day: Day, log: RecordedLog) -> None:
    await _read(day, log, "committed")


async def read_uncommitted(day: Day, log: RecordedLog) -> None:
    await _read(day, log, "uncommitted")


async def read_buffered(day: Day, log: RecordedLog) -> None:
    """Makes commit order itself: the same records at the same offsets."""
    await _read(day, log, "committed", delivery="buffered")


async def _read(day: Day, log: RecordedLog, isolation: str, *, delivery: str = "leader") -> None:
    """All that there is, and again from the front now and then."""
    name = f"{isolation if delivery == 'leader' else delivery} reader"
    consumer = await log.consumer(
        list(TOPICS),
        isolation=isolation,
        delivery=delivery,
        batch_records_max=day.random.choice([1, 5, 50]),
    )
    while day.goes_on(name) and not day.is_tired():
        await consumer.poll(POLL_S)
        day.succeeded(name)
        if day.happens(0.05):
            topic = day.random.choice(TOPICS)
            await consumer.seek(topic, day.partition(topic), 0)
        await day.pause()
    await consumer.close()


async def ask(day: Day, log: RecordedLog) -> None:
    """Where groups stand, where partitions end, what became of transactions."""
    group = day.random.choice([*day.groups, "nobody's"])
    consumer = await log.consumer(["in"], group, partitions="all", pending_timeout_ms=3_000)
    while day.goes_on("questioner") and not day.is_tired():
        choice = day.random.randrange(4)
        if choice == 0:
            topic = day.random.choice(TOPICS)
            isolation = day.random.choice(["committed", "uncommitted"])
            await log.admin.offsets(topic, isolation=isolation)
        elif choice == 1:
            await consumer.committed("in", day.partition("in"))
        elif choice == 2:
            await log.stable_offsets(group, ["in"])
        elif day.known_tx_ids:
            tx_id = day.random.choice(day.known_tx_ids[-20:])
            await log.admin.describe_transaction(tx_id)
        day.succeeded("questioner")
        await day.pause()
