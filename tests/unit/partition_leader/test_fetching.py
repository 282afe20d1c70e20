"""How long Fetch waits, and how much it gives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from oncelog_server.partition_leader.fetching import REPLY_MARGIN_MS
from oncelog_server.partition_leader.reads import Reader
from oncelog_server.partition_leader.service import PartitionLeaderService
from oncelogpb import bulk, errors
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.partition_leader.fakes import FIRST, SECOND, FakeCall, World
from tests.unit.partition_leader.messages import batch, fetch, partition_of, plain, values_of


def run(story: Callable[[World, PartitionLeaderService], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        async with asyncio.timeout(10):
            await story(world, PartitionLeaderService(world.env, world.config))

    asyncio.run(main())


def decoded(reply: bulk.Encoded) -> list[pb.FetchedPartition]:
    return list(pb.FetchReply.FromString(bulk.join(reply.chunks)).partitions)


def test_what_becomes_durable_during_the_read_ends_the_wait_behind_it() -> None:
    async def story(world: World, service: PartitionLeaderService) -> None:
        world.first.hold = True
        sending = asyncio.create_task(service.produce(plain(batch([b"a"])), FakeCall()))
        await asyncio.sleep(0.01)
        read = world.first.read

        async def read_and_sync(*arguments: Any, **options: Any) -> Any:
            found = await read(*arguments, **options)
            world.first.sync()
            return found

        world.first.read = read_and_sync  # type: ignore[method-assign]
        wanted = fetch(isolation=pb.ISOLATION_UNCOMMITTED, max_wait_ms=50)
        (fetched,) = decoded(await service.fetch(wanted, FakeCall()))
        assert values_of(fetched) == [b"a"]
        await sending

    run(story)


def test_a_long_poll_ends_before_its_caller_gives_up() -> None:
    async def story(_: World, service: PartitionLeaderService) -> None:
        call = FakeCall(timeout_ms=REPLY_MARGIN_MS)
        poll = asyncio.create_task(service.fetch(fetch(max_wait_ms=30_000), call))
        for _turn in range(20):
            await asyncio.sleep(0)
        assert poll.done(), "it waits although its caller has no time"

    run(story)


def test_max_bytes_is_of_the_reply_and_not_of_each_partition() -> None:
    async def story(_: World, service: PartitionLeaderService) -> None:
        both = [batch([b"x" * 5_000], partition=partition) for partition in (FIRST, SECOND)]
        await service.produce(plain(*both), FakeCall())
        wanted = [pb.FetchPartition(partition=partition_of(p)) for p in (FIRST, SECOND)]
        request = pb.FetchRequest(partitions=wanted, max_bytes=1_000)
        found = decoded(await service.fetch(request, FakeCall()))
        assert sorted(len(one.batches) for one in found) == [0, 1]

    run(story)


def test_of_rows_one_reply_gives_no_more_than_is_converted_at_once() -> None:
    async def story(world: World, _: PartitionLeaderService) -> None:
        service = PartitionLeaderService(world.env, replace(world.config, rows_bytes_max=1_000))
        batches = [batch([b"x" * 900], sequence=number) for number in range(4)]
        await service.produce(plain(*batches), FakeCall())
        (stored,) = decoded(await service.fetch(fetch(), FakeCall()))
        assert len(stored.batches) == 4
        (rows,) = decoded(await service.fetch(fetch(format_=pb.FORMAT_ROWS), FakeCall()))
        assert 1 <= len(rows.batches) < 4

    run(story)


def test_a_subscription_reads_once_what_comes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = Reader.read

    async def counted(self: Reader, replica: Any, from_offset: int, **options: Any) -> Any:
        reads.append(from_offset)
        return await read(self, replica, from_offset, **options)

    monkeypatch.setattr(Reader, "read", counted)

    async def story(world: World, service: PartitionLeaderService) -> None:
        wanted = [pb.FetchPartition(partition=partition_of(FIRST))]
        replies: Any = service.subscribe(pb.SubscribeRequest(partitions=wanted), FakeCall())
        for number in range(5):
            coming = asyncio.ensure_future(anext(replies))
            await asyncio.sleep(0.01)
            await service.produce(plain(batch([b"%d" % number], sequence=number)), FakeCall())
            assert [values_of(one) for one in decoded(await coming)] == [[b"%d" % number]]
        assert reads == [0, 0, 1, 2, 3, 4], "at the beginning, and once for each record"
        await replies.aclose()

    run(story)


def test_a_subscription_misses_nothing_that_comes_while_its_reply_is_written() -> None:
    async def story(world: World, service: PartitionLeaderService) -> None:
        wanted = [pb.FetchPartition(partition=partition_of(place)) for place in (FIRST, SECOND)]
        replies: Any = service.subscribe(pb.SubscribeRequest(partitions=wanted), FakeCall())
        await service.produce(plain(batch([b"a"])), FakeCall())
        assert [values_of(one) for one in decoded(await anext(replies))] == [[b"a"]]
        # It was not asked for more yet: its reply is being written.
        await service.produce(plain(batch([b"b"], sequence=1)), FakeCall())
        await service.produce(plain(batch([b"c"], partition=SECOND)), FakeCall())
        values: list[bytes] = []
        while len(values) < 2:
            values += [value for one in decoded(await anext(replies)) for value in values_of(one)]
        assert sorted(values) == [b"b", b"c"]
        await replies.aclose()

    run(story)


def test_a_subscription_waits_within_the_lease_only() -> None:
    """It would never hear of the new leader, and never find it."""

    async def story(world: World, service: PartitionLeaderService) -> None:
        wanted = [pb.FetchPartition(partition=partition_of(place)) for place in (FIRST, SECOND)]
        replies: Any = service.subscribe(pb.SubscribeRequest(partitions=wanted), FakeCall())
        coming = asyncio.ensure_future(anext(replies))
        await asyncio.sleep(0.01)
        assert not coming.done()
        # What is there may be read from who leads no more.
        world.first.lease_valid = False
        await service.produce(plain(batch([b"a"])), FakeCall())
        assert [values_of(one) for one in decoded(await coming)] == [[b"a"]]
        coming = asyncio.ensure_future(anext(replies))
        await asyncio.wait([coming], timeout=1.0)
        assert coming.done(), "it waits past the lease"
        (refused,) = decoded(coming.result())
        assert refused.partition == partition_of(FIRST)
        assert errors.from_status(refused.error).reason == "NOT_LEADER"
        # The other one is followed on, and what comes at the first wakes nobody.
        coming = asyncio.ensure_future(anext(replies))
        await asyncio.sleep(0.01)
        assert not world.first.watchers, "its caller was told that it ends"
        await service.produce(plain(batch([b"late"], sequence=1)), FakeCall())
        await asyncio.sleep(0.01)
        assert not coming.done()
        await service.produce(plain(batch([b"b"], partition=SECOND)), FakeCall())
        assert [values_of(one) for one in decoded(await coming)] == [[b"b"]]
        await replies.aclose()
        assert not world.second.watchers, "its caller is gone"

    run(story)
