"""Replicas that move while records are written and processes lose power: what was acknowledged is
there at whoever is elected afterwards, and nobody has to write to a partition twice."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.aio.log import Log
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import PartitionInfo
from oncelog_server.core.roles import PARTITION_LEADER
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.memory import MemoryEtcd
from oncelog_server.runtime.leadership.moving import move
from oncelog_server.runtime.replicas import ORPHANS_DIRECTORY, directory_of
from tests.simulation.disk import Tear
from tests.simulation.test_replication import PARTITIONS, TOPIC, leaders, read, send
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import Cluster, World

NODES = 5
ROUNDS = 2


def view(world: World) -> ClusterView:
    """Of the coordinator, which never falls here."""
    found = world.processes["coordinator-1"].node._view
    assert found is not None
    return found


def partitions(world: World) -> list[PartitionId]:
    topic = view(world).topic(TOPIC)
    assert topic is not None
    return [PartitionId(topic.topic_id, number) for number in range(PARTITIONS)]


def info(world: World, partition: PartitionId) -> PartitionInfo:
    found = view(world).partition(partition)
    assert found is not None
    return found


async def until_moved(world: World, partition: PartitionId, target: list[str]) -> None:
    """Its replicas are there, in sync, and one of them leads."""
    async with asyncio.timeout(120):
        while True:
            now = info(world, partition)
            is_led = view(world).leader_of(partition) is not None
            if list(now.replicas) == target and len(now.isr) == len(target) and is_led:
                assert (list(now.adding), list(now.target)) == ([], [])
                return
            await asyncio.sleep(0.05)


def node_ids(world: World) -> dict[str, str]:
    """Of each process of a partition leader."""
    return {world.processes[name].node.node_id: name for name in leaders(world)}


async def writing(client: Log, values: list[bytes], round_: int, done: asyncio.Event) -> None:
    attempt = 0
    while not done.is_set():
        await send(client, values, round_ * 1_000 + attempt)
        attempt += 1
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("seed", range(1, 7))
def test_i5_what_was_acknowledged_outlives_a_move(seed: int) -> None:
    loop = VirtualTimeLoop()

    async def story() -> None:
        world = World(seed, loop, cluster=Cluster(nodes={PARTITION_LEADER: NODES}))
        await world.start_all()
        client = world.client()
        await client.start()
        copies = world.random.choice([1, 2, 3])
        await client.admin.create_topic(TOPIC, PARTITIONS, replication_factor=copies)
        values: list[bytes] = []
        etcd = MemoryEtcd(world.etcd)
        ids = node_ids(world)
        for round_ in range(ROUNDS):
            done = asyncio.Event()
            sending = asyncio.create_task(writing(client, values, round_, done))
            targets: dict[PartitionId, list[str]] = {}
            for partition in partitions(world):
                copies = world.random.choice([2, 3])
                targets[partition] = world.random.sample(sorted(ids), copies)
                await move(etcd, partition, targets[partition])
            await asyncio.sleep(world.random.random() * 0.5)
            victim = world.random.choice(leaders(world))
            await world.lose_power(victim, world.random.choice(list(Tear)))
            if world.random.random() < 0.5:
                # Somewhere else after all, or back.
                await asyncio.sleep(world.random.random() * 8)
                for partition in partitions(world):
                    targets[partition] = world.random.sample(sorted(ids), copies)
                    await move(etcd, partition, targets[partition])
            await asyncio.sleep(world.random.random() * 10)
            await world.start(victim)
            for partition, target in targets.items():
                await until_moved(world, partition, target)
            done.set()
            await sending
        assert len(values) > 8 * ROUNDS
        for found in await read(client):
            assert set(values) <= set(found), "it was acknowledged"
            assert len(found) == len(set(found)), "once"
        world.check()
        await asyncio.sleep(5)
        for partition in partitions(world):
            for node_id, name in ids.items():
                held = world.processes[name].disk.exists(directory_of(partition))
                assert held == (node_id in info(world, partition).replicas), (name, partition)
        assert any(world.processes[name].disk.list(ORPHANS_DIRECTORY) for name in leaders(world)), (
            "nothing is deleted"
        )
        await client.close()
        await world.stop_all()

    run(story(), loop)
