"""In whose name a member's offsets commit: of the life in which they were read, or not at all (I21,
I23). In virtual time, against a model of the group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog._core.routing import Endpoint, PartitionKey
from oncelog._core.transaction import ONE_SHOT_LIMITS
from oncelog.aio.consumer import Consumer
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.batch import Batch
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2 as offsets
from tests.unit.client.member_world import SESSION_MS, Client, World, in_a_world, read


async def batch_of(consumer: Consumer) -> Batch:
    batch = None
    while batch is None:
        batch = await consumer.poll(1)
    return batch


async def pair_of(client: Client) -> tuple[Consumer, TransactionalProducer]:
    return await client.member(), await client.log.transactional_producer()


async def lose_and_join_again(client: Client) -> None:
    """Nothing is heard for a session; the next poll takes notice, not this."""
    client.is_cut_off = True
    await asyncio.sleep(2 * SESSION_MS / 1000)
    client.is_cut_off = False
    await asyncio.sleep(4)
    assert len(client.world.group.members) == 1, "it has joined again"


# --------------------------------------------------------------------------- offsets that are sent


@pytest.mark.parametrize("sent_again", [False, True])
def test_i21_a_transaction_that_was_sent_offsets_of_lost_input_never_commits(
    sent_again: bool,
) -> None:
    """Its output is of both lives: the same records, processed twice."""

    async def work(world: World) -> None:
        client = world.client(timeout_ms=1_000)
        consumer, producer = await pair_of(client)
        async with producer.transaction() as tx:
            metadata = consumer.group_metadata()
            batch = await batch_of(consumer)
            await tx.send("a", b"v", partition=0)
            await tx.send_offsets(batch.next_offsets(), metadata)
            await lose_and_join_again(client)
            assert await consumer.poll(1) is not None
            if sent_again:
                metadata = consumer.group_metadata()
                batch = await batch_of(consumer)
                await tx.send("a", b"v", partition=0)
                with pytest.raises(errors.UnknownMember, match="not heard for a session"):
                    await tx.send_offsets(batch.next_offsets(), metadata)
            with pytest.raises(errors.UnknownMember, match="not heard for a session"):
                await tx.commit()
            await tx.abort()
        assert world.commits == []
        metadata = consumer.group_metadata()
        batch = await batch_of(consumer)
        async with producer.transaction() as tx:
            await tx.send_offsets(batch.next_offsets(), metadata)
        assert world.commits, "the member of now goes on"
        await consumer.close()

    in_a_world(work)


def test_i21_what_was_read_before_a_loss_is_not_sent_after_it() -> None:
    async def work(world: World) -> None:
        client = world.client(timeout_ms=1_000)
        consumer, producer = await pair_of(client)
        metadata = consumer.group_metadata()
        batch = await batch_of(consumer)
        async with producer.transaction() as tx:
            await tx.send("a", b"v", partition=0)
            await lose_and_join_again(client)
            with pytest.raises(errors.UnknownMember, match="not heard for a session"):
                await tx.send_offsets(batch.next_offsets(), metadata)
            assert await consumer.poll(1) is not None
            # Its output would be there without the offsets.
            with pytest.raises(errors.UnknownMember, match="not heard for a session"):
                await tx.commit()
            await tx.abort()
        assert world.commits == []
        await consumer.close()

    in_a_world(work)


def test_i23_after_a_loss_there_is_no_metadata_until_a_poll_takes_notice() -> None:
    """The id is the one of now, and what was read is of the life before."""

    async def work(world: World) -> None:
        client = world.client(timeout_ms=1_000)
        consumer = await client.member()
        await batch_of(consumer)
        await lose_and_join_again(client)
        with pytest.raises(errors.UnknownMember, match="not heard for a session"):
            consumer.group_metadata()
        await read(consumer, 2)
        member = consumer.group_metadata().member
        assert member is not None
        assert [member.member_id] == list(world.group.members)
        await consumer.close()

    in_a_world(work)


def test_i23_a_transaction_commits_for_one_member_of_a_group() -> None:
    """With the id of one over all offsets, those of the other would be committed by a stranger."""

    async def work(world: World) -> None:
        client = world.client()
        first, producer = await pair_of(client)
        before = first.group_metadata()
        given = (await batch_of(first)).next_offsets()
        second = await client.member()
        with pytest.raises(errors.UnknownMember, match="one member"):
            async with producer.transaction() as tx:
                await tx.send_offsets(given, before)
                await tx.send_offsets({}, second.group_metadata())
        assert world.commits == []
        await asyncio.gather(first.close(), second.close())

    in_a_world(work)


# ------------------------------------------------------------- losses in the middle of a commit


@pytest.mark.parametrize("hangs", ["begin_transaction", "transact"])
def test_i23_a_commit_that_hung_is_not_made_in_the_name_of_the_next_life(hangs: str) -> None:
    """The consumer was moved by hand: where the group stands saves nothing."""

    async def work(world: World) -> None:
        client = world.client()
        consumer, producer = await pair_of(client)
        await batch_of(consumer)
        for place in consumer.assignment:
            await consumer.seek(*place, 0)
        await batch_of(consumer)
        hang_once(client, hangs)
        if hangs == "begin_transaction":
            outgrown = errors.TooLarge("for one message", limit=sorted(ONE_SHOT_LIMITS)[0])
            client.transport.handlers["coordinator.transact"] = raising(outgrown)
        with pytest.raises(errors.UnknownMember, match="not heard for a session"):
            async with producer.transaction(consumer) as tx:
                await tx.send("a", b"v", partition=0)
        assert world.commits == []
        await read(consumer, 2)
        async with producer.transaction(consumer) as tx:
            await tx.send("a", b"v", partition=0)
            await tx.flush()
        assert {who for *_, who in world.commits} == set(world.group.members)
        await consumer.close()

    in_a_world(work)


def raising(error: errors.OncelogError) -> Any:
    def refuse(to: Endpoint, request: Any) -> Any:
        raise error

    return refuse


def hang_once(client: Client, method: str) -> None:
    """Its first call waits while the group is lost, and the coordinator has forgotten the producer,
    which has not begun anything: the call is repeated."""
    handlers, name = client.transport.handlers, f"coordinator.{method}"
    usual = handlers[name]

    async def hang(to: Endpoint, request: Any) -> Any:
        handlers[name] = usual
        await lose_and_join_again(client)
        raise errors.UnknownProducer("it was idle for long")

    handlers[name] = hang


# --------------------------------------------------------------------------------- plain commits

COMMIT = "offset_manager.commit_offsets"


@pytest.mark.parametrize("arrives", [True, False])
def test_i21_a_members_commit_whose_answer_is_lost_is_sent_again(arrives: bool) -> None:
    async def work(world: World) -> None:
        client = world.client()
        consumer = await client.member()
        batch = await batch_of(consumer)
        usual = client.transport.handlers[COMMIT]
        asked: list[bytes] = []

        def lose_once(to: Endpoint, request: Any) -> Any:
            asked.append(request.SerializeToString())
            if arrives or len(asked) > 1:
                usual(to, request)
            if len(asked) == 1:
                raise errors.UnknownOutcome("its answer was lost")
            return offsets.CommitOffsetsReply()

        client.transport.handlers[COMMIT] = lose_once
        await consumer.commit()
        assert len(asked) == 2
        assert asked[0] == asked[1]
        ends = {(place.partition, to) for place, to in batch.next_offsets().items()}
        assert {(partition, to) for partition, _, to, _ in world.commits} == ends
        assert len(world.commits) == len(ends)
        client.transport.handlers[COMMIT] = usual
        await consumer.close()

    in_a_world(work)


def test_i21_a_refused_commit_is_not_done_because_another_member_took_the_same_step() -> None:
    """Both have processed the same records, and one of them is told so."""

    async def work(world: World) -> None:
        client = world.client()
        consumer = await client.member()
        await batch_of(consumer)
        usual = client.transport.handlers[COMMIT]

        async def lost(to: Endpoint, request: Any) -> Any:
            client.transport.handlers[COMMIT] = usual
            for commit in request.offsets.offsets:
                key = PartitionKey.of(commit.partition)
                world.committed[key] = commit.to_offset
                world.commits.append((key.number, 0, commit.to_offset, "another"))
            world.group.members.clear()
            raise errors.UnknownOutcome("its answer was lost")

        client.transport.handlers[COMMIT] = lost
        with pytest.raises(errors.UnknownOutcome, match="UNKNOWN_MEMBER"):
            await consumer.commit()
        assert {who for *_, who in world.commits} == {"another"}
        stood = {key.number: to for key, to in world.committed.items()}
        given = [offset for number, offset in await read(consumer, 4) if number in stood]
        assert min(given) == min(stood.values()), "it goes on where the group stands"
        await consumer.commit()
        await consumer.close()

    in_a_world(work)


# --------------------------------------------------------------------------------------- timeouts


def test_offsets_sent_behind_large_output_say_what_to_do_and_then_fit() -> None:
    """The transaction has begun when the first offsets come: with the default timeout, which is
    more than the session. The next one is begun within it."""

    async def work(world: World) -> None:
        client = world.client()
        consumer, producer = await pair_of(client)
        metadata = consumer.group_metadata()
        given = (await batch_of(consumer)).next_offsets()
        with pytest.raises(errors.InvalidTimeout, match=f"timeout_ms={SESSION_MS}.*before large"):
            async with producer.transaction() as tx:
                await tx.send("a", b"v", partition=0)
                await tx.flush()
                await tx.send_offsets(given, metadata)
        assert (tx.state, world.commits, world.pending_ms) == ("aborted", [], [])
        async with producer.transaction() as tx:
            await tx.send("a", b"v", partition=0)
            await tx.flush()
            await tx.send_offsets(given, metadata)
        assert world.commits
        assert world.pending_ms == [SESSION_MS]
        begun = [request.timeout_ms for request in world.services.of("begin_transaction")]
        assert begun == [0, SESSION_MS]
        await consumer.close()

    in_a_world(work)


def test_i23_who_has_lost_a_partition_is_told_so_where_he_names_an_offset_of_it() -> None:
    async def work(world: World) -> None:
        first, second = world.client(), world.client()
        consumer = await first.member()
        batch = await batch_of(consumer)
        await read(consumer, 4 * 2)
        other = await second.member()
        while len(consumer.assignment) == 4 or not other.assignment:
            await consumer.poll(0.1)
            await other.poll(0.1)
        lost = other.assignment[0]
        with pytest.raises(errors.InvalidArgument, match="has taken it back since; whoever has it"):
            await consumer.commit({lost: 1})
        assert batch is not None
        await consumer.close()
        await other.close()

    in_a_world(work)
