"""All lose power and etcd is wiped; the recovery itself is cut short at every step and run again.
Then everything that was acknowledged is there, and no TxId is given twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from oncelog.aio.log import Log
from oncelog_server.runtime.cluster_recovery.choosing import RECOVERY_EPOCHS
from oncelog_server.runtime.cluster_recovery.inventory import RecoveryRefused
from oncelog_server.runtime.cluster_recovery.perform import Mode, Replace
from oncelog_server.runtime.etcd.memory import MemoryEtcd
from oncelog_server.runtime.etcd.port import EtcdUnavailable, Put
from oncelog_server.runtime.etcd.refusal import EtcdRefused
from oncelogpb import errors
from tests.simulation.disk import Tear
from tests.simulation.recovering import recover as run_recovery
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import World

TOPIC = "payments"
PARTITIONS = 3
TRANSACTIONS = 12


@dataclass
class Known:
    """What was acknowledged."""

    values: list[bytes] = field(default_factory=list)
    tx_ids: list[int] = field(default_factory=list)


class StubbornEtcd(MemoryEtcd):
    """Its transaction number `fails_at` is answered by nobody: applied or not."""

    fails_at = -1
    applied = False
    count = 0

    async def txn(self, compares, then):  # type: ignore[no-untyped-def]
        self.count += 1
        if self.count - 1 == self.fails_at:
            if self.applied:
                await super().txn(compares, then)
            raise EtcdUnavailable("told to fail")
        return await super().txn(compares, then)


async def produce(client: Log, known: Known, round_: int) -> None:
    """Transactions that begin early and one-shot ones, one after the other."""
    producer = await client.transactional_producer("billing")
    for number in range(TRANSACTIONS):
        value = b"%d-%d" % (round_, number)
        try:
            async with producer.transaction() as tx:
                for partition in range(PARTITIONS):
                    await tx.send(TOPIC, value, partition=partition)
                if number % 2:
                    await tx.flush()
        except errors.OncelogError:
            continue
        known.values.append(value)
        known.tx_ids.append(tx.tx_id)
    await producer.close()


async def read(client: Log) -> list[list[bytes]]:
    """All of it, by partition, once nothing is on its way any more."""
    while [found async for found in _undelivered(client)]:
        await asyncio.sleep(0.1)
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    ends = await client.admin.offsets(TOPIC)
    consumer = await client.consumer([TOPIC], start="earliest")
    while any(len(of) < end for of, end in zip(found, ends, strict=True)):
        batch = await consumer.poll(10)
        assert batch is not None, f"not all of {ends} came"
        for record in batch.records():
            found[record.partition].append(record.value or b"")
    await consumer.close()
    return found


async def _undelivered(client: Log) -> AsyncIterator[int]:
    for transaction in await client.admin.transactions():
        if transaction.state == "committed" and not transaction.visible:
            yield transaction.tx_id


async def lose_everything(world: World) -> None:
    tear = world.random.choice(list(Tear))
    for name in world.names:
        await world.lose_power(name, tear)
    world.etcd.wipe(cluster_id=world.random.randrange(1 << 60))


async def recover(world: World, *, fails_at: int, applied: bool) -> list[Mode]:
    """The command again and again until it ends well."""
    modes = []
    etcd = StubbornEtcd(world.etcd)
    etcd.fails_at, etcd.applied = fails_at, applied
    while True:
        disks = []
        for name in world.names:
            world.machines[name].disk = world.machines[name].disk.reopen()
            disks.append(world.machines[name].disk)
        try:
            modes.append(await run_recovery(disks, etcd))
            return modes
        except EtcdUnavailable:
            assert len(modes) < 2, "it fails once"
            modes.append(Mode.FOUND)


async def tell(world: World, *, fails_at: int, applied: bool) -> list[Mode]:
    known = Known()
    await world.start_all()
    client = world.client()
    await client.admin.create_topic(TOPIC, partitions=PARTITIONS)
    # Replicas write down whose they are within a second.
    await asyncio.sleep(1.5)
    await produce(client, known, 0)
    await client.close()
    await lose_everything(world)
    modes = await recover(world, fails_at=fails_at, applied=applied)
    await world.start_all()
    client = world.client()
    async with asyncio.timeout(120):
        found = await read(client)
        assert all(of == known.values for of in found), "acknowledged, in order, once"
        await produce(client, known, 1)
        assert len(known.tx_ids) == len(set(known.tx_ids)) == 2 * TRANSACTIONS, "no TxId repeats"
        assert all(of == known.values for of in await read(client))
    await client.close()
    world.check()
    epochs = {replica.epoch for replica in world.processes[world.names[0]].node.led_replicas()}
    assert all(epoch > RECOVERY_EPOCHS for epoch in epochs)
    await world.stop_all()
    return modes


def story(seed: int, *, fails_at: int = -1, applied: bool = False) -> list[Mode]:
    loop = VirtualTimeLoop()
    return run(tell(World(seed, loop), fails_at=fails_at, applied=applied), loop)


@pytest.mark.parametrize("seed", range(300, 304))
def test_i25_a_recovery_after_a_loss_of_power_everywhere(seed: int) -> None:
    assert story(seed) == [Mode.FOUND]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_i5_i19_a_recovery_that_dies_is_run_again(fails_at: int, applied: bool) -> None:
    """The cluster's record, the partitions' keys, the topic's: each unanswered once."""
    begun = fails_at > 0 or applied
    assert story(310, fails_at=fails_at, applied=applied) == [
        Mode.FOUND,
        Mode.JOIN if begun else Mode.FOUND,
    ]


def test_nobody_starts_on_a_directory_that_took_no_part() -> None:
    async def tell(world: World) -> None:
        await world.start_all()
        await world.stop_all()
        world.etcd.wipe()
        disks = {name: world.machines[name].disk.reopen() for name in world.names}
        assert await run_recovery([disks[world.names[0]]], MemoryEtcd(world.etcd)) is Mode.FOUND
        # Neither etcd's own id nor its revision tells it apart any more.
        for number in range(100):
            world.etcd.txn([], [Put("x", b"%d" % number)])
        for name in world.names:
            world.machines[name].disk = disks[name]
        await world.start(world.names[0])
        with pytest.raises(EtcdRefused, match="recovery 1 of this cluster"):
            await world.start(world.names[1])

    loop = VirtualTimeLoop()
    run(tell(World(1, loop)), loop)


def test_a_recovery_does_not_pull_the_floor_from_under_those_who_live() -> None:
    async def tell(world: World) -> None:
        await world.start_all()
        await world.stop(world.names[0])
        disk = world.processes[world.names[0]].disk.reopen()
        with pytest.raises(RecoveryRefused, match="processes still work with this etcd"):
            await run_recovery([disk], MemoryEtcd(world.etcd), Replace.EVERYTHING)
        world.machines[world.names[0]].disk = disk
        await world.start(world.names[0])
        await world.ready()
        await world.stop_all()

    loop = VirtualTimeLoop()
    run(tell(World(1, loop)), loop)
