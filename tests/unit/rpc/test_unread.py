"""Who asks for much and reads nothing has a process hold no more than a limit for it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from oncelog_server.runtime.rpc import handling
from oncelog_server.runtime.rpc.limits import RpcLimits
from oncelog_server.runtime.rpc.unread import Total, Unread
from oncelogpb import calls
from oncelogpb.errors import Throttled
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.rpc.harness import outcome_of, run, serving

ONE = 1_000_000
LIMITS = RpcLimits(connection_unread_bytes_max=3 * ONE)


class Reading:
    """A Fetch that takes room, reads slowly, and answers with that much."""

    def __init__(self) -> None:
        self.begun = 0
        self.has_read = asyncio.Event()

    async def __call__(self, request: Any, call: Any) -> Any:
        await call.room(ONE)
        self.begun += 1
        # All of a caller's fetches could have begun by now.
        await asyncio.sleep(0.01)
        call.holds(ONE)
        self.has_read.set()
        batch = pb.FetchedBatch(payload=b"x" * ONE)
        return pb.FetchReply(partitions=[pb.FetchedPartition(batches=[batch])])


async def _settled(reading: Reading) -> int:
    """How many have begun when no more begin."""
    begun = -1
    while begun != reading.begun or not begun:
        begun = reading.begun
        await asyncio.sleep(0.2)
    return begun


def test_fetches_on_a_stream_that_is_not_read_wait_before_they_read() -> None:
    async def story() -> None:
        reading = Reading()
        async with serving("PartitionLeader", limits=LIMITS, fetch=reading) as (_, channel):
            stream = channel.stream_stream(
                "/oncelogpb.v1.PartitionLeader/Stream",
                response_deserializer=pb.PartitionLeaderAnswers.FromString,
            )()
            await stream.initial_metadata()
            asked = [pb.PartitionLeaderCall(number=n, fetch=pb.FetchRequest()) for n in range(100)]
            await stream.write(pb.PartitionLeaderCalls(calls=asked).SerializeToString())
            await stream.done_writing()
            # Beyond the limit: what the transport took over on its way to the caller.
            assert await _settled(reading) < 50
            numbers = [
                answer.number async for answers in _until_end(stream) for answer in answers.answers
            ]
            assert sorted(numbers) == list(range(100)), "who reads is given all"

    run(story())


def test_unary_fetches_that_are_not_read_wait_and_give_their_room_back_when_cut() -> None:
    async def story() -> None:
        reading = Reading()
        async with serving("PartitionLeader", limits=LIMITS, fetch=reading) as (server, channel):
            _, deaf = await asyncio.open_connection("127.0.0.1", server.port)
            deaf.write(_deaf_calls("Fetch", 50))
            await deaf.drain()
            assert await _settled(reading) == 3
            # Others have room of their own.
            await calls.unary(channel, "partition_leader", "fetch", pb.FetchRequest())
            assert reading.begun == 4
            deaf.transport.abort()
            await _until(lambda: server.held()["calls"] == server.held()["unread_bytes"] == 0)
            assert reading.begun == 4, "nobody waits for what was cut"

    run(story())


def test_subscribers_that_read_nothing_leave_half_of_the_room_and_give_theirs_back_when_cut() -> (
    None
):
    async def story() -> None:
        sizes: list[int] = []

        async def subscribe(request: Any, call: Any) -> Any:
            while True:
                size = max(min(ONE, call.room_left()), 1_000)
                call.holds(size)
                sizes.append(size)
                batch = pb.FetchedBatch(payload=b"x" * size)
                yield pb.FetchReply(partitions=[pb.FetchedPartition(batches=[batch])])

        async with serving(
            "PartitionLeader", limits=LIMITS, fetch=Reading(), subscribe=subscribe
        ) as (server, channel):
            _, deaf = await asyncio.open_connection("127.0.0.1", server.port)
            deaf.write(_deaf_calls("Subscribe", 50))
            await deaf.drain()
            await _until(lambda: len(sizes) == 50)
            assert sizes[:3] == [ONE, ONE // 2, 1_000]
            assert server.held()["unread_bytes"] == sum(sizes) < 2 * ONE
            # Others have room of their own, and who reads is given one reply after another.
            replies = calls.server_stream(
                channel, "partition_leader", "subscribe", pb.SubscribeRequest()
            )
            got = [len((await anext(replies)).partitions[0].batches[0].payload) for _ in range(9)]
            assert got[0] == ONE
            await replies.aclose()
            deaf.transport.abort()
            await _until(lambda: server.held()["streams"] == server.held()["unread_bytes"] == 0)

    run(story())


def test_a_subscription_gets_what_nobody_else_waits_for() -> None:
    async def story() -> None:
        total = Total(100)
        one, other = Unread(40, total), Unread(200, total)
        assert (one.room_left(), other.room_left()) == (20, 50)
        one.change(15)
        assert (one.room_left(), other.room_left()) == (5, 35)
        other.change(60)
        assert (one.room_left(), other.room_left()) == (0, 0)
        other.change(-60)
        waiting = asyncio.create_task(one.take(30))
        await asyncio.sleep(0)
        assert one.room_left() == 0, "it would overtake"
        one.change(-15)
        await waiting

    asyncio.run(story())


def test_a_fetch_that_finds_no_room_in_time_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine an answer that leaves 50 ms before its caller gives up comes too late.
    monkeypatch.setattr(handling, "ROOM_MARGIN_MS", 4_700)

    async def story() -> None:
        reading = Reading()
        limits = RpcLimits(connection_unread_bytes_max=ONE)
        gate = asyncio.Event()

        async def held(request: Any, call: Any) -> Any:
            await call.room(ONE)
            await gate.wait()
            return pb.ListOffsetsReply()

        async with serving("PartitionLeader", limits=limits, fetch=reading, list_offsets=held) as (
            _,
            channel,
        ):
            ask = calls.unary(channel, "partition_leader", "list_offsets", pb.ListOffsetsRequest())
            first = asyncio.create_task(ask)
            await asyncio.sleep(0.05)
            error = await outcome_of(
                calls.unary(
                    channel, "partition_leader", "fetch", pb.FetchRequest(), timeout_ms=5_000
                )
            )
            assert (type(error), error.metadata["limit"]) == (
                Throttled,
                "connection_unread_bytes_max",
            )
            gate.set()
            await first
            await calls.unary(channel, "partition_leader", "fetch", pb.FetchRequest())

    run(story())


def test_room_is_given_in_order_and_whoever_comes_alone_is_taken() -> None:
    async def story() -> None:
        unread = Unread(10, Total(100))
        await unread.take(50)
        order: list[str] = []

        async def take(name: str, size: int) -> None:
            await unread.take(size)
            order.append(name)

        large = asyncio.create_task(take("large", 9))
        await asyncio.sleep(0)
        small = asyncio.create_task(take("small", 1))
        await asyncio.sleep(0)
        assert not unread.has_room(0), "it would overtake"
        unread.change(-50)
        await asyncio.gather(large, small)
        assert (order, unread.bytes) == (["large", "small"], 10)

    asyncio.run(story())


def test_where_all_connections_hold_much_each_has_one_fetch_at_a_time() -> None:
    async def story() -> None:
        total = Total(10)
        first, second = Unread(10, total), Unread(10, total)
        await first.take(8)
        await second.take(8)
        assert total.bytes == 16, "one each is always taken"
        more = asyncio.create_task(second.take(1))
        await asyncio.sleep(0)
        assert not more.done()
        second.change(-8)
        await more
        first.change(-8)
        second.change(-1)
        assert total.bytes == 0

    asyncio.run(story())


@pytest.mark.parametrize("given_first", [False, True])
def test_who_gives_up_waiting_leaves_no_room_taken(given_first: bool) -> None:
    async def story() -> None:
        unread = Unread(10, Total(100))
        await unread.take(10)
        first, second = (asyncio.create_task(unread.take(10)) for _ in range(2))
        await asyncio.sleep(0)
        if given_first:
            unread.change(-10)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        if not given_first:
            unread.change(-10)
        await second
        unread.change(-10)
        assert unread.bytes == 0

    asyncio.run(story())


def test_all_that_wait_may_give_up_at_once() -> None:
    """A connection is cut: who is woken has given up already."""

    async def story() -> None:
        unread = Unread(10, Total(100))
        await unread.take(10)
        waiting = [asyncio.create_task(unread.take(10)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        unread.change(-10)
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * 3
        assert (unread.bytes, unread.has_room(10)) == (0, True)

    asyncio.run(story())


def _deaf_calls(method: str, count: int) -> bytes:
    """What a caller sends over HTTP/2 that asks so often and lets nothing be sent to it."""

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return (
            struct.pack(">I", len(payload))[1:]
            + bytes([kind, flags])
            + struct.pack(">I", stream)
            + payload
        )

    def field(name: bytes, value: bytes) -> bytes:
        return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value

    headers = b"\x83\x86" + b"".join(
        field(name, value)
        for name, value in (
            (b":path", f"/oncelogpb.v1.PartitionLeader/{method}".encode()),
            (b":authority", b"test"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )
    no_window = frame(4, 0, 0, b"\x00\x04\x00\x00\x00\x00")
    asked = (
        frame(1, 4, 2 * n + 1, headers) + frame(0, 1, 2 * n + 1, b"\x00\x00\x00\x00\x00")
        for n in range(count)
    )
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + no_window + b"".join(asked)


async def _until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def _until_end(stream: Any) -> AsyncIterator[Any]:
    while (answers := await stream.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
        yield answers
