"""What is too large is refused by name, before it is parsed, and never sent."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from oncelog_server.runtime.rpc import fields
from oncelog_server.runtime.rpc.limits import RpcLimits
from oncelogpb import calls
from oncelogpb.errors import InvalidArgument, Throttled, TooLarge
from oncelogpb.v1 import coordinator_pb2 as coordinator
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as types
from tests.unit.rpc.harness import outcome_of, run, serving

SMALL = RpcLimits(message_bytes_max=10_000)
PRODUCE = leader.ProduceRequest.DESCRIPTOR
# And an empty SETTINGS frame.
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


async def echo(request: Any, call: Any) -> Any:
    return coordinator.InitProducerReply(max_timeout_ms=len(request.name))


async def repeat(request: Any, call: Any) -> Any:
    """As many transactions as asked for."""
    one = coordinator.TransactionDescription(name="x" * 1_000)
    return coordinator.GetTransactionReply(transaction=one) if request.tx_id == 1 else _huge()


def _huge() -> coordinator.GetTransactionReply:
    described = coordinator.TransactionDescription(name="x" * 20_000)
    return coordinator.GetTransactionReply(transaction=described)


def test_a_request_above_message_bytes_max_is_told_so_and_the_server_goes_on() -> None:
    async def story() -> None:
        async with serving("Coordinator", limits=SMALL, init_producer=echo) as (_, channel):
            large = coordinator.InitProducerRequest(name="x" * 12_000)
            error = await outcome_of(calls.unary(channel, "coordinator", "init_producer", large))
            assert type(error) is TooLarge
            assert error.metadata == {"limit": "message_bytes_max", "maximum": "10000"}
            small = coordinator.InitProducerRequest(name="x")
            reply = await calls.unary(channel, "coordinator", "init_producer", small)
            assert reply.max_timeout_ms == 1

    run(story())


def test_what_the_transport_would_not_carry_is_refused_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own refusal has no reason of ours, so nobody could say that nothing happened."""
    monkeypatch.setattr(calls, "MESSAGE_BYTES_MAX", 9_000)

    async def story() -> None:
        asked = 0

        async def count(request: Any, call: Any) -> Any:
            nonlocal asked
            asked += 1

        async with serving("Coordinator", init_producer=count) as (_, channel):
            large = coordinator.InitProducerRequest(name="x" * 9_001)
            stream = calls.CallStream(channel, "coordinator")
            replies = calls.server_stream(
                channel,
                "partition_leader",
                "subscribe",
                leader.SubscribeRequest(partitions=[leader.FetchPartition()] * 5_000),
            )
            for call in (
                calls.unary(channel, "coordinator", "init_producer", large),
                stream.call("init_producer", large),
                anext(replies),
            ):
                error = await outcome_of(call)
                assert type(error) is TooLarge
                assert not error.may_have_applied
                assert error.metadata == {"limit": "message_bytes_max", "maximum": "9000"}
            await stream.close()
        assert not asked

    run(story())


def test_a_stream_message_above_message_bytes_max_ends_the_stream_by_name() -> None:
    async def story() -> None:
        async with serving("Coordinator", limits=SMALL, init_producer=echo) as (_, channel):
            stream = channel.stream_stream("/oncelogpb.v1.Coordinator/Stream")()
            await stream.initial_metadata()
            await stream.write(b"\x00" * 12_000)
            error = calls.from_rpc_error(await outcome_of(stream.read()))
            assert type(error) is TooLarge
            assert error.metadata["limit"] == "message_bytes_max"

    run(story())


def test_a_reply_above_message_bytes_max_is_an_error_of_its_call_alone() -> None:
    async def story() -> None:
        async with serving("Coordinator", limits=SMALL, get_transaction=repeat) as (_, channel):
            stream = calls.CallStream(channel, "coordinator")
            large, small = (coordinator.GetTransactionRequest(tx_id=tx_id) for tx_id in (2, 1))
            for error in (
                await outcome_of(calls.unary(channel, "coordinator", "get_transaction", large)),
                await outcome_of(stream.call("get_transaction", large)),
            ):
                assert type(error) is TooLarge
                assert error.metadata["limit"] == "message_bytes_max"
            reply = await stream.call("get_transaction", small)
            assert len(reply.transaction.name) == 1_000
            await stream.close()

    run(story())


def test_fields_are_counted_also_in_messages_but_not_in_bytes() -> None:
    request = leader.ProduceRequest(tx_id=1, producer=types.Producer(producer_id=7))
    for number in range(3):
        batch = request.batches.add(payload=b"\x0a\x00" * 1_000, record_count=1)
        batch.partition.number = number + 1
    # tx_id · producer, its id · three of: batch, partition, number, record_count, payload.
    assert fields.count_fields(request.SerializeToString(), PRODUCE, stop_above=99) == 3 + 3 * 5


@pytest.mark.parametrize("stop_above", [0, 1, 10])
def test_the_count_stops_where_it_is_enough(stop_above: int) -> None:
    many = leader.ProduceRequest(batches=[types.Batch()] * 100).SerializeToString()
    assert fields.count_fields(many, PRODUCE, stop_above=stop_above) == stop_above + 1


def test_a_message_of_empty_messages_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fields, "COUNT_ABOVE_BYTES", 100)
    few = RpcLimits(message_fields_max=1_000)

    async def produce(request: Any, call: Any) -> Any:
        raise AssertionError("it never comes this far")

    async def story() -> None:
        async with serving("PartitionLeader", limits=few, produce=produce) as (_, channel):
            bomb = leader.ProduceRequest(batches=[types.Batch()] * 1_001)
            error = await outcome_of(calls.unary(channel, "partition_leader", "produce", bomb))
            assert type(error) is TooLarge
            assert error.metadata["limit"] == "message_fields_max"
            stream = channel.stream_stream("/oncelogpb.v1.PartitionLeader/Stream")()
            await stream.initial_metadata()
            await stream.write(b"\x0a\x00" * 1_001)
            error = calls.from_rpc_error(await outcome_of(stream.read()))
            assert type(error) is TooLarge

    run(story())


def test_what_is_malformed_is_left_to_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "COUNT_ABOVE_BYTES", 10)

    async def story() -> None:
        async with serving("Coordinator", init_producer=echo) as (_, channel):
            call = channel.unary_unary("/oncelogpb.v1.Coordinator/InitProducer")
            for data in (b"\x0b" * 100, b"\x0a\x7f" * 50, b"\xff" * 100):
                error = calls.from_rpc_error(await outcome_of(call(data)))
                assert type(error) is InvalidArgument

    run(story())


def test_calls_max_counts_calls_that_are_under_way() -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def wait(request: Any, call: Any) -> Any:
            await gate.wait()
            return coordinator.InitProducerReply()

        limits = RpcLimits(calls_max=2)
        async with serving("Coordinator", limits=limits, init_producer=wait) as (server, channel):
            request = coordinator.InitProducerRequest(name="x")

            def ask() -> Any:
                return calls.unary(channel, "coordinator", "init_producer", request)

            two = [asyncio.create_task(ask()) for _ in range(2)]
            while server.held()["calls"] < 2:
                await asyncio.sleep(0)
            error = await outcome_of(ask())
            assert (type(error), error.metadata["limit"]) == (Throttled, "calls_max")
            gate.set()
            await asyncio.gather(*two)
            assert server.held() == {
                "inflight_bytes": 0,
                "streams": 0,
                "calls": 0,
                "unread_bytes": 0,
            }

    run(story())


def test_calls_max_counts_those_of_all_streams() -> None:
    """Each holds some KiB of memory, however small it is: many streams with many calls each would
    take more than there is."""

    async def story() -> None:
        gate = asyncio.Event()

        async def wait(request: Any, call: Any) -> Any:
            await gate.wait()
            return coordinator.InitProducerReply()

        limits = RpcLimits(calls_max=5)
        async with serving("Coordinator", limits=limits, init_producer=wait) as (server, channel):
            request = coordinator.InitProducerRequest(name="x")
            streams = [calls.CallStream(channel, "coordinator") for _ in range(3)]
            open_ = [stream.begin("init_producer", request) for stream in streams[:2] * 2]
            open_.append(
                asyncio.ensure_future(calls.unary(channel, "coordinator", "init_producer", request))
            )
            while server.held()["calls"] < 5:
                await asyncio.sleep(0)
            for call in (
                streams[0].call("init_producer", request),
                streams[2].call("init_producer", request),
                calls.unary(channel, "coordinator", "init_producer", request),
            ):
                error = await outcome_of(call)
                assert (type(error), error.metadata["limit"]) == (Throttled, "calls_max")
            gate.set()
            await asyncio.gather(*open_)
            await streams[2].call("init_producer", request)
            assert server.held()["calls"] == 0
            for stream in streams:
                await stream.close()

    run(story())


@pytest.mark.parametrize("how", ["refused by its handler", "not decoded", "faulty", "streamed"])
def test_a_request_that_was_refused_is_not_kept(how: str) -> None:
    """An error that remembers where it was raised holds the request that led there; in a service
    the garbage collector comes seldom."""
    size, calls_made = 1_000_000, 20
    name = "x" * size
    methods = {
        "refused by its handler": ("Coordinator", "InitProducer", "init_producer"),
        "not decoded": ("Coordinator", "InitProducer", "init_producer"),
        "faulty": ("Coordinator", "InitProducer", "init_producer"),
        "streamed": ("PartitionLeader", "Subscribe", "subscribe"),
    }
    service, rpc, handler = methods[how]

    async def refuse(request: Any, call: Any) -> Any:
        if how == "faulty":
            raise ZeroDivisionError
        raise InvalidArgument("no")

    async def refuse_stream(request: Any, call: Any) -> AsyncIterator[Any]:
        for _ in range(1):
            raise InvalidArgument("no")
        yield

    async def story() -> None:
        given: dict[str, Any] = {handler: refuse_stream if how == "streamed" else refuse}
        async with serving(service, **given) as (_, channel):
            data = coordinator.InitProducerRequest(name=name).SerializeToString()
            if how == "not decoded":
                data = b"\x0b" + data
            if how == "streamed":
                # An unknown field, which is kept.
                data = b"\xfa\x7c" + data[1:]

            async def ask(times: int) -> None:
                for _ in range(times):
                    path = f"/oncelogpb.v1.{service}/{rpc}"
                    if how == "streamed":
                        call = channel.unary_stream(path)(data).read()
                    else:
                        call = channel.unary_unary(path)(data)
                    assert isinstance(await outcome_of(call), grpc.aio.AioRpcError)

            await ask(3)
            before, _ = tracemalloc.get_traced_memory()
            requests = _requests_alive()
            await ask(calls_made)
            after, _ = tracemalloc.get_traced_memory()
            assert after - before < 3 * size
            assert _requests_alive() - requests < 3

    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        run(story())
    finally:
        tracemalloc.stop()
        gc.enable()


def _requests_alive() -> int:
    kinds = (coordinator.InitProducerRequest, leader.SubscribeRequest)
    return sum(isinstance(one, kinds) for one in gc.get_objects())


def test_connections_max_bounds_those_that_are_open_and_names_nobody() -> None:
    """They are closed as they come: files are few, and a leader that gets none loses its
    leadership."""

    async def story() -> None:
        limits = RpcLimits(connections_max=2)
        async with serving("Coordinator", limits=limits, init_producer=echo) as (server, channel):
            request = coordinator.InitProducerRequest(name="x")
            await calls.unary(channel, "coordinator", "init_producer", request)
            accepted = []
            for _ in range(4):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(HTTP2_PREFACE)
                # The settings of the server, or the end.
                accepted.append(bool(await reader.read(1)))
                if accepted[-1]:
                    kept = writer
                else:
                    writer.close()
            assert accepted == [True, False, False, False]
            await calls.unary(channel, "coordinator", "init_producer", request)
            kept.close()
            # What is closed makes room, once the server has seen it.
            came = b""
            while not came:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(HTTP2_PREFACE)
                came = await reader.read(1)
                writer.close()

    run(story())


def test_calls_of_a_caller_that_does_not_read_wait_until_it_does() -> None:
    """Its answers are bounded by their bytes, and all come in the end."""
    started: list[int] = []

    async def large(request: Any, call: Any) -> Any:
        started.append(request.tx_id)
        described = coordinator.TransactionDescription(name="x" * 1_000_000)
        return coordinator.GetTransactionReply(transaction=described)

    async def story() -> None:
        limits = RpcLimits(stream_answer_bytes_max=2_000_000)
        async with serving("Coordinator", limits=limits, get_transaction=large) as (_, channel):
            stream = channel.stream_stream(
                "/oncelogpb.v1.Coordinator/Stream",
                response_deserializer=coordinator.CoordinatorAnswers.FromString,
            )()
            await stream.initial_metadata()
            asked = [
                coordinator.CoordinatorCall(
                    number=n, get_transaction=coordinator.GetTransactionRequest(tx_id=n)
                )
                for n in range(1, 101)
            ]
            packed = coordinator.CoordinatorCalls(calls=asked)
            await stream.write(packed.SerializeToString())
            for _ in range(500):
                await asyncio.sleep(0.001)
            assert 0 < len(started) < 50, "most have not begun"
            await stream.done_writing()
            numbers = [
                answer.number async for answers in _until_end(stream) for answer in answers.answers
            ]
            assert numbers == started == list(range(1, 101))

    run(story())


async def _until_end(stream: Any) -> AsyncIterator[Any]:
    while (answers := await stream.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
        yield answers
