"""Elections say whom a replica follows: who leads, lives, and was named by a linearizable read."""

from __future__ import annotations

import asyncio

from oncelog_server.runtime.etcd.keys import PartitionState
from oncelog_server.runtime.target import Follow, Leave
from tests.unit.etcd.world import Node, World
from tests.unit.leadership.test_election import P0, put_state, put_topic, state_of


def followed(node: Node) -> object:
    """The boot id of whom it was told to follow."""
    target = node.host.targets.get(P0)
    return target.leader.boot_id if isinstance(target, Follow) else None


async def leaders(world: World) -> tuple[Node, Node]:
    """n1 leads, and n2 follows."""
    one, two = await world.node("n1").start(), world.node("n2")
    put_topic(world, "n1", "n2")
    await World.until(lambda: one.leads(P0) == 1)
    await two.start()
    await World.until(lambda: followed(two) == one.membership.boot_id)
    return one, two


def test_who_leads_is_followed_by_those_that_have_a_replica(world: World) -> None:
    async def story() -> None:
        one, two = await leaders(world)
        three = await world.node("n3").start()
        await asyncio.sleep(5)
        target = two.host.targets[P0]
        assert isinstance(target, Follow)
        assert (target.leader.node_id, target.epoch) == ("n1", 1)
        assert target.leader.boot_id == one.membership.boot_id
        assert three.host.targets == {}, "it has no replica"

    world.run(story)


def test_i5_nobody_is_followed_before_his_key_was_read(world: World) -> None:
    """The view may show what was true before this node lost an EPOCH_START that it followed."""

    async def story() -> None:
        one = await world.node("n1").start()
        put_topic(world, "n1", "n2")
        await World.until(lambda: one.leads(P0) == 1)
        two = world.node("n2")
        await two.start(elections=False)
        two.etcd.unavailable = True
        await two.elections.start()
        await asyncio.sleep(1)
        assert followed(two) is None, "only the view names it"
        two.etcd.unavailable = False
        await World.until(lambda: followed(two) == one.membership.boot_id)

    world.run(story)


def test_i5_after_a_new_lease_the_key_is_read_again(world: World) -> None:
    async def story() -> None:
        _, two = await leaders(world)
        asked: list[str] = []
        ask = two.etcd.range

        async def watched(prefix: str) -> object:
            asked.append(prefix)
            assert not isinstance(two.host.targets[P0], Follow), "it is followed no more"
            return await ask(prefix)

        two.etcd.range = watched  # type: ignore[method-assign, assignment]
        world.server.expire(two.membership.lease)
        await World.until(lambda: two.membership.lost == 1 and two.membership.valid())
        await World.until(lambda: followed(two) is not None)
        assert asked, "nobody has read it"

    world.run(story)


def test_a_change_of_the_leader_is_heard_at_once(world: World) -> None:
    async def story() -> None:
        one, two = await leaders(world)
        state = state_of(world)
        put_state(world, PartitionState(state.replicas, state.isr, None, state.epoch))
        await World.until(lambda: ("deposed", P0, 0) in two.host.told, within_ms=100)
        await World.until(lambda: followed(two) is not None)
        target = two.host.targets[P0]
        assert isinstance(target, Follow)
        assert target.epoch == one.leads(P0) == 2

    world.run(story)


def moved_away(world: World, *, replicas: tuple[str, ...] = ("n1",)) -> None:
    state = state_of(world)
    put_state(world, PartitionState(replicas, state.isr, state.leader, state.epoch))


def test_who_is_assigned_no_more_follows_nobody_and_puts_its_log_aside(world: World) -> None:
    async def story() -> None:
        _, two = await leaders(world)
        moved_away(world)
        await World.until(lambda: two.host.targets[P0] == Leave(), within_ms=100)
        assert two.host.told[-2:] == [("deposed", P0, 0), ("deleted", P0, 0)]

    world.run(story)


def test_i5_a_log_is_put_aside_once_a_read_has_confirmed_it(world: World) -> None:
    """The view is behind: by now the replica is wanted again, and may be counted."""

    async def story() -> None:
        _, two = await leaders(world)
        two.etcd.unavailable = True
        moved_away(world)
        moved_away(world, replicas=("n1", "n2"))
        two.etcd.unavailable = False
        await asyncio.sleep(5)
        assert ("deleted", P0, 0) not in two.host.told, "wanted again, and its log is gone"
        assert isinstance(two.host.targets[P0], Follow)

    world.run(story)


def test_who_is_wanted_again_follows_with_another_log(world: World) -> None:
    async def story() -> None:
        _, two = await leaders(world)
        moved_away(world)
        await World.until(lambda: two.host.targets[P0] == Leave())
        told = len(two.host.told)
        moved_away(world, replicas=("n1", "n2"))
        await World.until(lambda: isinstance(two.host.targets[P0], Follow))
        assert two.host.told[told:] == [("deposed", P0, 0), ("follows", P0, 1)]

    world.run(story)
