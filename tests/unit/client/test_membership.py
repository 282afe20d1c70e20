"""Consumers that are members of a group: who reads what, what is committed before a partition goes,
and what is refused of one that lost it (I21, I23). In virtual time, against a model of the
group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from oncelog.aio.consumer import Consumer
from oncelog.batch import TopicPartition
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.member_world import (
    RECORDS,
    SESSION_MS,
    Told,
    World,
    in_a_world,
    places,
    read,
    without_gap_or_overlap,
)

# ---------------------------------------------------------------------------------------- joining


def test_a_lone_member_has_all_at_once() -> None:
    async def work(world: World) -> None:
        consumer = await world.client().member()
        assert consumer.assignment == places(0, 1, 2, 3)
        assert len(world.beats) == 1
        assert await consumer.position("a", 3) == 0
        assert {partition for partition, _ in await read(consumer, 2)} == {0, 1, 2, 3}
        await consumer.close()
        assert world.group.members == {}

    in_a_world(work)


def test_i23_two_share_and_what_stays_is_read_on_without_a_pause() -> None:
    async def work(world: World) -> None:
        first = await world.client().member()
        await read(first, 1)
        await first.commit()
        second = await world.client().member()
        assert second.assignment == []
        assert second.closed is False
        before = len([r for r in world.beats if r.owned])
        streams = _subscribed(first)
        await asyncio.gather(_work(first, 12), _work(second, 12))
        assert (first.assignment, second.assignment) == (places(0, 1), places(2, 3))
        assert len(world.beats) > before
        # Of what stays, nothing is asked for twice but by the one stream that was cut.
        assert len(_subscribed(first)) == len(streams) + 1
        without_gap_or_overlap(world)
        for consumer in (first, second):
            await consumer.close()

    in_a_world(work)


def _subscribed(consumer: Consumer) -> list[Any]:
    requests = consumer._protocol.transport.requests  # type: ignore[attr-defined]
    return [request for request in requests if isinstance(request, leader.SubscribeRequest)]


async def _work(consumer: Consumer, seconds: float) -> None:
    """Reads and commits."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        if await consumer.poll(0.5) is not None:
            await consumer.commit()


def test_a_member_that_leaves_gives_all_back_at_once() -> None:
    async def work(world: World) -> None:
        first, second = await world.client().member(), await world.client().member()
        await asyncio.gather(_work(first, 12), _work(second, 12))
        await second.close()
        assert len(world.group.owned_by(next(iter(world.group.members)))) == 4
        await _work(first, 5)
        assert first.assignment == places(0, 1, 2, 3)
        without_gap_or_overlap(world)

    in_a_world(work)


def test_a_pattern_finds_topics_that_come_later() -> None:
    async def work(world: World) -> None:
        client = world.client(topic_refresh_ms=2_000)
        consumer = await client.member(pattern="[ab]")
        assert {place.topic for place in consumer.assignment} == {"a"}
        world.group.topics["b", b"b" * 16] = 1
        world.group.topics["bc", b"c" * 16] = 1
        await read(consumer, 10)
        assert [*consumer.assignment] == [*places(0, 1), TopicPartition("b", 0)]
        at_first, *again = world.listed_names_only
        assert not at_first, "how many partitions they have is noted"
        assert again
        assert all(again), "all partitions of a cluster are much to send every minute"
        await consumer.close()

    in_a_world(work, partitions=2)


def test_a_subscription_may_change() -> None:
    async def work(world: World) -> None:
        world.group.topics["b", b"b" * 16] = 1
        consumer = await world.client().member()
        await read(consumer, 2)
        await consumer.subscribe(["b"])
        await read(consumer, 2)
        assert consumer.assignment == [TopicPartition("b", 0)]
        with pytest.raises(errors.InvalidArgument):
            await consumer.subscribe([])
        with pytest.raises(errors.InvalidArgument):
            await consumer.assign(places(0))
        await consumer.close()

    in_a_world(work, partitions=2)


def test_who_is_refused_is_told() -> None:
    async def work(world: World) -> None:
        client = world.client()

        def refuse(request: Any) -> Any:
            raise errors.PermissionDenied("no right to read group 'g'")

        client.transport.handlers["offset_manager.heartbeat"] = client._guarded(refuse)
        with pytest.raises(errors.PermissionDenied):
            await client.member()

    in_a_world(work)


# ------------------------------------------------------------------------------------- letting go


def test_i21_what_goes_may_be_committed_in_on_revoked_and_only_then_goes() -> None:
    async def work(world: World) -> None:
        told = Told()
        kept: list[Consumer] = []

        async def on_revoked(given: Sequence[TopicPartition]) -> None:
            told.told.append(("revoked", [place.partition for place in given]))
            owned = world.group.owned_by(kept[0]._member.core.member_id)  # type: ignore[union-attr]
            going = {place.partition for place in given}
            assert going <= set(owned), "nothing goes before this has returned"
            await kept[0].commit()

        callbacks = told.options() | {"on_revoked": on_revoked}
        first = await world.client().member(**callbacks)
        kept.append(first)
        given = await read(first, 3)
        second = await world.client().member()
        given += await read(first, 5)
        assert told.told == [("assigned", [0, 1, 2, 3]), ("revoked", [2, 3])]
        again = await read(second, 8)
        assert given, again
        assert not set(given) & set(again), "what was committed is not read again"
        assert {partition for partition, _ in again} == {2, 3}
        await asyncio.gather(first.close(), second.close())
        assert told.told[2:] == [("revoked", [0, 1])]

    in_a_world(work)


def test_i21_what_was_not_committed_is_read_again_by_the_next_owner() -> None:
    async def work(world: World) -> None:
        first = await world.client().member()
        given = await read(first, 3)
        second = await world.client().member()
        await read(first, 5)
        again = await read(second, 8)
        assert {item for item in given if item[0] in (2, 3)} <= set(again)
        with pytest.raises(errors.InvalidArgument, match="not assigned"):
            await first.position("a", 3)
        await asyncio.gather(first.close(), second.close())

    in_a_world(work)


def test_i21_automatic_commits_come_before_a_partition_goes_and_at_the_end() -> None:
    async def work(world: World) -> None:
        first = await world.client().member(auto_commit_ms=3_600_000)
        given = await read(first, 3)
        second = await world.client().member(auto_commit_ms=1_000)
        given += await read(first, 5)
        again = await read(second, 8)
        assert again
        assert not set(given) & set(again)
        await asyncio.gather(first.close(), second.close())
        assert len(set(given) | set(again)) == sum(world.committed.values())

    in_a_world(work)


def test_a_callback_that_raises_is_told_and_the_partitions_go_all_the_same() -> None:
    async def work(world: World) -> None:
        def on_revoked(_: Sequence[TopicPartition]) -> None:
            raise RuntimeError("of the user")

        first = await world.client().member(on_revoked=on_revoked)
        second = await world.client().member()
        with pytest.raises(RuntimeError, match="of the user"):
            await read(first, 6)
        await asyncio.gather(read(first, 8), read(second, 8))
        assert second.assignment == places(2, 3)
        await second.close()

    in_a_world(work)


# ----------------------------------------------------------------------------------------- losses


def test_i23_who_hears_nothing_for_a_session_stops_before_another_one_begins() -> None:
    async def work(world: World) -> None:
        told = Told()
        client = world.client(timeout_ms=1_000)
        first = await client.member(**told.options())
        second = await world.client().member()
        await asyncio.gather(_work(first, 12), _work(second, 12))
        client.is_cut_off = True
        loop = asyncio.get_running_loop()
        last_s = {"first": 0.0, "second": 0.0}

        async def note(name: str, consumer: Consumer) -> None:
            end = loop.time() + 25
            while loop.time() < end:
                batch = await consumer.poll(0.2)
                for record in batch or ():
                    if record.partition < 2 and not (name == "second" and last_s[name]):
                        last_s[name] = loop.time()

        await asyncio.gather(note("first", first), note("second", second))
        assert 0 < last_s["first"] < last_s["second"]
        assert told.told[-1] == ("lost", [0, 1])
        assert first.assignment == []
        with pytest.raises(errors.InvalidArgument):
            await first.position("a", 0)
        client.is_cut_off = False
        await asyncio.gather(_work(first, 12), _work(second, 12))
        assert len(first.assignment) == 2, "it has joined again by itself"
        await asyncio.gather(first.close(), second.close())

    in_a_world(work)


def test_i23_a_commit_after_a_loss_is_refused_here_and_a_poll_goes_on() -> None:
    async def work(world: World) -> None:
        client = world.client(timeout_ms=1_000)
        consumer = await client.member()
        given = await read(consumer, 2)
        client.is_cut_off = True
        await asyncio.sleep(SESSION_MS / 1000)
        client.is_cut_off = False
        await asyncio.sleep(2)
        assert len(world.group.members) == 1, "it has joined again already"
        with pytest.raises(errors.UnknownMember):
            await consumer.commit()
        assert world.commits == []
        again = await read(consumer, 3)
        assert set(given) <= set(again)
        await consumer.commit()
        await consumer.close()

    in_a_world(work)


def test_i23_a_member_that_was_removed_is_told_by_its_commit_and_joins_again() -> None:
    async def work(world: World) -> None:
        told = Told()
        consumer = await world.client().member(**told.options())
        given = await read(consumer, 2)
        world.group.members.clear()
        with pytest.raises(errors.UnknownMember):
            await consumer.commit()
        again = await read(consumer, 4)
        assert set(given) <= set(again)
        assert [name for name, _ in told.told] == ["assigned", "lost", "assigned"]
        await consumer.commit()
        await consumer.close()

    in_a_world(work)


def test_who_processes_for_too_long_leaves_and_is_told_by_poll() -> None:
    async def work(world: World) -> None:
        consumer = await world.client().member(max_poll_interval_ms=30_000)
        await read(consumer, 2)
        await asyncio.sleep(29)
        assert len(world.group.members) == 1, "heartbeats go on while it processes"
        await asyncio.sleep(2)
        assert world.group.members == {}, "others have its partitions at once"
        with pytest.raises(errors.UnknownMember, match="max_poll_interval_ms"):
            await consumer.poll(1)
        assert await read(consumer, 3)
        assert len(consumer.assignment) == 4
        await consumer.close()

    in_a_world(work)


def test_i23_a_second_process_of_one_instance_fences_the_first() -> None:
    async def work(world: World) -> None:
        first = await world.client().member(instance_id="i")
        await read(first, 2)
        second = await world.client().member(instance_id="i")
        assert second.assignment == places(0, 1, 2, 3)
        with pytest.raises(errors.FencedInstance):
            await first.commit()
        for _ in range(2):
            with pytest.raises(errors.FencedInstance):
                await read(first, 5)
        await first.close()
        assert len(world.group.members) == 1
        await second.close()
        assert len(world.group.members) == 1, "its successor finds its partitions"

    in_a_world(work)


# -------------------------------------------------------------------------------------- positions


def test_a_partition_that_is_held_by_a_transaction_holds_back_no_other() -> None:
    async def work(world: World) -> None:
        world.pending = {1}
        consumer = await world.client().member(pending_timeout_ms=20_000)
        assert {partition for partition, _ in await read(consumer, 5)} == {0, 2, 3}
        world.pending = set()
        assert {partition for partition, _ in await read(consumer, 2)} == {0, 1, 2, 3}
        await consumer.close()

    in_a_world(work)


def test_i31_a_transaction_that_holds_a_partition_for_too_long_is_named() -> None:
    async def work(world: World) -> None:
        world.pending = {1}
        consumer = await world.client().member(pending_timeout_ms=3_000)
        with pytest.raises(
            errors.PendingTransaction, match=r"it is of producer .*ms ago"
        ) as caught:
            await read(consumer, 6)
        assert caught.value.metadata["tx_id"]
        assert await read(consumer, 1), "the others are read all the same"
        await consumer.close()

    in_a_world(work)


def test_lag_is_what_was_not_given_yet() -> None:
    async def work(world: World) -> None:
        consumer = await world.client().member(batch_records_max=10)
        batch = await consumer.poll(2)
        assert batch is not None
        lag = await consumer.lag()
        assert sum(lag.values()) == 2 * RECORDS - len(batch)
        assert list(lag) == places(0, 1)
        await consumer.close()

    in_a_world(work, partitions=2)


def test_a_member_needs_no_sign_of_life() -> None:
    async def work(world: World) -> None:
        consumer = await world.client().member(sign_of_life_ms=1_000)
        await read(consumer, 2)
        await consumer.commit()
        commits = len(world.commits)
        await asyncio.sleep(60)
        assert len(world.commits) == commits
        await consumer.close()

    in_a_world(work)
