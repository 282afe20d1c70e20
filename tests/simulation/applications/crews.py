"""Members of consumer groups, several of a group at once, who come and go in every way: they close,
die, are taken for dead, are replaced by a process with their instance id, keep what they read.

`Crew` consumes, transforms and produces; whatever happened, each input that its group has committed
is one record of output at the end (I21).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from oncelog.aio.consumer import Consumer
from oncelog.batch import Record, TopicPartition
from oncelog.checker.recorder import (
    RecordedConsumer,
    RecordedLog,
    RecordedTransaction,
    RecordedTransactionalProducer,
)
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2
from tests.simulation.applications.consuming import PENDING_MS, POLL_S
from tests.simulation.applications.producing import FATAL
from tests.simulation.applications.transacting import TARGETS, transact
from tests.simulation.day import Day
from tests.simulation.moments import REVOKED_IN_A_TRANSACTION

JOBS: Final = "jobs"
CHORES: Final = "chores"
TOPICS: Final[dict[str, int]] = {JOBS: 4, CHORES: 2}
# Of group members: shorter than what most faults last, and longer.
SESSIONS_MS: Final = (1_500, 3_000, 6_000)
MAX_POLL_INTERVALS_MS: Final = (1_000, 4_000, 60_000)
# Instances with a name: two processes may have the same one.
INSTANCES: Final = ("north", "south")
# The group that a query wants for itself now and then, and for how long it claims it. Clocks of
# machines differ by less than this.
PLAIN: Final = "plain crew"
CLAIMS_MS: Final = (1_000, 3_000, 10_000)
CLOCKS_AGREE: Final = 0.8
# What is read before a transaction, at most, where that is several batches.
BATCHES_MAX: Final = 3
# What the values of `work_by_units` begin with.
UNIT: Final = "u"


async def join(
    day: Day, log: RecordedLog, group: str, callbacks: dict[str, Any] | None = None, **more: Any
) -> RecordedConsumer:
    """As careless programs do: each as it likes."""
    chance = day.random
    options: dict[str, Any] = {
        "session_timeout_ms": chance.choice(SESSIONS_MS),
        "max_poll_interval_ms": chance.choice(MAX_POLL_INTERVALS_MS),
        "instance_id": chance.choice(["", "", *INSTANCES]),
        "assignor": chance.choice(["", "", "uniform", "range"]),
        "delivery": chance.choice(["leader", "leader", "buffered"]),
        "batch_records_max": chance.choice([1, 4, 20]),
        "pending_timeout_ms": PENDING_MS,
        **(callbacks or {}),
        **more,
    }
    day.group(group, *TOPICS)
    # Not all want the same.
    wanted = chance.choice([[JOBS, CHORES], [JOBS, CHORES], [JOBS], [CHORES]])
    if chance.random() < 0.3:
        return await log.consumer((), group, pattern="jobs|chores", **options)
    return await log.consumer(wanted, group, **options)


async def part(day: Day, consumer: RecordedConsumer) -> None:
    """It closes; or its process ends without a word."""
    if day.healed or day.happens(0.6):
        await consumer.close()


class Crew:
    """Of one day."""

    def __init__(self) -> None:
        self._is_judged = False

    async def feed(self, day: Day, log: RecordedLog) -> None:
        """Their input: plain records, and transactions over several partitions."""
        if not self._is_judged:
            self._is_judged = True
            day.judges.append(self.judge)
        plain = await log.producer(**day.producer_options())
        transactional = await log.transactional_producer(**day.transactional_options())
        while day.goes_on("crew") and not day.is_tired():
            await self._send(day, plain)
            if day.happens(0.3):
                async with transactional.transaction() as tx:
                    await self._send(day, tx)
            await day.pause()

    async def _send(self, day: Day, to: Any) -> None:
        for _ in range(day.random.randint(1, day.spice.records)):
            topic = day.random.choice([JOBS, JOBS, CHORES])
            partition = day.random.randrange(TOPICS[topic])
            await to.send(topic, day.value("j"), partition=partition)
        if not isinstance(to, RecordedTransaction):
            await to.flush()

    async def work(self, day: Day, log: RecordedLog) -> None:
        """One transaction for each batch, or for several, or the transaction is open first."""
        worker = await _Worker.make(day, log)
        step = day.random.choice([worker.one_batch, worker.one_batch, worker.hoard, worker.linger])
        while day.goes_on("crew") and not day.is_tired():
            await worker.try_to(step)
        await part(day, worker.consumer)

    async def judge(self, day: Day, log: RecordedLog) -> None:
        """I21, by what readers see at the end: each input below where the group stands is one
        record of output, and none above; and within a partition of the output those of one
        partition of the input stand in its order, whoever processed them. Independent of the
        checker."""
        places = [TopicPartition(topic, n) for topic, count in TOPICS.items() for n in range(count)]
        sources = {
            event["values"][0]: tuple(event["of"])
            for event in day.history.events
            if event.get("do") == "send" and event.get("of", [""])[0] in TOPICS
        }
        seen = await log.read_everything(sorted(set(TARGETS)))
        values = [(record.value or b"").decode() for record in seen]
        done = Counter(sources[v] for v in values if v in sources and not v.startswith(f"{UNIT}."))
        twice = [source for source, count in done.items() if count > 1]
        assert not twice, f"I21: processed twice: {twice[:3]}"
        _require_order(
            ((record.topic, record.partition, value.startswith(f"{UNIT}.")), sources[value])
            for record, value in zip(seen, values, strict=True)
            if value in sources
        )
        for place, stand in (await _stands(log, places)).items():
            offsets = {offset for *of, offset in done if tuple(of) == tuple(place)}
            wrong = sorted(offsets ^ set(range(stand)))
            assert not wrong, f"I21: the crew stands at {stand} of {place}, and not so {wrong[:5]}"


def _require_order(copies: Iterable[tuple[tuple[str, int, bool], tuple[Any, ...]]]) -> None:
    """Of ((partition of the output, whose copy), record of the input), in the output's order."""
    last: dict[tuple[Any, ...], int] = {}
    for place, (*of, offset) in copies:
        before = last.get((place, *of), -1)
        assert before < offset, f"I21: {place} shows {of} at {offset} behind {before}"
        last[place, *of] = offset


class _Worker:
    """One life of a member of the crew."""

    def __init__(self, day: Day, producer: RecordedTransactionalProducer) -> None:
        self._day = day
        self._producer = producer
        self.consumer: RecordedConsumer
        # Read, and in no transaction yet.
        self._hoard: list[Record] = []
        self._is_open = False

    @classmethod
    async def make(cls, day: Day, log: RecordedLog) -> _Worker:
        session_ms = day.random.choice(SESSIONS_MS)
        name = day.random.choice([None, None, day.history.fresh("crew")])
        options = {**day.producer_options(), "transaction_timeout_ms": session_ms}
        worker = cls(day, await log.transactional_producer(name, **options))
        told = {"on_revoked": worker._revoked, "on_lost": worker._lost}
        worker.consumer = await join(day, log, "crew", told, session_timeout_ms=session_ms)
        return worker

    async def try_to(self, step: Any) -> None:
        """What is in doubt, or lost, is read again. Raises what ends the program."""
        try:
            await step()
        except FATAL:
            raise
        except errors.FencedInstance:
            # Another process has its name: this one must stop.
            raise
        except errors.OncelogError as error:
            self._hoard.clear()
            self._day.world.say(f"crew: {error.reason} {error.message}")
            await self._day.pause()

    async def one_batch(self) -> None:
        batch = await self.consumer.poll(POLL_S)
        if batch is None:
            self._day.succeeded("crew")
            return
        await self._transact(list(batch))

    async def hoard(self) -> None:
        """Where a partition goes meanwhile, `_revoked` commits."""
        for _ in range(self._day.random.randint(1, BATCHES_MAX)):
            batch = await self.consumer.poll(POLL_S)
            self._hoard += batch or ()
            await self._day.pause()
        await self._end_hoard()
        self._day.succeeded("crew")

    async def linger(self) -> None:
        """Polls, and rests, in the middle of a transaction: what goes waits for its end."""
        day = self._day
        self._is_open = True
        try:
            async with self._producer.transaction(self.consumer) as tx:
                for _ in range(day.random.randint(1, BATCHES_MAX)):
                    batch = await self.consumer.poll(POLL_S)
                    for record in batch or ():
                        await send_one(day, tx, record, "t")
                    await day.pause()
                if _must_let_go(self.consumer.inner):
                    day.world.moments.add(REVOKED_IN_A_TRANSACTION)
        finally:
            self._is_open = False
        day.succeeded("crew")

    async def _revoked(self, places: Sequence[TopicPartition]) -> None:
        """Called within a poll: the last chance to commit."""
        if self._is_open:
            self._day.world.say(f"crew: {places} go in the middle of a transaction")
            return
        await self._end_hoard()

    async def _lost(self, places: Sequence[TopicPartition]) -> None:
        self._hoard.clear()

    async def _end_hoard(self) -> None:
        inputs, self._hoard = self._hoard, []
        if inputs:
            await self._transact(inputs)

    async def _transact(self, inputs: list[Record]) -> None:
        await transact(self._day, "crew", self._producer, self.consumer, inputs)


async def work_plainly(day: Day, log: RecordedLog) -> None:
    """Outside of transactions: commits what it has read, also what goes."""
    consumer: RecordedConsumer | None = None

    async def revoked(places: Sequence[TopicPartition]) -> None:
        if consumer is not None:
            await consumer.commit()

    consumer = await join(day, log, PLAIN, {"on_revoked": revoked})
    while day.goes_on(PLAIN) and not day.is_tired():
        try:
            await consumer.poll(POLL_S)
            await consumer.commit()
            day.succeeded(PLAIN)
        except (*FATAL, errors.FencedInstance):
            raise
        except errors.OncelogError as error:
            day.world.say(f"plain crew: {error.reason} {error.message}")
        await day.pause()
    await part(day, consumer)


async def work_by_units(day: Day, log: RecordedLog) -> None:
    """Whole transactions of its input, each in one of its own. Not in the history as reads: what
    becomes of them is."""
    session_ms = day.random.choice(SESSIONS_MS)
    options = {**day.producer_options(), "transaction_timeout_ms": session_ms}
    producer = await log.transactional_producer(None, **options)
    consumer = await join(day, log, "unit crew", session_timeout_ms=session_ms)
    units = consumer.inner.transactions()
    while day.goes_on("unit crew") and not day.is_tired():
        try:
            unit = await units.poll(POLL_S)
            if unit is not None:
                async with producer.transaction(consumer) as tx:
                    for record in unit.read():
                        await send_one(day, tx, record, UNIT)
            day.succeeded("unit crew")
        except (*FATAL, errors.FencedInstance):
            raise
        except errors.OncelogError as error:
            day.world.say(f"unit crew: {error.reason} {error.message}")
        await day.pause()
    await part(day, consumer)


async def send_one(day: Day, tx: RecordedTransaction, record: Record, prefix: str) -> None:
    topic = day.random.choice(TARGETS)
    await tx.send(topic, day.value(prefix), partition=day.partition(topic), of=record)


def _must_let_go(consumer: Consumer) -> bool:
    """It has been told so."""
    member = consumer._member
    return member is not None and bool(member.core.must_let_go)


async def _stands(log: RecordedLog, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Where the crew does; 0 where it has committed nothing."""
    protocol = log.log.protocol
    request = offset_manager_pb2.FetchOffsetsRequest(group="crew", stable=True)
    for place in places:
        topic = await protocol.topic(place.topic)
        request.partitions.add(topic_id=topic.topic_id, number=place.partition)
    reply = await protocol.call("offset_manager.fetch_offsets", request)
    return {
        place: item.offset if item.HasField("offset") else 0
        for place, item in zip(places, reply.offsets, strict=True)
    }


async def claim_alone(day: Day, log: RecordedLog) -> None:
    """A query that wants the plain crew's group for itself, as Spark's do (ADR 66): by its own
    clock, nobody is a member of it while its claim lasts."""
    now_ms, call = log.log.protocol.now_ms, log.log.protocol.call
    lasts_ms = day.random.choice(CLAIMS_MS)
    request = offset_manager_pb2.ClaimGroupRequest(
        group=PLAIN, holder="a query", timeout_ms=lasts_ms, release=True
    )
    describe = offset_manager_pb2.DescribeGroupRequest(group=PLAIN)
    while day.goes_on(PLAIN) and not day.is_tired():
        if day.healed:
            # The others must get on with it.
            await day.pause()
            continue
        if request.release:
            # Else a late copy of the release would end the next claim.
            request.claim_id, request.release = day.history.fresh("claim"), False
        sent_ms = now_ms()
        try:
            await call("offset_manager.claim_group", request)
            for _ in range(day.random.randint(1, 4)):
                found = await call("offset_manager.describe_group", describe)
                is_over = now_ms() - sent_ms >= lasts_ms * CLOCKS_AGREE
                assert is_over or not found.members, "I23: members beside a query that has a claim"
                await day.pause()
            if day.happens(0.5):
                request.release = True
                await call("offset_manager.claim_group", request)
        except errors.OncelogError as error:
            day.world.say(f"query: {error.reason} {error.message}")
        await day.pause()
