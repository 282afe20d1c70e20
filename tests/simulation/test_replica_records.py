"""What each replica's directory says of itself while all is well (`replica.json`)."""

from __future__ import annotations

import asyncio
from errno import ENOSPC

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.runtime.replica.record import FILE, ReplicaRecord, load_record
from oncelog_server.runtime.replicas import PARTITIONS_DIRECTORY, directory_of
from tests.simulation.disk import FakeDisk
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import World

# Within so long a change is written down.
SOON_S = 1.5


def record_of(disk: FakeDisk, topic_id: str) -> ReplicaRecord | None:
    return load_record(disk, directory_of(PartitionId(TopicId(bytes.fromhex(topic_id)), 0)))


def test_a_replica_knows_its_topic_its_settings_and_its_incarnation() -> None:
    async def tell(world: World) -> None:
        await world.start_all()
        client = world.client()
        await client.admin.create_topic("orders", partitions=1)
        topic = await client.admin.describe_topic("orders")
        await asyncio.sleep(SOON_S)
        disk = world.processes["partition_leader-1"].disk
        first = record_of(disk, topic.topic_id)
        assert first is not None
        assert first.topic is not None
        assert (first.topic.name, first.topic.partitions, first.topic.version) == ("orders", 1, 0)
        (driver,) = world.processes["partition_leader-1"].node.led_replicas()
        assert first.incarnation == driver.journal.incarnation.hex()

        await client.admin.alter_topic("orders", {"max.batch.bytes": "100000"})
        await asyncio.sleep(SOON_S)
        altered = record_of(disk, topic.topic_id)
        assert altered is not None
        assert altered.topic is not None
        assert (altered.topic.configs["max.batch.bytes"], altered.topic.version) == ("100000", 1)

        # A disk without room keeps the older record, and catches up.
        disk.fail_next(ENOSPC)
        await client.admin.alter_topic("orders", {"max.batch.bytes": "200000"})
        assert record_of(disk, topic.topic_id) == altered
        await asyncio.sleep(SOON_S)
        newest = record_of(disk, topic.topic_id)
        assert newest is not None
        assert newest.topic is not None
        assert newest.topic.version == 2

        # Partitions that are added know their topic, and the older ones hear of them.
        await client.admin.alter_topic("orders", partitions=3)
        await asyncio.sleep(SOON_S)
        for number in range(3):
            partition = PartitionId(TopicId(bytes.fromhex(topic.topic_id)), number)
            record = load_record(disk, directory_of(partition))
            assert record is not None
            assert record.topic is not None
            assert (record.topic.partitions, record.topic.version) == (3, 3)
        await client.close()
        await world.stop_all()

    loop = VirtualTimeLoop()
    run(tell(World(5, loop)), loop)


def test_a_restart_writes_no_record_again_that_says_the_same() -> None:
    async def tell(world: World) -> None:
        await world.start_all()
        disk = world.processes["coordinator-1"].disk
        before = [disk.bytes_of(path) for path in records_of(disk)]
        await world.stop("coordinator-1")
        await world.start("coordinator-1")
        await world.ready()
        await asyncio.sleep(SOON_S)
        disk = world.processes["coordinator-1"].disk
        # The epoch that it was written under stands in it.
        assert [disk.bytes_of(path) for path in records_of(disk)] == before
        assert len(before) == 16
        await world.stop_all()

    loop = VirtualTimeLoop()
    run(tell(World(6, loop)), loop)


def records_of(disk: FakeDisk) -> list[str]:
    names = disk.list(PARTITIONS_DIRECTORY)
    return [f"{PARTITIONS_DIRECTORY}/{name}/{FILE}" for name in names]
