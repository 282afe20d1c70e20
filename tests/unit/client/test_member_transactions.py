"""Transactions that a member of a group feeds: in whose name they commit, what waits for their end,
and what is refused of one whose input was lost (I21, I23). In virtual time, against a model of the
group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog._core.routing import PartitionKey
from oncelog.aio.consumer import Consumer
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.batch import Batch
from oncelogpb import errors
from tests.unit.client.member_world import (
    SESSION_MS,
    Client,
    Told,
    World,
    in_a_world,
    read,
    without_gap_or_overlap,
)
from tests.unit.client.scripted import TOPIC_ID


async def _batch(consumer: Consumer) -> Batch:
    batch = None
    while batch is None:
        batch = await consumer.poll(1)
    return batch


async def _producer(client: Client, **options: Any) -> TransactionalProducer:
    return await client.log.transactional_producer(**options)


@pytest.mark.parametrize("flushes", [False, True], ids=["at once", "begun"])
def test_i23_a_transaction_commits_in_the_name_of_its_consumer(flushes: bool) -> None:
    async def work(world: World) -> None:
        client = world.client()
        consumer, producer = await client.member(), await _producer(client)
        for _ in range(3):
            await _batch(consumer)
            async with producer.transaction(consumer) as tx:
                await tx.send("a", b"v", partition=0)
                if flushes:
                    await tx.flush()
        assert {who for *_, who in world.commits} == set(world.group.members)
        without_gap_or_overlap(world)
        assert set(world.pending_ms) == ({SESSION_MS} if flushes else set())
        begun = {request.timeout_ms for request in world.services.of("begin_transaction")}
        assert begun == ({SESSION_MS} if flushes else set())
        await consumer.close()

    in_a_world(work)


def test_a_timeout_that_the_user_chose_is_kept() -> None:
    async def work(world: World) -> None:
        client = world.client()
        consumer, producer = await client.member(), await _producer(client)
        await _batch(consumer)
        async with producer.transaction(consumer, timeout_ms=20_000) as tx:
            await tx.send("a", b"v", partition=0)
            await tx.flush()
        assert world.pending_ms == [20_000], "the group judges it"
        await consumer.close()

    in_a_world(work)


def test_i23_offsets_that_are_sent_carry_the_member_of_their_metadata() -> None:
    async def work(world: World) -> None:
        client = world.client()
        consumer, producer = await client.member(), await _producer(client)
        metadata = consumer.group_metadata()
        batch = await _batch(consumer)
        async with producer.transaction() as tx:
            await tx.send("a", b"v", partition=0)
            await tx.send_offsets(batch.next_offsets(), metadata)
            await tx.flush()
        assert world.pending_ms == [SESSION_MS]
        assert {who for *_, who in world.commits} == set(world.group.members)
        world.group.members.clear()
        with pytest.raises(errors.UnknownMember):
            async with producer.transaction() as tx:
                await tx.send_offsets(batch.next_offsets(), metadata)
        await consumer.close()

    in_a_world(work)


def test_i21_letting_go_waits_for_the_end_of_an_open_transaction() -> None:
    async def work(world: World) -> None:
        told = Told()
        client = world.client()
        first, producer = await client.member(**told.options()), await _producer(client)
        await read(first, 2)
        async with producer.transaction(first):
            given = await read(first, 2)
            second = await world.client().member()
            given += await read(first, 6)
            late = {partition for partition, _ in await read(first, 1)}
            assert late == {0, 1}, "of what goes, nothing more is given"
            assert [name for name, _ in told.told] == ["assigned"], "and it does not go yet"
        assert {partition for partition, *_ in world.commits} == {0, 1, 2, 3}
        again = await asyncio.gather(read(first, 8), read(second, 8))
        assert told.told[-1] == ("revoked", [2, 3])
        assert not set(given) & set(again[1])
        await asyncio.gather(first.close(), second.close())

    in_a_world(work)


@pytest.mark.parametrize("transactional", [True, False])
def test_i23_who_replaced_itself_is_not_told_to_stop(transactional: bool) -> None:
    """A commit of a static member is on its way while its session ends and it joins again."""

    async def work(world: World) -> None:
        client = world.client(timeout_ms=60_000)
        consumer, producer = await client.member(instance_id="i"), await _producer(client)
        given = await read(consumer, 1)

        async def late(request: Any) -> Any:
            client.is_cut_off = True
            await asyncio.sleep(2 * SESSION_MS / 1000)
            client.is_cut_off = False
            await asyncio.sleep(1)
            world.take(request.offsets)

        handlers = client.transport.handlers
        kept = dict(handlers)
        for method in ("coordinator.transact", "offset_manager.commit_offsets"):
            handlers[method] = lambda _, request: late(request)
        world.group.keeps_silent_members = True
        with pytest.raises(errors.UnknownMember, match="has joined again since"):
            if transactional:
                async with producer.transaction(consumer) as tx:
                    await tx.send("a", b"v", partition=0)
            else:
                await consumer.commit()
        handlers.update(kept)
        assert set(given) <= set(await read(consumer, 3))
        await consumer.commit()
        await consumer.close()

    in_a_world(work)


def test_i21_a_transaction_whose_input_is_lost_never_commits() -> None:
    """Its output would be there, and the next owner would make it again."""

    async def work(world: World) -> None:
        client = world.client(timeout_ms=1_000)
        consumer, producer = await client.member(), await _producer(client)
        await _batch(consumer)
        with pytest.raises(errors.UnknownMember):
            async with producer.transaction(consumer) as tx:
                await tx.send("a", b"v", partition=0)
                client.is_cut_off = True
                await asyncio.sleep(SESSION_MS / 1000)
                client.is_cut_off = False
                # The poll takes notice, and the partitions are its own again.
                assert await read(consumer, 3)
        assert tx.state == "aborted"
        assert world.commits == []
        assert len(world.group.members) == 1
        member = next(iter(world.group.members))
        assert await read(consumer, 2), "the member of now is not blamed for the one before"
        assert next(iter(world.group.members)) == member
        await consumer.close()

    in_a_world(work)


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "gone to another"])
def test_i21_offsets_sent_after_a_loss_do_not_commit_what_was_made_before_it(
    is_lost: bool,
) -> None:
    """Until the first `send_offsets` nobody knows whose records a transaction is made of."""

    async def work(world: World) -> None:
        client, other = world.client(timeout_ms=1_000), world.client()
        consumer, producer = await client.member(), await _producer(client)
        with pytest.raises(errors.UnknownMember if is_lost else errors.IllegalGeneration):
            async with producer.transaction() as tx:
                assert await read(consumer, 2)
                await tx.send("a", b"made of what the group has taken back", partition=0)
                if is_lost:
                    client.is_cut_off = True
                    await asyncio.sleep(SESSION_MS / 1000)
                    client.is_cut_off = False
                else:
                    second = await other.member()
                assert await read(consumer, 8), "it is a member again, or still"
                await tx.send_offsets(consumer.feeding.standing(), consumer.group_metadata())
        assert (tx.state, world.commits) == ("aborted", [])
        if not is_lost:
            await second.close()
        async with producer.transaction() as tx:
            assert await read(consumer, 2)
            await tx.send_offsets(consumer.feeding.standing(), consumer.group_metadata())
        assert tx.state == "committed", "what begins after it is not blamed"
        without_gap_or_overlap(world)
        await consumer.close()

    in_a_world(work)


@pytest.mark.parametrize("sends_offsets", [True, False])
def test_i21_a_commit_that_was_refused_beside_a_transaction_does_not_hide_its_loss(
    sends_offsets: bool,
) -> None:
    """The refusal has the consumer forget where it stands, and what it has given since."""

    async def work(world: World) -> None:
        client = world.client()
        consumer, producer = await client.member(), await _producer(client)
        with pytest.raises(errors.UnknownMember):
            async with producer.transaction(None if sends_offsets else consumer) as tx:
                assert await read(consumer, 2)
                await tx.send("a", b"v", partition=0)
                world.group.members.clear()
                # Of what the transaction takes it is not even sent.
                refusal = errors.UnknownMember if sends_offsets else errors.InvalidArgument
                with pytest.raises(refusal):
                    await consumer.commit()
                assert await read(consumer, 8), "it has joined again"
                if sends_offsets:
                    await tx.send_offsets(consumer.feeding.standing(), consumer.group_metadata())
        assert (tx.state, world.commits) == ("aborted", [])
        await consumer.close()

    in_a_world(work)


def test_run_goes_on_through_rebalances_and_losses() -> None:
    async def work(world: World) -> None:
        clients = [world.client(timeout_ms=1_000) for _ in range(3)]

        async def running(client: Client) -> None:
            consumer, producer = await client.member(), await _producer(client)

            async def step(batch: Batch, tx: Any) -> None:
                await tx.send("a", b"v", partition=0)
                await asyncio.sleep(0.3)

            running = asyncio.create_task(client.log.run(consumer, step, producer))
            await asyncio.sleep(60)
            await consumer.close()
            await running

        async def trouble() -> None:
            await asyncio.sleep(15)
            clients[0].is_cut_off = True
            await asyncio.sleep(12)
            clients[0].is_cut_off = False
            await asyncio.sleep(5)
            world.group.members.clear()

        await asyncio.gather(*(running(client) for client in clients), trouble())
        without_gap_or_overlap(world)
        assert len({who for *_, who in world.commits[-20:]}) == 3
        assert set(world.committed) == {PartitionKey(TOPIC_ID, number) for number in range(4)}

    in_a_world(work)
