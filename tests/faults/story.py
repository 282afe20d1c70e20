"""The workload of the fault tests: what a cluster's users do at the same time, and what came of it.

  * an enricher consumes, transforms and produces over several partitions with offsets, in one-shots
    and in begun transactions, slow ones too; some it aborts; in the middle a second instance of it
    takes its name;
  * a ledger writes one-shots without offsets;
  * a job writes as several writers in one transaction, as Spark's tasks do, registers its input
    early, leaves the records of a failed attempt behind, and commits again what it committed;
  * plain records go between.

Every record says who wrote it in which attempt, so `verdict.py` can judge what is seen.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from oncelog.aio.consumer import Consumer
from oncelog.aio.log import Log
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelogpb import errors, records
from oncelogpb.v1 import (
    coordinator_pb2,
    offset_manager_pb2,
    partition_leader_pb2,
    types_pb2,
)

INPUTS: Final = 24
IN_PARTITIONS: Final = 2
OUT_PARTITIONS: Final = 3
ROUNDS: Final = 8
BATCHES: Final = 3
WRITERS: Final = (0x77AA, 0x77BB)
LOST_WRITER: Final = 0x77CC
# An idle transaction of this story ends soon, so that runs are short.
IDLE_MS: Final = 10_000
# The slow transaction is open for so long: longer than leaders wait before they ask about it.
SLOW_SECONDS: Final = 1.6
# Of the job: the batch whose transaction is slow.
SLOW_BATCH: Final = 1
# Where the story changes hands, in inputs done.
TAKE_OVER_AT: Final = 8
BACK_OFF_SECONDS: Final = 0.1


class Outcome(Enum):
    UNDER_WAY = "under way"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass
class Attempt:
    """One transaction, or one plain record, as its writer saw it."""

    # Of which story line; attempts of one line are in program order.
    line: str
    number: int
    # (partition of "out", value), in send order.
    wrote: list[tuple[int, bytes]] = field(default_factory=list)
    outcome: Outcome = Outcome.UNDER_WAY
    # Inputs that it stands for, each of which must be seen exactly once.
    inputs: tuple[int, ...] = ()

    def value(self, rest: str) -> bytes:
        return f"{self.line}|{self.number}|{rest}".encode()


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
    def enricher(self) -> str:
        return f"{self.prefix}enricher"

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
        self._taken_over = False

    async def prepare(self, client: Log) -> None:
        for name, partitions in (
            (self.names.input, IN_PARTITIONS),
            (self.names.output, OUT_PARTITIONS),
        ):
            try:
                await _insist(functools.partial(client.admin.create_topic, name, partitions))
            except errors.TopicExists:
                self._told.say(f"{name} had been created")

    async def tell(self, *clients: Log) -> None:
        """All story lines at the same time, each over a client of its own."""
        first, second, third, fourth, fifth = clients
        async with asyncio.TaskGroup() as lines:
            lines.create_task(self._fill(first))
            lines.create_task(self._enrich_twice(second, third))
            lines.create_task(self._ledger(fourth))
            lines.create_task(self._several_writers(fifth))
            lines.create_task(self._plain(first))

    def _attempt(self, line: str, inputs: tuple[int, ...] = ()) -> Attempt:
        attempt = Attempt(line, len(self.attempts), inputs=inputs)
        self.attempts.append(attempt)
        return attempt

    # ------------------------------------------------------------------------------------- plain

    async def _fill(self, client: Log) -> None:
        """The input, each number once: a record whose outcome is unknown ends the run, for the
        delivery timeout is longer than any fault of these tests."""
        producer = await client.producer()
        for number in range(INPUTS):
            await producer.send(self.names.input, b"%d" % number, partition=number % IN_PARTITIONS)
            await producer.flush()
            await asyncio.sleep(0.08)

    async def _plain(self, client: Log) -> None:
        producer = await client.producer()
        for number in range(ROUNDS):
            attempt = self._attempt("plain")
            partition = number % OUT_PARTITIONS
            attempt.wrote.append((partition, attempt.value("0")))
            await producer.send(self.names.output, attempt.wrote[0][1], partition=partition)
            await producer.flush()
            attempt.outcome = Outcome.COMMITTED
            await asyncio.sleep(0.1)

    # ---------------------------------------------------------------------------------- enriching

    async def _enrich_twice(self, one: Log, two: Log) -> None:
        async with asyncio.TaskGroup() as instances:
            instances.create_task(self._enrich(one, until_fenced=True))
            while self._done < TAKE_OVER_AT:
                await asyncio.sleep(0.01)
            instances.create_task(self._enrich(two, until_fenced=False))

    async def _enrich(self, client: Log, *, until_fenced: bool) -> None:
        producer = await _insist(
            lambda: client.transactional_producer(
                self.names.enricher, transaction_timeout_ms=IDLE_MS
            )
        )
        self._taken_over |= not until_fenced
        consumer = await client.consumer(
            [self.names.input], group=self.names.enricher, batch_records_max=3
        )
        while until_fenced or self._done < INPUTS:
            too_late = until_fenced and self._taken_over
            try:
                committed = await self._enrich_once(producer, consumer)
            except errors.ProducerFenced:
                assert until_fenced, "nobody comes after the second instance"
                return
            except errors.OncelogError as error:
                self._told.say(f"enricher: {error.reason}")
                await asyncio.sleep(BACK_OFF_SECONDS)
                continue
            assert not (too_late and committed), "I16: the fenced instance committed"
        self._told.say("enricher: all inputs are done")

    async def _enrich_once(self, producer: TransactionalProducer, consumer: Consumer) -> bool:
        batch = await consumer.poll(0.5)
        rows = [] if batch is None else list(batch.records())
        attempt = self._attempt("enricher", tuple(int(row.value or b"") for row in rows))
        how = self._told.chance.random()
        try:
            async with producer.transaction(consumer) as tx:
                for row in rows:
                    assert row.value is not None
                    for copy in range(2):
                        partition = (int(row.value) + copy) % OUT_PARTITIONS
                        value = attempt.value(f"{int(row.value)}/{copy}")
                        attempt.wrote.append((partition, value))
                        await tx.send(self.names.output, value, partition=partition)
                if not rows:
                    # Nothing to do but to look whether the name is still ours.
                    attempt.wrote.append((0, attempt.value("alone")))
                    await tx.send(self.names.output, attempt.wrote[0][1], partition=0)
                if how < 0.5:
                    await tx.flush()
                if how < 0.15:
                    await asyncio.sleep(SLOW_SECONDS)
                if 0.3 < how < 0.6:
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

    async def _ledger(self, client: Log) -> None:
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

    async def _several_writers(self, client: Log) -> None:
        job = _Job(client, self.names)
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


class _Job:
    """Several writers in one transaction, over the low-level face, as the Spark sink does it."""

    def __init__(self, client: Log, names: Names) -> None:
        self._names = names
        self._protocol = client.protocol
        self._instance = self._protocol.entropy(16)
        self._topic_id = b""
        self._input_id = b""

    async def start(self) -> None:
        self._topic_id = (await self._protocol.topic(self._names.output)).topic_id
        self._input_id = (await self._protocol.topic(self._names.input)).topic_id

    def renew(self) -> None:
        """The next run: its InitProducer decides what this one left open."""
        self._instance = self._protocol.entropy(16)

    async def run(self, attempt: Attempt, number: int) -> bool:
        """Raises OncelogError where it is not known to be committed."""
        begun, producer = await self._enter(number)
        reply = coordinator_pb2.BeginTransactionReply
        if begun.result == reply.RESULT_ALREADY_COMMITTED:
            attempt.outcome = Outcome.ABORTED
            return True
        if begun.result != reply.RESULT_OPEN:
            raise errors.TransactionEnded("its batch ended under it")
        manifest = types_pb2.Manifest()
        self._name(manifest, await self._register(begun.tx_id, producer, number))
        topic = manifest.topics.add(topic_id=self._topic_id)
        for writer in (*WRITERS, LOST_WRITER):
            for partition in range(2):
                rows = [attempt.value(f"{writer:x}/{partition}/{index}") for index in range(2)]
                await self._write(begun.tx_id, producer, writer, partition, rows)
                if writer != LOST_WRITER:
                    attempt.wrote += [(partition, row) for row in rows]
                    topic.partition.append(partition)
                    topic.writer.append(writer)
                    topic.record_count.append(len(rows))
        await asyncio.sleep(SLOW_SECONDS if number == SLOW_BATCH else 0.0)
        request = coordinator_pb2.CommitTransactionRequest(
            tx_id=begun.tx_id, producer=producer, manifest=manifest, wait=types_pb2.WAIT_PREPARED
        )
        request.commit_seq.CopyFrom(_commit_seq(number))
        # The second time, as after a lost answer: nothing changes.
        for _ in range(2):
            await self._protocol.call("coordinator.commit_transaction", request, 60_000)
        attempt.outcome = Outcome.COMMITTED
        return True

    async def _enter(self, number: int) -> tuple[Any, types_pb2.Producer]:
        """Two tasks, one transaction."""
        entered: list[tuple[int, int, int]] = []
        for _ in WRITERS:
            init = coordinator_pb2.InitProducerRequest(
                name=self._names.job, instance_id=self._instance
            )
            made = await self._protocol.call("coordinator.init_producer", init, 60_000)
            begin = coordinator_pb2.BeginTransactionRequest(
                producer=made.producer, request_id=number + 1, timeout_ms=IDLE_MS
            )
            begin.commit_seq.CopyFrom(_commit_seq(number))
            begun = await self._protocol.call("coordinator.begin_transaction", begin, 60_000)
            entered.append((begun.tx_id, made.producer.generation, begun.result))
        if entered[0] != entered[1]:
            raise errors.TransactionEnded("the transaction ended between two tasks")
        return begun, made.producer

    async def _register(
        self, tx_id: int, producer: types_pb2.Producer, number: int
    ) -> types_pb2.Partition:
        """The batch's input, one record, before anything is written: the partition that holds it
        until the commit."""
        request = offset_manager_pb2.CommitTransactionOffsetsRequest(
            tx_id=tx_id, producer=producer, timeout_ms=IDLE_MS
        )
        request.offsets.group = self._names.job
        offset = request.offsets.offsets.add(to_offset=number + 1, view=types_pb2.VIEW_COMMITTED)
        offset.partition.topic_id = self._input_id
        if number:
            offset.from_offset = number
        else:
            offset.from_none = True
        reply: offset_manager_pb2.CommitTransactionOffsetsReply = await self._protocol.call(
            "offset_manager.commit_transaction_offsets", request, 60_000
        )
        return reply.participant

    @staticmethod
    def _name(manifest: types_pb2.Manifest, participant: types_pb2.Partition) -> None:
        """A partition of `__consumer_offsets`: without writer and count."""
        topic = manifest.topics.add(topic_id=participant.topic_id)
        topic.partition.append(participant.number)
        topic.writer.append(0)
        topic.record_count.append(0)

    async def _write(
        self,
        tx_id: int,
        producer: types_pb2.Producer,
        writer: int,
        partition: int,
        values: list[bytes],
    ) -> None:
        table = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
        batch = records.seal(records.conform(table, default_timestamp_us=1))
        batch.partition.topic_id = self._topic_id
        batch.partition.number = partition
        request = partition_leader_pb2.ProduceRequest(
            tx_id=tx_id, producer=producer, writer=writer, batches=[batch]
        )
        reply = await self._protocol.call("partition_leader.produce", request, 60_000)
        for result in reply.results:
            if result.HasField("error"):
                raise errors.from_status(result.error)


def _commit_seq(number: int) -> types_pb2.CommitSeq:
    return types_pb2.CommitSeq(scope="job", number=number + 1)


async def _insist(make: Callable[[], Any]) -> Any:
    """For what a user would do again: there is nothing to lose yet."""
    while True:
        try:
            return await make()
        except (errors.ProducerFenced, errors.TopicExists):
            raise
        except errors.OncelogError:
            await asyncio.sleep(BACK_OFF_SECONDS)
