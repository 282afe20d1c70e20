"""A topic that is quiet for longer than the services remember groups, in the simulated world: its
consumer goes on where it stood (I21)."""

from __future__ import annotations

import asyncio

from oncelog.aio.log import Log
from oncelog.options import ConnectOptions
from oncelog.protocol import AsyncProtocol
from tests.simulation.callers import SimTransport
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import World

RETENTION_MS = 10_000


def test_i21_a_quiet_topic_is_not_read_again() -> None:
    loop = VirtualTimeLoop()
    world = World(1, loop, [f"offset_manager.group_retention_ms={RETENTION_MS}"])

    async def story() -> None:
        await world.start_all()
        ports = [process.node.port for process in world.processes.values()]
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        options = ConnectOptions()
        protocol = AsyncProtocol(bootstrap, options, transport=SimTransport(world.network))
        async with Log(bootstrap, options, protocol=protocol) as log:
            await log.admin.create_topic("in", 1)
            producer = await log.transactional_producer("copier")
            plain = await log.producer()
            consumer = await log.consumer(
                ["in"], "g", partitions="all", sign_of_life_ms=RETENTION_MS // 4
            )
            for value in (b"1", b"2"):
                await plain.send("in", value)
                await plain.flush()
                batch = await consumer.poll(5.0)
                assert batch is not None
                assert [record.value for record in batch] == [value]
                async with producer.transaction(consumer):
                    pass
                await asyncio.sleep(3 * RETENTION_MS / 1000)
            await plain.close()
        await world.stop_all()

    run(story(), loop)
