"""A day of several applications in the simulated world, recorded for the history checker.

    feeder      plain records into `in`, `out` and `side`
    enrichers   `in` becomes `out`: two instances of one name that fence each other, for one group,
                and two without a name for another, guarded by what the group has committed
    writers     two named producers of one transaction group, and unnamed ones; `out` and `side`
    job         numbered batches under a commit_seq, each tried until it is known to be committed
    listeners   two instances of one group that commit what they read, plainly
    readers     follow everything, committed and uncommitted, and start again now and then
    questioners ask for group offsets, ends, and what became of transactions

While `trouble` lasts, processes lose power, etcd goes away for short and for longer than the lease,
answers are lost, requests arrive twice or late. Then all heals, everybody must succeed again (I29),
stop, and nothing may be pending. What was told must fit the promises.

    python -m tests.simulation.workload 17 [file]     one seed by hand: its history, its verdict
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from oncelog.aio.log import Log
from oncelog.batch import Record
from oncelog.checker import HistoryWriter, Report, check
from oncelog.checker.recorder import (
    RecordedConsumer,
    RecordedLog,
    RecordedTransaction,
    RecordedTransactionalProducer,
)
from oncelog.options import ConnectOptions
from oncelog.protocol import AsyncProtocol
from oncelog_server.core.roles import ROLES
from oncelogpb import errors
from tests.simulation.callers import SimTransport
from tests.simulation.disk import Tear
from tests.simulation.fates import Fates
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import World

TOPICS: Final = {"in": 2, "out": 3, "side": 2}
# Whose input two named instances share, two unnamed ones, and two that commit plainly.
GROUPS: Final = ("fenced", "shared", "plain")
TROUBLE_S: Final = 25.0
# After the last fault everybody must have succeeded within so long: restarts, leases and timeouts
# of what was left open included.
HEALED_WITHIN_S: Final = 60.0
SUCCESSES_AFTER_HEALING: Final = 2
TRANSACTION_TIMEOUT_MS: Final = 4_000
CALL_TIMEOUT_MS: Final = 8_000
DELIVERY_TIMEOUT_MS: Final = 6_000
# A key of this size makes a transaction overflow the one-shot limit: begin_next.
LARGE_KEY: Final = b"k" * 150_000


class ChangedMind(Exception):
    """The application aborts."""


class Workload:
    """One run. `successes` counts per worker since the last healing."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = random.Random(world.random.randrange(1 << 30))
        self.history = HistoryWriter(now_us=lambda: round(world.loop.time() * 1e6))
        # Chance of each fault of a client's call, now.
        self.network_trouble = 0.0
        self._roles_by_port: dict[int, str] = {}
        self.successes: Counter[str] = Counter()
        self.stopping = False
        # The job's: what it would keep in its checkpoint.
        self.batch = 1
        self._known_tx_ids: list[int] = []

    # --------------------------------------------------------------------------------- connecting

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[RecordedLog]:
        chance = random.Random(self.random.randrange(1 << 30))
        # Addresses are names, or each is of one run of a process, and a client that knows none of
        # the runs of today has to connect anew.
        find = self.port_now if chance.random() < 0.5 else int
        transport = SimTransport(
            self.world.network, fates=Fates(chance, lambda: self.network_trouble), find=find
        )
        ports = [self.port_now(process.node.port) for process in self.world.processes.values()]
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        options = ConnectOptions(timeout_ms=CALL_TIMEOUT_MS)
        protocol = AsyncProtocol(
            bootstrap,
            options,
            transport=transport,
            chance=chance.random,
            entropy=chance.randbytes,
            wall_ns=lambda: self.world.loop.now().wall_ms * 1_000_000,
        )
        log = Log(bootstrap, options, protocol=protocol)
        try:
            # A name is of whoever has the role now: it tells no two leaders apart.
            yield RecordedLog(log, self.history, leader_name=str if find is int else lambda _: None)
        finally:
            try:
                await log.close()
            except errors.OncelogError as error:
                self.world.say(f"client: close: {error.reason}")

    def port_now(self, port: int) -> int:
        """Where the role that once listened at this port listens now."""
        ports = {role: process.node.port for role, process in self.world.processes.items()}
        for role, known in ports.items():
            self._roles_by_port[known] = role
        return ports.get(self._roles_by_port.get(port, ""), port)

    async def forever(self, name: str, life: Callable[[RecordedLog], Awaitable[None]]) -> None:
        """One life after the other, each with a connection of its own, until the end."""
        while not self.stopping:
            try:
                async with self.connected() as log:
                    await life(log)
            except errors.OncelogError as error:
                self.world.say(f"{name}: {error.reason} {error.message}")
            await asyncio.sleep(self.random.uniform(0.05, 0.8))

    def succeeded(self, name: str) -> None:
        self.successes[name] += 1

    # -------------------------------------------------------------------------------- applications

    async def feed(self, log: RecordedLog) -> None:
        producer = await log.producer(delivery_timeout_ms=DELIVERY_TIMEOUT_MS)
        while not self.stopping:
            for _ in range(self.random.randint(1, 4)):
                topic = self.random.choice(["in", "in", "in", "out", "side"])
                await producer.send(
                    topic, self.value("p"), partition=self.random.randrange(TOPICS[topic])
                )
            if self.random.random() < 0.7:
                await producer.flush()
                self.succeeded("feeder")
            await self.pause()

    async def enrich(self, log: RecordedLog, group: str, name: str | None) -> None:
        """Until another instance fences this one, or it is tired."""
        producer = await log.transactional_producer(
            name,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        )
        name = name or "unnamed enricher"
        consumer = await log.consumer(
            ["in"], group=group, batch_records_max=4, pending_timeout_ms=6_000
        )
        for _ in range(self.random.randint(2, 40)):
            if self.stopping:
                break
            try:
                batch = await consumer.poll(1.0)
                if batch is None:
                    # Nothing to do is a success, too: the group's offsets are known.
                    self.succeeded(name)
                    continue
                await self.transact(name, producer, consumer, list(batch))
            except errors.OncelogError as error:
                self.world.say(f"{name}: {error.reason} {error.message}")
                if isinstance(error, errors.ProducerFenced | errors.Unavailable):
                    raise
                await self.pause()

    async def write(self, log: RecordedLog, name: str | None) -> None:
        producer = await log.transactional_producer(
            name,
            "writers" if name else None,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        )
        for _ in range(self.random.randint(5, 60)):
            if self.stopping:
                break
            try:
                count = self.random.randint(1, 5)
                await self.transact(name or "unnamed", producer, None, [None] * count)
            except errors.OncelogError as error:
                self.world.say(f"{name}: {error.reason} {error.message}")
                if isinstance(error, errors.ProducerFenced | errors.Unavailable):
                    raise
            await self.pause()

    async def work_off(self, log: RecordedLog) -> None:
        """Batches in order; a new instance goes on with the batch that the last one was at, and
        does not know whether it was committed."""
        producer = await log.transactional_producer(
            "job",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        )
        while not self.stopping and self.random.random() < 0.95:
            done = await self.transact("job", producer, None, [None] * 3, ("job", self.batch))
            if not done:
                continue
            if self.random.random() < 0.1:
                # As a driver that dies before it writes down that it was done.
                return
            self.batch += 1
            await self.pause()

    async def listen(self, log: RecordedLog) -> None:
        consumer = await log.consumer(
            ["in"], group=GROUPS[2], batch_records_max=6, pending_timeout_ms=6_000
        )
        while not self.stopping and self.random.random() < 0.97:
            try:
                await consumer.poll(1.0)
                await consumer.commit()
                self.succeeded("listener")
            except errors.StalePosition:
                self.world.say("listener: another one was faster")
            await self.pause()

    async def transact(
        self,
        name: str,
        producer: RecordedTransactionalProducer,
        consumer: RecordedConsumer | None,
        inputs: Sequence[Record | None],
        commit_seq: tuple[str, int] | None = None,
    ) -> bool:
        """One transaction: small or large, one-shot or begun early, committed, aborted, or
        interrupted in the middle. True: its commit was answered."""
        wait = self.random.choice(["prepared", "visible"])
        limit_s = self.random.uniform(0.001, 0.05) if self.random.random() < 0.05 else 60.0
        tx = producer.transaction(consumer, wait=wait, commit_seq=commit_seq)
        try:
            async with asyncio.timeout(limit_s), tx:
                await self._fill(tx, inputs)
        except (ChangedMind, TimeoutError) as error:
            self.world.say(f"{name}: {type(error).__name__}")
            return False
        finally:
            if tx.inner.tx_id:
                self._known_tx_ids.append(tx.inner.tx_id)
        self.succeeded(name)
        return True

    async def _fill(self, tx: RecordedTransaction, inputs: Sequence[Record | None]) -> None:
        large = self.random.random() < 0.08
        for source in inputs:
            topic = self.random.choice(["out", "out", "side"])
            partition = self.random.randrange(TOPICS[topic])
            key = LARGE_KEY if large else None
            await tx.send(topic, self.value("t"), key=key, partition=partition, of=source)
            if self.random.random() < 0.1:
                await tx.flush()
            if self.random.random() < 0.05:
                await self.pause()
        if self.random.random() < 0.12:
            raise ChangedMind

    async def read(self, log: RecordedLog, isolation: str) -> None:
        consumer = await log.consumer(
            list(TOPICS), isolation=isolation, batch_records_max=self.random.randint(1, 50)
        )
        for _ in range(self.random.randint(5, 40)):
            if self.stopping:
                break
            await consumer.poll(1.0)
            if self.random.random() < 0.1:
                topic = self.random.choice(list(TOPICS))
                await consumer.seek(topic, self.random.randrange(TOPICS[topic]), 0)
            await self.pause()
        self.succeeded(f"{isolation} reader")

    async def question(self, log: RecordedLog) -> None:
        consumer = await log.consumer(
            ["in"], group=self.random.choice(GROUPS), pending_timeout_ms=3_000
        )
        while not self.stopping:
            choice = self.random.randrange(4)
            if choice == 0:
                await log.admin.offsets(
                    self.random.choice(list(TOPICS)),
                    isolation=self.random.choice(["committed", "uncommitted"]),
                )
            elif choice == 1:
                await consumer.committed("in", self.random.randrange(TOPICS["in"]))
            elif choice == 2:
                await log.stable_offsets(self.random.choice(GROUPS), ["in"])
            elif self._known_tx_ids:
                await log.admin.describe_transaction(self.random.choice(self._known_tx_ids[-20:]))
            self.succeeded("questioner")
            await self.pause()

    def value(self, prefix: str) -> bytes:
        return self.history.fresh(prefix).encode()

    async def pause(self) -> None:
        await asyncio.sleep(self.random.choice([0.001, 0.01, 0.1, 0.5]))

    # ------------------------------------------------------------------------------------- trouble

    async def trouble(self) -> None:
        """Faults until TROUBLE_S, then everything is healed."""
        end_s = self.world.loop.time() + TROUBLE_S
        while self.world.loop.time() < end_s:
            await asyncio.sleep(self.random.choice([0.05, 0.5, 3.0]))
            self.network_trouble = self.random.choice([0.0, 0.02, 0.1, 0.3])
            await self.random.choice([self._power, self._power, self._etcd, self._calm])()
        self.network_trouble = 0.0
        await self.world.ready()

    async def _power(self) -> None:
        """Of one process, or of several at once."""
        roles = self.random.sample(ROLES, self.random.choice([1, 1, 1, 2, 3]))
        for role in roles:
            self.history.mark("power", role=role)
            await self.world.lose_power(role, self.random.choice(list(Tear)))
        for role in roles:
            await asyncio.sleep(self.random.choice([0.01, 0.5, 3.0, 7.0]))
            await self.world.start(role)
            self.history.mark("restart", role=role)

    async def _etcd(self) -> None:
        roles = self.random.sample(ROLES, self.random.randint(1, len(ROLES)))
        self.history.mark("etcd", roles=",".join(roles))
        self.world.say(f"-- etcd is away from {roles}")
        cut = [self.world.processes[role].etcd for role in roles]
        for etcd in cut:
            etcd.unavailable = True
        await asyncio.sleep(self.random.choice([0.3, 2.0, 9.0]))
        for etcd in cut:
            etcd.unavailable = False
        self.world.say("-- etcd is back")

    async def _calm(self) -> None:
        """Only the network is bad."""
        await asyncio.sleep(self.random.uniform(0.5, 4))


async def tell(
    world: World,
    history_of: Callable[[HistoryWriter], None],
    make: Callable[[World], Workload] = Workload,
) -> None:
    """The whole day; raises what is wrong with liveness."""
    await world.start_all()
    work = make(world)
    history_of(work.history)
    async with work.connected() as log:
        for name, partitions in TOPICS.items():
            await log.admin.create_topic(name, partitions)
    lives: list[tuple[str, Callable[[RecordedLog], Awaitable[None]]]] = [
        ("feeder", work.feed),
        ("enricher", lambda log: work.enrich(log, GROUPS[0], "enricher")),
        ("enricher", lambda log: work.enrich(log, GROUPS[0], "enricher")),
        ("unnamed enricher", lambda log: work.enrich(log, GROUPS[1], None)),
        ("unnamed enricher", lambda log: work.enrich(log, GROUPS[1], None)),
        ("writer-1", lambda log: work.write(log, "writer-1")),
        ("writer-2", lambda log: work.write(log, "writer-2")),
        ("unnamed", lambda log: work.write(log, None)),
        ("job", work.work_off),
        ("listener", work.listen),
        ("listener", work.listen),
        ("committed reader", lambda log: work.read(log, "committed")),
        ("uncommitted reader", lambda log: work.read(log, "uncommitted")),
        ("questioner", work.question),
    ]
    tasks = [asyncio.create_task(work.forever(name, life)) for name, life in lives]
    try:
        await work.trouble()
        await _everybody_succeeds(work, {name for name, _ in lives}, tasks)
    finally:
        work.stopping = True
    await asyncio.gather(*tasks)
    async with work.connected() as log:
        await log.settle()
        for isolation in ("committed", "uncommitted"):
            await log.read_everything(list(TOPICS), isolation=isolation)
        for group in GROUPS:
            await log.stable_offsets(group, ["in"])
    world.check()
    await world.stop_all()


async def _everybody_succeeds(
    work: Workload, names: set[str], tasks: list[asyncio.Task[None]]
) -> None:
    """I29, as clients see it."""
    work.successes.clear()
    work.history.mark("healed")
    work.world.say("-- healed")
    end_s = work.world.loop.time() + HEALED_WITHIN_S
    while waiting := [name for name in sorted(names) if work.successes[name] < 2]:
        for task in tasks:
            if task.done():
                task.result()
        assert work.world.loop.time() < end_s, f"after healing nothing of {waiting} succeeds"
        await asyncio.sleep(0.1)


def run_seed(
    seed: int,
    make: Callable[[World], Workload] = Workload,
    settings: Sequence[str] = (),
) -> tuple[Report, list[str], list[dict[str, Any]]]:
    """The report, the trace and the history of a run. Raises what is wrong with liveness."""
    loop = VirtualTimeLoop()
    world = World(seed, loop, settings)
    made: list[HistoryWriter] = []
    try:
        run(tell(world, made.append, make), loop)
    except BaseException:
        print("\n".join(world.trace[-200:]), file=sys.stderr)
        raise
    return check(made[0].events), world.trace, made[0].events


if __name__ == "__main__":
    verdict, lines, events = run_seed(int(sys.argv[1]))
    if len(sys.argv) > 2:
        with HistoryWriter(sys.argv[2]) as file:
            for event in events:
                file._write(event)
    print("\n".join(lines[-50:]))
    print(verdict, verdict.size)
