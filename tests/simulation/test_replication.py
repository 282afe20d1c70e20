"""Topics with three replicas: leaders lose power, one after the other, and what was acknowledged is
there at whoever is elected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from oncelog.aio.log import Log
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import PartitionInfo
from oncelog_server.core.roles import PARTITION_LEADER
from oncelog_server.runtime.replica.driver import Driver
from oncelog_server.runtime.replica.in_sync import REPLICA_SILENT_MS
from oncelogpb import errors
from tests.simulation.disk import Tear
from tests.simulation.machines import role_of_name
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import Cluster, World

TOPIC = "payments"
PARTITIONS = 2
ROUNDS = 3


def leaders(world: World) -> list[str]:
    """The processes of partition leaders, by name."""
    return [name for name in world.names if role_of_name(name) == PARTITION_LEADER]


def replicas(world: World, partition: PartitionId) -> list[Driver]:
    found = [world.processes[name].node._hosting.find(partition) for name in leaders(world)]
    return [driver for driver in found if driver is not None]


async def all_in_sync(world: World, client: Log) -> None:
    """Every partition has three replicas in sync."""
    async with asyncio.timeout(60):
        while True:
            view = world.processes[leaders(world)[0]].node._view
            assert view is not None
            topic = view.topic(TOPIC)
            if topic is not None:
                infos = [
                    view.partition(PartitionId(topic.topic_id, number))
                    for number in range(PARTITIONS)
                ]
                if all(info is not None and len(info.isr) == 3 for info in infos):
                    return
            await asyncio.sleep(0.05)


async def send(client: Log, values: list[bytes], round_: int) -> None:
    """What is acknowledged is noted."""
    producer = await client.transactional_producer("billing")
    for number in range(8):
        value = b"%d-%d" % (round_, number)
        try:
            async with producer.transaction() as tx:
                for partition in range(PARTITIONS):
                    await tx.send(TOPIC, value, partition=partition)
        except errors.OncelogError:
            continue
        values.append(value)
    await producer.close()


async def read(client: Log) -> list[list[bytes]]:
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    async with asyncio.timeout(120):
        while await client.admin.transactions():
            await asyncio.sleep(0.1)
    ends = await client.admin.offsets(TOPIC)
    consumer = await client.consumer([TOPIC], start="earliest")
    while any(len(of) < end for of, end in zip(found, ends, strict=True)):
        batch = await consumer.poll(10)
        assert batch is not None, f"not all of {ends} came"
        for record in batch.records():
            found[record.partition].append(record.value or b"")
    await consumer.close()
    return found


@pytest.mark.parametrize("seed", range(1, 9))
def test_i5_what_was_acknowledged_outlives_its_leader(seed: int) -> None:
    loop = VirtualTimeLoop()

    async def story() -> None:
        world = World(seed, loop, cluster=Cluster(nodes={PARTITION_LEADER: 3}))
        await world.start_all()
        client = world.client()
        await client.start()
        await client.admin.create_topic(TOPIC, PARTITIONS, replication_factor=3)
        values: list[bytes] = []
        for round_ in range(ROUNDS):
            await all_in_sync(world, client)
            sending = asyncio.create_task(send(client, values, round_))
            await asyncio.sleep(world.random.random() * 0.2)
            name = leaders(world)[round_]
            await world.lose_power(name, world.random.choice(list(Tear)))
            await sending
            # Its lease runs out, and somebody in sync is elected.
            await asyncio.sleep(10)
            await send(client, values, 10 + round_)
            await world.start(name)
        await all_in_sync(world, client)
        assert len(values) >= 8 * ROUNDS
        for found in await read(client):
            assert set(values) <= set(found), "it was acknowledged"
            assert len(found) == len(set(found)), "once"
        world.check()
        await client.close()
        await world.stop_all()

    run(story(), loop)


def test_i5_a_leader_that_died_holds_up_nothing_once_another_one_is_elected() -> None:
    """Etcd shows that its process is gone: nobody waits for it as for one that is silent."""
    loop = VirtualTimeLoop()

    async def story() -> None:
        world = World(1, loop, cluster=Cluster(nodes={PARTITION_LEADER: 3}))
        await world.start_all()
        client = world.client()
        await client.start()
        await client.admin.create_topic(TOPIC, PARTITIONS, replication_factor=3)
        await all_in_sync(world, client)
        view = world.processes[leaders(world)[0]].node._view
        assert view is not None
        topic = view.topic(TOPIC)
        assert topic is not None
        partition = PartitionId(topic.topic_id, 0)
        address = view.leader_of(partition)
        assert address is not None
        (name,) = [
            each for each in leaders(world) if world.processes[each].node.node_id == address.node_id
        ]
        await world.lose_power(name, Tear.NOTHING)
        others = [each for each in leaders(world) if each != name]
        shown = world.processes[others[0]].node._view
        assert shown is not None

        async def until(holds: Callable[[PartitionInfo], bool]) -> float:
            async with asyncio.timeout(30):
                while (info := shown.partition(partition)) is None or not holds(info):
                    await asyncio.sleep(0.01)
            return loop.time()

        elected = await until(lambda info: info.epoch > address.epoch)
        rid = await until(lambda info: len(info.isr) == 2)
        assert rid - elected < REPLICA_SILENT_MS / 1000, "it was waited for"
        await world.start(name)
        await all_in_sync(world, client)
        world.check()
        await client.close()
        await world.stop_all()

    run(story(), loop)
