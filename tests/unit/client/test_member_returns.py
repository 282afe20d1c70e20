"""Members that come back: after a silence in which another process took their place, after a step
that failed, and beside calls that hang (I21, I23)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog._core.membership import State
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.member_world import RECORDS, SESSION_MS, World, in_a_world, places, read
from tests.unit.client.test_membership_core import answer, hear, member

SECONDS_OF_A_SESSION = SESSION_MS / 1000


def test_i23_who_was_silent_does_not_fence_who_took_its_place() -> None:
    async def work(world: World) -> None:
        client = world.client(timeout_ms=1_000)
        silent = await client.member(instance_id="i")
        await read(silent, 2)
        client.is_cut_off = True
        heir = await world.client().member(instance_id="i")
        await asyncio.gather(read(silent, 2 * SECONDS_OF_A_SESSION), read(heir, 18))
        client.is_cut_off = False
        with pytest.raises(errors.FencedInstance):
            await read(silent, 2 * SECONDS_OF_A_SESSION)
        assert await read(heir, 2), "it lives"
        assert heir.assignment == places(0, 1, 2, 3)
        await asyncio.gather(silent.close(), heir.close())

    in_a_world(work)


def test_i23_a_static_member_that_comes_back_names_nobody_but_itself() -> None:
    made = member(instance_id="i")
    hear(made, 0, 5, 0)
    made.look(2 * SESSION_MS)
    joining = made.request(2 * SESSION_MS)
    assert joining is not None
    assert (joining.member.member_id, joining.member.generation) == ("m2", 0)
    assert (joining.replaces, list(joining.owned)) == ("m1", [])
    made.refused(joining, errors.Unavailable("nobody answers"), 2 * SESSION_MS)
    assert made.request(3 * SESSION_MS) == joining
    assert hear(made, 3 * SESSION_MS, 7, 0).replaces == "m1"
    assert len(made.held) == 1
    told = made.request(4 * SESSION_MS - 1)
    assert told is not None
    assert told.replaces == "m2", "silent again, it names what it was last"
    made.refused(told, errors.FencedInstance("taken", held_by="other"), 4 * SESSION_MS)
    assert made.state is State.FENCED, "a process that came meanwhile is not fenced"


def test_a_new_process_names_the_holder_that_it_is_told_of() -> None:
    made = member(instance_id="i")
    first = made.request(0)
    assert first is not None
    assert first.replaces == ""
    for number, (holder, again_ms) in enumerate([("x", 0), ("y", 0), ("y", 100)]):
        request = made.request(number * 1_000)
        assert request is not None
        made.refused(request, errors.FencedInstance("held", held_by=holder), number * 1_000)
        assert made.state is State.JOINING
        assert made.wait_ms(number * 1_000) == again_ms
    joined = hear(made, 3_000, 9, 0)
    assert (joined.member.member_id, joined.replaces) == ("m1", "y")
    beat = made.request(3_000 + SESSION_MS / 2)
    assert beat is not None
    assert beat.replaces == "", "it holds the place"
    fenced = errors.FencedInstance("another one took it", held_by="z")
    made.refused(beat, fenced, 3_000 + SESSION_MS / 2)
    assert made.state is State.FENCED, "it was a member: who came after it goes on"


def test_a_process_that_was_replaced_before_it_heard_that_it_was_a_member_stops() -> None:
    made = member(instance_id="i")
    request = made.request(0)
    assert request is not None
    made.refused(request, errors.FencedInstance("another one took its place"), 0)
    assert made.state is State.FENCED


def test_i23_an_answer_that_comes_late_brings_nobody_back_who_was_fenced() -> None:
    made = member(instance_id="i")
    hear(made, 0, 5, 0)
    on_its_way = made.request(SESSION_MS / 3)
    assert on_its_way is not None
    made.commit_refused(errors.FencedInstance("another one"), SESSION_MS / 3)
    made.heard(on_its_way, answer(on_its_way, 5, 0), sent_ms=SESSION_MS / 3)
    assert (made.state, made.held) == (State.FENCED, [])
    made.refused(on_its_way, errors.UnknownMember("it is gone"), SESSION_MS / 3)
    assert made.state is State.FENCED


def test_i23_who_looks_for_topics_goes_on_saying_that_it_lives() -> None:
    """ListTopics goes to any process, also to one that is stopped."""
    lost: list[object] = []

    async def work(world: World) -> None:
        client = world.client(topic_refresh_ms=2_000)
        consumer = await client.member(pattern="a", on_lost=lost.append)

        async def hangs(to: Any, request: Any) -> leader.ListTopicsReply:
            await asyncio.sleep(2 * SECONDS_OF_A_SESSION)
            return leader.ListTopicsReply()

        client.transport.handlers["partition_leader.list_topics"] = hangs
        await read(consumer, 1.5 * SECONDS_OF_A_SESSION)
        assert not lost
        assert consumer.assignment == places(0, 1, 2, 3)
        await consumer.close()

    in_a_world(work)


def test_i21_what_a_step_that_failed_was_given_is_not_committed_automatically() -> None:
    async def work(world: World) -> None:
        consumer = await world.client().member(auto_commit_ms=3_600_000)
        with pytest.raises(ZeroDivisionError):
            async with consumer:
                assert await read(consumer, 2)
                raise ZeroDivisionError
        assert world.committed == {}

    in_a_world(work)


def test_i21_nor_where_the_block_of_its_connection_failed() -> None:
    async def work(world: World) -> None:
        client = world.client()
        with pytest.raises(ZeroDivisionError):
            async with client.log:
                consumer = await client.member(auto_commit_ms=3_600_000)
                assert await read(consumer, 2)
                raise ZeroDivisionError
        assert world.committed == {}

    in_a_world(work)


def test_i21_no_transaction_takes_a_consumer_that_commits_by_itself() -> None:
    async def work(world: World) -> None:
        client = world.client()
        consumer = await client.member(auto_commit_ms=1_000)
        producer = await client.log.transactional_producer()
        with pytest.raises(errors.InvalidArgument, match="auto_commit_ms"):
            producer.transaction(consumer)
        await consumer.close()

    in_a_world(work)


def test_i21_who_asks_again_where_it_stands_skips_nothing_of_what_came_meanwhile() -> None:
    """It began at the end, and nothing of the group is committed: the end has moved since."""

    async def work(world: World) -> None:
        client = world.client()
        consumer = await client.member(start="latest")
        began = [await consumer.position("a", number) for number in range(4)]

        def grown(to: object, request: leader.ListOffsetsRequest) -> leader.ListOffsetsReply:
            reply = leader.ListOffsetsReply()
            for query in request.queries:
                reply.offsets.add(partition=query.partition, offset=2 * RECORDS)
            return reply

        client.transport.handlers["partition_leader.list_offsets"] = grown
        consumer.feeding.forget()
        assert [await consumer.position("a", number) for number in range(4)] == began
        await consumer.close()

    in_a_world(work)


def test_what_a_transaction_holds_stops_no_other_partition_after_a_refused_commit() -> None:
    async def work(world: World) -> None:
        consumer = await world.client().member(pending_timeout_ms=20_000)
        await read(consumer, 2)
        world.pending = {1}
        consumer.feeding.forget()
        assert {partition for partition, _ in await read(consumer, 3)} == {0, 2, 3}
        consumer.feeding.forget()
        assert {partition for partition, _ in await read(consumer, 3)} == {0, 2, 3}
        await consumer.close()

    in_a_world(work)


def test_i29_a_wait_that_rounds_to_nothing_passes_all_the_same() -> None:
    """Else heartbeats would ask for it again and again, and nobody else would get to run."""

    async def work(world: World) -> None:
        consumer = await world.client().member()
        member, asked = consumer._member, 0
        assert member is not None

        def wait_ms(now_ms: float) -> float:
            nonlocal asked
            asked += 1
            assert asked < 5_000, "no time passes"
            return 1e-13

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(member.core, "request", lambda now_ms: None)
            patch.setattr(member.core, "wait_ms", wait_ms)
            member._due.set()
            await asyncio.sleep(1)
        member._require_beating()
        await consumer.close()

    in_a_world(work)
