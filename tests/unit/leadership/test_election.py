"""Elections between nodes over one etcd: who leads, who stops, who never leads again."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from oncelog_server.core.ids import CONTROL_PARTITIONS, TRANSACTION_CONTROL_ID, PartitionId, TopicId
from oncelog_server.runtime.etcd import keys
from oncelog_server.runtime.etcd.control_partitions import create_control_partitions
from oncelog_server.runtime.etcd.keys import PartitionState, TopicValue
from oncelog_server.runtime.etcd.port import Delete, DeletePrefix, Put
from oncelog_server.runtime.etcd.refusal import EtcdRefused
from oncelog_server.runtime.leadership.held import STAND_PAUSE_MS
from oncelog_server.runtime.leadership.unclean import UncleanElection
from oncelog_server.runtime.target import Candidate, Lead
from oncelogpb.errors import InvalidArgument, Unavailable, UnknownOutcome, UnknownPartition
from tests.unit.etcd.world import Node, World

TOPIC = TopicId(b"t" * 16)
P0 = PartitionId(TOPIC, 0)


def put_topic(world: World, *replicas: str, partitions: int = 1) -> None:
    """A topic whose partitions all have these replicas."""
    value = TopicValue(TOPIC.hex(), partitions, len(replicas), {}, 0)
    for number in range(partitions):
        put_state(world, PartitionState(replicas), number)
    world.server.txn([], [Put(keys.topic_key("t"), keys.encode(value))])


def put_state(world: World, state: PartitionState, number: int = 0) -> None:
    key = keys.partition_key(PartitionId(TOPIC, number))
    world.server.txn([], [Put(key, keys.encode(state))])


def state_of(world: World, partition: PartitionId = P0) -> PartitionState:
    found = world.server.get(keys.partition_key(partition))
    assert found is not None
    return keys.decode_partition(found.value)


def leader(world: World, partition: PartitionId = P0) -> str:
    named = state_of(world, partition).leader
    return "" if named is None else named.node_id


def elected(node: Node) -> list[int]:
    return [epoch for what, _, epoch in node.host.told if what == "elected"]


def test_i18_two_nodes_race_and_each_partition_has_one_leader(world: World) -> None:
    async def story() -> None:
        nodes = [world.node("n1"), world.node("n2")]
        await asyncio.gather(*(node.start() for node in nodes))
        put_topic(world, "n1", "n2", partitions=150)
        partitions = [PartitionId(TOPIC, number) for number in range(150)]
        await World.until(lambda: all(state_of(world, p).epoch == 1 for p in partitions))
        await asyncio.sleep(1)
        for partition in partitions:
            assert [n.leads(partition) for n in nodes if n.leads(partition)] == [1]
            winner = next(n for n in nodes if n.leads(partition))
            assert leader(world, partition) == winner.membership.node.node_id
            assert state_of(world, partition).isr == (winner.host.default.incarnation.hex(),)

    world.run(story)


def test_many_partitions_are_won_in_few_transactions(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1", partitions=250)
        before = world.server.revision
        await World.until(lambda: len(node.elections.led()) == 250)
        # Those that may stand are voted for together.
        assert world.server.revision - before < 50

    world.run(story)


def test_a_restart_never_continues_an_epoch_and_need_not_wait(world: World) -> None:
    async def story() -> None:
        first = await world.node("n1", boot="first").start()
        put_topic(world, "n1")
        await World.until(lambda: first.leads(P0) == 1)
        await first.crash()
        at = world.server.revision
        again = await world.node("n1", boot="again").start(previous=first.membership.boot_id)
        await World.until(lambda: again.leads(P0) == 2, within_ms=1_000)
        assert world.server.revision > at
        assert state_of(world).isr == (again.host.default.incarnation.hex(),)

    world.run(story)


def test_a_node_that_does_not_come_back_is_replaced_when_its_lease_ends(world: World) -> None:
    async def story() -> None:
        one = await world.node("n1").start()
        put_topic(world, "n1", "n2")
        await World.until(lambda: one.leads(P0) == 1)
        two = world.node("n2")
        # As if it had joined the ISR: one incarnation for both keeps the test to one rule.
        two.host.default = one.host.default
        await two.start()
        await asyncio.sleep(20)
        assert elected(two) == []
        await one.crash()
        await World.until(lambda: two.leads(P0) == 2)

    world.run(story)


def test_only_an_isr_incarnation_wins_and_the_offline_partition_names_the_way_out(
    world: World,
) -> None:
    async def story() -> None:
        node = world.node("n1")
        put_topic(world, "n1")
        put_state(world, PartitionState(("n1",), isr=("ee" * 16,), epoch=4))
        await node.start()
        await asyncio.sleep(10)
        assert node.leads(P0) == 0
        offline = [fields for name, fields in node.log.events if name == "partition offline"]
        assert len(offline) == 1, "told once"
        assert "oncelog cluster unclean-elect" in str(offline[0]["do"])
        # The old directory is brought back.
        node.host.default = Candidate(b"\xee" * 16, 4)
        await World.until(lambda: node.leads(P0) == 5)

    world.run(story)


def test_a_replica_that_cannot_stand_holds_nobody_up_and_is_elected_when_it_can(
    world: World,
) -> None:
    async def story() -> None:
        node = world.node("n1")
        node.host.candidates[P0] = None
        put_topic(world, "n1", partitions=2)
        await node.start()
        await asyncio.sleep(5)
        assert node.elections.led() == [PartitionId(TOPIC, 1)]
        del node.host.candidates[P0]
        node.elections.look_again(P0)
        await World.until(lambda: node.leads(P0) == 1, within_ms=100)

    world.run(story)


def test_a_log_ahead_of_etcd_refuses_etcd(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        node.host.default = Candidate(b"i" * 16, 7)
        put_topic(world, "n1")
        await node.start()
        await World.until(lambda: node.refused)
        assert node.leads(P0) == 0
        assert "oncelog cluster recover" in str(node.refused[0])

    world.run(story)


def test_a_lost_answer_to_an_election_is_found_out(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1")
        node.etcd.drop_next_txn_reply()
        await World.until(lambda: node.leads(P0) == 1)
        assert elected(node) == [1]

    world.run(story)


def test_i18_a_delayed_election_is_adopted_once_and_not_after_another_one(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1")
        node.etcd.hold_next_txn()
        await World.until(lambda: node.leads(P0) == 1)
        # The delayed one compares a revision that has gone: nothing happens.
        node.etcd.release_held_txns()
        await asyncio.sleep(2)
        assert elected(node) == [1]
        assert state_of(world).epoch == 1

    world.run(story)


def test_i18_an_election_answered_after_the_key_was_lost_is_void(world: World) -> None:
    """A wins, its key lapses, B wins and commits, then A hears that it has won."""

    async def story() -> None:
        one = await world.node("n1").start()
        one.etcd.hold_next_txn_reply()
        put_topic(world, "n1", "n2")
        await World.until(lambda: leader(world) == "n1")
        one.etcd.unavailable = True
        world.server.expire(one.membership.lease)
        two = world.node("n2")
        two.host.default = one.host.default
        await two.start()
        await World.until(lambda: two.leads(P0) == 2)
        one.etcd.unavailable = False
        await World.until(lambda: one.membership.lost == 1 and one.membership.valid())
        one.etcd.release_held_replies()
        await asyncio.sleep(5)
        assert ("elected", P0, 1) not in one.host.told
        assert two.leads(P0) == 2

    world.run(story)


def test_i18_no_leadership_back_after_a_new_lease(world: World) -> None:
    async def story() -> None:
        one = await world.node("n1").start()
        put_topic(world, "n1", "n2")
        await World.until(lambda: one.leads(P0) == 1)
        two = world.node("n2")
        two.host.default = one.host.default
        await two.start()
        one.etcd.unavailable = True
        await World.until(lambda: two.leads(P0) == 2)
        assert one.leads(P0) == 1, "it does not know yet"
        assert not one.membership.valid(), "but it answers nothing"
        led_at_confirmation: list[int] = []

        async def look() -> None:
            # Registered last, so it is asked after Elections has compared.
            led_at_confirmation.append(one.leads(P0))

        one.membership.on_regained(look)
        # Its watch is late: what it leads is compared, not waited for.
        one.view._listeners.clear()
        one.etcd.unavailable = False
        await World.until(one.membership.valid)
        assert led_at_confirmation == [0], "deposed before the new lease counts"
        assert ("deposed", P0, 0) in one.host.told

    world.run(story)


def test_who_lost_its_lease_and_was_not_replaced_goes_on(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1")
        await World.until(lambda: node.leads(P0) == 1)
        world.server.expire(node.membership.lease)
        await World.until(lambda: node.membership.lost == 1 and node.membership.valid())
        await asyncio.sleep(5)
        assert node.host.told == [("elected", P0, 1)]

    world.run(story)


def test_i18_who_resigned_never_leads_that_epoch_again(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1")
        await World.until(lambda: node.leads(P0) == 1)
        # etcd is away and goes on naming us.
        node.etcd.unavailable = True
        resigning = asyncio.create_task(node.elections.resign(P0))
        await asyncio.sleep(1)
        assert (leader(world), node.leads(P0)) == ("n1", 0)
        node.etcd.unavailable = False
        await resigning
        assert leader(world) == ""
        await asyncio.sleep(STAND_PAUSE_MS / 1000 / 2)
        assert leader(world) == "", "others go first"
        await World.until(lambda: node.leads(P0) == 2)
        assert elected(node) == [1, 2]

    world.run(story)


def test_a_resignation_interrupted_is_finished_by_the_round(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1")
        await World.until(lambda: node.leads(P0) == 1)
        node.etcd.unavailable = True
        resigning = asyncio.create_task(node.elections.resign(P0))
        await asyncio.sleep(1)
        resigning.cancel()
        node.etcd.unavailable = False
        await World.until(lambda: elected(node) == [1, 2])
        assert "resigned" in node.log.names()

    world.run(story)


def test_etcd_naming_somebody_else_deposes(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1")
        await World.until(lambda: node.leads(P0) == 1)
        other = keys.LeaderValue("n9", "99" * 16, "h", 1)
        put_state(world, msgspec.structs.replace(state_of(world), leader=other, epoch=2))
        await World.until(lambda: ("deposed", P0, 0) in node.host.told)
        # That leader's key does not stand: somebody living may win.
        await World.until(lambda: node.leads(P0) == 3)

    world.run(story)


def test_a_deleted_topic_is_told_once_and_is_not_a_deposition(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        info = await node.topics.create("orders", 2, 1, {})
        partitions = [PartitionId(info.topic_id, number) for number in range(2)]
        await World.until(lambda: node.elections.led() == partitions)
        await node.topics.delete("orders")
        await asyncio.sleep(1)
        assert node.host.told[2:] == [("deleted", p, 0) for p in partitions]

    world.run(story)


def test_i18_no_log_is_put_aside_where_all_keys_are_deleted_at_once(world: World) -> None:
    """`etcdctl del --prefix`: no topic was deleted, etcd was."""

    async def story() -> None:
        leading, following = world.node("n1"), world.node("n2")
        await leading.start()
        await following.start()
        put_topic(world, "n1", "n2")
        await World.until(lambda: leading.leads(P0) == 1)
        await asyncio.sleep(1)
        world.server.txn([], [DeletePrefix("")])
        await asyncio.sleep(3)
        for node in (leading, following):
            assert ("deleted", P0, 0) not in node.host.told, "its log is in orphans/"
            assert [type(error) for error in node.refused] == [EtcdRefused]

    world.run(story)


def test_a_topic_is_left_although_who_deleted_it_died_before_its_partitions_went(
    world: World,
) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1")
        await World.until(lambda: node.leads(P0) == 1)
        world.server.txn([], [Delete(keys.topic_key("t"))])
        await asyncio.sleep(1)
        assert node.elections.led() == [], "nobody leads what is no more"

    world.run(story)


def test_a_topic_that_is_made_or_deleted_is_news_to_its_own_replicas_alone(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        put_topic(world, "n1", partitions=3)
        await World.until(lambda: len(node.elections.led()) == 3)
        await asyncio.sleep(1)
        told = {key: len(isrs) for key, isrs in node.host.isrs.items()}
        await node.topics.create("other", 2, 1, {})
        await World.until(lambda: len(node.elections.led()) == 5)
        await node.topics.delete("other")
        await World.until(lambda: len(node.elections.led()) == 3)
        now = {key: len(isrs) for key, isrs in node.host.isrs.items()}
        assert {key: now[key] for key in told} == told, "they are ticked for nothing"

    world.run(story)


def test_a_process_stands_only_for_the_roles_that_it_runs(world: World) -> None:
    async def story() -> None:
        leader_only = await world.node("n1", "partition_leader").start()
        both = await world.node("n2", "partition_leader", "coordinator").start()
        assert await create_control_partitions(
            both.etcd, both.view, "coordinator", replication_factor=1
        )
        assert not await create_control_partitions(
            both.etcd, both.view, "coordinator", replication_factor=1
        ), "once"
        await World.until(lambda: len(both.elections.led()) == CONTROL_PARTITIONS)
        assert {p.topic_id for p in both.elections.led()} == {TRANSACTION_CONTROL_ID}
        assert leader_only.elections.led() == []

    world.run(story)


def test_unclean_election_takes_an_unfit_replica_and_says_so(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        put_topic(world, "n1")
        put_state(world, PartitionState(("n1",), isr=("ee" * 16,), epoch=4))
        await node.start()
        assert await node.elections.unclean_elect(UncleanElection(P0, "n1")) == (5, 0)
        granted = state_of(world)
        target = node.host.targets[P0]
        assert isinstance(target, Lead)
        assert (target.epoch, target.unclean_epoch) == (5, 5)
        assert (granted.epoch, granted.unclean_epoch) == (5, 5)
        assert granted.isr == (node.host.default.incarnation.hex(),)
        assert ("elected", P0, 5) in node.host.told

    world.run(story)


def test_unclean_election_is_refused_in_order_of_precedence(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        put_topic(world, "n2")
        await node.start()
        elect = node.elections.unclean_elect
        with pytest.raises(InvalidArgument, match="ask node n2 itself"):
            await elect(UncleanElection(P0, "n2"))
        with pytest.raises(UnknownPartition):
            await elect(UncleanElection(PartitionId(TOPIC, 9), "n1"))
        with pytest.raises(InvalidArgument, match="holds no replica"):
            await elect(UncleanElection(P0, "n1"))
        put_topic(world, "n1")
        await World.until(lambda: node.leads(P0) == 1)
        with pytest.raises(InvalidArgument, match="living leader"):
            await elect(UncleanElection(P0, "n1"))
        node.etcd.unavailable = True
        with pytest.raises(Unavailable):
            await elect(UncleanElection(P0, "n1"))

    world.run(story)


def test_unclean_election_without_an_answer_is_an_unknown_outcome(world: World) -> None:
    async def story() -> None:
        node = world.node("n1")
        put_topic(world, "n1")
        put_state(world, PartitionState(("n1",), isr=("ee" * 16,), epoch=4))
        await node.start()
        node.etcd.drop_next_txn_reply()
        with pytest.raises(UnknownOutcome):
            await node.elections.unclean_elect(UncleanElection(P0, "n1"))
        # It was applied: the round finds out.
        await World.until(lambda: node.leads(P0) == 5)

    world.run(story)
