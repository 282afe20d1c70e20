"""Applications that write: plain records, transactions, chains of them, numbered batches."""

from __future__ import annotations

from oncelog.checker.recorder import RecordedLog, RecordedTransactionalProducer
from oncelog.errors import CannotConnect
from oncelogpb import errors
from tests.simulation.applications.transacting import transact
from tests.simulation.day import Day

# What ends a program: the next one connects anew, to the processes of today. After every other
# error it goes on.
FATAL = (errors.ProducerFenced, errors.Unavailable, CannotConnect)


async def feed(day: Day, log: RecordedLog) -> None:
    """Plain records for everybody."""
    producer = await log.producer(**day.producer_options())
    while day.goes_on("feeder") and not day.is_tired():
        for _ in range(day.random.randint(1, day.spice.records)):
            topic = day.random.choice(["in", "in", "in", "out", "side"])
            await producer.send(topic, day.value("p"), partition=day.partition(topic))
        if day.happens(0.7):
            await producer.flush()
            day.succeeded("feeder")
        await day.pause()


async def write(day: Day, log: RecordedLog, producer_name: str) -> None:
    """One of two named producers of one transaction group."""
    producer = await log.transactional_producer(
        producer_name, "writers", **day.transactional_options()
    )
    await _write(day, "writer", producer)


async def write_unnamed(day: Day, log: RecordedLog) -> None:
    producer = await log.transactional_producer(**day.transactional_options())
    await _write(day, "unnamed writer", producer)


async def _write(day: Day, name: str, producer: RecordedTransactionalProducer) -> None:
    while day.goes_on(name) and not day.is_tired():
        try:
            inputs = [None] * day.random.randint(1, day.spice.records)
            await transact(day, name, producer, None, inputs)
        except FATAL:
            raise
        except errors.OncelogError as error:
            day.world.say(f"{name}: {error.reason} {error.message}")
        await day.pause()


async def chain(day: Day, log: RecordedLog) -> None:
    """Transactions that begin before their end, so that each commit begins the next one, under a
    name that several instances take over from each other."""
    producer = await log.transactional_producer("chain", **day.transactional_options())
    while day.goes_on("chain") and not day.is_tired():
        try:
            await transact(day, "chain", producer, None, [None], early=True)
        except FATAL:
            raise
        except errors.OncelogError as error:
            day.world.say(f"chain: {error.reason} {error.message}")
        await day.pause()


class Job:
    """Batches in order; a new instance goes on with the batch that the last one was at, and does
    not know whether it was committed."""

    def __init__(self) -> None:
        # What it would keep in its checkpoint.
        self.batch = 1

    async def work_off(self, day: Day, log: RecordedLog) -> None:
        producer = await log.transactional_producer("job", **day.transactional_options())
        while day.goes_on("job"):
            done = await transact(
                day, "job", producer, None, [None] * 3, commit_seq=("job", self.batch)
            )
            if not done:
                continue
            if day.is_tired():
                # As a driver that dies before it writes down that it was done.
                return
            self.batch += 1
            await day.pause()


async def operate(day: Day, log: RecordedLog) -> None:
    """Ends transactions of others, now and then."""
    while day.goes_on("operator") and not day.is_tired():
        for open_one in await log.admin.inner.transactions(states=["ongoing"]):
            if day.happens(0.2):
                try:
                    await log.admin.inner.abort_transaction(open_one.tx_id)
                except errors.OncelogError as error:
                    day.world.say(f"operator: {error.reason} {error.message}")
        day.succeeded("operator")
        await day.pause()
