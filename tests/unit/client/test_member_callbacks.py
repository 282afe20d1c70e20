"""What users do in callbacks and beside a poll: close, commit, cancel. In virtual time, against a
model of the group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from oncelog import errors
from oncelog.aio.consumer import Consumer
from oncelog.batch import TopicPartition
from tests.unit.client.member_world import World, in_a_world, places, read, without_gap_or_overlap

LONG_S = 3_600.0


def test_i21_a_consumer_that_is_closed_in_on_revoked_gives_everything_back_once() -> None:
    async def work(world: World) -> None:
        told: list[int] = []
        kept: list[Consumer] = []

        async def on_revoked(given: Sequence[TopicPartition]) -> None:
            told.extend(place.partition for place in given)
            await kept[0].commit()
            await kept[0].close()

        first = await world.client().member(on_revoked=on_revoked)
        kept.append(first)
        given = await read(first, 3)
        second = await world.client().member()
        began_s = asyncio.get_running_loop().time()
        while not first.closed:
            batch = await first.poll(LONG_S)
            given += [(record.partition, record.offset) for record in batch or ()]
        assert asyncio.get_running_loop().time() - began_s < LONG_S, "its poll has ended with it"
        assert sorted(told) == [0, 1, 2, 3], "each partition is told once"
        again = await read(second, 5)
        assert second.assignment == places(0, 1, 2, 3)
        assert not set(given) & set(again), "what was committed is not read again"
        await second.close()

    in_a_world(work)


def test_i21_who_polls_in_on_revoked_may_commit_after_that() -> None:
    """What goes is held until the callback has ended."""

    async def work(world: World) -> None:
        covered: list[set[int]] = []
        told: list[int] = []

        async def on_revoked(given: Sequence[TopicPartition]) -> None:
            if kept[0].closed:
                return
            told.extend(place.partition for place in given)
            await kept[0].poll(0.0)
            before = len(world.commits)
            await kept[0].commit()
            covered.append({commit[0] for commit in world.commits[before:]} & set(told))

        kept = [await world.client().member(on_revoked=on_revoked)]
        await read(kept[0], 3.5)
        second = await world.client().member()
        await asyncio.gather(read(kept[0], 12), read(second, 12))
        assert len(told) == 2
        assert covered == [set(told)], "its commit covers what goes"
        await kept[0].commit()
        without_gap_or_overlap(world)
        await asyncio.gather(kept[0].close(), second.close())

    in_a_world(work)


def test_a_poll_that_is_cancelled_as_something_comes_ends() -> None:
    async def work(world: World) -> None:
        consumer = await world.client().member()
        await read(consumer, 2)
        await consumer.pause()
        for turns in range(10):
            polling = asyncio.ensure_future(consumer.poll(LONG_S))
            await asyncio.sleep(0.01)
            consumer._prefetcher.wake()
            for _ in range(turns):
                await asyncio.sleep(0)
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
        await consumer.close()

    in_a_world(work)


Call = Callable[[Consumer], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "poll": lambda one: one.poll(0.0),
    "subscribe": lambda one: one.subscribe(["a"]),
    "commit": lambda one: one.commit(),
    "committed": lambda one: one.committed("a", 0),
    "position": lambda one: one.position("a", 0),
    "end_offset": lambda one: one.end_offset("a", 0),
    "lag": lambda one: one.lag(),
    "seek": lambda one: one.seek("a", 0, 0),
    "seek_to_beginning": lambda one: one.seek_to_beginning(),
    "seek_to_end": lambda one: one.seek_to_end(),
    "pause": lambda one: one.pause(),
    "resume": lambda one: one.resume(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_consumer_says_so_whatever_is_asked_of_it(name: str) -> None:
    async def work(world: World) -> None:
        consumer = await world.client().member()
        await read(consumer, 2)
        await consumer.close()
        with pytest.raises(errors.Closed):
            await CALLS[name](consumer)

    in_a_world(work)


def test_a_closed_consumer_has_no_standing_in_its_group() -> None:
    async def work(world: World) -> None:
        consumer = await world.client().member()
        await read(consumer, 2)
        await consumer.close()
        with pytest.raises(errors.Closed):
            consumer.group_metadata()

    in_a_world(work)


def test_what_is_closed_while_it_polls_reads_nothing_any_more() -> None:
    """The poll waits for the group's offsets; nothing is followed after that."""

    async def work(world: World) -> None:
        client = world.client()
        consumer = await client.log.consumer(["a"], group="alone", partitions="all")
        held = asyncio.Event()
        fetch = client.transport.handlers["offset_manager.fetch_offsets"]

        async def slow(to: Any, request: Any) -> Any:
            await held.wait()
            return fetch(to, request)

        client.transport.handlers["offset_manager.fetch_offsets"] = slow
        polling = asyncio.ensure_future(consumer.poll(LONG_S))
        await asyncio.sleep(1)
        await consumer.close()
        held.set()
        assert await polling is None
        await asyncio.sleep(10)
        assert not any(method.endswith("subscribe") for method, _ in client.transport.asked)

    in_a_world(work)


def test_what_other_clients_take_is_answered_with_what_to_write() -> None:
    async def work(world: World) -> None:
        client = world.client()
        with pytest.raises(errors.InvalidArgument, match=r"pattern='a\.\*'"):
            await client.log.consumer(["^a.*"], group="g")
        with pytest.raises(errors.InvalidArgument, match="no regular expression"):
            await client.log.consumer(pattern="(", group="g")
        consumer = await client.member()
        with pytest.raises(errors.InvalidArgument, match=r"pause\(\*partitions\)"):
            await consumer.pause([TopicPartition("a", 0)])  # type: ignore[arg-type]
        await consumer.close()

    in_a_world(work)
