"""One story for the simulator: consume, transform, produce, and one process loses its power in the
middle. `python -m tests.simulation.smoke SEED ROLE` prints its trace.

What must hold is asserted here; that one seed gives one trace, in two processes with different hash
seeds, is asserted by the test.
"""

from __future__ import annotations

import asyncio
import sys

from oncelog.aio.log import Log
from oncelog_server.core.roles import ROLES
from oncelogpb import errors
from tests.simulation.disk import Tear
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import World

RECORDS = 60
CRASH_AFTER_RECORDS = 20
TIMEOUT_SECONDS = 300


async def tell(world: World, victim: str) -> None:
    await world.start_all()
    client = world.client()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await client.admin.create_topic("in", partitions=2)
        await client.admin.create_topic("out", partitions=3)
        await _fill(client)
        crash = asyncio.create_task(_crash(world, victim))
        await _enrich(world, client)
        await crash
        await _verify(world, client)
    await client.close()
    world.check()
    await world.stop_all()


async def _fill(client: Log) -> None:
    producer = await client.producer()
    for number in range(RECORDS):
        await producer.send("in", value=b"%d" % number, key=b"k%d" % (number % 5))
    await producer.flush()


_progress: list[int] = [0]


async def _crash(world: World, victim: str) -> None:
    while _progress[0] < CRASH_AFTER_RECORDS:
        await asyncio.sleep(0.001)
    await world.lose_power(f"{victim}-1", world.random.choice(list(Tear)))
    await asyncio.sleep(world.random.uniform(0.05, 3))
    await world.start(f"{victim}-1")


async def _enrich(world: World, client: Log) -> None:
    """Small batches, some one-shot, some begun early, some aborted: each input exactly once."""
    producer = await client.transactional_producer("enricher")
    consumer = await client.consumer(["in"], group="enricher", batch_records_max=3)
    done = 0
    while done < RECORDS:
        try:
            batch = await consumer.poll(1.0)
            if batch is None:
                continue
            async with producer.transaction(consumer) as tx:
                for record in batch.records():
                    await tx.send("out", value=b"<%b>" % (record.value or b""), key=record.key)
                if world.random.random() < 0.5:
                    await tx.flush()
                if world.random.random() < 0.15:
                    raise _ChangedMind
        except _ChangedMind:
            world.say("client: aborted by itself")
            continue
        except errors.OncelogError as error:
            world.say(f"client: {error.reason}")
            await asyncio.sleep(0.1)
            continue
        done += len(batch)
        _progress[0] = done
        world.say(f"client: {done} done")
        world.check()


class _ChangedMind(Exception):
    pass


async def _verify(world: World, client: Log) -> None:
    """I21: f(input) as a multiset; I14: offsets without gaps; I8: nothing of the aborted."""
    consumer = await client.consumer(["out"], start="earliest")
    values: list[bytes] = []
    positions: dict[int, int] = {}
    while len(values) < RECORDS:
        batch = await consumer.poll(5.0)
        assert batch is not None, f"only {len(values)} of {RECORDS} came out"
        for record in batch.records():
            assert record.offset == positions.get(record.partition, 0), "a gap or a repeat"
            positions[record.partition] = record.offset + 1
            assert record.value is not None
            values.append(record.value)
    assert await consumer.poll(1.0) is None, "more came out than went in"
    assert sorted(values) == sorted(b"<%d>" % number for number in range(RECORDS))
    world.say("verified: every record exactly once")


def trace_of(seed: int, victim: str) -> list[str]:
    """Runs the story. Raises what fails."""
    _progress[0] = 0
    loop = VirtualTimeLoop()
    world = World(seed, loop)
    try:
        run(tell(world, victim), loop)
    except BaseException:
        print("\n".join(world.trace), file=sys.stderr)
        raise
    return world.trace


if __name__ == "__main__":
    assert sys.argv[2] in ROLES, f"which of {ROLES} loses power?"
    print("\n".join(trace_of(int(sys.argv[1]), sys.argv[2])))
