"""What looks at replicas while a day goes on notices what it should; and days with replicas."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from oncelog_server.core.roles import PARTITION_LEADER, ROLES
from oncelog_server.runtime.replicas import directory_of
from oncelog_server.runtime.storage.node_id import NODE_FILE
from oncelog_server.runtime.storage.segment import SEGMENT_SUFFIX
from tests.simulation.copies import Replica
from tests.simulation.disk import Tear
from tests.simulation.moments import (
    COPIED_ANEW,
    DATA_LOST,
    DATA_REFUSED,
    DATA_ROTTED,
    DISK_LOST,
    DISK_OLDER,
    ETCD_REBUILT,
    LEADER_MOVED,
    MOMENT,
    NEW_JOINED,
    ROTTED,
)
from tests.simulation.plan import Plan
from tests.simulation.rotting import Where, flip_a_bit
from tests.simulation.swarm import (
    GARDENER,
    LOST_DISK,
    LOST_ETCD,
    OLDER_DISK,
    ROTTEN_BLOCKS,
    plan_of,
)
from tests.simulation.unearthing import unearth
from tests.simulation.virtual_time import VirtualTimeLoop, run
from tests.simulation.workload import run_plan
from tests.simulation.world import Cluster, World

TOPIC: Final = "orders"
# What is synced is noted within this, and a log is open.
NOTED_S: Final = 1.5
LEADS_S: Final = 60.0
THREE: Final = dict.fromkeys(ROLES, 3)


def play(
    story: Callable[[World], Awaitable[None]],
    *,
    replicas: int = 3,
    least: int = 2,
    partitions: int = 1,
) -> None:
    """Three partition leaders, a topic with three records a partition, all copies in sync."""
    loop = VirtualTimeLoop()
    world = World(1, loop, cluster=Cluster({PARTITION_LEADER: 3}, min_insync_replicas=least))

    async def tell() -> None:
        await world.start_all()
        client = world.client()
        await client.admin.create_topic(TOPIC, partitions, replication_factor=replicas)
        await world.ready()
        producer = await client.producer(delivery_timeout_ms=3_000)
        for number in range(3 * partitions):
            await producer.send(TOPIC, b"%d" % number, partition=number % partitions)
        await producer.close()
        await client.close()
        await world.copies.level()
        await story(world)
        await world.stop_all()

    run(tell(), loop)


def topic_replicas(world: World) -> list[Replica]:
    """Of its partition."""
    [(partition, _)] = world.copies.states()
    return world.copies.replicas(partition)


def follower(world: World) -> Replica:
    return next(replica for replica in topic_replicas(world) if replica.driver.follows)


def test_i7_a_replica_with_another_frame_is_noticed() -> None:
    async def story(world: World) -> None:
        copy = follower(world)
        disk = world.processes[copy.name].disk
        [path] = [segment.path for segment in copy.journal._segments.all]
        assert path.endswith(SEGMENT_SUFFIX)
        disk.damage(path, flip_a_crc)
        world.copies.look()
        world.copies.require_all_held()
        # What was compared is not looked at again, before the end.
        with pytest.raises(AssertionError, match=r"I7.*has another frame at 0"):
            await at_the_end(world)

    def flip_a_crc(content: bytearray) -> None:
        content[4] ^= 1

    async def at_the_end(world: World) -> None:
        await world.copies.level()
        world.copies.require_all_held()

    play(story)


def test_i25_a_member_of_the_isr_that_lacks_what_was_shown_is_noticed() -> None:
    async def story(world: World) -> None:
        copy = follower(world)
        copy.journal.synced_end -= 1
        world.copies.look()
        with pytest.raises(AssertionError, match=r"I25.*is in sync at"):
            world.copies.require_all_held()

    play(story)


def test_i29_a_replica_that_is_not_in_sync_again_is_noticed() -> None:
    async def story(world: World) -> None:
        name = follower(world).name
        await world.lose_power(name, Tear.NOTHING)
        with pytest.raises(AssertionError, match=r"I29: not level again.*2 live"):
            await world.copies.level()
        await world.start(name)
        await world.copies.level()

    play(story)


@pytest.mark.parametrize(
    ("replicas", "least", "bears"), [(3, 2, True), (2, 2, True), (3, 1, False)]
)
def test_i25_a_disk_may_be_lost_where_another_member_of_the_isr_has_all(
    replicas: int, least: int, *, bears: bool
) -> None:
    async def story(world: World) -> None:
        held = {replica.name for replica in topic_replicas(world)}
        found = {name for name in held if world.copies.bears_loss_of(name)}
        assert found == (held if bears else set())

    play(story, replicas=replicas, least=least)


def test_i25_no_second_disk_is_lost_before_the_isr_names_none_of_the_first_one() -> None:
    async def story(world: World) -> None:
        lost, kept, _ = sorted(replica.name for replica in topic_replicas(world))
        world.copies.lost(lost)
        await world.lose_power(lost, Tear.NOTHING)
        machine = world.machines[lost]
        machine.disk = machine.disk.reopen()
        machine.disk.lose_all(but=NODE_FILE)
        assert not world.copies.bears_loss_of(kept)
        await world.start(lost)
        assert not world.copies.bears_loss_of(kept)
        await world.copies.level()
        world.copies.require_all_held()
        assert world.copies.bears_loss_of(kept)

    play(story)


def three_replicas(seed: int) -> Plan:
    """That seed's day, where all has three of them."""
    plan = plan_of(seed)
    return dataclasses.replace(
        plan,
        nodes=THREE,
        control_replicas=3,
        replicas=dict.fromkeys(plan.replicas, 3),
        min_insync_replicas=2,
    )


def days_of_disks(fault: str) -> Counter[str]:
    """Three of them: in how many each moment came about."""
    reached: Counter[str] = Counter()
    for seed in (1, 2, 3):
        plan = dataclasses.replace(three_replicas(seed), faults=(fault, "power"), trouble_s=10.0)
        told = run_plan(plan, seed)
        assert told.report.clean, str(told.report)
        reached.update(told.reached[MOMENT])
    return reached


def test_i5_nothing_is_lost_with_the_disks_of_a_day_one_after_the_other() -> None:
    """All roles have three nodes, all partitions three replicas; disks of any role are lost."""
    reached = days_of_disks(LOST_DISK)
    assert reached[DISK_LOST] >= 2
    assert reached[NEW_JOINED]
    assert reached[LEADER_MOVED]


def test_i25_a_machine_whose_disk_is_as_it_was_once_counts_for_nothing_that_it_lacks() -> None:
    """Its process held more when it was in sync, under the same name. Disks of any role come back
    from a backup, one after the other; nothing is lost with what they held since (I5)."""
    reached = days_of_disks(OLDER_DISK)
    assert reached[DISK_OLDER] >= 2
    assert reached[NEW_JOINED]


def test_i5_nothing_is_missing_after_etcd_was_lost_and_rebuilt() -> None:
    """It is wiped, or an older one comes back. Nobody accepts a loss."""
    for seed in (1, 2, 26):
        plan = dataclasses.replace(three_replicas(seed), faults=(LOST_ETCD,))
        told = run_plan(plan, seed)
        assert told.report.clean, str(told.report)
        assert ETCD_REBUILT in told.reached[MOMENT]


def test_i26_a_journal_of_which_a_bit_flips_is_copied_anew() -> None:
    """In a day of three nodes and replicas: no record is lost with it, and all are equal at the end
    (I5, I7)."""
    plan = dataclasses.replace(three_replicas(1), faults=("rot",), trouble_s=6.0)
    told = run_plan(plan, 1)
    assert told.report.clean, str(told.report)
    assert {ROTTED, COPIED_ANEW} <= told.reached[MOMENT]


def test_i26_blocks_that_rot_or_are_lost_are_refused_and_never_served_otherwise() -> None:
    """In days of three nodes and replicas. All that was acknowledged is read; who leads without it
    is copied anew, and a follower refuses what it lacks."""
    reached: set[str] = set()
    for seed in (12, 20):
        plan = dataclasses.replace(three_replicas(seed), faults=(ROTTEN_BLOCKS,), trouble_s=6.0)
        told = run_plan(plan, seed)
        assert told.report.clean, str(told.report)
        reached |= told.reached[MOMENT]
    assert {DATA_ROTTED, DATA_LOST, DATA_REFUSED, COPIED_ANEW} <= reached


def test_days_have_one_to_three_replicas_and_lose_disks_only_where_nothing_is_lost_with_them() -> (
    None
):
    plans = [plan_of(seed) for seed in range(400)]
    drawn = Counter(min(plan.control_replicas, *plan.nodes.values()) for plan in plans)
    assert set(drawn) == {1, 2, 3}
    assert drawn[3] > 0.2 * len(plans)
    losing = [plan for plan in plans if LOST_DISK in plan.faults]
    assert len(losing) > 0.1 * len(plans)
    assert all(plan.min_insync_replicas > 1 for plan in losing)
    assert all(max(plan.nodes.values()) > 1 for plan in losing)
    losing = [plan for plan in plans if LOST_ETCD in plan.faults]
    assert len(losing) > 0.05 * len(plans)
    assert all(GARDENER not in plan.applications for plan in losing), "deletions are in etcd alone"


async def let_rot(world: World, name: str) -> None:
    """A frame of each of that process's replicas of the topic, where no start looks."""
    await asyncio.sleep(NOTED_S)
    partitions = [partition for partition, _ in world.copies.states()]
    hidden = {partition: world.copies.rots(name, partition) for partition in partitions}
    await world.lose_power(name, Tear.NOTHING)
    machine = world.machines[name]
    machine.disk = machine.disk.reopen()
    for partition, incarnation in hidden.items():
        directory = directory_of(partition)
        rotted = flip_a_bit(machine.disk, directory, world.random, Where.BEHIND_AN_INDEX)
        assert rotted is not None
        assert rotted.where is Where.BEHIND_AN_INDEX
        world.copies.hides_rot(incarnation, name, partition, rotted.end)
    await world.start(name)
    await asyncio.sleep(NOTED_S)
    rotten = {one.journal.incarnation.hex() for one in world.copies.rotten()}
    assert rotten == set(hidden.values()), "no start looks there"


async def lead(world: World, name: str) -> None:
    """It is preferred: whoever leads hands over once it is in sync."""
    async with asyncio.timeout(LEADS_S):
        while True:
            leaders = [one for one in topic_replicas(world) if one.driver.is_ready]
            if [leader.name for leader in leaders] == [name]:
                return
            for leader in leaders:
                world.processes[leader.name].node.balance_leaders()
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("leads", [False, True], ids=["it follows", "it is elected"])
def test_i26_what_rots_where_no_start_looks_is_never_read_and_copied_anew(leads: bool) -> None:
    """Who follows reads nothing of it. Who is elected replays it, and finds the frame."""

    async def story(world: World) -> None:
        [preferred] = [one.name for one in topic_replicas(world) if one.driver.leads]
        name = preferred if leads else follower(world).name
        await let_rot(world, name)
        if leads:
            await world.ready()
            await lead(world, name)
        await unearth(world)
        await world.copies.level()
        assert not world.copies.rotten(), "it has another name"
        world.copies.require_all_held()

    play(story)


def test_i26_two_replicas_of_one_process_that_rotted_are_both_found() -> None:
    """The start by which one of them is found closes the other one as well."""

    async def story(world: World) -> None:
        found = [
            one
            for partition, _ in world.copies.states()
            for one in world.copies.replicas(partition)
        ]
        leading = {one.name for one in found if one.driver.leads}
        await let_rot(world, min({one.name for one in found} - leading))
        await unearth(world)
        await world.copies.level()
        assert not world.copies.rotten(), "they have other names"
        world.copies.require_all_held()

    play(story, partitions=2)
