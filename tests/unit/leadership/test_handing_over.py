"""Leadership that changes hands while all live: who goes first at an election, who resigns, and who
stands no more."""

from __future__ import annotations

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.keys import PartitionState, TopicValue
from oncelog_server.runtime.etcd.port import Put
from oncelog_server.runtime.leadership.preference import PREFERENCE_PAUSE_MS
from tests.unit.etcd.world import Node, World, loop_ms

TOPIC = TopicId(b"t" * 16)
NODES = ("n1", "n2", "n3")


def partitions(count: int) -> list[PartitionId]:
    return [PartitionId(TOPIC, number) for number in range(count)]


async def three(world: World) -> list[Node]:
    """Any of them may win: one incarnation for all keeps these tests to who goes first."""
    nodes = [world.node(name) for name in NODES]
    for node in nodes:
        node.host.default = nodes[0].host.default
        await node.start()
    return nodes


async def die(world: World, node: Node) -> None:
    """Its lease is over."""
    lease = node.membership.lease
    await node.crash()
    world.server.expire(lease)


def put_topic(world: World, count: int) -> None:
    """Each partition is preferred by the next node."""
    for number in range(count):
        first = number % 3
        replicas = (*NODES[first:], *NODES[:first])
        put_state(world, number, PartitionState(replicas))
    value = TopicValue(TOPIC.hex(), count, 3, {}, 0)
    world.server.txn([], [Put(keys.topic_key("t"), keys.encode(value))])


def put_state(world: World, number: int, state: PartitionState) -> None:
    key = keys.partition_key(PartitionId(TOPIC, number))
    world.server.txn([], [Put(key, keys.encode(state))])


def state_of(world: World, partition: PartitionId) -> PartitionState:
    found = world.server.get(keys.partition_key(partition))
    assert found is not None
    return keys.decode_partition(found.value)


def leaders(world: World, count: int) -> list[str]:
    named = [state_of(world, partition).leader for partition in partitions(count)]
    return ["" if leader is None else leader.node_id for leader in named]


def test_who_should_lead_is_elected_when_all_live(world: World) -> None:
    async def story() -> None:
        await three(world)
        put_topic(world, 6)
        await World.until(lambda: all(leaders(world, 6)))
        assert leaders(world, 6) == [*NODES, *NODES]

    world.run(story)


def test_nobody_waits_for_a_dead_one_and_the_next_in_the_list_wins(world: World) -> None:
    async def story() -> None:
        nodes = await three(world)
        put_topic(world, 3)
        await World.until(lambda: all(leaders(world, 3)))
        full = ("01" * 16, "02" * 16, nodes[0].host.default.incarnation.hex())
        for number, leader in enumerate(leaders(world, 3)):
            state = state_of(world, PartitionId(TOPIC, number))
            assert leader == state.replicas[0]
            put_state(world, number, keys.PartitionState(state.replicas, full, state.leader, 1))
        await die(world, nodes[0])
        begun = loop_ms()
        await World.until(lambda: leaders(world, 3)[0] != "n1")
        assert loop_ms() - begun < PREFERENCE_PAUSE_MS
        assert leaders(world, 3)[0] == "n2"

    world.run(story)


def test_a_preferred_one_that_cannot_stand_costs_a_moment(world: World) -> None:
    async def story() -> None:
        nodes = await three(world)
        nodes[0].host.candidates[partitions(1)[0]] = None
        put_topic(world, 1)
        await World.until(lambda: all(leaders(world, 1)), within_ms=3 * PREFERENCE_PAUSE_MS)
        assert leaders(world, 1) == ["n2"]

    world.run(story)


def test_i18_many_partitions_change_hands_in_few_transactions(world: World) -> None:
    async def story() -> None:
        nodes = await three(world)
        put_topic(world, 300)
        await World.until(lambda: all(leaders(world, 300)))
        first = nodes[0]
        led = list(first.elections.led())
        assert len(led) == 100
        before = world.server.revision
        first.elections.withdraw()
        await first.membership.announce_leaving()
        first.elections.hand_over(led)
        assert first.elections.led() == [], "from this very turn"
        await World.until(lambda: "n1" not in leaders(world, 300) and all(leaders(world, 300)))
        assert world.server.revision - before < 15
        assert {state_of(world, partition).epoch for partition in led} == {2}
        assert first.log.names().count("resigned") == len(led)

    world.run(story)


def test_i18_who_withdrew_follows_and_is_never_elected_again(world: World) -> None:
    async def story() -> None:
        nodes = await three(world)
        put_topic(world, 1)
        [place] = partitions(1)
        await World.until(lambda: nodes[0].leads(place) == 1)
        nodes[0].elections.withdraw()
        nodes[0].elections.hand_over([place])
        await World.until(lambda: ("follows", place, 2) in nodes[0].host.told)
        for node in nodes[1:]:
            await die(world, node)
        await World.until(lambda: loop_ms() > 60_000, within_ms=90_000)
        assert state_of(world, place).epoch <= 3
        assert ("elected", place, 1) in nodes[0].host.told
        assert [what for what, _, _ in nodes[0].host.told].count("elected") == 1

    world.run(story)


def test_a_key_that_changed_meanwhile_is_resigned_by_itself(world: World) -> None:
    async def story() -> None:
        nodes = await three(world)
        put_topic(world, 6)
        await World.until(lambda: all(leaders(world, 6)))
        led = list(nodes[0].elections.led())
        # The view of who resigns does not show this change of the ISR yet.
        changed = state_of(world, led[0])
        put_state(
            world, led[0].number, keys.PartitionState(changed.replicas, (*changed.isr, "ff" * 16),
                                                      changed.leader, changed.epoch)
        )  # fmt: skip
        nodes[0].elections.hand_over(led)
        await World.until(lambda: all(state_of(world, place).epoch == 2 for place in led))
        assert "ff" * 16 in state_of(world, led[0]).isr

    world.run(story)


def test_who_is_about_to_stop_says_so_and_keeps_its_lease(world: World) -> None:
    async def story() -> None:
        one, two, _ = await three(world)
        await one.membership.announce_leaving()
        await World.until(lambda: two.view.leaving == {"n1"})
        assert one.membership.valid()
        # Another process of that node does not stop.
        again = world.node("n1")
        await again.start(elections=False)
        await World.until(lambda: not two.view.leaving)
        # A lease that is lost now comes back with a key that says it, too.
        world.server.expire(one.membership.lease)
        await World.until(lambda: one.membership.lost == 1 and one.membership.valid())
        await again.stop()
        await World.until(lambda: two.view.leaving == {"n1"})

    world.run(story)
