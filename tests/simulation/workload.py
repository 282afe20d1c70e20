"""A day of several applications in the simulated world under trouble, recorded for the checker.

What happens is drawn from the seed (`swarm`). While trouble lasts, processes die, clients die,
connections break, answers are lost, disks fail. Then all heals, everybody must succeed again (I29),
stop, and nothing may be pending (I30). What was told must fit the promises, and each journal must
give the state that the living machine has (I35).

    python -m tests.simulation.workload 17 [file]     one seed: its plan, its trace, its history
    ... 17 --change '{"hands": 1}'                    with another plan (`shrink` finds a small one)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any, Final, NamedTuple

from oncelog.checker import HistoryWriter, Report, check
from oncelog_server.core import failpoints
from oncelogpb.errors import OncelogError
from tests.faults.verdict import copies_replayed, quiet, replayed
from tests.simulation import group_moments
from tests.simulation.applications import compacting
from tests.simulation.applications.table import APPLICATIONS
from tests.simulation.compacted_orders import CompactedOrders, hurried
from tests.simulation.compaction_moments import CompactionMoments
from tests.simulation.copies import LOOK_EVERY_S
from tests.simulation.day import Day
from tests.simulation.dense import DenseOrders
from tests.simulation.keeping_moments import KeepingMoments
from tests.simulation.marks import Reached
from tests.simulation.moments import broken_promises
from tests.simulation.plan import Plan, changed
from tests.simulation.settling_moments import SettlingMoments
from tests.simulation.striking import Striker
from tests.simulation.swarm import plan_of
from tests.simulation.trouble import Trouble
from tests.simulation.unearthing import unearth
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.world import Cluster, World

# After the last fault everybody must have succeeded within so long: restarts, leases and timeouts
# of what was left open included.
HEALED_WITHIN_S: Final = 60.0
# Trouble lasts seconds; its last fault and the processes that come back take some more.
TROUBLE_ENDS_S: Final = 300.0
TRACE_LINES_SHOWN: Final = 20000


class Told(NamedTuple):
    """What a run gave."""

    report: Report
    trace: list[str]
    events: list[dict[str, Any]]
    reached: Reached


def run_seed(seed: int) -> Told:
    """As `run_plan`."""
    return run_plan(plan_of(seed), seed)


def run_plan(plan: Plan, seed: int) -> Told:
    """Raises AssertionError where something is wrong that is not in the history: liveness, states,
    exceptions that nobody expected."""
    loop = VirtualTimeLoop()
    cluster = Cluster(
        plan.nodes,
        plan.paces,
        plan.etcd_ms,
        plan.rollout,
        plan.control_replicas,
        plan.min_insync_replicas,
    )
    world = World(seed, loop, plan.settings, cluster)
    unexpected: list[str] = []
    loop.set_exception_handler(lambda _, context: _note(world, unexpected, context))
    days: list[Day] = []
    try:
        with hurried(days=compacting.NAME in plan.applications):
            run(_tell(world, plan, days), loop)
        assert not unexpected, f"nobody expected that: {unexpected[0]}"
    except BaseException:
        print("\n".join(world.trace[-TRACE_LINES_SHOWN:]), file=sys.stderr)
        raise
    finally:
        failpoints.disarm()
        world.etcd.close()
    day = days[0]
    return Told(check(day.history.events), world.trace, day.history.events, world.marks.reached)


async def _tell(world: World, plan: Plan, days: list[Day]) -> None:
    day = Day(world, plan)
    days.append(day)
    striker = Striker(world, day.random)
    if "strike" in plan.faults:
        failpoints.arm(striker)
    world.network.slowness = plan.slowness
    await world.start_all()
    await day.create_topics()
    looking = asyncio.create_task(_look(world))
    lives = [(name, life) for name in plan.applications for life in APPLICATIONS[name].lives()]
    tasks = [asyncio.create_task(day.forever(name, life)) for name, life in lives]
    try:
        try:
            async with asyncio.timeout(TROUBLE_ENDS_S):
                await Trouble(day, striker).last()
        except TimeoutError:
            raise AssertionError("I29: some process does not come back from trouble") from None
        failpoints.disarm()
        await _everybody_succeeds(day, tasks)
    finally:
        day.stopping = True
        day.history.mark("clocks", **day.clocks())
        looking.cancel()
        world.copies.require_all_held()
    await asyncio.gather(*tasks)
    await day.read_everything()
    SettlingMoments(world).everything_was_read()
    await quiet(world)
    await unearth(world)
    await quiet(world)
    await world.copies.level()
    world.copies.require_all_held()
    replayed(world, lambda record: world.marks.add("record", type(record).__name__))
    copies_replayed(world)
    await DenseOrders(world).compare(day.seen)
    await CompactedOrders(world).compare(waits="wall clock" not in plan.faults)
    group_moments.add_moments(world)
    await world.stop_all()


async def _look(world: World) -> None:
    keeping, settling = KeepingMoments(world), SettlingMoments(world)
    compaction = CompactionMoments(world)
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        world.copies.look()
        keeping.look()
        settling.look()
        compaction.look()


async def _everybody_succeeds(day: Day, tasks: list[asyncio.Task[None]]) -> None:
    """I29, as clients see it."""
    day.successes.clear()
    day.healed = True
    day.history.mark("healed")
    day.world.say("-- healed")
    end_s = day.world.loop.time() + HEALED_WITHIN_S
    while waiting := [name for name in day.plan.applications if not day.is_well(name)]:
        for task in tasks:
            if task.done():
                task.result()
        assert day.world.loop.time() < end_s, f"I29: after healing nothing of {waiting} succeeds"
        await asyncio.sleep(0.1)


def _note(world: World, unexpected: list[str], context: dict[str, Any]) -> None:
    error = context.get("exception")
    if world.was_buried(context.get("future") or context.get("task")):
        return
    world.say(f"loop: {context.get('message')}: {error!r}")
    if error is not None and not isinstance(error, OncelogError | asyncio.CancelledError):
        unexpected.append(repr(error))


def main() -> None:
    parser = argparse.ArgumentParser(description="One simulated day.")
    parser.add_argument("seed", type=int)
    parser.add_argument("file", nargs="?", help="where its history goes")
    parser.add_argument("--without", default="", help="applications and faults, with commas")
    parser.add_argument("--change", default="{}", help="fields of the plan, as JSON")
    options = parser.parse_args()
    drawn = plan_of(options.seed, [name for name in options.without.split(",") if name])
    plan = changed(drawn, json.loads(options.change))
    print(plan)
    told = run_plan(plan, options.seed)
    if options.file:
        with HistoryWriter(options.file) as file:
            for event in told.events:
                file._write(event)
    print("\n".join(told.trace[-TRACE_LINES_SHOWN:]))
    print(told.report, told.report.size)
    for broken in broken_promises(plan, told.reached):
        print(f"uninformative: never reached {broken}")


if __name__ == "__main__":
    main()
