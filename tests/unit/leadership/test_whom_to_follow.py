"""Elections say whom a replica follows: who leads, lives, and was named by a linearizable read."""

from __future__ import annotations

import asyncio

import pytest

from oncelog_server.runtime.etcd.keys import PartitionState, partition_key
from oncelog_server.runtime.etcd.port import KeyValue
from oncelog_server.runtime.leadership.unclean import UncleanElection
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


@pytest.mark.parametrize("what", ["moved back", "elected", "being elected"])
def test_i18_a_late_read_puts_no_log_aside_that_leads(world: World, what: str) -> None:
    """It was moved away; while that is confirmed it is moved back, and an operator has it lead,
    beside the round."""

    async def story() -> None:
        _, two = await leaders(world)
        real, goes_on, held = two.etcd.get, asyncio.Event(), asyncio.Event()

        async def slowly(key: str) -> tuple[KeyValue | None, int]:
            found = await real(key)
            if key == partition_key(P0) and not goes_on.is_set() and not held.is_set():
                held.set()
                await goes_on.wait()
            return found

        two.etcd.get = slowly  # type: ignore[method-assign]
        moved_away(world)
        await held.wait()
        two.etcd.stale = what != "moved back"
        state = state_of(world)
        put_state(world, PartitionState(("n1", "n2"), ("ee" * 16,), None, state.epoch))
        await asyncio.sleep(0.1)
        electing = None
        if what != "moved back":
            if what == "being elected":
                two.etcd.hold_next_txn_reply()
            electing = asyncio.create_task(two.elections.unclean_elect(UncleanElection(P0, "n2")))
            await asyncio.sleep(0.1)
        goes_on.set()
        await asyncio.sleep(1)
        assert ("deleted", P0, 0) not in two.host.told, "the log that leads is put aside"
        two.etcd.stale = False
        if electing is not None:
            two.etcd.release_held_replies()
            await electing
            await asyncio.sleep(1)
            assert two.leads(P0) == state.epoch + 1
            assert ("deleted", P0, 0) not in two.host.told

    world.run(story)
