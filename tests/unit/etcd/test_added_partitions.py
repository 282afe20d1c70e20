"""Partitions added to a topic, by processes that may die in between: the keys of the partitions are
written first, the topic's key last, and nobody knows of a partition before (ADR 32)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import TopicInfo
from oncelog_server.runtime.etcd import keys, topics
from oncelog_server.runtime.etcd.topics import CHANGE_TIMEOUT_MS
from oncelogpb.errors import (
    InvalidArgument,
    LimitExceeded,
    OncelogError,
    Unavailable,
    UnknownOutcome,
    UnknownTopic,
)
from tests.unit.etcd.world import Node, World

MANY = 250


def numbers(world: World) -> list[int]:
    """Of the partition keys that stand."""
    found = [keys.partition_of_key(kv.key).number for kv in world.server.range(keys.PARTITIONS)]
    return sorted(found)


def count(world: World, name: str = "orders") -> int:
    """What the topic's key says."""
    found = world.server.get(keys.topic_key(name))
    assert found is not None
    return keys.topic_value(found.value).partitions


def epochs(node: Node, topic: TopicInfo) -> list[int]:
    """By partition, as etcd has them."""
    found = [node.view.partition(PartitionId(topic.topic_id, n)) for n in range(topic.partitions)]
    return [-1 if partition is None else partition.epoch for partition in found]


async def all_led(node: Node, topic: TopicInfo, partitions: int) -> None:
    def led() -> bool:
        return len([p for p in node.elections.led() if p.topic_id == topic.topic_id]) == partitions

    await World.until(led)


def test_added_partitions_are_led_and_the_others_go_on(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start()
        before = await node.topics.create("orders", 2, 1, {"a": "1"})
        await all_led(node, before, 2)
        after = await node.topics.alter("orders", {"b": "2"}, partitions=MANY)
        assert (after.partitions, after.configs) == (MANY, {"a": "1", "b": "2"})
        assert (after.topic_id, after.version) == (before.topic_id, before.version + 1)
        assert node.view.topic("orders") == after
        await all_led(node, after, MANY)
        assert epochs(node, after) == [1] * MANY
        assert [told[0] for told in node.host.told] == ["elected"] * MANY

    world.run(story)


def test_they_go_to_the_least_loaded(world: World) -> None:
    async def story() -> None:
        one = await world.node("n1").start(elections=False)
        topic = await one.topics.create("orders", 3, 1, {})
        await world.node("n2").start(elections=False)
        await one.view.wait_for(lambda view: len(view.nodes()) == 2, timeout_ms=1_000)
        await one.topics.alter("orders", {}, partitions=6)
        placed = [one.view.partition(PartitionId(topic.topic_id, n)) for n in range(3, 6)]
        assert [p.replicas[0] for p in placed if p] == ["n2", "n1", "n2"]

    world.run(story)


@pytest.mark.parametrize(
    ("partitions", "error", "says"),
    [
        (2, InvalidArgument, "has 3 partitions"),
        (10_001, LimitExceeded, "partitions_per_topic_max"),
        (9, LimitExceeded, "partitions_max"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    partitions: int,
    error: type[OncelogError],
    says: str,
) -> None:
    monkeypatch.setattr(topics, "PARTITIONS_MAX", 8)

    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        await node.topics.create("orders", 3, 1, {})
        before = world.server.revision
        with pytest.raises(error, match=says):
            await node.topics.alter("orders", {"a": "1"}, partitions=partitions)
        assert world.server.revision == before
        with pytest.raises(UnknownTopic):
            await node.topics.alter("nothing", {}, partitions=9)
        # The last place can be taken.
        assert (await node.topics.alter("orders", {}, partitions=8)).partitions == 8

    world.run(story)


def test_as_many_as_there_are_is_no_error(world: World) -> None:
    """So that the call can be repeated."""

    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        await node.topics.create("orders", 3, 1, {})
        assert (await node.topics.alter("orders", {}, partitions=3)).partitions == 3
        assert numbers(world) == [0, 1, 2]

    world.run(story)


async def _die_after(node: Node, txns: int, change: Callable[[], object]) -> None:
    """`change`, and death after so many of its transactions."""
    real, left = node.etcd.txn, txns

    async def limited(compares, then):  # type: ignore[no-untyped-def]
        nonlocal left
        if left == 0:
            node.etcd.unavailable = True
        left -= 1
        return await real(compares, then)

    node.etcd.txn = limited  # type: ignore[method-assign]
    with pytest.raises((Unavailable, UnknownOutcome)):
        await change()  # type: ignore[misc]
    await node.crash()


@pytest.mark.parametrize("txns", [0, 1, 2, 3])
def test_i18_who_dies_in_between_leaves_nothing_that_anybody_can_use(
    world: World, txns: int
) -> None:
    """Whatever keys of partitions it left: they are none before the topic says so, and the next one
    who adds partitions writes over them."""

    async def story() -> None:
        dying = await world.node("n1").start(elections=False)
        other = await world.node("n2").start()
        topic = await dying.topics.create("orders", 2, 1, {})
        await _die_after(dying, txns, lambda: dying.topics.alter("orders", {}, partitions=MANY))
        assert numbers(world) == list(range(2 + min(txns * 100, MANY - 2)))
        assert count(world) == 2
        await asyncio.sleep(20)
        assert other.view.partition(PartitionId(topic.topic_id, 2)) is None
        assert [p for p in other.elections.led() if p.number >= 2] == []
        assert [p for p in other.view.replicas_on("n2") if p.number >= 2] == []
        # Fewer than were written, then all of them.
        for partitions in (4, MANY):
            after = await other.topics.alter("orders", {}, partitions=partitions)
            # The first one is on the node that died.
            await all_led(other, after, partitions - 1)
            assert epochs(other, after) == [0] + [1] * (partitions - 1)
        assert numbers(world) == list(range(MANY))

    world.run(story)


def test_what_was_left_goes_with_the_topic(world: World) -> None:
    async def story() -> None:
        dying = await world.node("n1").start(elections=False)
        other = await world.node("n2").start(elections=False)
        await dying.topics.create("orders", 2, 1, {})
        await _die_after(dying, 1, lambda: dying.topics.alter("orders", {}, partitions=MANY))
        # It is not an orphan: the topic stands, and may be told of it at any moment.
        assert await other.topics.sweep() == 0
        await other.topics.delete("orders")
        await World.until(lambda: other.view.revision == world.server.revision)
        await other.topics.sweep()
        assert numbers(world) == []

    world.run(story)


def test_i18_of_two_who_add_at_once_nobody_overwrites_what_is_led(world: World) -> None:
    async def story() -> None:
        nodes = [await world.node(f"n{number}").start() for number in (1, 2)]
        topic = await nodes[0].topics.create("orders", 1, 1, {})
        outcomes = await asyncio.gather(
            *(
                node.topics.alter("orders", {}, partitions=partitions)
                for node, partitions in zip(nodes, (MANY, 120), strict=True)
            ),
            return_exceptions=True,
        )
        final = count(world)
        assert final in (120, MANY)
        for outcome, wanted in zip(outcomes, (MANY, 120), strict=True):
            # Who comes too late to add fewer is told how many there are.
            assert isinstance(outcome, TopicInfo | UnknownOutcome), outcome
            assert wanted <= final

        def led() -> int:
            return sum(len(node.elections.led()) for node in nodes)

        await World.until(lambda: led() == final)
        info = nodes[0].view.topic("orders")
        assert info is not None
        assert epochs(nodes[0], info) == [1] * final
        assert info.topic_id == topic.topic_id

    world.run(story)


def test_i18_keys_that_come_late_do_not_unseat_a_leader(world: World) -> None:
    """The write of new keys is on its way when its answer is given up; another process adds the
    same partitions, and they are led. Then it arrives."""

    async def story() -> None:
        slow = await world.node("n1").start(elections=False)
        other = await world.node("n2").start()
        await slow.topics.create("orders", 1, 1, {})
        slow.etcd.hold_next_txn()
        with pytest.raises(Unavailable):
            await slow.topics.alter("orders", {}, partitions=3)
        after = await other.topics.alter("orders", {}, partitions=3)
        await World.until(lambda: len(other.elections.led()) >= 1)
        before = epochs(other, after)
        led = other.elections.led()
        slow.etcd.release_held_txns()
        await asyncio.sleep(1)
        assert epochs(other, after) == before
        assert other.elections.led() == led

    world.run(story)


def test_a_deleted_topic_gets_none(world: World) -> None:
    async def story() -> None:
        slow = await world.node("n1").start(elections=False)
        other = await world.node("n2").start(elections=False)
        await slow.topics.create("orders", 1, 1, {})
        slow.etcd.hold_next_txn()
        with pytest.raises(Unavailable):
            await slow.topics.alter("orders", {}, partitions=3)
        await other.topics.delete("orders")
        again = await other.topics.create("orders", 1, 1, {})
        slow.etcd.release_held_txns()
        await asyncio.sleep(1)
        assert [keys.partition_of_key(kv.key) for kv in world.server.range(keys.PARTITIONS)] == [
            PartitionId(again.topic_id, 0)
        ]

    world.run(story)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_answer_never_makes_a_lie(world: World, lost: int) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        await node.topics.create("orders", 1, 1, {})
        real, seen = node.etcd.txn, 0

        async def losing(compares, then):  # type: ignore[no-untyped-def]
            nonlocal seen
            seen += 1
            if seen == lost:
                node.etcd.drop_next_txn_reply()
            return await real(compares, then)

        node.etcd.txn = losing  # type: ignore[method-assign]
        try:
            info = await node.topics.alter("orders", {}, partitions=150)
        except Unavailable:
            assert lost < 3
            assert count(world) == 1
            info = await node.topics.alter("orders", {}, partitions=150)
        assert info.partitions == count(world) == 150
        assert numbers(world) == list(range(150))

    world.run(story)


def test_i31_an_addition_that_etcd_never_answers_ends(world: World) -> None:
    async def story() -> None:
        node = await world.node("n1").start(elections=False)
        await node.topics.create("orders", 1, 1, {})
        real, seen = node.etcd.txn, 0

        async def vanishing(compares, then):  # type: ignore[no-untyped-def]
            nonlocal seen
            seen += 1
            if seen == 2:
                node.etcd.unavailable = True
            return await real(compares, then)

        node.etcd.txn = vanishing  # type: ignore[method-assign]
        adding = asyncio.create_task(node.topics.alter("orders", {}, partitions=3))
        await asyncio.sleep(CHANGE_TIMEOUT_MS / 1000 + 1)
        with pytest.raises(UnknownOutcome):
            await adding

    world.run(story)
