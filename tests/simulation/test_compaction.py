"""Compaction over real replicas: what a reader misses at one leader and met at another, what an
unclean election brings back, what a crash in the middle of a pass leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

import pytest

from oncelog.aio.consumer import Consumer
from oncelog.aio.log import Log
from oncelog.aio.producer import Producer
from oncelog.batch import Record
from oncelog_server.core import failpoints
from oncelog_server.core.failpoints import TABLE
from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.roles import PARTITION_LEADER
from oncelog_server.runtime.leadership.unclean import UncleanElection
from oncelog_server.runtime.replica.compacting import Compacting
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.replicas import directory_of
from oncelog_server.runtime.storage.node_id import NODE_FILE
from oncelogpb import errors
from tests.simulation.cleaned import staying
from tests.simulation.compacted_orders import CompactedOrders, held_of, hurried
from tests.simulation.copies import Replica
from tests.simulation.disk import FakeDisk, Tear
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import Cluster, Died, World

TOPIC: Final = "latest"
# Longer than anything lasts that is no wait of the story itself.
RETENTION_MS: Final = 20_000
COMPACT: Final = {"cleanup.policy": "compact", "delete.retention.ms": str(RETENTION_MS)}
SETTINGS: Final = (
    "node.segment_bytes=16384",
    "node.snapshot_every_bytes=2000",
    "node.balance_after_ms=0",
)
WITHIN_S: Final = 120.0
LOOK_EVERY_S: Final = 0.05
PADDING: Final = b"." * 400
HOUR_MS: Final = 60 * 60 * 1000


class Stage:
    """One topic of one partition on three replicas, whose commits are known."""

    def __init__(self, world: World, client: Log, partition: PartitionId) -> None:
        self.world = world
        self.client = client
        self.partition = partition
        # Names of processes whose replicas are not compacted.
        self.barred: set[str] = set()
        self.producer: Producer

    # ------------------------------------------------------------------------------- what there is

    def replicas(self) -> list[Replica]:
        return self.world.copies.replicas(self.partition)

    def replica(self, name: str) -> Driver:
        [found] = [replica.driver for replica in self.replicas() if replica.name == name]
        return found

    def leader(self) -> str:
        """Who answers, or ""."""
        found = [it.name for it in self.replicas() if it.driver.leads and it.driver.is_ready]
        return found[0] if found else ""

    def others(self) -> list[str]:
        leader = self.leader()
        return [replica.name for replica in self.replicas() if replica.name != leader]

    def point(self) -> tuple[int, int]:
        """Compacted below, tombstones below: as the leader has it."""
        state = self.replica(self.leader()).machine.compaction
        return state.compacted_below, state.tombstones_below

    def compacted_to(self, name: str) -> int:
        return self.replica(name).journal.data.compacted_to

    # ------------------------------------------------------------------------------- what happens

    async def write(self, key: bytes, *values: bytes | None) -> None:
        for value in values:
            padded = None if value is None else value + PADDING
            await self.producer.send(TOPIC, padded, key=key, partition=0)
        await self.producer.flush()

    async def fill(self, count: int = 20, *, key: bytes = b"filler") -> None:
        """So that there are snapshots behind what was written before."""
        for number in range(count):
            await self.write(key, b"%d" % number)

    async def until(self, holds: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                while not holds():
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise AssertionError(f"it did not come about: {what}") from None

    async def compacted(self, below: int, *names: str) -> None:
        """These, or all, are compacted so far. Something is written all the time: snapshots come
        of that."""
        which = names or tuple(replica.name for replica in self.replicas())
        end_s = self.world.loop.now_s + WITHIN_S
        while any(self.compacted_to(name) < below for name in which):
            await self.fill(5)
            await asyncio.sleep(0.5)
            said = {name: str(self.replica(name).journal.data.cleanness) for name in which}
            assert self.world.loop.now_s < end_s, f"not compacted to {below}: {said}"

    async def lose(self, *names: str) -> None:
        for name in names:
            await self.world.lose_power(name, Tear.NOTHING)

    async def led_by(self, *names: str) -> str:
        await self.until(lambda: self.leader() in names, f"one of {names} leads")
        return self.leader()

    async def lead_again(self, name: str) -> None:
        """Who leads is killed until this one does."""
        for _ in range(4):
            if (now := self.leader()) == name:
                return
            others = [other for other in self.others() if other != name]
            await self.lose(*others, now)
            await self.until(lambda: self.leader() == name, f"{name} leads")

    async def reader(self) -> Consumer:
        return await self.client.consumer(
            [TOPIC], start="earliest", prefetch_bytes_max=1, batch_records_max=1
        )

    async def read(self) -> list[Record]:
        """All that there is, at whoever leads."""
        await self.until(self.leader, "a leader")
        [end] = await self.client.admin.offsets(TOPIC)
        consumer = await self.client.consumer([TOPIC], start="earliest")
        found: list[Record] = []
        async with asyncio.timeout(WITHIN_S):
            while await consumer.position(TOPIC, 0) < end:
                found += await consumer.poll(5.0) or ()
        await consumer.close()
        return found

    async def rise(self) -> None:
        """All live again."""
        for name in self.world.names:
            if not self.world.is_up(name):
                await self.world.start(name)
        await self.world.ready()
        await self.world.copies.level()

    async def whole(self) -> None:
        """And all is compacted, and each replica has what it says."""
        await self.rise()
        orders = CompactedOrders(self.world)
        await orders.compare()
        assert orders.compared == len(self.replicas())


Story = Callable[[Stage], Awaitable[None]]


@pytest.fixture(autouse=True)
def hurry() -> Iterator[None]:
    with hurried():
        yield
    failpoints.disarm()


def play(
    story: Story,
    monkeypatch: pytest.MonkeyPatch,
    configs: Mapping[str, str] = COMPACT,
    *,
    least: int = 2,
) -> None:
    loop = VirtualTimeLoop()
    world = World(1, loop, SETTINGS, Cluster({PARTITION_LEADER: 3}, min_insync_replicas=least))
    stages: list[Stage] = []
    is_due: Callable[[Compacting], bool] = vars(Compacting)["is_due"].fget

    def is_due_if_not_barred(compacting: Compacting) -> bool:
        for stage in stages:
            for replica in stage.replicas():
                if replica.journal.data is compacting._data and replica.name in stage.barred:
                    return False
        return is_due(compacting)

    monkeypatch.setattr(Compacting, "is_due", property(is_due_if_not_barred))

    async def tell() -> None:
        await world.start_all()
        client = world.client()
        topic = await client.admin.create_topic(TOPIC, 1, replication_factor=3, configs=configs)
        topic_id = TopicId(bytes.fromhex(topic.topic_id))
        world.commits.follow(topic_id, TOPIC)
        await world.ready()
        await world.copies.level()
        stage = Stage(world, client, PartitionId(topic_id, 0))
        stages.append(stage)
        stage.producer = await client.producer(delivery_timeout_ms=60_000)
        await story(stage)
        await client.close()
        await world.stop_all()

    try:
        run(tell(), loop)
    finally:
        world.etcd.close()


def values(records: list[Record], key: bytes) -> list[bytes | None]:
    """Of one key, as they were written."""
    found = [record.value for record in records if record.key == key]
    return [value if value is None else value.removesuffix(PADDING) for value in found]


# ------------------------------------------------------------------- what a reader met elsewhere


def test_i33_no_leader_serves_what_is_superseded_below_the_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own data log has it yet: who would be given it might not be told what became of it."""

    async def story(stage: Stage) -> None:
        first, others = stage.leader(), stage.others()
        stage.barred.update(others)
        await stage.write(b"k", b"old", None)
        await stage.compacted(2, first)
        await stage.until(lambda: stage.point()[0] >= 2, "a point is journaled")
        await stage.world.copies.level()
        await stage.lose(first)
        second = await stage.led_by(*others)
        assert stage.compacted_to(second) == 0
        reader = await stage.reader()
        assert await reader.poll(3.0) is None, "it is compacted first"
        [end] = await stage.client.admin.offsets(TOPIC)
        await reader.seek(TOPIC, 0, end - 1)
        assert await reader.poll(3.0) is not None, "what is behind the point is served"
        stage.barred.clear()
        assert values(await stage.read(), b"k") == [None]
        await reader.close()
        await stage.whole()

    play(story, monkeypatch)


def test_i33_who_saw_a_value_at_one_leader_meets_its_tombstone_at_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """He rests for nearly as long as a tombstone lives, while two leaders go."""

    async def story(stage: Stage) -> None:
        await stage.write(b"k", b"old")
        reader = await stage.reader()
        [seen] = list(await reader.poll(3.0) or ())
        assert seen.key == b"k"
        await stage.write(b"k", None)
        await stage.compacted(2)
        await stage.until(lambda: stage.point()[0] >= 2, "a point is journaled")
        began_s = stage.world.loop.now_s
        for _ in range(2):
            await stage.world.copies.level()
            leader, others = stage.leader(), stage.others()
            await stage.lose(leader)
            await stage.led_by(*others)
            await stage.world.start(leader)
            await stage.fill()
        assert (stage.world.loop.now_s - began_s) * 1000 < RETENTION_MS, "he is quick enough"
        await reader.seek(TOPIC, 0, 1)
        [met] = list(await reader.poll(5.0) or ())
        assert (met.offset, met.key, met.value) == (1, b"k", None)
        await reader.close()
        await asyncio.sleep(RETENTION_MS / 1000)
        async with asyncio.timeout(WITHIN_S):
            while stage.point()[1] < 2:
                await stage.fill(5)
        await stage.fill(40)
        await stage.whole()
        assert values(await stage.read(), b"k") == [], "then it may go"

    play(story, monkeypatch)


# ------------------------------------------------------------------- what an election takes back


def test_i33_what_a_record_superseded_is_there_again_where_that_record_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two replicas are compacted; the third lacks the newer record, and is made to lead. The
    other two begin anew."""

    async def story(stage: Stage) -> None:
        first, (second, third) = stage.leader(), stage.others()
        await stage.write(b"k", b"old")
        await stage.fill()
        await stage.world.copies.level()
        await stage.lose(third)
        await stage.until(lambda: stage.leader() == first, "it leads on")
        await stage.write(b"k", b"new")
        [end] = await stage.client.admin.offsets(TOPIC)
        await stage.compacted(end, first, second)
        for name in (first, second):
            held = await held_of(stage.replica(name).journal.data)
            assert 0 not in held.rows, "it was superseded"
        await stage.lose(first, second)
        await stage.world.start(third)
        node = stage.world.processes[third].node
        await asyncio.sleep(10.0)
        stage.world.commits.forget(stage.partition, end=21)
        stage.world.copies._shown.clear()
        stage.world.copies._frames.clear()
        await node.unclean_elect(UncleanElection(stage.partition, node.node_id))
        await stage.led_by(third)
        for name in (first, second):
            await stage.world.start(name)
        await stage.world.ready()
        await stage.world.copies.level()
        assert values(await stage.read(), b"k") == [b"old"]
        for name in (first, second):
            held = await held_of(stage.replica(name).journal.data)
            position = held.end
            assert 0 in held.rows or position == 0, f"{name} lacks what was superseded"
        await stage.lead_again(first)
        assert values(await stage.read(), b"k") == [b"old"]
        await stage.rise()

    play(story, monkeypatch, least=1)


def test_i33_a_tombstone_that_went_by_what_is_taken_back_is_there_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third has all records, and lacks the points by which two others dropped a tombstone: it
    serves what that removed. Who read it meets the tombstone at whoever leads next."""

    async def story(stage: Stage) -> None:
        first, (second, third) = stage.leader(), stage.others()
        # Nobody journals a point while the third is there.
        stage.barred.update({first, second, third})
        producer = await stage.client.transactional_producer(transaction_timeout_ms=HOUR_MS)
        # What is open holds the journals: they are cut, and not copied anew as a whole.
        held = producer.transaction()
        await held.__aenter__()
        await held.send(TOPIC, b"open", key=b"open")
        await held.flush()
        await stage.write(b"k", b"old", None)
        await stage.fill(60)
        await stage.world.copies.level()
        await stage.lose(third)
        stage.barred.difference_update({first, second})
        [end] = await stage.client.admin.offsets(TOPIC)
        await stage.until(lambda: stage.leader() == first, "it leads on")
        await asyncio.sleep(RETENTION_MS / 1000)
        async with asyncio.timeout(WITHIN_S):
            while (
                min(
                    stage.replica(name).journal.data.cleanness.tombstones_to
                    for name in (first, second)
                )
                < 2
            ):
                # Journals and snapshots grow by it, and the committed log does not.
                for _ in range(5):
                    await held.send(TOPIC, b"open" + PADDING, key=b"open")
                    await held.flush()
                await asyncio.sleep(1.0)
        await stage.lose(first, second)
        await stage.world.start(third)
        await asyncio.sleep(10.0)
        stage.world.commits.forget(stage.partition, end=end)
        stage.world.copies._shown.clear()
        stage.world.copies._frames.clear()
        node = stage.world.processes[third].node
        await node.unclean_elect(UncleanElection(stage.partition, node.node_id))
        await stage.led_by(third)
        reader = await stage.reader()
        async with asyncio.timeout(WITHIN_S):
            while not (got := await reader.poll(3.0)):
                pass
        [seen] = got
        assert (seen.offset, seen.key) == (0, b"k"), "it is not compacted, and knows no point"
        for name in (first, second):
            await stage.world.start(name)
        await stage.world.ready()
        await stage.world.copies.level()
        await stage.lead_again(first)
        await reader.seek(TOPIC, 0, 1)
        async with asyncio.timeout(WITHIN_S):
            while not (got := await reader.poll(3.0)):
                pass
        [met] = got
        assert (met.offset, met.key, met.value) == (1, b"k", None), "I33: the tombstone is gone"
        await reader.close()
        await stage.rise()

    play(story, monkeypatch, least=1)


# ------------------------------------------------------------------- a crash in the middle

POINTS: Final = sorted(point.name for point in TABLE if ".compact" in point.name)


class Striker:
    """A process loses power, or is killed, at the passing of a failpoint with this number."""

    def __init__(self, point: str, passing: int, tear: Tear | None) -> None:
        self._point = point
        self._left = passing
        self._tear = tear
        self.world: World | None = None
        self.name = ""

    def __call__(self, name: str) -> None:
        if self.world is None or self.name or name != self._point:
            return
        self._left -= 1
        if self._left:
            return
        self.name = self.world.caller()
        self.world.fall(self.name, self._tear)
        raise Died("in the middle of a pass")


@pytest.mark.parametrize("tear", [None, Tear.NOTHING, Tear.SCATTER], ids=str)
@pytest.mark.parametrize("passing", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_i33_a_crash_in_the_middle_of_a_pass_costs_nothing(
    point: str, passing: int, tear: Tear | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    striker = Striker(point, passing, tear)
    failpoints.arm(striker)

    async def story(stage: Stage) -> None:
        striker.world = stage.world
        number = 0
        async with asyncio.timeout(4 * WITHIN_S):
            while not striker.name:
                with contextlib.suppress(errors.OncelogError):
                    await stage.write(b"%d" % (number % 7), b"%d" % number)
                    if number % 11 == 0:
                        await stage.write(b"%d" % (number % 5), None)
                number += 1
        await stage.world.bury(striker.name)
        await stage.until(stage.leader, "somebody leads")
        before = await stage.read()
        await stage.world.start(striker.name)
        await stage.fill(10)
        await stage.whole()
        after = await stage.read()
        assert latest(after) | {b"filler": b""} == latest(before) | {b"filler": b""}

    play(story, monkeypatch, {**COMPACT, "delete.retention.ms": "1000"})


def latest(records: list[Record]) -> dict[bytes | None, bytes]:
    """Of each key the last value; those that were removed are not in it."""
    found: dict[bytes | None, bytes] = {}
    for record in records:
        found.pop(record.key, None)
        if record.value is not None:
            found[record.key] = record.value
    return found


# ------------------------------------------------------------------- a new replica


def test_i33_a_replica_that_is_made_while_its_leader_compacts_lacks_no_tombstone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the first blocks as they were, with a value, when the leader drops the tombstone of
    it; the others come without."""

    async def story(stage: Stage) -> None:
        first, (second, third) = stage.leader(), stage.others()
        await stage.write(b"k", b"old")
        await stage.fill(60, key=b"early")
        await stage.write(b"k", None)
        await stage.fill(60)
        await stage.compacted(130, first)
        stage.barred.update({first, second, third})
        await asyncio.sleep(RETENTION_MS / 1000)
        async with asyncio.timeout(WITHIN_S):
            while stage.point()[1] < 62:
                await stage.fill(5)
                await asyncio.sleep(0.5)
        await stage.fill(20)
        await stage.lose(third)
        machine = stage.world.machines[third]
        node_id = machine.disk.reopen().bytes_of(NODE_FILE)
        disk = FakeDisk(seed=1)
        disk.replace_file(NODE_FILE, node_id)
        machine.disk = disk
        await stage.world.start(third)

        def has_some() -> bool:
            found = stage.world.processes[third].node._hosting.find(stage.partition)
            return found is not None and found.is_open and found.journal.data._end > 0

        await stage.until(has_some, "a part came")
        stage.barred.clear()
        await stage.compacted(130)
        await stage.whole()
        held = await held_of(stage.replica(third).journal.data)
        assert not [row for row in held.rows.values() if row.key == b"k" and row.value], (
            "it is gone"
        )

    play(story, monkeypatch)


def test_i33_what_is_removed_in_an_open_transaction_stays_until_that_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is open over many files, while others overwrite all that it does, and is committed last:
    then what it wrote is the last value. One that is aborted supersedes nothing."""

    async def story(stage: Stage) -> None:
        producer = await stage.client.transactional_producer(transaction_timeout_ms=HOUR_MS)
        aborted = await stage.client.transactional_producer(transaction_timeout_ms=HOUR_MS)
        first, other = producer.transaction(wait="visible"), aborted.transaction()
        with contextlib.suppress(_ChangedMind):
            async with other as never:
                await never.send(TOPIC, b"never", key=b"k")
                await never.flush()
                async with first as tx:
                    for number in range(50):
                        await tx.send(TOPIC, b"tx %d" % number + PADDING, key=b"%d" % (number % 5))
                        await tx.flush()
                        await stage.write(b"%d" % (number % 5), b"%d" % number)
                        await stage.write(b"k", b"%d" % number)
                        await stage.fill(12)
                    files = min(len(it.journal._segments.bases) for it in stage.replicas())
                    assert files >= 15, "it is open over many"
                    [end] = await stage.client.admin.offsets(TOPIC)
                    await stage.compacted(end - 20)
                    beside = await stage.read()
                    assert values(beside, b"3")[-1] == b"48", "it is open"
                    assert values(beside, b"k")[-1] == b"49"
                raise _ChangedMind
        await stage.fill()
        [end] = await stage.client.admin.offsets(TOPIC)
        await stage.compacted(end)
        await stage.whole()
        found = await stage.read()
        assert [values(found, b"%d" % number)[-1] for number in range(5)] == [
            b"tx %d" % number for number in (45, 46, 47, 48, 49)
        ]
        assert values(found, b"k") == [b"49"], "I33: what is aborted supersedes nothing"

    play(
        story,
        monkeypatch,
        {**COMPACT, "cleanup.policy": "compact,delete", "retention.bytes": "200000"},
    )


class _ChangedMind(Exception):
    pass


def test_the_pure_function_is_what_stands_on_each_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the disk has less."""

    async def story(stage: Stage) -> None:
        for number in range(200):
            await stage.write(b"%d" % (number % 10), b"%d" % number)
        await stage.compacted(200)
        await stage.whole()
        committed = stage.world.commits.of(stage.partition)
        for replica in stage.replicas():
            held = await held_of(replica.journal.data)
            stay = staying(committed, 0, held.compacted_to, held.tombstones_to)
            assert {it for it in held.rows if it < held.compacted_to} == stay
            assert len(stay) < 20
            assert replica.journal.data.disk_bytes() < 40 * len(PADDING)
            assert replica.journal.directory == directory_of(stage.partition)

    play(story, monkeypatch)
