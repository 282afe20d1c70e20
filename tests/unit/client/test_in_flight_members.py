"""Several transactions in flight that a member of a group feeds: who gets a partition next starts
behind them, and `Log.run` goes on while they are decided (I21, I23; KIP-447). In virtual time,
against a model of the group."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from oncelog.aio.consumer import Consumer
from oncelog.batch import Batch
from oncelogpb import errors
from tests.unit.client.chain_world import ChainServices
from tests.unit.client.member_world import (
    SESSION_MS,
    Client,
    World,
    in_a_world,
    read,
    without_gap_or_overlap,
)


class ChainedWorld(ChainServices):
    """Its coordinator takes `delay_s` for each one-shot, and decides them in request order;
    `refuses` says of which step the offset manager says no, once."""

    def __init__(self, world: World, delay_s: float) -> None:
        super().__init__()
        self.world = world
        self.delay_s = delay_s
        self.refuses: list[tuple[Callable[[Any], bool], errors.OncelogError]] = []
        self.at_once_max = 0
        self._deciding: asyncio.Task[None] | None = None

    def _accept(self, request: Any) -> None:
        super()._accept(request)
        undecided = sum(not outcome.done() for outcome in self.outcomes.values())
        self.at_once_max = max(self.at_once_max, undecided)
        if self._deciding is None or self._deciding.done():
            self._deciding = asyncio.get_running_loop().create_task(self._decide_all())

    async def _decide_all(self) -> None:
        while undecided := [n for n, out in sorted(self.outcomes.items()) if not out.done()]:
            await asyncio.sleep(self.delay_s)
            self.decide(undecided[0], self._judged(self.accepted[undecided[0]]))

    def _judged(self, request: Any) -> errors.OncelogError | None:
        for refusal in list(self.refuses):
            if refusal[0](request):
                self.refuses.remove(refusal)
                return refusal[1]
        try:
            self.world.take(request.offsets)
        except errors.OncelogError as error:
            return error
        return None


def chained(world: World, client: Client, delay_s: float = 0.3) -> ChainedWorld:
    """Of one client."""
    made = ChainedWorld(world, delay_s)
    for name in ("init_producer", "transact", "get_transaction"):
        client.transport.handlers[f"coordinator.{name}"] = made.handler(f"coordinator.{name}")
    return made


async def copy(batch: Batch, tx: Any) -> None:
    for record in batch:
        await tx.send("a", record.value, partition=0)


def test_i21_the_next_batch_is_processed_while_those_before_are_decided() -> None:
    async def work(world: World) -> None:
        client = world.client()
        coordinator = chained(world, client)
        consumer = await client.member()
        producer = await client.log.transactional_producer()

        async def step(batch: Batch, tx: Any) -> None:
            await copy(batch, tx)
            if world.now_ms() > stop_ms:
                signal.raise_signal(signal.SIGTERM)

        stop_ms = world.now_ms() + 4_000
        count = await client.log.run(consumer, step, producer, in_flight=4)
        assert coordinator.at_once_max == 4
        assert count == len(coordinator.accepted)
        assert producer.line.limit == 1, "as it was made"
        without_gap_or_overlap(world)
        await consumer.close()

    in_a_world(work)


@pytest.mark.parametrize("number", [0, 17])
def test_run_refuses_what_is_out_of_range(number: int) -> None:
    async def work(world: World) -> None:
        client = world.client()
        consumer = await client.member()
        producer = await client.log.transactional_producer()
        with pytest.raises(errors.InvalidArgument, match="one_shots_in_flight_max = 16"):
            await client.log.run(consumer, copy, producer, in_flight=number)
        await consumer.close()

    in_a_world(work)


@pytest.mark.parametrize(
    "refusal",
    [errors.StalePosition("no"), errors.TransactionEnded("no"), errors.IllegalGeneration("no")],
    ids=lambda error: error.reason,
)
def test_i21_run_repeats_from_the_first_that_was_refused_on(refusal: errors.OncelogError) -> None:
    async def work(world: World) -> None:
        client = world.client()
        coordinator = chained(world, client)
        coordinator.refuses = [(lambda request: request.request_number == 4, refusal)]
        consumer = await client.member()
        producer = await client.log.transactional_producer()
        stop_ms = world.now_ms() + 8_000
        with_step = client.log.run_until(
            lambda: world.now_ms() > stop_ms, consumer, copy, producer, None
        )
        with producer.line.at_most(4):
            count = await with_step
        assert coordinator.refuses == [], "it was refused"
        committed = [
            out.result()
            for out in coordinator.outcomes.values()
            if not isinstance(out.result(), errors.OncelogError)
        ]
        assert count == len(committed)
        without_gap_or_overlap(world)
        assert consumer.closed

    in_a_world(work)


def test_i23_what_is_in_flight_is_decided_before_its_partition_goes() -> None:
    async def work(world: World) -> None:
        client, other = world.client(), world.client()
        coordinator = chained(world, client, delay_s=1.0)
        consumer = await client.member()
        producer = await client.log.transactional_producer(in_flight=4)
        stop = asyncio.Event()

        async def go_on() -> int:
            return await client.log.run_until(stop.is_set, consumer, copy, producer, None)

        running = asyncio.ensure_future(go_on())
        await asyncio.sleep(6)
        second = await other.member()
        await read(second, 8)
        stop.set()
        await running
        assert coordinator.at_once_max > 1
        assert all(
            not isinstance(out.result(), errors.OncelogError)
            for out in coordinator.outcomes.values()
        ), "nothing had to be refused"
        without_gap_or_overlap(world)
        await second.close()

    in_a_world(work)


def test_i21_close_waits_for_what_is_in_flight_before_the_member_leaves() -> None:
    async def work(world: World) -> None:
        client = world.client()
        coordinator = chained(world, client, delay_s=0.5)
        consumer = await client.member()
        producer = await client.log.transactional_producer(in_flight=4)
        for _ in range(4):
            await _one(consumer, producer)
        await consumer.close()
        assert all(out.done() for out in coordinator.outcomes.values())
        await producer.close()
        assert len(world.commits) >= 4
        without_gap_or_overlap(world)

    in_a_world(work)


async def _one(consumer: Consumer, producer: Any) -> Any:
    batch = None
    while batch is None:
        batch = await consumer.poll(1)
    async with producer.transaction(consumer) as tx:
        await copy(batch, tx)
    return tx


def test_i23_a_member_that_lost_its_partitions_has_all_in_flight_refused() -> None:
    async def work(world: World) -> None:
        client = world.client()
        coordinator = chained(world, client, delay_s=0.1)
        consumer = await client.member()
        producer = await client.log.transactional_producer(in_flight=4)
        await _one(consumer, producer)
        coordinator.delay_s = SESSION_MS / 1000 + 2
        made = [await _one(consumer, producer) for _ in range(3)]
        client.is_cut_off = True
        await asyncio.sleep(SESSION_MS / 1000 + 1)
        taken = len(world.commits)
        client.is_cut_off = False
        with pytest.raises(errors.GroupMoved):
            await producer.flush()
        assert [tx.state for tx in made] == ["aborted"] * 3
        assert len(world.commits) == taken
        coordinator.delay_s = 0.1
        await _one(consumer, producer)
        await producer.flush()
        without_gap_or_overlap(world)
        await consumer.close()

    in_a_world(work)


def test_i21_a_signal_ends_run_when_all_in_flight_is_decided() -> None:
    async def work(world: World) -> None:
        client = world.client()
        coordinator = chained(world, client, delay_s=0.5)
        consumer = await client.member()
        producer = await client.log.transactional_producer()
        seen = 0

        async def step(batch: Batch, tx: Any) -> None:
            nonlocal seen
            seen += 1
            await copy(batch, tx)
            if seen == 6:
                signal.raise_signal(signal.SIGTERM)

        count = await client.log.run(consumer, step, producer, in_flight=4)
        assert count == 6 == len(coordinator.accepted)
        assert consumer.closed
        without_gap_or_overlap(world)

    in_a_world(work)
