"""A month of a topic in an hour, with a clock that is a variable:

    python -m tests.simulation.month [--days 30] [--seed 1]

One partition with two replicas, settled (`materialization=copy`) and kept for a day. All the time
plain records come, small transactions that commit or abort, and others that stay open for hours, or
are left open by who began them. Each day a process loses its power and is started again.

    clients (real) ──► nodes of all roles (real drivers, journals, elections) ──► disks in memory
        │ what was acknowledged, in the order of its commits
        ▼
    a reader that keeps up, and each day one that begins at the front, compare every record

Held, each day: nothing that was acknowledged is lost, twice or out of its place (I3, I4, I14);
nothing younger than `retention.ms` is deleted, and what is much older is; each replica's disk stays
below what a day takes, times BOUND; journals begin later from day to day. The table says how disks
and memory were.

Left out: housekeeping and looks at etcd come once a minute, for a month of seconds would be spent
on them; high rates. The simulator keeps processes that fell, and what they had, in its memory: how
memory grows is seen without losses of power (`--no-strikes`).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import click
import pyarrow as pa

from oncelog.aio.log import Log
from oncelog.aio.producer import Producer
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.aio.transactions import Transaction
from oncelog_server.core.roles import COORDINATOR, PARTITION_LEADER
from oncelog_server.runtime import housekeeping
from oncelog_server.runtime.etcd import cluster_view
from oncelog_server.runtime.storage.journal import Journal
from tests.simulation.disk import Tear
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import Cluster, World

TOPIC: Final = "orders"
DAY_S: Final = 86_400
HOUR_S: Final = 3_600
# A slot of traffic: every so often, of so much.
SLOT_S: Final = 300
PLAIN_RECORDS: Final = 450
TRANSACTIONS: Final = 3
TRANSACTION_RECORDS: Final = 50
# One in so many aborts.
ABORTS_ONE_IN: Final = 10
VALUE_BYTES: Final = 100
SLOT_BYTES: Final = (PLAIN_RECORDS + TRANSACTIONS * TRANSACTION_RECORDS) * VALUE_BYTES
# A replica's disk, by what a day's values take: two days of blocks with what is around the values,
# and the journal that is not gone yet; and files that are begun, whatever a day takes.
BOUND: Final = 4
BEGUN_BYTES: Final = 8 << 20
# Some stay open: each writes so often, so many times; then it commits, or, every second one, its
# producer leaves it as it is.
OPEN_WRITES_S: Final = HOUR_S // 2
OPEN_TURNS: Final = (2, 10, 22, 40)
OPEN_RECORDS: Final = 20
# One begins in so many turns.
OPEN_EVERY: Final = 12
# What a reader is given late, at most.
READ_S: Final = 120.0
EVERY_MINUTE_MS: Final = 60_000
SETTINGS: Final = (
    "node.segment_bytes=1048576",
    "node.snapshot_every_bytes=1048576",
    "node.lease_ms=60000",
    "node.tick_ms=15000",
    "node.replica_lag_ms=60000",
    "node.control_journal_bytes_max=1048576",
    "coordinator.outcome_retention_ms=172800000",
)
CLUSTER: Final = Cluster({PARTITION_LEADER: 2})
VICTIMS: Final = (f"{PARTITION_LEADER}-1", f"{COORDINATOR}-1", f"{PARTITION_LEADER}-2")
MIB: Final = 1 << 20
COLUMNS: Final = (
    "day",
    "records so far",
    "kept",
    "open",
    "replica 1 MiB",
    "its journal",
    "its data log",
    "replica 2 MiB",
    "coordinator MiB",
    "journal begins at",
    "process MiB",
    "of it disks",
)


class Written(NamedTuple):
    """Acknowledged records that follow each other in the committed log."""

    at_s: float
    offset: int
    # Of the first one; the others count on.
    number: int
    records: int


class Acknowledged:
    """What readers must find, from the front of the log on. One task writes at a time, so it knows
    the order of commits."""

    def __init__(self) -> None:
        self.end = 0
        self.all: deque[Written] = deque()

    def add(self, at_s: float, number: int, count: int) -> None:
        self.all.append(Written(at_s, self.end, number, count))
        self.end += count

    def forget_below(self, offset: int) -> None:
        while self.all and self.all[0].offset + self.all[0].records <= offset:
            self.all.popleft()

    def numbers_from(self, offset: int) -> Iterator[tuple[int, int]]:
        """Offsets, and which record stands there."""
        for written in self.all:
            for place in range(max(offset - written.offset, 0), written.records):
                yield written.offset + place, written.number + place


@dataclass
class _Open:
    """A transaction that stays open."""

    producer: TransactionalProducer
    transaction: Transaction
    # Times that it will write.
    left: int
    is_abandoned: bool
    # Of the first record of each time.
    numbers: list[int] = field(default_factory=list)


class Month:
    """See the module."""

    def __init__(
        self, world: World, client: Log, days: float, day_s: int, *, strikes: bool
    ) -> None:
        """`day_s`: so long is a day, and so long are records kept. `strikes`: each day a process
        loses its power."""
        self._strikes = strikes
        self.world = world
        self.client = client
        self.days = days
        self.day_s = day_s
        self.acknowledged = Acknowledged()
        # Of the next record that anybody writes: no two are the same.
        self._number = 0
        self._transactions = 0
        self._open: list[_Open] = []
        # Records, at the end of the last day.
        self.kept = 0
        self._starts: list[int] = []

    # ---------------------------------------------------------------------------------- traffic

    async def live(self, said: Callable[[tuple[str, ...]], None]) -> None:
        configs = {"materialization": "copy", "retention.ms": str(self.day_s * 1000)}
        admin = self.client.admin
        await admin.create_topic(TOPIC, 1, replication_factor=2, configs=configs)
        await self.world.ready()
        plain = await self.client.producer()
        small = await self.client.transactional_producer()
        begun_s, slots = self.world.loop.now_s, int(self.days * self.day_s / SLOT_S)
        for slot in range(1, slots + 1):
            await self._write(plain, small)
            turn, into = divmod(slot * SLOT_S, OPEN_WRITES_S)
            if not into:
                await self._each_turn(turn)
            day, into = divmod(slot * SLOT_S, self.day_s)
            if into == self.day_s // 2 and self._strikes:
                await self._strike(VICTIMS[day % len(VICTIMS)])
            if not into or slot == slots:
                said(await self._look(slot * SLOT_S / self.day_s))
            await asyncio.sleep(max(0.0, begun_s + slot * SLOT_S - self.world.loop.now_s))
        for one in self._open:
            await one.producer.close()

    @property
    def _day_bytes(self) -> int:
        return self.day_s // SLOT_S * SLOT_BYTES

    def _values(self, count: int) -> pa.Table:
        first, self._number = self._number, self._number + count
        values = [b"%0*d" % (VALUE_BYTES, first + place) for place in range(count)]
        return pa.table({"value": values})

    async def _write(self, plain: Producer, small: TransactionalProducer) -> None:
        number = self._number
        await plain.send_arrow(TOPIC, self._values(PLAIN_RECORDS))
        await plain.flush()
        self.acknowledged.add(self.world.loop.now_s, number, PLAIN_RECORDS)
        for _ in range(TRANSACTIONS):
            self._transactions += 1
            number = self._number
            async with small.transaction(wait="visible") as tx:
                await tx.send_arrow(TOPIC, self._values(TRANSACTION_RECORDS))
                await tx.flush()
                if not self._transactions % ABORTS_ONE_IN:
                    await tx.abort()
                    continue
            self.acknowledged.add(self.world.loop.now_s, number, TRANSACTION_RECORDS)

    async def _each_turn(self, turn: int) -> None:
        """Those that stay open write a little more, some of them end; now and then one begins."""
        for one in list(self._open):
            if one.left:
                await self._go_on(one)
            else:
                await self._end(one)
        if turn % OPEN_EVERY == 1:
            count = turn // OPEN_EVERY
            producer = await self.client.transactional_producer()
            tx = producer.transaction(wait="visible", timeout_ms=HOUR_S * 1000)
            await tx.__aenter__()
            left = max(1, OPEN_TURNS[count % len(OPEN_TURNS)] * self.day_s // DAY_S)
            self._open.append(_Open(producer, tx, left, is_abandoned=count % 2 == 1))
            await self._go_on(self._open[-1])

    async def _go_on(self, one: _Open) -> None:
        one.left -= 1
        one.numbers.append(self._number)
        await one.transaction.send_arrow(TOPIC, self._values(OPEN_RECORDS))
        await one.transaction.flush()

    async def _end(self, one: _Open) -> None:
        self._open.remove(one)
        if one.is_abandoned:
            # Nobody ends it until the coordinator does.
            return
        await one.transaction.__aexit__(None, None, None)
        for number in one.numbers:
            self.acknowledged.add(self.world.loop.now_s, number, OPEN_RECORDS)
        await one.producer.close()

    async def _strike(self, name: str) -> None:
        await self.world.lose_power(name, self.world.random.choice(list(Tear)))
        await asyncio.sleep(1)
        await self.world.start(name)
        await self.world.ready()

    # ------------------------------------------------------------------------------- what must hold

    async def _look(self, day: float) -> tuple[str, ...]:
        start = await self._read_all()
        now_s = self.world.loop.now_s
        gone = [it for it in self.acknowledged.all if it.offset < start]
        assert all(now_s - it.at_s >= self.day_s for it in gone), "I32: too young to be deleted"
        self.acknowledged.forget_below(start)
        self.kept = self.acknowledged.end - start
        oldest_s = now_s - self.acknowledged.all[0].at_s
        assert oldest_s < self.day_s * 1.25, f"{oldest_s:.0f} s old, and still there"
        self._starts.append(min(log.log_start for log in self._journals()))
        assert self._starts == sorted(self._starts), "a log never begins earlier again"
        if day > 2:
            assert self._starts[-1] > self._starts[-2], "its front goes"
        disks = [self._disk_bytes(f"{PARTITION_LEADER}-{number}", "") for number in (1, 2)]
        assert max(disks) < BOUND * self._day_bytes + BEGUN_BYTES, f"{disks} bytes are on the disks"
        self.world.trace.clear()
        gc.collect()
        first = f"{PARTITION_LEADER}-1"
        held = sum(_held(each.disk) for each in self.world.processes.values())
        return (
            f"{day:g}",
            f"{self.acknowledged.end:,}",
            f"{self.kept:,}",
            str(len(self._open)),
            _mib(disks[0]),
            _mib(self._disk_bytes(first, ".log")),
            _mib(self._disk_bytes(first, ".data")),
            _mib(disks[1]),
            _mib(self._disk_bytes(f"{COORDINATOR}-1", "")),
            f"{self._starts[-1]:,}",
            f"{_resident_mib():.0f}",
            _mib(held),
        )

    async def _read_all(self) -> int:
        """By who begins at the front: each record is the one that was acknowledged there. Returns
        where the log begins."""
        [start] = await self.client.admin.offsets(TOPIC, "earliest")
        consumer = await self.client.consumer([TOPIC], start="earliest")
        expected = self.acknowledged.numbers_from(start)
        position = -1
        while position < self.acknowledged.end:
            batch = await consumer.poll(READ_S)
            assert batch is not None, f"I4: nothing behind offset {position}"
            for record in batch:
                found = (record.offset, int(record.value or b"-1"))
                wanted = next(expected)
                if position < 0 and found[0] > wanted[0]:
                    # More was deleted meanwhile.
                    start = found[0]
                    wanted = next(it for it in expected if it[0] == start)
                assert found == wanted, f"I14: {found} stands where {wanted} was acknowledged"
                position = record.offset + 1
        await consumer.close()
        return start

    def _journals(self) -> list[Journal]:
        """Of both replicas."""
        (partition,) = (found for found, _ in self.world.copies.states())
        return [replica.journal for replica in self.world.copies.replicas(partition)]

    def _disk_bytes(self, name: str, suffix: str) -> int:
        names = self.world.processes[name].disk._platter.names
        return sum(
            len(inode.content)
            for path, inode in names.items()
            if path.startswith("partitions/") and path.endswith(suffix)
        )


def _held(disk: object) -> int:
    """Bytes of this process's memory: what processes see, and what is durable."""
    platter = disk._platter  # type: ignore[attr-defined]
    inodes = {id(it): it for it in (*platter.names.values(), *platter.durable_names.values())}
    return sum(len(it.content) + len(it.durable) for it in inodes.values())


def _mib(size: int) -> str:
    return f"{size / MIB:.1f}"


def _resident_mib() -> float:
    """What is in use: what the allocator keeps of disks that grew and shrank goes back first."""
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


@contextmanager
def unhurried() -> Iterator[None]:
    """What repeats each second does so each minute."""
    was = housekeeping.HOUSEKEEPING_MS, cluster_view.PROBE_MS
    housekeeping.HOUSEKEEPING_MS = cluster_view.PROBE_MS = EVERY_MINUTE_MS  # type: ignore[misc]
    try:
        yield
    finally:
        housekeeping.HOUSEKEEPING_MS, cluster_view.PROBE_MS = was  # type: ignore[misc]


def live(
    days: float,
    seed: int,
    said: Callable[[tuple[str, ...]], None],
    *,
    day_s: int = DAY_S,
    strikes: bool = True,
) -> Month:
    """So many days, of so many seconds. Raises AssertionError."""
    loop = VirtualTimeLoop()
    found: list[Month] = []
    with unhurried():
        world = World(seed, loop, SETTINGS, CLUSTER)

        async def tell() -> None:
            await world.start_all()
            client = world.client()
            found.append(Month(world, client, days, day_s, strikes=strikes))
            await found[0].live(said)
            await client.close()
            world.check()
            await world.stop_all()

        try:
            run(tell(), loop)
        finally:
            world.etcd.close()
    return found[0]


@click.command()
@click.option("--days", default=30.0, show_default=True, type=click.FloatRange(0.1, 400))
@click.option("--hours", default=24, show_default=True, type=click.IntRange(2, 24), help="A day.")
@click.option("--seed", default=1, show_default=True)
@click.option("--strikes/--no-strikes", default=True, help="Losses of power.")
def main(days: float, hours: int, seed: int, strikes: bool) -> None:
    """A month of a topic in an hour. See benchmarks/README.md."""
    print(f"| {' | '.join(COLUMNS)} |\n| {' | '.join('---' for _ in COLUMNS)} |", flush=True)

    def say(row: tuple[str, ...]) -> None:
        print(f"| {' | '.join(row)} |", flush=True)

    live(days, seed, say, day_s=hours * HOUR_S, strikes=strikes)


if __name__ == "__main__":
    main()
