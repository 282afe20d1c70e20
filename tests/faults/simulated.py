"""One run of the story in the simulated world, with the faults of a plan."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from oncelog.checker import HistoryWriter
from oncelog.checker.recorder import RecordedLog
from oncelog_server.core import failpoints
from oncelog_server.core.ids import TopicId
from oncelog_server.core.roles import ROLES
from tests.faults.matrix import Injector, Passings, Strike
from tests.faults.story import Story, Told
from tests.faults.verdict import judge, judge_history, quiet, read_to_the_end, replayed
from tests.simulation.compacted_orders import CompactedOrders, hurried
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import World

SEED: Final = 20_13
CLIENTS: Final = 5
STORY_SECONDS_MAX: Final = 300
HEALED_SECONDS_MAX: Final = 10
# Snapshots and segments small enough for every journal to have some.
SETTINGS: Final = (
    "node.snapshot_every_bytes=600",
    "node.segment_bytes=2048",
    "node.control_journal_bytes_max=1024",
)


class Run(NamedTuple):
    """What a run gave."""

    injector: Injector
    trace: list[str]


def simulate(*plan: Strike, seed: int = SEED) -> Run:
    """Raises AssertionError where a promise is broken; the trace then goes to stderr."""
    loop = VirtualTimeLoop()
    loop.set_exception_handler(lambda loop, context: _complain(world, context))
    world = World(seed, loop, SETTINGS)
    injector: list[Injector] = []
    try:
        with hurried():
            run(_play(world, plan, injector), loop)
    except BaseException:
        print("\n".join(world.trace), file=sys.stderr)
        raise
    finally:
        failpoints.disarm()
        world.etcd.close()
    return Run(injector[0], world.trace)


def count_passings() -> dict[tuple[str, str], Passings]:
    """By role and failpoint, in a run without faults."""
    injector = simulate().injector
    return {key: Passings(total, injector.at_start[key]) for key, total in injector.passed.items()}


async def _play(world: World, plan: Sequence[Strike], made: list[Injector]) -> None:
    injector = Injector(world, plan)
    made.append(injector)
    failpoints.arm(injector)
    helping = [asyncio.create_task(injector.revive())]
    await _start(world, injector)
    helping += [asyncio.create_task(injector.supervise(name)) for name in world.names]
    story = Story(Told(world.random, world.say))
    history = HistoryWriter(now_us=lambda: round(world.loop.time() * 1e6))
    clients = [RecordedLog(world.client(), history) for _ in range(CLIENTS)]
    injector.story_begins()
    async with asyncio.timeout(STORY_SECONDS_MAX):
        await story.prepare(clients[0])
        latest = await clients[0].log.protocol.topic(story.names.latest)
        world.commits.follow(TopicId(latest.topic_id), latest.name)
        await story.tell(*clients)
    assert injector.struck >= min(1, len(plan)), f"{plan[0]} was never reached"
    failpoints.arm(lambda name: None)
    async with asyncio.timeout(STORY_SECONDS_MAX):
        await injector.settled()
    await _verify(world, story, history)
    for task in helping:
        task.cancel()
    for client in clients:
        await client.close()
    await world.stop_all()


async def _start(world: World, injector: Injector) -> None:
    """A process that falls as it starts is started again by the injector."""
    for name in world.names:
        await injector.start(name)
    await injector.settled()
    await world.ready()


async def _verify(world: World, story: Story, history: HistoryWriter) -> None:
    await world.ready()
    await quiet(world)
    world.check()
    client = world.client()
    async with asyncio.timeout(STORY_SECONDS_MAX):
        judge(story.attempts, await read_to_the_end(RecordedLog(client, history), story.names))
    judge_history(history)
    async with asyncio.timeout(HEALED_SECONDS_MAX):
        # I29.
        producer = await client.transactional_producer("enricher")
        async with producer.transaction(wait="visible") as tx:
            await tx.send("out", b"healed", partition=0)
    await client.close()
    await quiet(world)
    assert replayed(world) > len(ROLES), "journals were compared"
    orders = CompactedOrders(world)
    await orders.compare()
    assert orders.compared, "data logs were compared"


def _complain(world: World, context: dict[str, object]) -> None:
    world.say(f"loop: {context.get('message')}: {context.get('exception')!r}")
