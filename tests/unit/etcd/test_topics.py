"""Creating, altering and deleting topics, by processes that may die in between."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from oncelog_server.core.ids import TRANSACTION_CONTROL, TRANSACTION_CONTROL_ID, PartitionId
from oncelog_server.runtime.etcd import keys, topics
from oncelog_server.runtime.etcd.control_partitions import (
    ControlPartitions,
    create_control_partitions,
)
from oncelog_server.runtime.etcd.port import Put
from oncelog_server.runtime.etcd.topics import CHANGE_TIMEOUT_MS
from oncelogpb.errors import (
    InvalidArgument,
    LimitExceeded,
    OncelogError,
    TopicExists,
    Unavailable,
    UnknownOutcome,
    UnknownTopic,
)
from tests.unit.etcd.world import LEASE_MS, Log, Node, World


def partition_keys(world: World) -> list[str]:
    return [kv.key for kv in world.server.range(keys.PARTITIONS)]


@pytest.mark.parametrize(
    ("name", "partitions", "factor", "configs", "error", "says"),
    [
        ("", 1, 1, {}, InvalidArgument, "not a topic name"),
        ("a/b", 0, 9, {}, InvalidArgument, "not a topic name"),
        ("..", 1, 1, {}, InvalidArgument, "not a topic name"),
        ("a" * 250, 1, 1, {}, InvalidArgument, "not a topic name"),
        ("line\n", 1, 1, {}, InvalidArgument, "not a topic name"),
        ("__mine", 0, 1, {}, InvalidArgument, "two underscores"),
        ("t", 0, 9, {}, InvalidArgument, "at least one partition"),
        ("t", 10_001, 9, {}, LimitExceeded, "partitions_per_topic_max"),
        ("t", 1, 0, {}, InvalidArgument, "replication factor"),
        ("t", 1, 2, {"a": "x" * 9_999}, LimitExceeded, "config_bytes_max"),
        ("t", 1, 1, {str(n): "" for n in range(101)}, LimitExceeded, "configs_max"),
        ("t", 1, 1, {"a": "x" * 5_000}, LimitExceeded, "config_bytes_max"),
    ],
)
def test_what_is_wrong_is_named_in_order_of_precedence(
    world: World,
    name: str,
    partitions: int,
    factor: int,
    configs: dict[str, str],
    error: type[OncelogError],
    says: str,
) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        before = world.server.revision
        with pytest.raises(error, match=says):
            await node.topics.create(name, partitions, factor, configs)
        assert world.server.revision == before

    world.run(story)


def test_a_created_topic_is_shown_and_led(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        info = await node.topics.create("orders", 150, 1, {"retention": "1d"})
        assert node.view.topic("orders") == info
        assert (info.partitions, info.configs) == (150, {"retention": "1d"})
        await World.until(lambda: len(node.elections.led()) == 150)
        assert world.server.range(keys.CREATING) == []
        with pytest.raises(TopicExists, match="exists already"):
            await node.topics.create("orders", 1, 1, {})

    world.run(story)


def test_partitions_go_round_robin_to_the_least_loaded_first(world: World) -> None:
    async def story() -> None:
        one = await world.node("n1").start(elections=False)
        await world.node("n0", "coordinator").start(elections=False)
        await one.topics.create("first", 3, 1, {})
        await world.node("n2").start(elections=False)
        await one.view.wait_for(lambda view: len(view.nodes()) == 3, timeout_ms=1_000)
        info = await one.topics.create("second", 5, 1, {})
        placed = [one.view.partition(PartitionId(info.topic_id, n)) for n in range(5)]
        assert [p.replicas[0] for p in placed if p] == ["n2", "n1", "n2", "n1", "n2"]

    world.run(story)


def test_control_partitions_are_spread_over_the_nodes_that_run_their_role(world: World) -> None:
    async def story() -> None:
        nodes = [await world.node(f"n{n}", "coordinator").start(elections=False) for n in range(3)]
        await world.node("n9", "offset_manager").start(elections=False)
        view = nodes[0].view
        await view.wait_for(lambda view: len(view.nodes()) == 4, timeout_ms=1_000)
        assert await create_control_partitions(
            nodes[0].etcd, view, "coordinator", replication_factor=1
        )
        assert not await create_control_partitions(
            nodes[1].etcd, nodes[1].view, "coordinator", replication_factor=1
        )
        await view.wait_for(lambda view: bool(view.replica_counts()), timeout_ms=1_000)
        assert view.replica_counts() == {"n0": 6, "n1": 5, "n2": 5}
        # Who comes once they are led gets none of them, and waits for nobody.
        for node in nodes:
            await node.elections.start()
        await World.until(lambda: len(nodes[0].elections.led()) == 6)
        late = await world.node("n3", "coordinator").start(elections=False)
        assert not await create_control_partitions(
            late.etcd, late.view, "coordinator", replication_factor=1
        )
        assert late.view.replicas_on("n3") == []

    world.run(story)


def test_i25_control_partitions_with_three_replicas_wait_for_three_processes(
    world: World,
) -> None:
    async def story() -> None:
        first = await world.node("n1", "coordinator").start(elections=False)
        control = ControlPartitions(
            first.etcd, first.view, ["coordinator"], replication_factor=3, reporter=Log()
        )
        assert not await control.create()
        waiting = asyncio.ensure_future(control.create_when_others_live())
        await world.node("n2", "coordinator").start(elections=False)
        # One that runs another role counts for nothing.
        await world.node("n3", "offset_manager").start(elections=False)
        await asyncio.sleep(3)
        assert not waiting.done()
        await world.node("n4", "coordinator").start(elections=False)
        await waiting
        assert control.stand
        entry = first.view.entry(PartitionId(TRANSACTION_CONTROL_ID, 7))
        assert entry is not None
        assert sorted(entry.state.replicas) == ["n1", "n2", "n4"]
        for described in (
            first.view.topic(TRANSACTION_CONTROL),
            first.view.topic_by_id(TRANSACTION_CONTROL_ID),
        ):
            assert described is not None
            assert described.replication_factor == 3, "as its partitions have"

    world.run(story)


def test_i25_processes_that_start_at_the_same_time_share_the_control_partitions_that_nobody_led(
    world: World,
) -> None:
    """The first one is alone when it creates them, and has won one before the second one looks."""

    async def story() -> None:
        first = await world.node("n1", "coordinator").start(elections=False)
        assert await create_control_partitions(
            first.etcd, first.view, "coordinator", replication_factor=1
        )
        won = PartitionId(TRANSACTION_CONTROL_ID, 2)
        found, _ = await first.etcd.get(keys.partition_key(won))
        assert found is not None
        led = msgspec.structs.replace(keys.decode_partition(found.value), epoch=1, isr=("aa",))
        await first.etcd.txn([], [Put(found.key, keys.encode(led))])
        second = await world.node("n2", "coordinator").start(elections=False)
        assert await create_control_partitions(
            second.etcd, second.view, "coordinator", replication_factor=1
        )
        await first.view.wait_for(lambda view: len(view.replicas_on("n2")) >= 7, timeout_ms=1_000)
        assert len(first.view.replicas_on("n1")) + len(first.view.replicas_on("n2")) == 16
        assert won in first.view.replicas_on("n1"), "what was ever led stays where its journal is"
        # Of a view that is behind: an election was quicker.
        second.etcd.stale = True
        third = await world.node("n3", "coordinator").start(elections=False)
        third.etcd.stale = True
        for kv in world.server.range(keys.PARTITIONS):
            state = msgspec.structs.replace(keys.decode_partition(kv.value), epoch=1, isr=("aa",))
            await first.etcd.txn([], [Put(kv.key, keys.encode(state))])
        assert not await create_control_partitions(
            third.etcd, third.view, "coordinator", replication_factor=1
        )
        await first.view.wait_for(lambda view: len(view.nodes()) == 3, timeout_ms=1_000)
        assert first.view.replicas_on("n3") == []

    world.run(story)


def test_without_a_partition_leader_nothing_is_created(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1", "coordinator").start(elections=False)
        with pytest.raises(Unavailable, match="0 are alive: start more partition leader"):
            await node.topics.create("orders", 1, 1, {})

    world.run(story)


def test_of_two_creators_one_wins(world: World) -> None:
    async def story() -> None:
        nodes = [world.node("n1"), world.node("n2")]
        for node in nodes:
            await node.start(elections=False)
        results = await asyncio.gather(
            *(node.topics.create("orders", 2, 1, {}) for node in nodes), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in results) == ["TopicExists", "TopicInfo"]
        assert len(partition_keys(world)) == 2

    world.run(story)


async def die_after_txns(node: Node, txns: int) -> None:
    """Creates a topic of 150 partitions and dies after so many of its transactions."""
    real, left = node.etcd.txn, txns

    async def limited(compares, then):  # type: ignore[no-untyped-def]
        nonlocal left
        if left == 0:
            node.etcd.unavailable = True
        left -= 1
        return await real(compares, then)

    node.etcd.txn = limited  # type: ignore[method-assign]
    with pytest.raises((Unavailable, UnknownOutcome)):
        await node.topics.create("orders", 150, 1, {})
    await node.crash()


@pytest.mark.parametrize("txns", [1, 2, 3])
def test_a_creator_that_dies_leaves_a_name_that_is_free_again(world: World, txns: int) -> None:
    async def story() -> None:
        dying = await world.node("n1").start(elections=False)
        other = await world.node("n2").start()
        await die_after_txns(dying, txns)
        assert other.view.topic("orders") is None
        await asyncio.sleep(LEASE_MS / 1000 + 1)
        info = await other.topics.create("orders", 2, 1, {})
        # What the dead creator left was swept.
        assert partition_keys(world) == [
            keys.partition_key(PartitionId(info.topic_id, number)) for number in range(2)
        ]

    world.run(story)


def test_i29_a_creator_that_died_does_not_keep_the_name(world: World) -> None:
    """Told TOPIC_EXISTS, a client would go on and never find the topic."""

    async def story() -> None:
        dying, other = world.node("n1"), world.node("n2")
        await dying.start(elections=False)
        await other.start(elections=False)
        dying.etcd.hold_next_txn_reply()
        creating = asyncio.create_task(dying.topics.create("orders", 2, 1, {}))
        await asyncio.sleep(0.1)
        creating.cancel()
        dying.etcd.unavailable = True
        with pytest.raises(Unavailable, match="try again"):
            await other.topics.create("orders", 1, 1, {})
        await asyncio.sleep(10)
        assert (await other.topics.create("orders", 1, 1, {})).partitions == 1

    world.run(story)


def test_i29_a_creator_that_gave_up_and_lives_frees_the_name_for_others(world: World) -> None:
    """Nobody else may: the name was taken for as long as its process lived."""

    async def story() -> None:
        living, other = world.node("n1"), world.node("n2")
        await living.start(elections=False)
        await other.start(elections=False)
        for give_up in (asyncio.Task.cancel, lambda creating: living.etcd.release_held_replies()):
            living.etcd.hold_next_txn_reply()
            creating = asyncio.create_task(living.topics.create("orders", 2, 1, {}))
            await asyncio.sleep(0.1)
            living.etcd.unavailable = True
            give_up(creating)
            await asyncio.gather(creating, return_exceptions=True)
            await living.topics.free_names()
            with pytest.raises(Unavailable, match="being created"):
                await other.topics.create("orders", 1, 1, {})
            living.etcd.unavailable = False
            await living.topics.free_names()
            await other.topics.create("orders", 1, 1, {})
            await other.topics.delete("orders")

    world.run(story)


def test_a_creation_that_is_refused_is_not_looked_for(world: World) -> None:
    """Whoever asks for a topic that is there, again and again, costs etcd nothing afterwards."""

    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        await node.topics.create("orders", 1, 1, {})
        for _ in range(10):
            with pytest.raises(TopicExists):
                await node.topics.create("orders", 1, 1, {})
        assert not node.topics._abandoned

    world.run(story)


def test_a_creation_that_arrives_late_is_found_too(world: World) -> None:
    async def story() -> None:
        living, other = world.node("n1"), world.node("n2")
        await living.start(elections=False)
        await other.start(elections=False)
        living.etcd.hold_next_txn()
        creating = asyncio.create_task(living.topics.create("orders", 2, 1, {}))
        await asyncio.sleep(0.1)
        creating.cancel()
        await living.topics.free_names()
        living.etcd.release_held_txns()
        await asyncio.sleep(0.1)
        with pytest.raises(Unavailable, match="being created"):
            await other.topics.create("orders", 1, 1, {})
        await living.topics.free_names()
        await other.topics.create("orders", 1, 1, {})

    world.run(story)


def test_a_creation_under_way_is_not_swept_and_keeps_its_name(world: World) -> None:
    async def story() -> None:
        slow, other = world.node("n1"), world.node("n2")
        await slow.start(elections=False)
        await other.start(elections=False)
        slow.etcd.hold_next_txn_reply()
        creating = asyncio.create_task(slow.topics.create("orders", 2, 1, {}))
        await asyncio.sleep(1)
        with pytest.raises(Unavailable, match="being created"):
            await other.topics.create("orders", 1, 1, {})
        slow.etcd.release_held_replies()
        slow.etcd.hold_next_txn_reply()
        await asyncio.sleep(1)
        assert len(partition_keys(world)) == 2
        assert await other.topics.sweep() == 0
        slow.etcd.release_held_replies()
        assert (await creating).partitions == 2

    world.run(story)


def test_a_creator_that_lost_its_lease_meanwhile_creates_nothing(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        node.etcd.hold_next_txn_reply()
        creating = asyncio.create_task(node.topics.create("orders", 2, 1, {}))
        await asyncio.sleep(1)
        world.server.expire(node.membership.lease)
        node.etcd.release_held_replies()
        with pytest.raises(Unavailable, match="lost its lease"):
            await creating
        assert world.server.range(keys.TOPICS) == []
        assert partition_keys(world) == []

    world.run(story)


def test_a_creator_that_lost_the_name_to_another_does_not_take_its_topic_for_its_own(
    world: World,
) -> None:
    async def story() -> None:
        slow, other = world.node("n1"), world.node("n2")
        await slow.start(elections=False)
        await other.start(elections=False)
        real = slow.etcd.txn

        async def late(compares, then):  # type: ignore[no-untyped-def]
            if any(op.key == keys.topic_key("orders") for op in then):
                world.server.expire(slow.membership.lease)
                await other.topics.create("orders", 1, 1, {})
            return await real(compares, then)

        slow.etcd.txn = late  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="lost its lease"):
            await slow.topics.create("orders", 2, 1, {})

    world.run(story)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_answer_never_makes_a_lie(world: World, lost: int) -> None:
    """Whichever of the three steps' answers is lost: what is said is what stands."""

    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        real, seen = node.etcd.txn, 0

        async def losing(compares, then):  # type: ignore[no-untyped-def]
            nonlocal seen
            seen += 1
            if seen == lost:
                node.etcd.drop_next_txn_reply()
            return await real(compares, then)

        node.etcd.txn = losing  # type: ignore[method-assign]
        try:
            info = await node.topics.create("orders", 2, 1, {})
        except Unavailable:
            assert world.server.get(keys.topic_key("orders")) is None
            # The same process may try again at once.
            await World.until(lambda: world.server.revision == node.view.revision)
            await node.topics.create("orders", 3, 1, {})
            assert len(partition_keys(world)) == 3 + (2 if lost == 2 else 0)
            assert await node.topics.sweep() == (2 if lost == 2 else 0)
            assert len(partition_keys(world)) == 3
        else:
            assert node.view.topic("orders") == info
            assert lost == 3

    world.run(story)


def test_alter_merges_and_an_empty_value_removes(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        await node.topics.create("orders", 1, 1, {"a": "1", "b": "2"})
        node.etcd.drop_next_txn_reply()
        info = await node.topics.alter("orders", {"a": "", "c": "3"})
        assert info.configs == {"b": "2", "c": "3"}
        assert node.view.topic("orders") == info
        with pytest.raises(UnknownTopic):
            await node.topics.alter("nothing", {})

    world.run(story)


def test_each_change_makes_a_later_version(world: World) -> None:
    """By it a recovery tells which memory of a topic is the newest."""

    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        await node.topics.create("orders", 1, 1, {})
        versions = []
        for number in range(3):
            await node.topics.alter("orders", {"a": str(number)})
            found = world.server.get(keys.topic_key("orders"))
            assert found is not None
            versions.append(keys.topic_value(found.value).version)
        assert versions == sorted(set(versions)), versions

    world.run(story)


def test_a_deletion_spares_the_next_topic_of_that_name(world: World) -> None:
    async def story() -> None:
        node, other = world.node("n1"), world.node("n2")
        await node.start(elections=False)
        await other.start(elections=False)
        first = await node.topics.create("orders", 1, 1, {})
        await other.view.wait_for(lambda view: view.topic("orders") == first, timeout_ms=1_000)
        real = node.etcd.txn

        async def slow(compares, then):  # type: ignore[no-untyped-def]
            result = await real(compares, then)
            node.etcd.txn = real  # type: ignore[method-assign]
            await other.topics.create("orders", 2, 1, {})
            return result

        node.etcd.txn = slow  # type: ignore[method-assign]
        assert await node.topics.delete("orders") == first.topic_id
        found = world.server.get(keys.topic_key("orders"))
        assert found is not None, "it deleted what another has made since"
        assert keys.topic_value(found.value).partitions == 2

    world.run(story)


def test_a_late_request_to_delete_leaves_what_was_made_since_alone(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        first = await node.topics.create("orders", 1, 1, {})
        assert await node.topics.delete("orders", first.topic_id) == first.topic_id
        second = await node.topics.create("orders", 1, 1, {})
        with pytest.raises(UnknownTopic, match="another one has its name") as late:
            await node.topics.delete("orders", first.topic_id)
        assert late.value.metadata["topic_id"] == second.topic_id.hex()
        assert node.view.topic("orders") == second

    world.run(story)


def test_delete_removes_the_topic_then_its_partitions(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        info = await node.topics.create("orders", 3, 1, {})
        node.etcd.drop_next_txn_reply()
        assert await node.topics.delete("orders") == info.topic_id
        assert node.view.topic("orders") is None
        assert partition_keys(world) == []
        assert await node.view.is_gone(info.topic_id)
        with pytest.raises(UnknownTopic):
            await node.topics.delete("orders")
        for own in ("__consumer_offsets", "__transaction_control"):
            with pytest.raises(InvalidArgument, match="Oncelog's own"):
                await node.topics.delete(own)

    world.run(story)


def test_i31_a_change_that_etcd_never_answers_ends_as_unknown(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        await node.topics.create("orders", 1, 1, {})
        node.etcd.hold_next_txn()
        deleting = asyncio.create_task(node.topics.delete("orders"))
        await asyncio.sleep(0.1)
        node.etcd.unavailable = True
        await asyncio.sleep(CHANGE_TIMEOUT_MS / 1000 + 1)
        with pytest.raises(UnknownOutcome):
            await deleting
        with pytest.raises(Unavailable, match="was not changed"):
            await node.topics.delete("orders")

    world.run(story)


@pytest.mark.parametrize(
    ("limit", "partitions"),
    [("topics_max", 1), ("partitions_max", 5)],
    ids=["topics", "partitions"],
)
def test_a_cluster_holds_so_many_topics_and_partitions(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: str, partitions: int
) -> None:
    monkeypatch.setattr(topics, "TOPICS_MAX", 2 if limit == "topics_max" else 3)
    monkeypatch.setattr(topics, "PARTITIONS_MAX", 6)

    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        await node.topics.create("first", partitions, 1, {})
        # Two at once do not take the last place twice.
        outcomes = await asyncio.gather(
            *(node.topics.create(name, 1, 1, {}) for name in ("second", "third")),
            return_exceptions=True,
        )
        assert [type(outcome).__name__ for outcome in outcomes] == ["TopicInfo", "LimitExceeded"]
        before = world.server.revision
        with pytest.raises(LimitExceeded, match=f"{limit} ") as refusal:
            await node.topics.create("fourth", 1, 1, {})
        assert refusal.value.metadata["limit"] == limit
        assert world.server.revision == before
        with pytest.raises(TopicExists):
            await node.topics.create("first", 1, 1, {})
        await node.topics.delete("second")
        await node.topics.create("fourth", 1, 1, {})

    world.run(story)


def test_a_creation_that_failed_takes_no_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "TOPICS_MAX", 1)

    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        with pytest.raises(InvalidArgument):
            await node.topics.create("a/b", 1, 1, {})
        monkeypatch.setattr(node.topics, "_place", _unavailable)
        with pytest.raises(Unavailable):
            await node.topics.create("first", 1, 1, {})
        monkeypatch.undo()
        monkeypatch.setattr(topics, "TOPICS_MAX", 1)
        await node.topics.create("first", 1, 1, {})

    world.run(story)


def _unavailable(partitions: int, replication_factor: int) -> list[keys.PartitionState]:
    raise Unavailable("nobody runs")
