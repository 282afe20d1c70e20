"""The workload of the fault tests: what a cluster's users do at the same time, and what came of it.

  * an enricher consumes, transforms and produces over several partitions with offsets, in one-shots
    and in begun transactions, slow ones too; some it aborts; in the middle a second instance of it
    takes its name;
  * a ledger writes one-shots without offsets;
  * a courier copies the same input as a group of its own, with several transactions in flight;
  * a job writes as several writers in one transaction, as Spark's tasks do, registers its input
    early, leaves the records of a failed attempt behind, and commits again what it committed;
  * plain records go between;
  * the last values of a few keys are overwritten again and again, and what they supersede is taken
    out;
  * what is committed of all this is settled, and of one topic that fills meanwhile the front is
    deleted, so that journals and data logs go in front.

Every record says who wrote it in which attempt, so `verdict.py` can judge what is seen.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from oncelog.checker.recorder import (
    RecordedConsumer,
    RecordedLog,
    RecordedTransaction,
    RecordedTransactionalProducer,
)
from oncelogpb import errors
from tests.faults.attempts import Attempt, Outcome
from tests.faults.job import BATCHES, Job

INPUTS: Final = 24
IN_PARTITIONS: Final = 2
OUT_PARTITIONS: Final = 3
ROUNDS: Final = 8
# The topic that fills: so many records of so many bytes, of which so many are kept now and then.
FADING_RECORDS: Final = 40
FADING_KEY: Final = b"k" * 500
FADING_KEPT: Final = 5
SETTLED_CONFIGS: Final = {"materialization": "copy"}
# The topic of which the last value of each key is kept: so many records of so many keys.
LATEST_RECORDS: Final = 80
LATEST_KEYS: Final = 4
COMPACTED_CONFIGS: Final = {"cleanup.policy": "compact"}
# An idle transaction of this story ends soon, so that runs are short.
IDLE_MS: Final = 10_000
# The slow transaction is open for so long: longer than leaders wait before they ask about it.
SLOW_SECONDS: Final = 1.6
# Where the story changes hands, in inputs done.
TAKE_OVER_AT: Final = 8
BACK_OFF_SECONDS: Final = 0.1
# Of the courier.
IN_FLIGHT: Final = 4
# How an attempt of the enricher goes, of numbers from 0 to 1.
BEGUN_AND_ABORTED: Final = 0.3


class Chance(Protocol):
    def random(self) -> float: ...

    def randrange(self, stop: int, /) -> int: ...


class Told(NamedTuple):
    """What the story tells its surroundings."""

    chance: Chance
    say: Callable[[str], None]


class Names(NamedTuple):
    """What a story is about; several may be told in one cluster."""

    prefix: str = ""

    @property
    def input(self) -> str:
        return f"{self.prefix}in"

    @property
    def output(self) -> str:
        return f"{self.prefix}out"

    @property
    def fading(self) -> str:
        return f"{self.prefix}fading"

    @property
    def latest(self) -> str:
        return f"{self.prefix}latest"

    @property
    def enricher(self) -> str:
        return f"{self.prefix}enricher"

    @property
    def courier(self) -> str:
        return f"{self.prefix}courier"

    @property
    def job(self) -> str:
        return f"{self.prefix}job"


class Story:
    """One telling. `attempts` in the order in which they began."""

    def __init__(self, told: Told, names: Names = Names()) -> None:  # noqa: B008
        self.attempts: list[Attempt] = []
        self.names = names
        self._told = told
        self._done = 0
        # Attempts of the enricher.
        self._enriched = 0
        self._taken_over = False

    async def prepare(self, client: RecordedLog) -> None:
        for name, partitions, configs in (
            (self.names.input, IN_PARTITIONS, None),
            (self.names.output, OUT_PARTITIONS, SETTLED_CONFIGS),
            (self.names.fading, 1, SETTLED_CONFIGS),
            (self.names.latest, 1, COMPACTED_CONFIGS),
        ):
            create = functools.partial(client.admin.create_topic, configs=configs)
            try:
                await _insist(functools.partial(create, name, partitions))
            except errors.TopicExists:
                self._told.say(f"{name} had been created")

    async def tell(self, *clients: RecordedLog) -> None:
        """All story lines at the same time, each over a client of its own."""
        first, second, third, fourth, fifth = clients
        async with asyncio.TaskGroup() as lines:
            lines.create_task(self._fill(first))
            lines.create_task(self._enrich_twice(second, third))
            lines.create_task(self._ledger(fourth))
            lines.create_task(self._courier(third))
            lines.create_task(self._several_writers(fifth))
            lines.create_task(self._plain(first))
            lines.create_task(self._fade(fourth))
            lines.create_task(self._overwrite(fifth))

    def _attempt(self, line: str, inputs: tuple[int, ...] = ()) -> Attempt:
        attempt = Attempt(line, len(self.attempts), inputs=inputs)
        self.attempts.append(attempt)
        return attempt

    # ------------------------------------------------------------------------------------- plain

    async def _fill(self, client: RecordedLog) -> None:
        """The input, each number once: a record whose outcome is unknown ends the run, for the
        delivery timeout is longer than any fault of these tests."""
        producer = await client.producer()
        for number in range(INPUTS):
            await producer.send(self.names.input, b"%d" % number, partition=number % IN_PARTITIONS)
            await producer.flush()
            await asyncio.sleep(0.08)

    async def _plain(self, client: RecordedLog) -> None:
        producer = await client.producer()
        for number in range(ROUNDS):
            attempt = self._attempt("plain")
            partition = number % OUT_PARTITIONS
            attempt.wrote.append((partition, attempt.value("0")))
            await producer.send(self.names.output, attempt.wrote[0][1], partition=partition)
            await producer.flush()
            attempt.outcome = Outcome.COMMITTED
            await asyncio.sleep(0.1)

    async def _fade(self, client: RecordedLog) -> None:
        """Nobody asks for these but the checker: what is deleted of them went in order."""
        producer = await client.producer()
        for number in range(FADING_RECORDS):
            await producer.send(self.names.fading, b"f%d" % number, key=FADING_KEY, partition=0)
            await producer.flush()
            if number % FADING_KEPT == 0 < number:
                truncate = functools.partial(client.admin.inner.truncate, self.names.fading)
                await _insist(functools.partial(truncate, before=number - FADING_KEPT, partition=0))
            await asyncio.sleep(0.05)

    async def _overwrite(self, client: RecordedLog) -> None:
        """Each record is the last of its key for a moment. Not in the history, whose checker knows
        no holes: `verdict` asks what is left."""
        producer = await client.log.producer()
        for number in range(LATEST_RECORDS):
            key = b"%d" % (number % LATEST_KEYS) + FADING_KEY
            await producer.send(self.names.latest, b"%d" % number, key=key, partition=0)
            await producer.flush()
            await asyncio.sleep(0.08)

    # ---------------------------------------------------------------------------------- enriching

    async def _enrich_twice(self, one: RecordedLog, two: RecordedLog) -> None:
        async with asyncio.TaskGroup() as instances:
            instances.create_task(self._enrich(one, until_fenced=True))
            while self._done < TAKE_OVER_AT:
                await asyncio.sleep(0.01)
            instances.create_task(self._enrich(two, until_fenced=False))

    async def _enrich(self, client: RecordedLog, *, until_fenced: bool) -> None:
        producer = await _insist(
            lambda: client.transactional_producer(
                self.names.enricher, transaction_timeout_ms=IDLE_MS
            )
        )
        self._taken_over |= not until_fenced
        # A member: who is fenced leaves, and the other one has all partitions then.
        consumer = await _insist(
            lambda: client.consumer([self.names.input], self.names.enricher, batch_records_max=3)
        )
        while until_fenced or self._done < INPUTS:
            too_late = until_fenced and self._taken_over
            try:
                committed = await self._enrich_once(producer, consumer)
            except errors.ProducerFenced:
                assert until_fenced, "nobody comes after the second instance"
                await consumer.close()
                return
            except errors.OncelogError as error:
                self._told.say(f"enricher: {error.reason}")
                await asyncio.sleep(BACK_OFF_SECONDS)
                continue
            assert not (too_late and committed), "I16: the fenced instance committed"
        await consumer.close()
        self._told.say("enricher: all inputs are done")

    async def _enrich_once(
        self, producer: RecordedTransactionalProducer, consumer: RecordedConsumer
    ) -> bool:
        batch = await consumer.poll(0.5)
        rows = [] if batch is None else list(batch.records())
        attempt = self._attempt("enricher", tuple(int(row.value or b"") for row in rows))
        # The first one is aborted after it was begun, so that each story has that, too.
        how = self._told.chance.random() if self._enriched else BEGUN_AND_ABORTED
        self._enriched += 1
        try:
            async with producer.transaction(consumer) as tx:
                for row in rows:
                    assert row.value is not None
                    for copy in range(2):
                        partition = (int(row.value) + copy) % OUT_PARTITIONS
                        value = attempt.value(f"{int(row.value)}/{copy}")
                        attempt.wrote.append((partition, value))
                        await tx.send(self.names.output, value, partition=partition, of=row)
                if not rows:
                    # Nothing to do but to look whether the name is still ours.
                    attempt.wrote.append((0, attempt.value("alone")))
                    await tx.send(self.names.output, attempt.wrote[0][1], partition=0)
                if how < 0.5:
                    await tx.flush()
                if how < 0.15:
                    await asyncio.sleep(SLOW_SECONDS)
                if 0.3 <= how < 0.6:
                    raise _ChangedMind
        except _ChangedMind:
            attempt.outcome = Outcome.ABORTED
            return False
        except errors.OncelogError as error:
            attempt.outcome = Outcome.UNKNOWN if error.may_have_applied else Outcome.ABORTED
            raise
        attempt.outcome = Outcome.COMMITTED
        self._done += len(rows)
        return True

    # ------------------------------------------------------------------------- one-shots, writers

    async def _ledger(self, client: RecordedLog) -> None:
        producer = await _insist(
            lambda: client.transactional_producer(transaction_timeout_ms=IDLE_MS)
        )
        for number in range(ROUNDS):
            attempt = self._attempt("ledger")
            try:
                wait = "visible" if number % 3 == 0 else "prepared"
                async with producer.transaction(wait=wait) as tx:
                    for index in range(4):
                        partition = index % OUT_PARTITIONS
                        attempt.wrote.append((partition, attempt.value(str(index))))
                        await tx.send(self.names.output, attempt.wrote[-1][1], partition=partition)
                attempt.outcome = Outcome.COMMITTED
            except errors.OncelogError as error:
                self._told.say(f"ledger: {error.reason}")
                attempt.outcome = Outcome.UNKNOWN if error.may_have_applied else Outcome.ABORTED
                await asyncio.sleep(BACK_OFF_SECONDS)
            await asyncio.sleep(0.05)

    async def _courier(self, client: RecordedLog) -> None:
        """All of the input, once, by a member that goes on before its commits are decided."""
        producer = await _insist(
            lambda: client.transactional_producer(
                transaction_timeout_ms=IDLE_MS, in_flight=IN_FLIGHT
            )
        )
        consumer = await _insist(
            lambda: client.consumer([self.names.input], self.names.courier, batch_records_max=1)
        )
        done = 0
        while done < INPUTS:
            on_their_way: list[tuple[Attempt, RecordedTransaction]] = []
            try:
                for _ in range(IN_FLIGHT):
                    await self._carry_one(producer, consumer, on_their_way)
                await producer.flush()
            except errors.OncelogError as error:
                self._told.say(f"courier: {error.reason}")
                await asyncio.sleep(BACK_OFF_SECONDS)
            for attempt, tx in on_their_way:
                attempt.outcome = await _outcome_of(tx)
            standing = consumer.inner.feeding.standing()
            known = len(standing) == IN_PARTITIONS and not consumer.inner.feeding.progress()
            done = sum(standing.values()) if known else 0
        await producer.close()
        await consumer.close()
        self._told.say("courier: all inputs are done")

    async def _carry_one(
        self,
        producer: RecordedTransactionalProducer,
        consumer: RecordedConsumer,
        on_their_way: list[tuple[Attempt, RecordedTransaction]],
    ) -> None:
        batch = await consumer.poll(0.2)
        if batch is None:
            return
        attempt = self._attempt("courier")
        tx = producer.transaction(consumer)
        on_their_way.append((attempt, tx))
        async with tx:
            for row in batch.records():
                assert row.value is not None
                partition = int(row.value) % OUT_PARTITIONS
                attempt.wrote.append((partition, attempt.value(f"{int(row.value)}")))
                await tx.send(self.names.output, attempt.wrote[-1][1], partition=partition, of=row)

    async def _several_writers(self, client: RecordedLog) -> None:
        job = Job(client, self.names.job, self.names.input, self.names.output)
        await _insist(job.start)
        for number in range(BATCHES):
            done = False
            while not done:
                attempt = self._attempt("job", (1_000 + number,))
                try:
                    done = await job.run(attempt, number)
                except errors.OncelogError as error:
                    self._told.say(f"job: {error.reason}")
                    attempt.outcome = Outcome.UNKNOWN
                    job.renew()
                    await asyncio.sleep(BACK_OFF_SECONDS)
            await asyncio.sleep(0.2)


class _ChangedMind(Exception):
    pass


async def _outcome_of(tx: RecordedTransaction) -> Outcome:
    """Once it is decided. Of one that was not sent, by what it is now."""
    try:
        await tx.inner.decided()
    except errors.OncelogError as error:
        return Outcome.UNKNOWN if error.may_have_applied else Outcome.ABORTED
    found = {"committed": Outcome.COMMITTED, "aborted": Outcome.ABORTED}
    return found.get(tx.inner.state, Outcome.UNKNOWN)


async def _insist(make: Callable[[], Any]) -> Any:
    """For what a user would do again: there is nothing to lose yet."""
    while True:
        try:
            return await make()
        except (errors.ProducerFenced, errors.TopicExists):
            raise
        except errors.OncelogError:
            await asyncio.sleep(BACK_OFF_SECONDS)
