"""Applications that do nothing for longer than services remember somebody of whom they hear
nothing: they live on (I21, I31)."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Final

from oncelog.checker.recorder import RecordedLog
from oncelog.options import ConsumerOptions
from oncelogpb import errors
from tests.simulation.applications.consuming import PENDING_MS, POLL_S
from tests.simulation.applications.producing import FATAL
from tests.simulation.applications.transacting import transact
from tests.simulation.day import Day

# What services are told to remember, and how long these applications rest. Plain producers are
# forgotten later than the last repetition of a batch can arrive.
UNNAMED_MS: Final = 5_000
PLAIN_MS: Final = 10_000
REST_S: Final = 6.5
LONG_REST_S: Final = 11.0
# A group is forgotten later than the longest trouble ends, in which no sign of life arrives.
GROUPS_MS: Final = 20_000
QUIET_S: Final = 25.0
SIGN_OF_LIFE_MS: Final = 1_000

SLEEPER_SETTINGS: Final = (
    f"coordinator.unnamed_producer_retention_ms={UNNAMED_MS}",
    f"partition_leader.producer_expiry_ms={PLAIN_MS}",
)
QUIET_SETTINGS: Final = (f"offset_manager.group_retention_ms={GROUPS_MS}",)


async def sleep_transactional(day: Day, log: RecordedLog) -> None:
    """A producer without a name that begins again after a rest."""
    producer = await log.transactional_producer(**day.transactional_options())
    while day.goes_on("sleeper") and not day.is_tired():
        began_s = day.world.loop.time()
        try:
            await transact(day, "sleeper", producer, None, [None])
        except errors.UnknownProducer as error:
            # It registers again once. While it was repeating on a full disk, which nobody counts as
            # a sign of life, it may be forgotten once more.
            repeated_ms = (day.world.loop.time() - began_s) * 1000
            if repeated_ms < UNNAMED_MS:
                raise AssertionError(f"a producer that rested is dead for ever: {error}") from error
            day.world.say("sleeper: forgotten while it repeated")
        except FATAL:
            raise
        except errors.OncelogError as error:
            day.world.say(f"sleeper: {error.reason} {error.message}")
        await asyncio.sleep(REST_S)


async def sleep_plain(day: Day, log: RecordedLog) -> None:
    producer = await log.producer(**day.producer_options())
    while day.goes_on("plain sleeper") and not day.is_tired():
        await producer.send("side", day.value("p"), partition=day.partition("side"))
        await producer.flush()
        day.succeeded("plain sleeper")
        await asyncio.sleep(LONG_REST_S)


async def feed_rarely(day: Day, log: RecordedLog) -> None:
    producer = await log.producer(**day.producer_options())
    while not day.stopping:
        await producer.send("quiet", day.value("q"), partition=0)
        await producer.flush()
        silent_until_s = day.world.loop.time() + QUIET_S
        while day.world.loop.time() < silent_until_s and not day.stopping:
            await asyncio.sleep(POLL_S)


async def follow_quiet(day: Day, log: RecordedLog) -> None:
    """Lives on while its topic is quiet: its group must not forget it meanwhile. The consumer comes
    first: where a producer has to be waited for, longer than groups are remembered, it lives."""
    consumer = await log.consumer(
        ["quiet"],
        group=day.group("quiet", "quiet"),
        partitions="all",
        pending_timeout_ms=PENDING_MS,
        **_signs(),
    )
    producer = await log.transactional_producer(**day.transactional_options())
    while day.goes_on("quiet"):
        batch = await consumer.poll(POLL_S)
        if batch is None:
            continue
        try:
            if await transact(day, "quiet", producer, consumer, list(batch)):
                # That it came after the silence is enough.
                day.succeeded("quiet")
        except FATAL:
            raise
        except errors.OncelogError as error:
            day.world.say(f"quiet: {error.reason} {error.message}")


def _signs() -> dict[str, int]:
    """Of life, as often as this cluster's retention wants them."""
    known = {field.name for field in dataclasses.fields(ConsumerOptions)}
    return {"sign_of_life_ms": SIGN_OF_LIFE_MS} if "sign_of_life_ms" in known else {}
