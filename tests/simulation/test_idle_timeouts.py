"""The shortest idle timeout that a Begin may ask for is one that a busy transaction outlives: a
leader tells of its batches every two seconds (I30 ends the idle ones, and no others)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from oncelog_server.coordinator.config import CoordinatorConfig
from oncelogpb.errors import InvalidTimeout
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import World

LEAST_MS = CoordinatorConfig().transaction_timeout_ms_min


def tell(seed: int, story: Callable[[World], Awaitable[None]]) -> None:
    loop = VirtualTimeLoop()
    world = World(seed, loop)

    async def told() -> None:
        await story(world)

    run(told(), loop)


@pytest.mark.parametrize("seed", range(4))
def test_i30_a_busy_transaction_outlives_the_shortest_timeout(seed: int) -> None:
    async def story(world: World) -> None:
        await world.start_all()
        client = world.client()
        await client.admin.create_topic("out", partitions=1)
        producer = await client.transactional_producer("busy")
        async with producer.transaction(timeout_ms=LEAST_MS) as tx:
            for number in range(150):
                await tx.send("out", value=b"%d" % number)
                await tx.flush()
                await asyncio.sleep(0.1)
        await client.close()
        await world.stop_all()

    tell(seed, story)


def test_what_a_sign_of_life_cannot_serve_is_refused() -> None:
    async def story(world: World) -> None:
        await world.start_all()
        client = world.client()
        await client.admin.create_topic("out", partitions=1)
        producer = await client.transactional_producer("hasty")
        with pytest.raises(InvalidTimeout) as refused:
            async with producer.transaction(timeout_ms=LEAST_MS - 1) as tx:
                await tx.send("out", value=b"x")
                await tx.flush()
        assert refused.value.metadata["limit"] == "transaction_timeout_ms_min"
        await client.close()
        await world.stop_all()

    tell(0, story)
