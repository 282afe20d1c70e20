"""One handler object, two ways to it: the unary call and the packed stream say the same."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from oncelog_server.runtime.rpc.handling import StreamEnd
from oncelog_server.runtime.rpc.limits import RpcLimits
from oncelogpb import calls, rpcs
from oncelogpb.bulk import encode
from oncelogpb.errors import (
    Internal,
    InvalidArgument,
    StalePosition,
    Throttled,
    Unavailable,
    UnknownOutcome,
    Unsupported,
)
from oncelogpb.v1 import coordinator_pb2 as coordinator
from oncelogpb.v1 import participant_pb2 as participant
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as types
from tests.unit.rpc.harness import Recorder, outcome_of, run, serving


async def echo(request: Any, call: Any) -> Any:
    return coordinator.InitProducerReply(max_timeout_ms=len(request.name))


def test_unary_and_stream_give_the_same_reply() -> None:
    async def story() -> None:
        async with serving("Coordinator", init_producer=echo) as (_, channel):
            stream = calls.CallStream(channel, "coordinator")
            request = coordinator.InitProducerRequest(name="four")
            alone = await calls.unary(channel, "coordinator", "init_producer", request)
            packed = await stream.call("init_producer", request)
            assert alone == packed == coordinator.InitProducerReply(max_timeout_ms=4)
            await stream.close()

    run(story())


def test_a_reply_in_pieces_is_the_same_reply() -> None:
    async def pieces(request: Any, call: Any) -> Any:
        return encode(await echo(request, call))

    async def story() -> None:
        async with serving("Coordinator", init_producer=pieces) as (_, channel):
            stream = calls.CallStream(channel, "Coordinator")
            request = coordinator.InitProducerRequest(name="four")
            alone = await calls.unary(channel, "coordinator", "init_producer", request)
            packed = await stream.call("init_producer", encode(request))
            assert alone == packed == coordinator.InitProducerReply(max_timeout_ms=4)
            await stream.close()

    run(story())


def test_calls_of_one_stream_start_in_the_order_they_were_made() -> None:
    started: list[int] = []

    async def produce(request: Any, call: Any) -> Any:
        started.append(request.tx_id)
        await asyncio.sleep(0)
        return leader.ProduceReply()

    async def story() -> None:
        async with serving("PartitionLeader", produce=produce) as (_, channel):
            stream = calls.CallStream(channel, "partition_leader")
            replies = [
                stream.begin("produce", leader.ProduceRequest(tx_id=number))
                for number in range(1_000)
            ]
            await asyncio.gather(*replies)
            assert started == list(range(1_000))
            await stream.close()

    run(story())


def test_a_slow_call_holds_back_no_other() -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def produce(request: Any, call: Any) -> Any:
            if request.tx_id == 1:
                await gate.wait()
            return leader.ProduceReply()

        async with serving("PartitionLeader", produce=produce) as (_, channel):
            stream = calls.CallStream(channel, "partition_leader")
            slow = stream.begin("produce", leader.ProduceRequest(tx_id=1))
            await stream.call("produce", leader.ProduceRequest(tx_id=2))
            assert not slow.done()
            gate.set()
            await slow
            await stream.close()

    run(story())


def test_answers_that_are_ready_together_travel_in_one_message() -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def produce(request: Any, call: Any) -> Any:
            await gate.wait()
            return leader.ProduceReply()

        async with serving("PartitionLeader", produce=produce) as (_, channel):
            raw = channel.stream_stream(
                "/oncelogpb.v1.PartitionLeader/Stream",
                request_serializer=leader.PartitionLeaderCalls.SerializeToString,
                response_deserializer=leader.PartitionLeaderAnswers.FromString,
            )()
            await raw.write(
                leader.PartitionLeaderCalls(
                    calls=[
                        leader.PartitionLeaderCall(number=n, produce=leader.ProduceRequest())
                        for n in range(1, 51)
                    ]
                )
            )
            await raw.initial_metadata()
            gate.set()
            answers = await raw.read()
            assert [a.number for a in answers.answers] == list(range(1, 51))
            raw.cancel()

    run(story())


def test_i31_a_handler_that_hangs_ends_as_unknown_outcome() -> None:
    async def hang(request: Any, call: Any) -> None:
        assert call.timeout_ms == 50
        await asyncio.Event().wait()

    async def story() -> None:
        limits = RpcLimits(default_timeout_ms=50, timeout_ms_max=50)
        async with serving("Coordinator", limits=limits, init_producer=hang) as (_, channel):
            request = coordinator.InitProducerRequest()
            stream = calls.CallStream(channel, "coordinator")
            for attempt in (
                calls.unary(channel, "coordinator", "init_producer", request),
                stream.call("init_producer", request),
            ):
                error = await outcome_of(attempt)
                assert isinstance(error, UnknownOutcome)
                assert "took over 50 ms" in error.message
            await stream.close()

    run(story())


def test_a_timeout_inside_a_handler_is_not_the_callers_deadline() -> None:
    async def confused(request: Any, call: Any) -> None:
        raise TimeoutError("of something else")

    async def story() -> None:
        async with serving("Coordinator", init_producer=confused) as (_, channel):
            request = coordinator.InitProducerRequest()
            attempt = calls.unary(channel, "coordinator", "init_producer", request)
            assert isinstance(await outcome_of(attempt), Internal)

    run(story())


def test_a_fault_is_internal_logged_and_counted() -> None:
    async def broken(request: Any, call: Any) -> None:
        raise KeyError("surprise")

    async def nothing(request: Any, call: Any) -> Any:
        return None

    async def story() -> None:
        for handler in (broken, nothing):
            seen = Recorder()
            async with serving("Coordinator", reporter=seen, init_producer=handler) as (_, ch):
                request = coordinator.InitProducerRequest()
                stream = calls.CallStream(ch, "coordinator")
                alone = await outcome_of(calls.unary(ch, "coordinator", "init_producer", request))
                packed = await outcome_of(stream.call("init_producer", request))
                assert isinstance(alone, Internal)
                assert isinstance(packed, Internal)
                assert alone.message == packed.message
                assert "surprise" not in alone.message, "its log says it, not its caller"
                assert [name for name, _ in seen.events] == ["internal error"] * 2
                assert "Traceback" in str(seen.events[0][1]["traceback"])
                assert ("rpc_errors", "INTERNAL") in [
                    (name, labels.get("reason")) for name, labels in seen.counts
                ]
                await stream.close()

    run(story())


def test_a_method_that_is_not_there_is_unsupported_and_named() -> None:
    async def story() -> None:
        async with serving("Coordinator") as (_, channel):
            stream = calls.CallStream(channel, "coordinator")
            request = coordinator.InitProducerRequest()
            alone = await outcome_of(calls.unary(channel, "coordinator", "init_producer", request))
            packed = await outcome_of(stream.call("init_producer", request))
            assert isinstance(alone, Unsupported)
            assert isinstance(packed, Unsupported)
            assert "InitProducer" in alone.message
            await stream.close()

    run(story())


def test_bytes_that_are_no_request_are_an_invalid_argument() -> None:
    async def story() -> None:
        async with serving("Coordinator", init_producer=echo) as (_, channel):
            unary = channel.unary_unary("/oncelogpb.v1.Coordinator/InitProducer")
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await unary(b"\xff\xff\xff")
            error = calls.from_rpc_error(refusal.value)
            assert isinstance(error, InvalidArgument)
            assert "InitProducerRequest" in error.message

    run(story())


def raw_stream(channel: Any) -> Any:
    return channel.stream_stream(
        "/oncelogpb.v1.Coordinator/Stream",
        response_deserializer=coordinator.CoordinatorAnswers.FromString,
    )()


def test_a_stream_of_rubbish_ends_with_an_invalid_argument() -> None:
    async def story() -> None:
        async with serving("Coordinator", init_producer=echo) as (_, channel):
            stream = raw_stream(channel)
            await stream.write(b"\xff\xff\xff")
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await stream.read()
            assert isinstance(calls.from_rpc_error(refusal.value), InvalidArgument)

    run(story())


def test_an_unknown_call_on_a_stream_is_refused_and_the_stream_goes_on() -> None:
    async def story() -> None:
        async with serving("Coordinator", init_producer=echo) as (_, channel):
            stream = raw_stream(channel)
            both = coordinator.CoordinatorCalls(
                calls=[
                    coordinator.CoordinatorCall(number=1),
                    coordinator.CoordinatorCall(
                        number=2, init_producer=coordinator.InitProducerRequest(name="n")
                    ),
                ]
            )
            await stream.write(both.SerializeToString())
            answers: list[coordinator.CoordinatorAnswer] = []
            while len(answers) < 2:
                answers.extend((await stream.read()).answers)
            by_number = {a.number: a for a in answers}
            assert by_number[1].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
            assert by_number[2].init_producer.max_timeout_ms == 1
            stream.cancel()

    run(story())


def test_half_closing_a_stream_still_answers_what_was_asked() -> None:
    async def story() -> None:
        async with serving("Coordinator", init_producer=echo) as (_, channel):
            stream = raw_stream(channel)
            call = coordinator.CoordinatorCall(
                number=1, init_producer=coordinator.InitProducerRequest(name="n")
            )
            await stream.write(coordinator.CoordinatorCalls(calls=[call]).SerializeToString())
            await stream.done_writing()
            assert (await stream.read()).answers[0].number == 1
            assert await stream.code() == grpc.StatusCode.OK

    run(story())


def test_a_session_hears_once_that_its_stream_ended() -> None:
    async def story() -> None:
        ended = asyncio.Event()
        seen: list[int] = []

        def end() -> None:
            seen.append(1)
            ended.set()

        async def hold(request: Any, call: Any) -> Any:
            assert call.stream_id > 0
            call.on_stream_end(end)
            return coordinator.InitProducerReply()

        async with serving("Coordinator", init_producer=hold) as (_, channel):
            stream = calls.CallStream(channel, "coordinator")
            await stream.call("init_producer", coordinator.InitProducerRequest())
            assert not ended.is_set()
            await stream.close()
            await ended.wait()
            assert seen == [1]

    run(story())


def test_who_asks_after_the_stream_has_ended_is_told_as_well() -> None:
    async def story() -> None:
        told: asyncio.Queue[str] = asyncio.Queue()

        def broken() -> None:
            raise RuntimeError("a listener's own fault")

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, what: told.put_nowait(str(what["exception"])))
        end = StreamEnd()
        end.tell(broken)
        end.tell(lambda: told.put_nowait("in time"))
        end.over()
        end.tell(lambda: told.put_nowait("too late"))
        await asyncio.sleep(0.01)
        heard = [told.get_nowait() for _ in range(told.qsize())]
        assert heard == ["a listener's own fault", "in time", "too late"]
        end.over()
        await asyncio.sleep(0.01)
        assert told.empty()

    run(story())


def test_subscribe_yields_and_maps_its_error() -> None:
    async def subscribe(request: Any, call: Any) -> Any:
        for number in range(3):
            yield leader.FetchReply(partitions=[leader.FetchedPartition(end_offset=number)])
        raise StalePosition("moved on", committed=7)

    async def story() -> None:
        async with serving("PartitionLeader", subscribe=subscribe) as (_, channel):
            ends: list[int] = []
            with pytest.raises(StalePosition) as refusal:
                async for reply in calls.server_stream(
                    channel, "partition_leader", "subscribe", leader.SubscribeRequest()
                ):
                    ends.append(reply.partitions[0].end_offset)
            assert ends == [0, 1, 2]
            assert refusal.value.metadata == {"committed": "7"}

    run(story())


def test_subscribe_ends_when_the_reader_stops() -> None:
    async def story() -> None:
        ended = asyncio.Event()

        async def subscribe(request: Any, call: Any) -> Any:
            try:
                while True:
                    yield leader.FetchReply()
            finally:
                ended.set()

        async with serving("PartitionLeader", subscribe=subscribe) as (_, channel):
            replies = calls.server_stream(
                channel, "partition_leader", "subscribe", leader.SubscribeRequest()
            )
            await anext(replies)
            await replies.aclose()
            await ended.wait()

    run(story())


def test_inflight_bytes_are_limited_except_for_markers() -> None:
    async def story() -> None:
        gate, entered = asyncio.Event(), asyncio.Event()

        async def hold(request: Any, call: Any) -> Any:
            entered.set()
            await gate.wait()
            return leader.ProduceReply()

        async def mark(request: Any, call: Any) -> Any:
            return participant.WriteMarkersReply()

        limits = RpcLimits(inflight_bytes_max=1_000)
        big = leader.ProduceRequest(batches=[types.Batch(payload=b"x" * 900)])
        async with serving("PartitionLeader", limits=limits, produce=hold) as (_, channel):
            first = asyncio.create_task(calls.unary(channel, "partition_leader", "produce", big))
            await entered.wait()
            stream = calls.CallStream(channel, "partition_leader")
            for attempt in (
                calls.unary(channel, "partition_leader", "produce", big),
                stream.call("produce", big),
            ):
                error = await outcome_of(attempt)
                assert isinstance(error, Throttled)
                assert error.metadata["limit"] == "inflight_bytes_max"
                assert int(error.metadata["retry_after_ms"]) > 0
            gate.set()
            await first
            await stream.call("produce", big)
            await stream.close()
        async with serving("Participant", limits=limits, write_markers=mark) as (_, channel):
            stream = calls.CallStream(channel, "participant")
            request = participant.WriteMarkersRequest(
                groups=[participant.MarkerGroup(leader_boot_id=b"x" * 5_000)] * 2
            )
            await asyncio.gather(*(stream.begin("write_markers", request) for _ in range(20)))
            await stream.close()

    run(story())


def test_open_calls_of_a_stream_are_limited() -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def hold(request: Any, call: Any) -> Any:
            await gate.wait()
            return leader.ProduceReply()

        limits = RpcLimits(stream_calls_max=5)
        async with serving("PartitionLeader", limits=limits, produce=hold) as (_, channel):
            stream = calls.CallStream(channel, "partition_leader")
            attempts = [stream.begin("produce", leader.ProduceRequest()) for _ in range(8)]
            for attempt in attempts[5:]:
                error = await outcome_of(attempt)
                assert isinstance(error, Throttled)
                assert error.metadata["limit"] == "stream_calls_max"
            gate.set()
            await asyncio.gather(*attempts[:5])
            await stream.close()

    run(story())


def test_open_streams_are_limited_and_nothing_was_sent() -> None:
    async def story() -> None:
        limits = RpcLimits(streams_max=1)
        async with serving("Coordinator", limits=limits, init_producer=echo) as (_, channel):
            request = coordinator.InitProducerRequest()
            first, second = (calls.CallStream(channel, "coordinator") for _ in range(2))
            await first.call("init_producer", request)
            error = await outcome_of(second.call("init_producer", request))
            assert isinstance(error, Throttled)
            assert error.metadata["limit"] == "streams_max"
            await first.close()
            await second.close()

    run(story())


def test_stopping_answers_what_runs_and_refuses_what_comes() -> None:
    async def story() -> None:
        gate, entered = asyncio.Event(), asyncio.Event()

        async def hold(request: Any, call: Any) -> Any:
            entered.set()
            await gate.wait()
            return coordinator.InitProducerReply(max_timeout_ms=1)

        async with serving("Coordinator", init_producer=hold) as (server, channel):
            stream = calls.CallStream(channel, "coordinator")
            request = coordinator.InitProducerRequest()
            running = stream.begin("init_producer", request)
            await entered.wait()
            stopping = asyncio.create_task(server.stop(20_000))
            await asyncio.sleep(0)
            refused = await outcome_of(stream.call("init_producer", request))
            assert isinstance(refused, Unavailable)
            gate.set()
            assert (await running).max_timeout_ms == 1
            await stopping
            gone = await outcome_of(stream.call("init_producer", request, 2_000))
            # Unknown where it was written before the end of the stream was read.
            assert isinstance(gone, Unavailable | UnknownOutcome)
            await stream.close()

    run(story())


def test_a_taken_port_is_an_error_that_names_the_address() -> None:
    async def story() -> None:
        async with serving("Coordinator") as (server, _):
            from oncelog_server.runtime.rpc.server import RpcServer

            second = RpcServer({}, listen=f"127.0.0.1:{server.port}", reporter=Recorder())
            with pytest.raises(OSError, match=f"127.0.0.1:{server.port}"):
                await second.start()

    run(story())


def test_every_stream_field_is_an_rpc_of_its_service() -> None:
    streaming = 0
    for service in rpcs.ALL.values():
        fields = rpcs.stream_fields(service)
        assert set(fields) <= set(rpcs.methods(service)), service.name
        streaming += bool(fields)
    assert streaming == 4
