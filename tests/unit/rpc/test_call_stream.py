"""The server's side of a call stream, without a transport."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from oncelog_server.runtime.rpc.call_stream import CallStream
from oncelog_server.runtime.rpc.handling import Method
from oncelog_server.runtime.rpc.limits import RpcLimits
from oncelog_server.runtime.rpc.unread import Total, Unread
from oncelogpb import rpcs
from oncelogpb.v1 import coordinator_pb2 as pb
from tests.unit.rpc.harness import Handlers, Recorder

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class Context:
    """Of one stream: what is read was put in, what is written is kept."""

    def __init__(self) -> None:
        self.coming: asyncio.Queue[Any] = asyncio.Queue()
        self.answers: list[Any] = []

    async def send_initial_metadata(self, metadata: Any) -> None: ...

    async def read(self) -> Any:
        return await self.coming.get()

    async def write(self, data: bytes) -> None:
        self.answers += pb.CoordinatorAnswers.FromString(data).answers

    def calls(self, *calls: pb.CoordinatorCall) -> None:
        self.coming.put_nowait(pb.CoordinatorCalls(calls=calls).SerializeToString())


def stream_of(context: Context, handle: Callable[..., Any]) -> CallStream:
    service = rpcs.find("Coordinator")
    handlers = Handlers(init_producer=handle)
    return CallStream(
        context,
        calls_class=pb.CoordinatorCalls,
        methods={
            name: Method(descriptor, handlers, Recorder())
            for name, descriptor in rpcs.methods(service).items()
        },
        fields=rpcs.stream_fields(service),
        identity="",
        stream_id=1,
        limits=RpcLimits(),
        inflight=None,
        unread=Unread(1, Total(1)),
    )


def a_call(number: int, timeout_ms: int = 0) -> pb.CoordinatorCall:
    return pb.CoordinatorCall(
        number=number, timeout_ms=timeout_ms, init_producer=pb.InitProducerRequest()
    )


def test_i31_a_call_whose_time_is_over_before_its_handler_begins_is_answered() -> None:
    """A loop that was held up looks at its timers first."""

    async def story() -> None:
        begun: list[int] = []

        async def handle(request: Any, call: Any) -> pb.InitProducerReply:
            begun.append(1)
            return pb.InitProducerReply()

        context = Context()
        stream = stream_of(context, handle)
        stream._start(a_call(1, 5), None, 1)
        stream._expire(1)
        context.coming.put_nowait(EOF)
        assert await asyncio.wait_for(stream.run(), 10) is None
        assert [answer.number for answer in context.answers] == [1], "nobody answered it"
        (answer,) = context.answers
        assert not begun
        assert "took over 5 ms" in answer.error.message

    asyncio.run(story())


def test_a_handler_that_answers_though_its_time_is_over_is_believed() -> None:
    async def story() -> None:
        async def handle(request: Any, call: Any) -> pb.InitProducerReply:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return pb.InitProducerReply()
            raise AssertionError("it was cancelled")

        context = Context()
        stream = stream_of(context, handle)
        context.calls(a_call(1, 5))
        context.coming.put_nowait(EOF)
        await asyncio.wait_for(stream.run(), 10)
        (answer,) = context.answers
        assert answer.WhichOneof("reply") == "init_producer"

    asyncio.run(story())


def test_a_number_is_free_again_once_it_has_expired() -> None:
    async def story() -> None:
        hangs = True

        async def handle(request: Any, call: Any) -> pb.InitProducerReply:
            if hangs:
                await asyncio.Event().wait()
            return pb.InitProducerReply()

        context = Context()
        running = asyncio.ensure_future(stream_of(context, handle).run())
        context.calls(a_call(1, 5))
        while not context.answers:
            await asyncio.sleep(0.01)
        hangs = False
        context.calls(a_call(1))
        context.coming.put_nowait(EOF)
        await asyncio.wait_for(running, 10)
        first, second = context.answers
        assert first.HasField("error")
        assert second.WhichOneof("reply") == "init_producer"

    asyncio.run(story())
