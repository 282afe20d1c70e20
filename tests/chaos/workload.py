"""What goes on while machines fail, all of it written into a history.

    copier 0..2   partition p of `source`, 750 records at a time, into partition p of `target`, in
                  one transaction with the offsets
    prober 0..3   one record of `pulse` into every partition of `beats`, with the offset, ten times
                  a second: all three roles take part in each, which says when the service is back

Copies say what they are copies of: `target` must be `source`, record by record.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import oncelog.aio
from oncelog.batch import Record
from oncelog.checker.events import HistoryWriter
from oncelog.checker.recorder import (
    RecordedConsumer,
    RecordedLog,
    RecordedTransactionalProducer,
)
from oncelogpb import errors

PARTITIONS: Final = 3
PROBERS: Final = 4
SOURCE: Final = "source"
TARGET: Final = "target"
PULSE: Final = "pulse"
BEATS: Final = "beats"
TOPICS: Final = {SOURCE: PARTITIONS, TARGET: PARTITIONS, PULSE: PROBERS, BEATS: PARTITIONS}
# Of one transaction of a copier.
COPIED: Final = 750
REST_S: Final = 0.1
# Of `pulse`, for each prober and second of trouble; it waits in between.
PULSES_PER_S: Final = 10
LOADED_AT_ONCE: Final = 5_000
# A copy is called `<what it is a copy of>COPY_OF<its own name>`.
COPY_OF: Final = ">"
FATAL: Final = (errors.ProducerFenced,)
# A bound that only ends what would hang.
PATIENCE_S: Final = 180.0


@dataclass
class Told:
    """What the workers were told."""

    # By worker: when a transaction began that was committed, and when its commit was answered.
    commits: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    # By reason: errors that reached a worker, who then went on.
    refused: Counter[str] = field(default_factory=Counter)
    copied: int = 0

    def committed(self, worker: str, begun_s: float) -> None:
        self.commits[worker].append((begun_s, time.monotonic()))

    def first_after(self, worker: str, since_s: float) -> float | None:
        """When the first commit was answered of a transaction that began later."""
        after = [ended for begun, ended in self.commits[worker] if begun >= since_s]
        return min(after, default=None)

    def back_after(self, since_s: float) -> float | None:
        """Seconds until every prober had committed what it began since; None where not all have."""
        ends = [self.first_after(f"prober-{n}", since_s) for n in range(PROBERS)]
        known = [end for end in ends if end is not None]
        return max(known) - since_s if len(known) == PROBERS else None

    def each_after(self, since_s: float) -> str:
        """The same of each prober by itself, to see whether one alone was slow."""
        ends = [self.first_after(f"prober-{n}", since_s) for n in range(PROBERS)]
        return ", ".join("-" if end is None else f"{end - since_s:.2f}" for end in ends)


class Workload:
    """One run's clients: an own connection for each worker, one history for all."""

    def __init__(self, bootstrap: str, folder: Path, *, records: int, seconds: float) -> None:
        self.told = Told()
        self.history_path = folder / "history.jsonl"
        self._history = HistoryWriter(self.history_path, client="w", keep=False)
        self._bootstrap = bootstrap
        self._records = records // PARTITIONS * PARTITIONS
        self._pulses = int(PULSES_PER_S * seconds * 2)
        # So that the copying takes as long as the trouble.
        self._rest_s = seconds / max(1, records / PARTITIONS / COPIED)
        self._hurry = asyncio.Event()
        self._ends = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._opened: list[oncelog.aio.Log] = []

    async def open(self) -> RecordedLog:
        log = oncelog.aio.connect(self._bootstrap, timeout_ms=30_000)
        self._opened.append(await log.__aenter__())
        return RecordedLog(self._opened[-1], self._history)

    async def load(self) -> None:
        """Topics with three replicas, and what is to be copied."""
        log = await self.open()
        for name, partitions in TOPICS.items():
            await log.admin.create_topic(name, partitions, replication_factor=3)
        producer = await log.producer()
        for number in range(self._records):
            value = self._history.fresh("v").encode()
            await producer.send(SOURCE, value, partition=number % PARTITIONS)
            if number % LOADED_AT_ONCE == 0:
                await producer.flush()
        for number in range(self._pulses * PROBERS):
            value = self._history.fresh("p").encode()
            await producer.send(PULSE, value, partition=number % PROBERS)
        await producer.close()

    def begin(self) -> None:
        workers: dict[str, Coroutine[Any, Any, None]] = {}
        workers |= {f"copier-{n}": self._copy(f"copier-{n}", n) for n in range(PARTITIONS)}
        workers |= {f"prober-{n}": self._probe(f"prober-{n}", n) for n in range(PROBERS)}
        for name, work in workers.items():
            self.told.commits[name] = []
            self._tasks.append(asyncio.create_task(work, name=name))

    def check(self) -> None:
        """Raises what a worker raised."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def until(self, predicate: Callable[[], bool], what: str) -> None:
        """Waits until it holds, while all workers work."""
        end = time.monotonic() + PATIENCE_S
        while not predicate():
            self.check()
            assert time.monotonic() < end, f"it did not come about: {what}"
            await asyncio.sleep(0.02)

    async def finish(self) -> None:
        """All is copied without rests, then everybody stops."""
        self._hurry.set()
        await self.until(lambda: self.told.copied == self._records, "all is copied")
        self._ends.set()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(log.close() for log in self._opened), return_exceptions=True)
        self._history.close()

    # ------------------------------------------------------------------------------------- workers

    async def _copy(self, name: str, partition: int) -> None:
        log = await self.open()
        producer = await log.transactional_producer(name)
        consumer = await log.consumer(
            [SOURCE],
            group=name,
            partitions=[(SOURCE, partition)],
            batch_records_max=COPIED,
        )

        async def step() -> None:
            begun = time.monotonic()
            async with producer.transaction(consumer) as tx:
                records = await _next(consumer, COPIED)
                for record in records:
                    await tx.send(TARGET, self._copy_of(record), partition=partition, of=record)
            if records:
                self.told.committed(name, begun)
                self.told.copied += len(records)

        await self._again_and_again(step, self._rest_s, producer)

    async def _probe(self, name: str, partition: int) -> None:
        log = await self.open()
        producer = await log.transactional_producer(name)
        consumer = await log.consumer(
            [PULSE], group=name, partitions=[(PULSE, partition)], batch_records_max=1
        )

        async def step() -> None:
            begun = time.monotonic()
            async with producer.transaction(consumer) as tx:
                for record in await _next(consumer, 1):
                    for to in range(PARTITIONS):
                        await tx.send(BEATS, self._copy_of(record), partition=to, of=record)
                # Begun and written, so that partition leaders take part before the commit.
                await tx.flush()
            self.told.committed(name, begun)

        await self._again_and_again(step, 1 / PULSES_PER_S, producer)

    def _copy_of(self, record: Record) -> bytes:
        return (record.value or b"") + COPY_OF.encode() + self._history.fresh("c").encode()

    async def _again_and_again(
        self,
        step: Callable[[], Coroutine[Any, Any, None]],
        rest_s: float,
        producer: RecordedTransactionalProducer,
    ) -> None:
        while not self._ends.is_set():
            try:
                await step()
            except FATAL:
                raise
            except errors.OncelogError as error:
                self.told.refused[error.reason] += 1
                await asyncio.sleep(REST_S)
            else:
                await self._rest(REST_S if self._hurry.is_set() else rest_s)
        # A commit may have begun the next transaction, which would stay open for its timeout.
        await producer.close()

    async def _rest(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._hurry.is_set():
            await asyncio.sleep(min(0.1, seconds))


async def _next(consumer: RecordedConsumer, count: int) -> list[Record]:
    """The next so many, or fewer where no more come."""
    found: list[Record] = []
    while len(found) < count:
        batch = await consumer.poll(0.5)
        if batch is None:
            break
        found += batch
    return found
