"""Committed records are settled, by each replica for itself, beside what else goes on there: a
transaction that is open over many files, retention, journals that go in front, disks that are full
in the middle of a step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import pytest

from oncelog.aio.log import Log
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.batch import Record
from oncelog_server.core import failpoints
from oncelog_server.core.roles import PARTITION_LEADER
from oncelog_server.runtime.replica import settling, settling_worth
from oncelog_server.runtime.storage.journal import Journal
from oncelogpb import errors
from tests.simulation.copies import Replica
from tests.simulation.dense import DenseOrders
from tests.simulation.disk import Tear
from tests.simulation.test_copies import topic_replicas
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import Cluster, World

TOPIC: Final = "orders"
COPY: Final = {"materialization": "copy"}
SETTINGS: Final = ("node.segment_bytes=16384", "node.snapshot_every_bytes=4000")
# Of small transactions: of four a file is full.
KEY: Final = b"k" * 4_000
# What must come about comes within this, and is looked for so often, seconds.
WITHIN_S: Final = 120.0
LOOK_EVERY_S: Final = 0.1

Story = Callable[[World, Log], Awaitable[None]]


def play(
    story: Story,
    configs: Mapping[str, str],
    *,
    replicas: int,
    settings: tuple[str, ...] = SETTINGS,
) -> None:
    """So many partition leaders, and a topic of one partition."""
    loop = VirtualTimeLoop()
    cluster = Cluster({PARTITION_LEADER: replicas}, min_insync_replicas=min(2, replicas))
    world = World(1, loop, settings, cluster)

    async def tell() -> None:
        await world.start_all()
        client = world.client()
        await client.admin.create_topic(TOPIC, 1, replication_factor=replicas, configs=configs)
        await world.ready()
        await story(world, client)
        await client.close()
        await world.stop_all()

    try:
        run(tell(), loop)
    finally:
        failpoints.disarm()
        world.etcd.close()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs to which nobody writes get their last snapshot soon."""
    monkeypatch.setattr(settling, "SNAPSHOT_AFTER_MS", 1_000)
    monkeypatch.setattr(settling, "SNAPSHOT_AT_LAST_MS", 5_000)


async def commit(
    producer: TransactionalProducer,
    value: bytes,
    wait: str = "prepared",
) -> None:
    """A small transaction that is no run: it is begun before its end."""
    async with producer.transaction(wait=wait) as tx:
        await tx.send(TOPIC, value, key=KEY)
        await tx.flush()


async def until(holds: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise AssertionError(f"it did not come about: {what}") from None


async def read(client: Log) -> list[Record]:
    """All that there is."""
    [end] = await client.admin.offsets(TOPIC)
    consumer = await client.consumer([TOPIC], start="earliest")
    found: list[Record] = []
    while await consumer.position(TOPIC, 0) < end:
        batch = await consumer.poll(10.0)
        assert batch is not None, "nothing more comes"
        found += batch
    await consumer.close()
    return found


def journals(world: World) -> list[Journal]:
    return [replica.journal for replica in replicas_of(world)]


def replicas_of(world: World) -> list[Replica]:
    return topic_replicas(world) if world.cluster.nodes[PARTITION_LEADER] > 1 else _alone(world)


def _alone(world: World) -> list[Replica]:
    name = f"{PARTITION_LEADER}-1"
    return [Replica(name, driver) for driver in world.processes[name].node.led_replicas()]


# Nobody gives it up.
HOUR_MS: Final = 60 * 60 * 1000

# ------------------------------------------------------------------- open over many files

FILES: Final = 50
LARGE: Final = b"large %d"
KEPT_BYTES: Final = 200_000
LARGE_EVERY: Final = 10
# Of several files.
BEFORE: Final = 20
# Longer than until a follower takes the last snapshot: see `patience`.
QUIET_S: Final = 10.0


def test_i3_i9_a_transaction_that_is_open_over_many_files_is_read_as_a_whole() -> None:
    """Beside it others are committed, settled, read and deleted, and the journal goes up to where
    it begins. Then it is committed, long after what came behind it, and is settled, too."""

    async def story(world: World, client: Log) -> None:
        small = await client.transactional_producer()
        for number in range(BEFORE):
            await commit(small, b"before %d" % number)
        producer = await client.transactional_producer(transaction_timeout_ms=HOUR_MS)
        large = producer.transaction(wait="visible")
        written = []
        async with large:
            number = 0
            while min(files(journal) for journal in journals(world)) < FILES:
                if number % LARGE_EVERY == 0:
                    written.append(LARGE % number)
                    await large.send(TOPIC, written[-1])
                    await large.flush()
                await commit(small, b"small %d" % number)
                number += 1
                assert number < 10 * FILES, "the files are small"
            await until(
                lambda: all(journal.data.settled_end >= number for journal in journals(world)),
                "what was committed beside it is settled",
            )
            # By whole files, and a follower may have settled all of that into one: then more has to
            # come, and some quiet in which that settles it.
            while min(journal.data.begin for journal in journals(world)) <= BEFORE:
                for _ in range(FILES):
                    await commit(small, b"small %d" % number)
                    number += 1
                assert number < 10 * FILES, "what was deleted beside it goes from the data logs"
                await asyncio.sleep(QUIET_S)
            [begin] = await client.admin.offsets(TOPIC, "earliest")
            beside = await read(client)
            assert [it.offset for it in beside] == list(range(begin, BEFORE + number)), "I14"
            assert all((it.value or b"").startswith(b"small") for it in beside), "I8: it is open"
            for replica in replicas_of(world):
                assert files(replica.journal) >= FILES - 8, "what is open is needed yet"
                if replica.driver.leads:
                    assert replica.journal.log_start > 0, "what is before it is not"
        for number in range(8):
            await commit(small, b"after %d" % number)
        first_open = min(journal.log_start for journal in journals(world))
        await until(
            lambda: all(journal.log_start > first_open for journal in journals(world)),
            "all of it is settled, and the journal goes",
        )
        await world.copies.level()
        seen = await read(client)
        values = [it.value for it in seen]
        at = values.index(written[0])
        assert values[at : at + len(written)] == written, "I9"
        orders = DenseOrders(world)
        await orders.compare(seen)
        assert orders.compared == 3
        assert orders.settled > 3
        await another_one_leads(world, client, seen)

    play(story, {**COPY, "retention.bytes": str(KEPT_BYTES)}, replicas=3)


def files(journal: Journal) -> int:
    """Of its frames."""
    return len(journal._segments.bases)


async def another_one_leads(world: World, client: Log, seen: list[Record]) -> None:
    """And gives the same."""

    def leaders() -> list[str]:
        return [replica.name for replica in replicas_of(world) if replica.driver.leads]

    [first] = leaders()
    await world.lose_power(first, Tear.SCATTER)
    await until(leaders, "an election")
    assert await read(client) == seen, f"I8: {leaders()} gives other records"
    await world.start(first)
    await world.ready()
    await world.copies.level()


# ------------------------------------------------------------------- what was deleted


def test_i32_what_was_deleted_before_it_was_settled_is_passed_over() -> None:
    """The data log begins behind it."""

    async def story(world: World, client: Log) -> None:
        producer = await client.transactional_producer()
        for number in range(9):
            await commit(producer, b"%d" % number)
        # What is not visible yet is above the end.
        await commit(producer, b"9", wait="visible")
        await client.admin.truncate(TOPIC, before=9, partition=0)
        await client.admin.alter_topic(TOPIC, COPY)
        # Until its leader has journaled that.
        await asyncio.sleep(1.0)
        for number in range(10, 20):
            await commit(producer, b"%d" % number)
        [journal] = journals(world)
        await until(lambda: journal.data.settled_end > 10, "it is settled")
        assert journal.data.begin == 9
        await DenseOrders(world).compare(await read(client))

    play(story, {}, replicas=1)


def test_what_was_deleted_of_a_topic_to_which_nobody_writes_goes_from_the_disk() -> None:
    """Nothing else brings the snapshot that counts what was deleted."""

    async def story(world: World, client: Log) -> None:
        producer = await client.transactional_producer()
        for number in range(20):
            await commit(producer, b"%d" % number)
        [journal] = journals(world)
        await until(lambda: journal.data.settled_end == 20, "it is settled")
        await client.admin.truncate(TOPIC, before=15, partition=0)
        await until(lambda: journal.data.begin == 15, "the front of the data log goes")

    play(story, COPY, replicas=1)


# ------------------------------------------------------------------- a disk that is full

FULL_S: Final = 12.0
STEPS: Final = tuple(
    f"driver.{step}.{side}"
    for step in ("settle_write", "settle_note", "data_remove", "trim_note", "trim_remove")
    for side in ("before", "after")
)


class Filler:
    """A disk has no room any more from the moment at which its process reaches a step."""

    def __init__(self, point: str) -> None:
        self._point = point
        self._world: World | None = None
        self.name = ""

    def strike(self, world: World) -> None:
        """From here on, once."""
        self._world = world

    def __call__(self, name: str) -> None:
        world = self._world
        if name != self._point or world is None or self.name:
            return
        self.name = world.caller()
        world.say(f"-- the disk of {self.name} is full")
        world.processes[self.name].disk.full = True

    def make_room(self) -> None:
        assert self._world is not None
        self._world.processes[self.name].disk.full = False


@pytest.mark.parametrize("point", STEPS)
@pytest.mark.parametrize("replicas", [1, 3])
def test_i5_a_disk_that_is_full_in_the_middle_of_a_step_costs_no_record(
    point: str, replicas: int
) -> None:
    """Whatever step it is, of a leader or of a follower: all that was committed is read meanwhile;
    and when there is room, records are written and settled again."""
    filler = Filler(point)
    failpoints.arm(filler)

    async def story(world: World, client: Log) -> None:
        producer = await client.transactional_producer(transaction_timeout_ms=HOUR_MS)
        written = []
        for number in range(20):
            written.append(b"%d" % number)
            await commit(producer, written[-1])
        filler.strike(world)
        number = 20
        while not filler.name:
            with contextlib.suppress(errors.OncelogError):
                # In doubt where the disk is full by its end.
                await commit(producer, b"%d" % number)
            if number % 10 == 0:
                await client.admin.truncate(TOPIC, before=number - 15, partition=0)
            number += 1
            await asyncio.sleep(LOOK_EVERY_S)
            assert number < 400, f"{point} was never reached"
        seen = await read(client)
        assert len(seen) >= 15
        await asyncio.sleep(FULL_S)
        assert (await read(client))[: len(seen)] == seen, "I5: all of it is read meanwhile"
        filler.make_room()
        async with asyncio.timeout(WITHIN_S):
            await committed_again(client)
        await until(
            lambda: all(journal.data.settled_end >= seen[-1].offset for journal in journals(world)),
            "it is settled",
        )
        if replicas > 1:
            await world.copies.level()
        after = await read(client)
        assert after[-1].value == b"again"
        assert [it for it in after if it.offset <= seen[-1].offset] == seen
        orders = DenseOrders(world)
        await orders.compare(after)
        assert orders.compared == replicas

    play(story, COPY, replicas=replicas)


async def committed_again(client: Log) -> None:
    while True:
        with contextlib.suppress(errors.OncelogError):
            producer = await client.transactional_producer()
            await commit(producer, b"again")
            return
        await asyncio.sleep(1.0)


# ---------------------------------------------------------------- where it is left to replicas


def test_where_a_topic_says_nothing_each_replica_settles_small_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Followers, too, and of a log that grows slowly."""
    for module in (settling, settling_worth):
        monkeypatch.setattr(module, "LEAST_BATCHES", 20)

    async def story(world: World, client: Log) -> None:
        producer = await client.transactional_producer()
        for number in range(30):
            await commit(producer, b"%d" % number)
        await producer.close()
        await until(
            lambda: min(journal.data.settled_end for journal in journals(world)) >= 29,
            "all three settle it",
        )
        assert [record.value for record in await read(client)] == [b"%d" % n for n in range(30)]

    play(story, {}, replicas=3, settings=("node.snapshot_every_bytes=1048576",))
