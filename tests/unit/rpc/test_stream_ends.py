"""What a stream leaves behind: its number, its place, its handlers, and the last answer."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc
import grpc.aio
import pytest

from oncelog_server.core.ids import BootId
from oncelog_server.core.ports import Address
from oncelog_server.runtime.rpc.call_stream import CallStream
from oncelog_server.runtime.rpc.handling import Method
from oncelog_server.runtime.rpc.limits import RpcLimits
from oncelog_server.runtime.rpc.peers import GrpcPeers
from oncelogpb import calls, rpcs
from oncelogpb.errors import Unavailable
from oncelogpb.v1 import coordinator_pb2 as coordinator
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.rpc.harness import Handlers, Recorder, outcome_of, run, serving

AIO: Final[Any] = grpc.aio
END_OF_CALLS: Final = AIO.EOF


async def echo(request: Any, call: Any) -> Any:
    return coordinator.InitProducerReply(max_timeout_ms=len(request.name))


def packed(*numbers: int) -> bytes:
    request = coordinator.InitProducerRequest(name="n")
    both = [coordinator.CoordinatorCall(number=n, init_producer=request) for n in numbers]
    return coordinator.CoordinatorCalls(calls=both).SerializeToString()


def test_a_number_that_is_in_use_is_refused_and_answers_the_first_who_has_it() -> None:
    async def story() -> None:
        async with serving("Coordinator", init_producer=echo) as (_, channel):
            stream = channel.stream_stream(
                "/oncelogpb.v1.Coordinator/Stream",
                response_deserializer=coordinator.CoordinatorAnswers.FromString,
            )()
            await stream.write(packed(7, 7))
            answers: list[coordinator.CoordinatorAnswer] = []
            while len(answers) < 2:
                answers.extend((await stream.read()).answers)
            assert [answer.number for answer in answers] == [7, 7]
            refused = [answer for answer in answers if answer.HasField("error")]
            assert len(refused) == 1, "two handlers ran under one number"
            assert refused[0].error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
            stream.cancel()

    run(story())


def test_handlers_are_cancelled_before_it_is_told_that_their_stream_ended() -> None:
    async def story() -> None:
        running, ended = asyncio.Event(), asyncio.Event()
        seen: list[str] = []

        def end() -> None:
            seen.append("ended")
            ended.set()

        async def hang(request: Any, call: Any) -> Any:
            call.on_stream_end(end)
            running.set()
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("cancelled")

        async with serving("Coordinator", init_producer=hang) as (_, channel):
            stream = calls.CallStream(channel, "coordinator")
            calling = asyncio.create_task(
                outcome_of(stream.call("init_producer", coordinator.InitProducerRequest()))
            )
            await running.wait()
            await stream.close()
            await calling
            await ended.wait()
            assert seen == ["cancelled", "ended"]

    run(story())


class SlowContext:
    """A caller that half-closes while its answer is being written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self._unread = [packed(1)]
        self._writing = asyncio.Event()

    async def send_initial_metadata(self, metadata: Any) -> None: ...

    async def read(self) -> Any:
        if self._unread:
            return self._unread.pop()
        await self._writing.wait()
        return END_OF_CALLS

    async def write(self, message: bytes) -> None:
        self._writing.set()
        for _turn in range(20):
            await asyncio.sleep(0)
        self.written.append(message)


def test_the_last_answer_is_written_before_the_stream_ends() -> None:
    async def story() -> None:
        service = rpcs.find("coordinator")
        descriptor = rpcs.methods(service)["init_producer"]
        method = Method(descriptor, Handlers(init_producer=echo), Recorder())
        context, nothing_unread = SlowContext(), Any
        stream = CallStream(
            context,
            calls_class=coordinator.CoordinatorCalls,
            methods={"init_producer": method},
            fields=rpcs.stream_fields(service),
            identity="",
            stream_id=1,
            limits=RpcLimits(),
            inflight=None,
            unread=nothing_unread,  # type: ignore[arg-type]
        )
        assert await stream.run() is None
        found = [coordinator.CoordinatorAnswers.FromString(data) for data in context.written]
        assert [one.answers[0].number for one in found] == [1]

    run(story())


def test_a_subscription_that_has_ended_says_so_and_leaves_its_place_to_the_next() -> None:
    async def story() -> None:
        ended: list[int] = []

        async def subscribe(request: Any, call: Any) -> Any:
            call.on_stream_end(lambda: ended.append(call.stream_id))
            yield leader.FetchReply()

        limits = RpcLimits(streams_max=1)
        async with serving("PartitionLeader", limits=limits, subscribe=subscribe) as (_, channel):
            for _ in range(3):
                replies = calls.server_stream(
                    channel, "partition_leader", "subscribe", leader.SubscribeRequest()
                )
                assert len([reply async for reply in replies]) == 1
            for _ in range(100):
                if len(ended) == 3:
                    break
                await asyncio.sleep(0.01)
            assert len(set(ended)) == 3, "nobody was told"

    run(story())


def test_a_subscription_that_a_stopping_process_ends_is_told_why() -> None:
    """The transport's CANCELLED would promise nothing, and say nothing."""

    async def story() -> None:
        closed: list[str] = []

        async def subscribe(request: Any, call: Any) -> Any:
            try:
                yield leader.FetchReply()
                await asyncio.Event().wait()
            finally:
                closed.append("its handler")

        reporter = Recorder()
        async with serving("PartitionLeader", reporter=reporter, subscribe=subscribe) as (
            server,
            channel,
        ):
            replies = calls.server_stream(
                channel, "partition_leader", "subscribe", leader.SubscribeRequest()
            )
            await anext(replies)
            stopping = asyncio.create_task(server.stop(60_000))
            with pytest.raises(Unavailable, match="this process is stopping") as told:
                await anext(replies)
            # Ours, not the transport's code without a reason.
            assert "grpc_code" not in told.value.metadata
            # And it ends at once: it does not use up the time that other calls have to end.
            await stopping
            assert closed == ["its handler"]
        refused = {"service": "PartitionLeader", "method": "subscribe", "reason": "UNAVAILABLE"}
        assert ("rpc_errors", refused) in reporter.counts

    run(story())


def test_what_a_subscription_had_ready_is_given_before_the_process_stops() -> None:
    async def story() -> None:
        async def subscribe(request: Any, call: Any) -> Any:
            for start in range(3):
                yield leader.FetchReply(partitions=[leader.FetchedPartition(start_offset=start)])
            await asyncio.Event().wait()

        async with serving("PartitionLeader", subscribe=subscribe) as (server, channel):
            replies = calls.server_stream(
                channel, "partition_leader", "subscribe", leader.SubscribeRequest()
            )
            given = [await anext(replies)]
            stopping = asyncio.create_task(server.stop(60_000))
            with pytest.raises(Unavailable, match="this process is stopping"):
                while True:
                    given.append(await anext(replies))
            await stopping
            starts = [reply.partitions[0].start_offset for reply in given]
            assert starts == list(range(len(starts))), "none is left out"

    run(story())


# ----------------------------------------------------------------------------------------- peers


def address(port: int) -> Address:
    return Address("node", BootId(b"b" * 16), "127.0.0.1", port, 1)


def test_a_peer_is_not_hung_up_on_while_it_is_called() -> None:
    async def story() -> None:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: faults.append(what))

        async def slow(request: Any, call: Any) -> Any:
            await asyncio.sleep(0.06 if request.name else 0)
            return coordinator.InitProducerReply()

        async with serving("Coordinator", init_producer=slow) as (server, _):
            peers = GrpcPeers(idle_ms=30)
            for name in ("", "slow"):
                request = coordinator.InitProducerRequest(name=name)
                await peers.call(
                    address(server.port), "coordinator.init_producer", request, timeout_ms=9_000
                )
            assert faults == []
            await peers.close()

    run(story())


def test_who_has_hung_up_on_everybody_calls_nobody() -> None:
    async def story() -> None:
        async with serving("Coordinator", init_producer=echo) as (server, _):
            peers = GrpcPeers()
            await peers.close()
            request = coordinator.InitProducerRequest()
            with pytest.raises(Unavailable, match="this process is stopping"):
                await peers.call(
                    address(server.port), "coordinator.init_producer", request, timeout_ms=9_000
                )

    run(story())
