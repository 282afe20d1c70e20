"""The client side of the call streams: packing, deadlines, and what a break means for each call."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from oncelogpb import calls
from oncelogpb.errors import (
    InvalidArgument,
    PermissionDenied,
    Throttled,
    TooLarge,
    Unavailable,
    UnknownOutcome,
)
from oncelogpb.v1 import coordinator_pb2 as coordinator
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as types
from tests.unit.rpc.harness import outcome_of, run

REQUEST = coordinator.InitProducerRequest(name="n")


def answers_to(message: coordinator.CoordinatorCalls) -> bytes:
    return coordinator.CoordinatorAnswers(
        answers=[
            coordinator.CoordinatorAnswer(
                number=call.number, init_producer=coordinator.InitProducerReply()
            )
            for call in message.calls
        ]
    ).SerializeToString()


@asynccontextmanager
async def scripted(stream_method: Any, service: str = "Coordinator") -> Any:
    """A server whose Stream is this function of the server's context."""

    async def handler(_: Any, context: Any) -> None:
        await stream_method(context)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                f"oncelogpb.v1.{service}",
                {"Stream": grpc.stream_stream_rpc_method_handler(handler)},
            ),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=calls.CHANNEL_OPTIONS)
    stream = calls.CallStream(channel, service)
    try:
        yield server, stream
    finally:
        await stream.close()
        await channel.close()
        await server.stop(0)


async def received(context: Any) -> coordinator.CoordinatorCalls:
    return coordinator.CoordinatorCalls.FromString(await context.read())


def test_calls_that_wait_together_travel_in_one_message_in_order() -> None:
    async def story() -> None:
        seen: list[list[int]] = []

        async def serve(context: Any) -> None:
            await context.send_initial_metadata(())
            while True:
                message = await received(context)
                seen.append([call.number for call in message.calls])
                await context.write(answers_to(message))

        async with scripted(serve) as (_, stream):
            first = [stream.begin("init_producer", REQUEST) for _ in range(100)]
            await asyncio.gather(*first)
            assert seen == [list(range(1, 101))]
            assert stream.open_calls == 0

    run(story())


def test_large_calls_are_not_packed_beyond_the_message_that_is_worth_it() -> None:
    async def story() -> None:
        sizes: list[int] = []

        async def serve(context: Any) -> None:
            await context.send_initial_metadata(())
            while True:
                data = await context.read()
                sizes.append(len(data))
                message = leader.PartitionLeaderCalls.FromString(data)
                await context.write(
                    leader.PartitionLeaderAnswers(
                        answers=[
                            leader.PartitionLeaderAnswer(
                                number=call.number, produce=leader.ProduceReply()
                            )
                            for call in message.calls
                        ]
                    ).SerializeToString()
                )

        async with scripted(serve, "PartitionLeader") as (_, stream):
            request = leader.ProduceRequest(batches=[types.Batch(payload=b"x" * 900_000)])
            await asyncio.gather(*(stream.begin("produce", request) for _ in range(6)))
            assert len(sizes) == 3
            assert max(sizes) <= calls.PACK_BYTES

    run(story())


def test_a_call_that_was_sent_and_not_answered_is_an_unknown_outcome() -> None:
    async def story() -> None:
        async def serve(context: Any) -> None:
            await context.send_initial_metadata(())
            await received(context)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "killed")

        async with scripted(serve) as (_, stream):
            error = await outcome_of(stream.call("init_producer", REQUEST))
            assert isinstance(error, UnknownOutcome)
            assert "killed" in error.message

    run(story())


def test_a_call_that_was_never_sent_promises_that_nothing_happened() -> None:
    """The connection is refused: there is no server."""

    async def story() -> None:
        async with scripted(None) as (server, stream):
            await server.stop(0)
            error = await outcome_of(stream.call("init_producer", REQUEST))
            assert isinstance(error, Unavailable)
            assert not error.may_have_applied

    run(story())


def test_a_stream_that_is_not_accepted_in_time_sent_nothing() -> None:
    async def story() -> None:
        async def silent(context: Any) -> None:
            await asyncio.Event().wait()

        async with scripted(silent) as (_, stream):
            error = await outcome_of(stream.call("init_producer", REQUEST, 50))
            assert isinstance(error, Unavailable)
            assert stream.open_calls == 0

    run(story())


def test_a_stream_that_is_refused_says_why() -> None:
    async def story() -> None:
        async def refuse(context: Any) -> None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "who are you")

        async with scripted(refuse) as (_, stream):
            error = await outcome_of(stream.call("init_producer", REQUEST))
            assert isinstance(error, PermissionDenied)

    run(story())


def test_i31_a_call_without_an_answer_ends_at_its_deadline() -> None:
    async def story() -> None:
        late = asyncio.Event()

        async def serve(context: Any) -> None:
            await context.send_initial_metadata(())
            first = await received(context)
            await late.wait()
            await context.write(answers_to(first))
            await context.write(answers_to(await received(context)))

        async with scripted(serve) as (_, stream):
            error = await outcome_of(stream.call("init_producer", REQUEST, 1_000))
            assert isinstance(error, UnknownOutcome)
            late.set()
            # The late answer is nobody's; the stream goes on.
            assert await stream.call("init_producer", REQUEST) == coordinator.InitProducerReply()

    run(story())


def test_the_next_call_after_a_break_connects_again_and_listeners_heard_it() -> None:
    async def story() -> None:
        async def one_answer_each(context: Any) -> None:
            await context.send_initial_metadata(())
            await context.write(answers_to(await received(context)))

        async with scripted(one_answer_each) as (_, stream):
            ended: asyncio.Queue[int] = asyncio.Queue()
            forget = stream.on_end(lambda: ended.put_nowait(1))
            for _ in range(3):
                await stream.call("init_producer", REQUEST)
                await ended.get()
            forget()
            await stream.call("init_producer", REQUEST)
            await stream.close()
            assert ended.empty()

    run(story())


def test_a_call_that_was_cancelled_while_it_waited_is_never_sent() -> None:
    async def story() -> None:
        accept = asyncio.Event()
        seen: list[int] = []

        async def serve(context: Any) -> None:
            await accept.wait()
            await context.send_initial_metadata(())
            while True:
                message = await received(context)
                seen.extend(call.number for call in message.calls)
                await context.write(answers_to(message))

        async with scripted(serve) as (_, stream):
            futures = [stream.begin("init_producer", REQUEST) for _ in range(3)]
            await asyncio.sleep(0)
            futures[1].cancel()
            accept.set()
            await asyncio.gather(futures[0], futures[2])
            assert seen == [1, 3]

    run(story())


def test_closing_ends_what_is_open_and_what_comes() -> None:
    async def story() -> None:
        got = asyncio.Event()

        async def serve(context: Any) -> None:
            await context.send_initial_metadata(())
            await received(context)
            got.set()
            await asyncio.Event().wait()

        async with scripted(serve) as (_, stream):
            sent = stream.begin("init_producer", REQUEST)
            await got.wait()
            await stream.close()
            assert isinstance(await outcome_of(sent), UnknownOutcome)
            assert isinstance(await outcome_of(stream.call("init_producer", REQUEST)), Unavailable)

    run(story())


def test_limits_refuse_before_anything_is_sent(monkeypatch: Any) -> None:
    async def story() -> None:
        async def silent(context: Any) -> None:
            await asyncio.Event().wait()

        async with scripted(silent) as (_, stream):
            monkeypatch.setattr(calls, "OPEN_CALLS_MAX", 2)
            for _ in range(2):
                stream.begin("init_producer", REQUEST).cancel()
            await asyncio.sleep(0)
            waiting = [stream.begin("init_producer", REQUEST) for _ in range(2)]
            with pytest.raises(Throttled, match="open_calls_max"):
                stream.begin("init_producer", REQUEST)
            monkeypatch.setattr(calls, "OPEN_CALLS_MAX", 100)
            monkeypatch.setattr(calls, "WAITING_BYTES_MAX", 10)
            with pytest.raises(Throttled, match="waiting_bytes_max"):
                stream.begin("init_producer", REQUEST)
            for call in waiting:
                call.cancel()

    run(story())


def test_a_method_that_is_not_on_the_stream_is_refused_by_name() -> None:
    async def story() -> None:
        async with scripted(None) as (_, stream):
            with pytest.raises(InvalidArgument, match="list_transactions"):
                stream.begin("list_transactions", coordinator.ListTransactionsRequest())

    run(story())


def test_an_unknown_service_is_refused_by_name() -> None:
    async def story() -> None:
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            with pytest.raises(InvalidArgument, match=r"'Coordinate'.*Coordinator"):
                calls.CallStream(channel, "Coordinate")

    run(story())


def test_what_was_sent_or_failed_waits_no_more(monkeypatch: Any) -> None:
    """Else a stream would refuse all calls once it had sent so many bytes."""
    monkeypatch.setattr(calls, "WAITING_BYTES_MAX", 100)

    async def story() -> None:
        async def serve(context: Any) -> None:
            await context.send_initial_metadata(())
            while True:
                await context.write(answers_to(await received(context)))

        async with scripted(serve) as (_, stream):
            for _ in range(20):
                await stream.call("init_producer", REQUEST)

        async def refuse(context: Any) -> None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "who are you")

        async with scripted(refuse) as (_, stream):
            ended: list[int] = []
            stream.on_end(lambda: ended.append(1))
            for _ in range(20):
                error = await outcome_of(stream.call("init_producer", REQUEST))
                assert isinstance(error, PermissionDenied)
                assert not stream._waiting
            assert not ended, "no session ended: there was none"

    run(story())


def test_an_answer_to_another_question_is_no_answer() -> None:
    async def story() -> None:
        async def confused(context: Any) -> None:
            await context.send_initial_metadata(())
            (call,) = (await received(context)).calls
            other = coordinator.CoordinatorAnswer(
                number=call.number, begin_transaction=coordinator.BeginTransactionReply()
            )
            await context.write(coordinator.CoordinatorAnswers(answers=[other]).SerializeToString())
            await asyncio.Event().wait()

        async with scripted(confused) as (_, stream):
            error = await outcome_of(stream.call("init_producer", REQUEST))
            assert isinstance(error, UnknownOutcome)
            assert "without a reply" in error.message

    run(story())


def test_an_answered_call_leaves_no_deadline() -> None:
    """It would be looked at until then."""

    async def story() -> None:
        async def serve(context: Any) -> None:
            await context.send_initial_metadata(())
            await context.write(answers_to(await received(context)))
            await asyncio.Event().wait()

        async with scripted(serve) as (_, stream):
            reply = stream.begin("init_producer", REQUEST)
            assert stream._deadlines.count == 1
            await reply
            await asyncio.sleep(0)
            assert stream._deadlines.count == 0

    run(story())


def test_a_call_by_itself_that_is_too_large_is_refused_by_name(monkeypatch: Any) -> None:
    monkeypatch.setattr(calls, "MESSAGE_BYTES_MAX", 100)

    async def story() -> None:
        channel: Any = grpc.aio.insecure_channel("127.0.0.1:1")
        request = coordinator.InitProducerRequest(name="n" * 200)
        error = await outcome_of(calls.unary(channel, "coordinator", "init_producer", request))
        assert isinstance(error, TooLarge)
        assert error.metadata["limit"] == "message_bytes_max"
        await channel.close()

    run(story())
