"""Processes that stop hand over first: a rolling restart of everything, under load; and what comes
of who should lead."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from oncelog.aio.log import Log
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.roles import PARTITION_LEADER, ROLES
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from tests.simulation.machines import role_of_name
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import Cluster, World

TOPIC = "payments"
PARTITIONS = 3
SETTINGS = ("node.control_replication_factor=3",)
THREE = Cluster(nodes=dict.fromkeys(ROLES, 3), rollout="together")


def view_of(world: World) -> ClusterView:
    """Of some process that runs."""
    view = next(iter(world.processes.values())).node._view
    assert view is not None
    return view


def partitions(world: World) -> list[PartitionId]:
    """All of the cluster."""
    return sorted(
        {
            partition
            for process in world.processes.values()
            for partition in view_of(world).replicas_on(process.node.node_id)
        }
    )


def led(world: World) -> Counter[str]:
    """How many partitions each process leads, by its name."""
    names = {process.node.node_id: name for name, process in world.processes.items()}
    leaders = [view_of(world).leader_of(partition) for partition in partitions(world)]
    return Counter(names[leader.node_id] for leader in leaders if leader is not None)


def preferred(world: World) -> Counter[str]:
    """How many it should."""
    names = {process.node.node_id: name for name, process in world.processes.items()}
    infos = [view_of(world).partition(partition) for partition in partitions(world)]
    return Counter(names[info.replicas[0]] for info in infos if info is not None)


async def until_all_in_sync(world: World) -> None:
    async with asyncio.timeout(60):
        while any(
            info is None or len(info.isr) < 3
            for info in map(view_of(world).partition, partitions(world))
        ):
            await asyncio.sleep(0.05)


class Writer:
    """Writes transactions, each to all partitions, until told to end."""

    def __init__(self, client: Log) -> None:
        self._client = client
        self.values: list[bytes] = []
        self.is_over = False

    async def run(self) -> None:
        """What it raises is what a caller would see."""
        producer = await self._client.transactional_producer("billing")
        while not self.is_over:
            value = b"%d" % len(self.values)
            async with producer.transaction() as tx:
                for partition in range(PARTITIONS):
                    await tx.send(TOPIC, value, partition=partition)
            self.values.append(value)
            await asyncio.sleep(0.02)
        await producer.close()


async def read(client: Log, count: int) -> list[list[bytes]]:
    """So many of each partition, and what comes besides."""
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    consumer = await client.consumer([TOPIC], start="earliest")
    while min(map(len, found)) < count and (batch := await consumer.poll(10)) is not None:
        for record in batch.records():
            found[record.partition].append(record.value or b"")
    assert await consumer.poll(1) is None
    await consumer.close()
    return found


@pytest.mark.parametrize("seed", range(1, 4))
def test_i5_a_rolling_restart_of_everything_loses_nothing_and_fails_no_write(seed: int) -> None:
    loop = VirtualTimeLoop()

    async def story() -> None:
        world = World(seed, loop, SETTINGS, THREE)
        await world.start_all()
        client = world.client()
        await client.start()
        await client.admin.create_topic(TOPIC, PARTITIONS, replication_factor=3)
        await until_all_in_sync(world)
        writer = Writer(client)
        writing = asyncio.create_task(writer.run())
        for name in world.names:
            await asyncio.sleep(world.random.random() * 0.2)
            before = len(writer.values)
            await world.stop(name)
            assert led(world)[name] == 0, "others lead before it is gone"
            await world.start(name)
            async with asyncio.timeout(10):
                while len(writer.values) < before + 3:
                    await asyncio.sleep(0.01)
            assert not writing.done(), "no write failed"
        writer.is_over = True
        await writing
        # Nobody waited for who had gone: they were dropped while they acknowledged.
        assert not any("why=lags" in line for line in world.trace)
        for found in await read(client, len(writer.values)):
            assert found == writer.values
        world.check()
        await client.close()
        await world.stop_all()

    run(story(), loop)


def test_leadership_is_spread_from_the_start_and_comes_back_after_a_restart() -> None:
    loop = VirtualTimeLoop()

    async def story() -> None:
        world = World(7, loop, SETTINGS, THREE)
        await world.start_all()
        client = world.client()
        await client.start()
        await client.admin.create_topic(TOPIC, 6, replication_factor=3)
        await until_all_in_sync(world)
        assert led(world) == preferred(world)
        stopped = next(name for name in world.names if role_of_name(name) == PARTITION_LEADER)
        await world.stop(stopped)
        await world.start(stopped)
        assert led(world)[stopped] == 0, "it restarted, and others lead"
        async with asyncio.timeout(120):
            while led(world) != preferred(world):
                await asyncio.sleep(0.1)
        balanced = [line for line in world.trace if "leaders balanced" in line]
        await asyncio.sleep(300)
        assert balanced == [line for line in world.trace if "leaders balanced" in line]
        await client.close()
        await world.stop_all()

    run(story(), loop)


def test_an_operator_need_not_wait_for_the_balance() -> None:
    loop = VirtualTimeLoop()

    async def story() -> None:
        world = World(7, loop, (*SETTINGS, "node.balance_after_ms=0"), THREE)
        await world.start_all()
        await until_all_in_sync(world)
        before = led(world)
        stopped = world.names[0]
        await world.stop(stopped)
        # What it should lead, and cannot, stays where it is.
        told = [process.node.balance_leaders() for process in world.processes.values()]
        assert sum(handed_over for handed_over, _ in told) == 0
        assert sum(kept for _, kept in told) == before[stopped]
        await world.start(stopped)
        await until_all_in_sync(world)
        await asyncio.sleep(300)
        assert led(world)[stopped] == 0, "nothing is handed back by itself"
        told = [process.node.balance_leaders() for process in world.processes.values()]
        assert sum(handed_over for handed_over, _ in told) == before[stopped]
        await asyncio.sleep(1)
        assert led(world) == before
        await world.stop_all()

    run(story(), loop)


def test_all_that_stop_together_wait_for_nobody() -> None:
    loop = VirtualTimeLoop()

    async def story() -> None:
        world = World(8, loop, SETTINGS, THREE)
        await world.start_all()
        await until_all_in_sync(world)
        begun_s = loop.now_s
        await asyncio.gather(*(world.stop(name) for name in world.names))
        assert loop.now_s - begun_s < 2

    run(story(), loop)


def test_who_is_left_alone_waits_for_nobody() -> None:
    """One after the other: nobody takes over from the last one, nor replaces those before."""
    loop = VirtualTimeLoop()

    async def story() -> None:
        world = World(9, loop, SETTINGS, THREE)
        await world.start_all()
        await until_all_in_sync(world)
        for name in world.names:
            begun_s = loop.now_s
            await world.stop(name)
            assert loop.now_s - begun_s < 2, name

    run(story(), loop)
