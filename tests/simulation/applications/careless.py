"""Applications with a mistake of their own, which must cost nothing but what is wrong."""

from __future__ import annotations

from typing import Final

from oncelog.checker.recorder import RecordedLog, RecordedTransactionalProducer
from oncelog.checker.telling import reason_of
from oncelogpb import errors
from tests.simulation.applications.producing import FATAL
from tests.simulation.applications.transacting import transact
from tests.simulation.day import Day

NO_PARTITION: Final = 99
NARROW_BYTES: Final = 2_048
FILLING_KEY: Final = b"f" * 300
TWINS: Final = 3


async def send_badly(day: Day, log: RecordedLog) -> None:
    """One bad record among good ones: `flush` says what is wrong with it, and the others stand."""
    producer = await log.log.producer(**day.producer_options())
    while day.goes_on("clumsy") and not day.is_tired():
        good = []
        calm = day.healed
        try:
            for number in range(day.random.randint(2, 6)):
                if number == 1:
                    await producer.send("side", b"bad", partition=NO_PARTITION)
                value, partition = day.value("g"), day.partition("side")
                good.append(
                    day.history.invoke(
                        "produce", topic="side", partition=partition, values=[value.decode()]
                    )
                )
                await producer.send("side", value, partition=partition)
            await producer.flush()
            raise AssertionError("F1: nobody was told of the bad record")
        except errors.UnknownPartition as error:
            # In trouble it may be the first of several errors, and the others stay unsaid.
            for op in good if calm else ():
                day.history.ok(op)
            day.world.say(f"clumsy: {error.reason}")
        except errors.OncelogError as error:
            for op in good:
                day.history.unknown(op, reason_of(error))
            raise
        day.succeeded("clumsy")
        await day.pause()


async def write_narrow(day: Day, log: RecordedLog) -> None:
    """Of a topic with small batches its producer need not know: its records fit."""
    producer = await log.producer(**day.producer_options())
    while day.goes_on("narrow") and not day.is_tired():
        for _ in range(2 * NARROW_BYTES // len(FILLING_KEY)):
            await producer.send("narrow", day.value("n"), key=FILLING_KEY, partition=0)
        try:
            await producer.flush()
        except errors.TooLarge as error:
            raise AssertionError(f"records that fit were refused: {error}") from error
        day.succeeded("narrow")
        await day.pause()


async def take_turns(day: Day, log: RecordedLog) -> None:
    """Several producers of one name in one program. Who was made last is never told that it is
    fenced; who was replaced is, and replaces nobody."""
    name = day.history.fresh("twin")
    newest: RecordedTransactionalProducer | None = None
    twins: list[RecordedTransactionalProducer] = []
    while day.goes_on("twins") and not day.is_tired():
        if len(twins) < TWINS or day.happens(0.3):
            # Where nobody can say what became of it, this program ends here.
            newest = await log.transactional_producer(name, **day.transactional_options())
            twins = [*twins[-TWINS + 1 :], newest]
        producer = day.random.choice(twins)
        try:
            await transact(day, "twins", producer, None, [None])
        except errors.ProducerFenced as error:
            if producer is newest:
                raise AssertionError(f"the newest instance is fenced: {error}") from error
            twins.remove(producer)
        except FATAL:
            raise
        except errors.OncelogError as error:
            day.world.say(f"twins: {error.reason} {error.message}")
        await day.pause()
