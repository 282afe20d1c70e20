"""Applications over topics whose committed records are settled, into files of their own.

    settled   settled all the day; nothing is deleted
    fading    settled, and deleted by size, and where an operator says so
    turning   settled or not, as an operator says now

They write small transactions beside one that stays open over all of them, and batches of either
encoding, some of which are a block by themselves; they read in every way, again and again from the
front, where no journal is any more; and transaction by transaction, which must be those that were
written, whole and with their ids, wherever they are read from.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from oncelog.aio.truncating import Before
from oncelog.aio.units import CommittedTransaction
from oncelog.checker.recorder import (
    RecordedLog,
    RecordedTransaction,
    RecordedTransactionalProducer,
)
from oncelogpb import errors
from oncelogpb.ids import show_id
from tests.simulation.applications.consuming import PENDING_MS, POLL_S, enrich_once
from tests.simulation.applications.producing import FATAL
from tests.simulation.day import SILENT_S, Day
from tests.simulation.moments import MATERIALIZATION_CHANGED, PASSED_OVER, TRUNCATED, UNIT_READ

NAME: Final = "settler"
SETTLED: Final = "settled"
FADING: Final = "fading"
TURNING: Final = "turning"
TOPICS: Final[dict[str, int]] = {SETTLED: 2, FADING: 1, TURNING: 1}
MATERIALIZATION: Final = "materialization"
COPY: Final = {MATERIALIZATION: "copy"}
CONFIGS: Final[dict[str, dict[str, str]]] = {
    SETTLED: COPY,
    FADING: {**COPY, "retention.bytes": "40000"},
}
# So that journals have many files, and snapshots to settle by, within a day.
SETTINGS: Final = (
    "node.segment_bytes=16384",
    "node.snapshot_every_bytes=2000",
)
# Of several of these a journal's file is full; one of the last is a block by itself.
KEYS: Final = (None, b"k", b"k" * 300, b"k" * 3_000)
HUGE_KEY: Final = b"h" * 150_000
HUGE_OFTEN: Final = 0.02
# As many records of a batch are sent in columns; fewer, as rows.
COLUMNS_RECORDS: Final = 20
# How long a transaction is open beside others, seconds.
LINGERS_S: Final = (0.2, 1.0, 2.5)
MEMBERS: Final = "settlers"


class Wrote(NamedTuple):
    """What one attempt, from 1, has in one partition."""

    attempt: int
    topic: str
    partition: int


class Settler:
    """Of one day: what was written in which attempt, over all lives."""

    def __init__(self) -> None:
        self._attempts = 0
        # By value. Plain records are nobody's.
        self._attempt_of: dict[bytes, int] = {}
        # In the order in which they were sent.
        self._wrote: dict[Wrote, list[bytes]] = defaultdict(list)
        # As far as their writers lived to know.
        self._tx_ids: dict[int, int] = {}
        self._judges = False

    # -------------------------------------------------------------------------------------- writing

    async def write(self, day: Day, log: RecordedLog) -> None:
        """One small transaction after the other, and plain records."""
        if not self._judges:
            self._judges = True
            day.judges.append(self.judge_units)
        plain = await log.producer(**day.producer_options())
        transactional = await log.transactional_producer(**day.transactional_options())
        while day.goes_on(NAME) and not day.is_tired():
            try:
                for _ in range(day.random.randint(1, 4)):
                    await self._transact(day, transactional, 0.0)
                topic, partition = _somewhere(day)
                await plain.send(topic, day.value("z"), partition=partition)
                await plain.flush()
                day.succeeded(NAME)
            except FATAL:
                raise
            except errors.OncelogError as error:
                day.world.say(f"{NAME}: {error.reason} {error.message}")
            await day.pause()

    async def linger(self, day: Day, log: RecordedLog) -> None:
        """What it writes first is committed long after what came behind it has been settled."""
        transactional = await log.transactional_producer(**day.transactional_options())
        while day.goes_on(NAME) and not day.is_tired():
            try:
                await self._transact(day, transactional, day.random.choice(LINGERS_S))
            except FATAL:
                raise
            except errors.OncelogError as error:
                day.world.say(f"{NAME}: {error.reason} {error.message}")
            await day.pause()

    async def _transact(
        self, day: Day, producer: RecordedTransactionalProducer, lingers_s: float
    ) -> None:
        self._attempts += 1
        attempt = self._attempts
        tx = producer.transaction()
        try:
            async with tx:
                await self._send(day, tx, attempt)
                if lingers_s:
                    await tx.flush()
                    await asyncio.sleep(lingers_s)
                    await self._send(day, tx, attempt)
        finally:
            if tx.inner.tx_id:
                self._tx_ids[attempt] = tx.inner.tx_id

    async def _send(self, day: Day, tx: RecordedTransaction, attempt: int) -> None:
        topic, partition = _somewhere(day)
        count = COLUMNS_RECORDS if day.happens(0.1) else day.random.randint(1, 3)
        key = day.random.choice(KEYS)
        if day.happens(HUGE_OFTEN):
            count, key = 2, HUGE_KEY
        for _ in range(count):
            value = day.value("s")
            self._attempt_of[value] = attempt
            self._wrote[Wrote(attempt, topic, partition)].append(value)
            await tx.send(topic, value, key=key, partition=partition)
            if day.happens(day.spice.flush / 2):
                await tx.flush()

    # -------------------------------------------------------------------------------------- reading

    async def read(self, day: Day, log: RecordedLog) -> None:
        """Mostly from the front, where all is settled, to the end, where nothing is."""
        chance = day.random
        consumer = await log.consumer(
            list(TOPICS),
            delivery=chance.choice(["leader", "leader", "buffered"]),
            start=chance.choice(["earliest", "earliest", "latest"]),
            if_deleted="earliest",
            batch_records_max=chance.choice([1, 5, 50]),
        )
        while day.goes_on(NAME) and not day.is_tired():
            await consumer.poll(POLL_S)
            day.succeeded(NAME)
            if consumer.inner.skipped:
                day.world.moments.add(PASSED_OVER)
            if day.happens(0.1):
                topic, partition = _somewhere(day)
                await consumer.seek(topic, partition, 0)
            await day.pause()
        await consumer.close()

    async def work(self, day: Day, log: RecordedLog) -> None:
        """A member, which consumes, transforms and produces."""
        producer = await log.transactional_producer(None, **day.transactional_options())
        consumer = await log.consumer(
            list(TOPICS),
            day.group(MEMBERS, *TOPICS),
            start="earliest",
            if_deleted="earliest",
            delivery=day.random.choice(["leader", "buffered"]),
            batch_records_max=4,
            pending_timeout_ms=PENDING_MS,
        )
        while day.goes_on(NAME) and not day.is_tired():
            await enrich_once(day, NAME, producer, consumer)
            await day.pause()
        await consumer.close()

    async def read_units(self, day: Day, log: RecordedLog) -> None:
        """Transaction by transaction, from the front."""
        async for unit in _units(log, lambda: day.goes_on(NAME) and not day.is_tired()):
            self._require_as_written(unit)
            day.world.moments.add(UNIT_READ)
            await day.pause()

    async def judge_units(self, day: Day, log: RecordedLog) -> None:
        """At the end of the day, all of them: what an attempt has in a partition is one unit."""
        found: Counter[Wrote] = Counter()
        async for unit in _units(log):
            found[self._require_as_written(unit)] += 1
        twice = [wrote for wrote, units in found.items() if wrote.attempt and units > 1]
        assert not twice, f"I6: several units are {twice[:3]}"

    def _require_as_written(self, unit: CommittedTransaction) -> Wrote:
        """Raises AssertionError."""
        values = [record.value or b"" for record in unit.read()]
        wrote = Wrote(self._attempt_of.get(values[0], 0), unit.topic, unit.partition)
        if not wrote.attempt:
            assert not unit.tx_id, f"I9: {unit} is said of plain records"
            assert self._attempt_of.keys().isdisjoint(values), f"I9: {unit} has a part of another"
            return wrote
        assert values == self._wrote[wrote], f"I3: {unit} is not {wrote} as it was written"
        known = self._tx_ids.get(wrote.attempt, unit.tx_id)
        assert unit.tx_id == known, f"I9: {unit} is {wrote}, of {show_id(known)}"
        return wrote

    # ------------------------------------------------------------------------------------ operating

    async def operate(self, day: Day, log: RecordedLog) -> None:
        """Changes what is settled, to and fro; truncates."""
        while day.goes_on(NAME) and not day.is_tired():
            try:
                if day.happens(0.5):
                    how = day.random.choice(["copy", "auto", "reference"])
                    await log.admin.alter_topic(TURNING, {MATERIALIZATION: how})
                    day.world.moments.add(MATERIALIZATION_CHANGED)
                else:
                    await _truncate(day, log)
                day.succeeded(NAME)
            except (errors.OffsetOutOfRange, errors.UnknownOutcome) as error:
                day.world.say(f"{NAME}: {error.reason} {error.message}")
            await day.pause()


def _somewhere(day: Day) -> tuple[str, int]:
    topic = day.random.choice([SETTLED, SETTLED, FADING, TURNING])
    return topic, day.random.randrange(TOPICS[topic])


async def _truncate(day: Day, log: RecordedLog) -> None:
    [end] = await log.admin.offsets(FADING)
    before: Before = "end" if day.happens(0.1) else day.random.randrange(end + 1)
    done = await log.admin.inner.truncate(FADING, before=before, partition=0)
    if any(row.record_count for row in done):
        day.world.moments.add(TRUNCATED)


async def _units(
    log: RecordedLog, goes_on: Callable[[], bool] | None = None
) -> AsyncIterator[CommittedTransaction]:
    """Of the topics of which nothing is deleted, from the front, as long as it goes on; None: all
    that there are. Not in the history as reads."""
    consumer = await log.log.consumer([SETTLED, TURNING], start="earliest")
    units = consumer.transactions()
    while goes_on is None or goes_on():
        unit = await units.poll(SILENT_S)
        if unit is not None:
            yield unit
        elif goes_on is None:
            break
    await consumer.close()
