"""Applications over topics that forget: by age, by size, and where an operator says so.

    kept      what is older than `retention.ms` goes
    bounded   what is more than `retention.bytes` goes
    pruned    what an operator truncates goes

They write, with transactions that are open for longer than anything is kept; they read in every
way, and rest for so long that what they stood at is deleted; and an operator truncates, changes
settings, and has a group go on elsewhere. What may be deleted, and that nothing else is, the
checker judges (I32).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from oncelog.aio.truncating import Before
from oncelog.checker.recorder import RecordedConsumer, RecordedLog, RecordedTransaction
from oncelog.groups import Where
from oncelogpb import errors
from tests.simulation.applications.consuming import PENDING_MS, POLL_S, enrich_once
from tests.simulation.applications.producing import FATAL
from tests.simulation.day import Day
from tests.simulation.moments import PASSED_OVER, TOLD_DELETED, TRUNCATED

NAME: Final = "keeper"
KEPT: Final = "kept"
BOUNDED: Final = "bounded"
PRUNED: Final = "pruned"
TOPICS: Final[dict[str, int]] = {KEPT: 2, BOUNDED: 1, PRUNED: 1}
RETENTION_MS: Final = 2_000
RETENTION_BYTES: Final = 20_000
CONFIGS: Final[dict[str, dict[str, str]]] = {
    KEPT: {"retention.ms": str(RETENTION_MS)},
    BOUNDED: {"retention.bytes": str(RETENTION_BYTES)},
}
# So that a journal has several segments and snapshots, and goes in front, coordinators' as well.
SETTINGS: Final = (
    "node.segment_bytes=16384",
    "node.snapshot_every_bytes=2000",
    "node.control_journal_bytes_max=8192",
)
# What an operator changes retention to.
OTHER_RETENTIONS_MS: Final = ("1000", "4000", "-1", str(RETENTION_MS))
# Of several of these a segment is full.
KEYS: Final = (None, b"k" * 300, b"k" * 3_000)
# How long a transaction is open, and a reader rests, seconds: some for longer than records live.
LINGERS_S: Final = (0.2, 1.0, 3.0)
RESTS_S: Final = (0.3, 2.5, 4.0)
# Where an operator has a group go on.
WHERES: Final[Sequence[Where]] = ("earliest", "latest", 0)
# Members, and those that stand alone and are sent elsewhere.
MEMBERS: Final = "keepers"
ALONE: Final = "lone keeper"


async def write(day: Day, log: RecordedLog) -> None:
    """Plain records, and transactions over several of the topics that stay open."""
    plain = await log.producer(**day.producer_options())
    transactional = await log.transactional_producer(**day.transactional_options())
    while day.goes_on(NAME) and not day.is_tired():
        try:
            await _send(day, plain)
            await plain.flush()
            if day.happens(0.5):
                async with transactional.transaction() as tx:
                    await _send(day, tx)
                    await tx.flush()
                    await asyncio.sleep(day.random.choice(LINGERS_S))
                    await _send(day, tx)
            day.succeeded(NAME)
        except FATAL:
            raise
        except errors.OncelogError as error:
            day.world.say(f"{NAME}: {error.reason} {error.message}")
        await day.pause()


async def _send(day: Day, to: Any) -> None:
    for _ in range(day.random.randint(1, day.spice.records)):
        topic = day.random.choice([KEPT, BOUNDED, PRUNED])
        key = day.random.choice(KEYS)
        await to.send(topic, day.value("k"), key=key, partition=day.random.randrange(TOPICS[topic]))
        if isinstance(to, RecordedTransaction) and day.happens(day.spice.flush):
            await to.flush()


async def read(day: Day, log: RecordedLog) -> None:
    """In some way, and with rests. Where it is told that its records are deleted it goes on where
    the error says."""
    chance = day.random
    isolation = chance.choice(["committed", "committed", "committed", "uncommitted"])
    consumer = await log.consumer(
        list(TOPICS),
        isolation=isolation,
        delivery=chance.choice(["leader", "buffered"]) if isolation == "committed" else "leader",
        start=chance.choice(["earliest", "earliest", "latest"]),
        if_deleted=chance.choice(["error", "earliest", "latest"]),
        batch_records_max=chance.choice([1, 5, 50]),
    )
    while day.goes_on(NAME) and not day.is_tired():
        try:
            await consumer.poll(POLL_S)
            day.succeeded(NAME)
        except errors.OffsetOutOfRange as error:
            day.world.say(f"{NAME}: {error.message}")
            day.world.moments.add(TOLD_DELETED)
            await _go_on(consumer, error)
        if consumer.inner.skipped:
            day.world.moments.add(PASSED_OVER)
        if day.happens(0.1):
            # What it stands at was read ahead: only who goes back asks for what is deleted.
            topic = day.random.choice(list(TOPICS))
            await consumer.seek(topic, day.random.randrange(TOPICS[topic]), 0)
        await _rest(day)
    await consumer.close()


async def _go_on(consumer: RecordedConsumer, error: errors.OffsetOutOfRange) -> None:
    told = error.metadata
    await consumer.seek(told["topic"], int(told["partition"]), int(told["start"]))


async def _rest(day: Day) -> None:
    if day.happens(0.15):
        await asyncio.sleep(day.random.choice(RESTS_S))
    await day.pause()


async def work(day: Day, log: RecordedLog) -> None:
    """A member, which consumes, transforms and produces."""
    await _work(day, log, MEMBERS)


async def work_alone(day: Day, log: RecordedLog) -> None:
    """The same of one that stands alone; an operator has it go on elsewhere between two lives."""
    group = day.group(ALONE, *TOPICS)
    if day.happens(0.4):
        where: Where = day.random.choice(WHERES)
        try:
            await log.admin.reset_offsets(group, where)
            day.world.say(f"{NAME}: {group} goes on at {where}")
        except (errors.NotFound, errors.PendingTransaction, errors.StalePosition) as error:
            day.world.say(f"{NAME}: {error.reason}")
    await _work(day, log, ALONE, partitions="all")


async def _work(day: Day, log: RecordedLog, group: str, **options: Any) -> None:
    if day.happens(0.3):
        # Where its group stands is deleted meanwhile.
        await asyncio.sleep(day.random.choice(RESTS_S))
    producer = await log.transactional_producer(None, **day.transactional_options())
    consumer = await log.consumer(
        list(TOPICS),
        day.group(group, *TOPICS),
        start=day.random.choice(["earliest", "earliest", "latest"]),
        if_deleted="earliest",
        delivery=day.random.choice(["leader", "buffered"]),
        batch_records_max=4,
        pending_timeout_ms=PENDING_MS,
        **options,
    )
    while day.goes_on(NAME) and not day.is_tired():
        await enrich_once(day, NAME, producer, consumer)
        if consumer.inner.skipped:
            day.world.moments.add(PASSED_OVER)
        await _rest(day)
    await consumer.close()


async def operate(day: Day, log: RecordedLog) -> None:
    """Truncates, looks where partitions begin, changes settings."""
    while day.goes_on(NAME) and not day.is_tired():
        try:
            topic = day.random.choice([KEPT, BOUNDED, PRUNED, PRUNED, PRUNED])
            partition = day.random.randrange(TOPICS[topic])
            choice = day.random.randrange(4)
            if choice == 0:
                await log.admin.offsets(topic, "earliest")
            elif choice == 1 and day.happens(0.5):
                retention_ms = day.random.choice(OTHER_RETENTIONS_MS)
                await log.admin.alter_topic(KEPT, {"retention.ms": retention_ms})
            else:
                await _truncate(day, log, topic, partition)
            day.succeeded(NAME)
        except (errors.OffsetOutOfRange, errors.UnknownOutcome) as error:
            day.world.say(f"{NAME}: {error.reason} {error.message}")
        await _rest(day)


async def _truncate(day: Day, log: RecordedLog, topic: str, partition: int) -> None:
    ends = await log.admin.offsets(topic)
    # Also above the end, which is refused.
    before: Before = day.random.randrange(ends[partition] + 2)
    if day.happens(0.3):
        wall_ms = day.world.loop.now().wall_ms - day.random.choice([0, 500, 3_000])
        before = datetime.fromtimestamp(wall_ms / 1000, UTC)
    elif day.happens(0.3):
        before = "end"
    done = await log.admin.inner.truncate(
        topic, before=before, partition=partition, dry_run=day.happens(0.1)
    )
    if any(row.record_count for row in done):
        day.world.moments.add(TRUNCATED)
