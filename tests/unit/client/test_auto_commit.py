"""Commits that a consumer makes by itself: of what is processed, and only of that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oncelog import plain
from oncelog._loop import LoopThread
from oncelog.batch import Batch
from oncelog.errors import Closed
from oncelogpb import errors
from tests.unit.client.member_world import SESSION_MS, World, in_a_world

# Nothing here takes as long: then a thread waits for ever.
STUCK_S = 30.0
# Never, but at the end.
AT_LAST_MS = 3_600_000


@pytest.mark.parametrize("closer", ["another task", "the same", "one of its own"])
def test_i21_at_close_what_another_task_processes_is_not_committed(closer: str) -> None:
    async def work(world: World) -> None:
        client = world.client()
        consumer = await client.member(auto_commit_ms=AT_LAST_MS)
        given: list[Batch] = []
        is_over = asyncio.Event()

        async def process() -> None:
            while len(given) < 3:
                batch = await consumer.poll()
                assert batch is not None
                given.append(batch)
            if closer == "the same":
                await client.log.close()
            elif closer == "one of its own":
                await asyncio.create_task(client.log.close())
            await is_over.wait()

        processing = asyncio.create_task(process())
        while len(given) < 3:
            await asyncio.sleep(0.1)
        if closer == "another task":
            async with client.log:
                pass
        else:
            await asyncio.sleep(1)
        processed = given[:-1] if closer == "another task" else given
        assert _committed(world) == _next_offsets(processed)
        is_over.set()
        await processing

    in_a_world(work, partitions=2)


def test_i21_who_has_polled_again_has_processed_what_was_given_before() -> None:
    async def work(world: World) -> None:
        client = world.client()
        consumer = await client.member(auto_commit_ms=AT_LAST_MS)
        given: list[Batch] = []

        async def process() -> None:
            while len(given) < 2:
                batch = await consumer.poll()
                assert batch is not None
                given.append(batch)
            await consumer.pause()
            assert await consumer.poll(60) is None

        processing = asyncio.create_task(process())
        await asyncio.sleep(10)
        await consumer.close()
        assert len(given) == 2
        assert _committed(world) == _next_offsets(given)
        await processing

    in_a_world(work, partitions=1)


@pytest.mark.parametrize("closes_itself", [False, True])
def test_i21_at_close_what_another_thread_processes_is_not_committed(closes_itself: bool) -> None:
    with _connected() as (world, log):
        consumer = log.consumer(
            ["a"],
            "g",
            auto_commit_ms=AT_LAST_MS,
            batch_records_max=5,
            session_timeout_ms=SESSION_MS,
        )
        given: list[Batch] = []
        processes, is_over = threading.Event(), threading.Event()

        def process() -> None:
            while len(given) < 3:
                batch = consumer.poll(STUCK_S)
                assert batch is not None
                given.append(batch)
            if closes_itself:
                log.close()
            processes.set()
            is_over.wait(STUCK_S)

        thread = threading.Thread(target=process)
        thread.start()
        assert processes.wait(STUCK_S)
        with log:
            pass
        is_over.set()
        thread.join(STUCK_S)
        assert _committed(world) == _next_offsets(given if closes_itself else given[:-1])


@pytest.mark.parametrize("how", ["led elsewhere", "silent"])
def test_a_poll_waits_for_a_commit_no_longer_than_for_records(how: str) -> None:
    """The offset manager is away. What was read goes on being given, and the next commit covers
    all of it."""

    async def work(world: World) -> None:
        client = world.client()
        consumer = await client.member(auto_commit_ms=1_000)
        commit = client.transport.handlers["offset_manager.commit_offsets"]

        async def hangs(*_: object) -> None:
            await asyncio.sleep(3600)

        def refuses(*_: object) -> None:
            raise errors.NotLeader("elsewhere")

        away = refuses if how == "led elsewhere" else hangs
        client.transport.handlers["offset_manager.commit_offsets"] = away
        given: list[Batch] = []
        loop = asyncio.get_running_loop()
        for _ in range(8):
            began = loop.time()
            batch = await consumer.poll(1.0)
            assert loop.time() - began <= 2.0, "it waits for the commit"
            given += [batch] if batch is not None else []
        assert len(given) >= 4, "nothing is given meanwhile"
        client.transport.handlers["offset_manager.commit_offsets"] = commit
        await consumer.close()
        assert _committed(world) == _next_offsets(given)

    in_a_world(work, partitions=1)


def test_i21_what_was_begun_is_over_before_it_seeks_or_commits() -> None:
    async def work(world: World) -> None:
        client = world.client()
        consumer = await client.member(auto_commit_ms=1_000)
        commit = client.transport.handlers["offset_manager.commit_offsets"]

        async def slow(*asked: Any) -> Any:
            await asyncio.sleep(5)
            return commit(*asked)

        client.transport.handlers["offset_manager.commit_offsets"] = slow
        for _ in range(3):
            assert await consumer.poll(1.0) is not None
            await asyncio.sleep(1)
        assert await consumer.poll(0) is not None
        await consumer.commit()
        assert [(start, to) for _, start, to, _ in world.commits] == [(0, 5), (5, 20)]
        assert await consumer.poll(1.0) is not None
        await asyncio.sleep(2)
        await consumer.poll(0)
        await consumer.seek("a", 0, 5)
        assert _committed(world)[0] > 20
        consumer._positions.check()
        await consumer.close()

    in_a_world(work, partitions=1)


@contextmanager
def _connected() -> Iterator[tuple[World, plain.Log]]:
    world, loop = World(partitions=2), LoopThread("test")

    async def made() -> plain.Log:
        return plain.Log(loop, world.client().log)

    log = loop.run(made())
    try:
        yield world, log
    finally:
        try:
            log.close()
        except Closed:
            pass


def _committed(world: World) -> dict[int, int]:
    return {key.number: offset for key, offset in world.committed.items()}


def _next_offsets(batches: list[Batch]) -> dict[int, int]:
    found: dict[int, int] = {}
    for batch in batches:
        found |= {place.partition: offset for place, offset in batch.next_offsets().items()}
    return found
