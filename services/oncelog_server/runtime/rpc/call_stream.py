"""The server's side of one call stream: calls in, answers out, both packed.

Invariants:
- handlers are started in the order in which their calls stand in a message and messages arrive, so
  what they submit before their first wait is submitted in that order;
- every call that was read is answered once, unless the stream ends first;
- the writer takes all answers that are ready and writes one message, which costs
  a third of one each;
- when the stream ends its handlers are cancelled, then `on_stream_end` callbacks run, once each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import grpc.aio
from google.protobuf.message import DecodeError

from oncelog_server.runtime.access.quotas import Meter
from oncelog_server.runtime.rpc.fields import require_few
from oncelog_server.runtime.rpc.handling import CallContext, Method, StreamEnd
from oncelog_server.runtime.rpc.limits import (
    EXEMPT_FROM_FIELDS,
    Inflight,
    RpcLimits,
    message_too_large,
    throttled,
    undecodable,
)
from oncelog_server.runtime.rpc.unread import Unread
from oncelogpb import bulk, in_place
from oncelogpb.calls import PACK_BYTES
from oncelogpb.deadlines import Deadlines
from oncelogpb.errors import InvalidArgument, OncelogError, Unavailable, to_status
from oncelogpb.in_place import LiftedProduce
from oncelogpb.v1.partition_leader_pb2 import PartitionLeaderCalls

_AIO: Final[Any] = grpc.aio

Chunks = tuple[bulk.Chunk, ...]


class CallStream:
    """One open stream. `run` is its life."""

    def __init__(
        self,
        context: Any,
        *,
        calls_class: Any,
        methods: Mapping[str, Method],
        fields: Mapping[str, int],
        identity: str,
        stream_id: int,
        limits: RpcLimits,
        inflight: Inflight | None,
        unread: Unread,
        peer: str = "",
        meter_of: Callable[[str], Meter | None] = lambda identity: None,
    ) -> None:
        """`inflight` is None where the service is exempt."""
        self._context = context
        self._calls_class = calls_class
        self._methods = methods
        self._fields = fields
        self._identity = identity
        self._stream_id = stream_id
        self._limits = limits
        self._inflight = inflight
        self._unread = unread
        self._peer = peer
        self._meter_of = meter_of
        self._counts_fields = next(iter(methods.values())).service not in EXEMPT_FROM_FIELDS
        self._carries_batches = calls_class is PartitionLeaderCalls
        self._end = StreamEnd()
        self._running: dict[int, asyncio.Task[None]] = {}
        self._deadlines = Deadlines(self._expire)
        # Calls whose time is over, while their handlers end.
        self._expired: set[int] = set()
        # What is to be written, its size, and the call that it answers, which may hold room for it.
        self._ready: deque[tuple[Chunks, int, CallContext | None]] = deque()
        # Of the answers in it.
        self._ready_bytes = 0
        self._answer_ready = asyncio.Event()
        self._answers_written = asyncio.Event()
        self._writing = False
        self._draining = False
        self._idle = asyncio.Event()

    async def run(self) -> OncelogError | None:
        """Until the caller ends the stream or `drain` has let it run dry; the error to end it
        with, if any."""
        # The caller writes nothing before it sees this: oncelogpb.calls.
        await self._context.send_initial_metadata(())
        writer = asyncio.create_task(self._write())
        reader = asyncio.create_task(self._read())
        dry = asyncio.create_task(self._run_dry())
        try:
            done, _ = await asyncio.wait({reader, writer, dry}, return_when=asyncio.FIRST_COMPLETED)
            if reader not in done:
                return None
            failure = reader.result()
            if failure is None:
                # The caller has no more calls: what it asked for is still answered.
                self.drain()
                await asyncio.wait({writer, dry}, return_when=asyncio.FIRST_COMPLETED)
            return failure
        finally:
            tasks = [reader, writer, dry, *self._running.values()]
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                self._deadlines.clear()
                while self._ready:
                    _give_back(self._ready.popleft()[2])
                self._end.over()

    def drain(self) -> None:
        """Refuses further calls and ends the stream once every call is answered."""
        self._draining = True
        self._look_if_idle()

    # --------------------------------------------------------------------------------- calls in

    async def _read(self) -> OncelogError | None:
        """None at the end of the stream."""
        while True:
            data = await self._context.read()
            if data is _AIO.EOF:
                return None
            try:
                calls = self._decode(data)
            except OncelogError as error:
                return error
            share = len(data) // (len(calls) or 1)
            for call, produce in calls:
                self._start(call, produce, share)
                if not self._is_read():
                    await self._until_read()

    def _is_read(self) -> bool:
        """The caller reads its answers, more or less."""
        return (
            len(self._ready) <= self._limits.stream_calls_max
            and self._ready_bytes <= self._limits.stream_answer_bytes_max
        )

    async def _until_read(self) -> None:
        """Who does not read its answers is not read either."""
        while not self._is_read():
            self._answers_written.clear()
            await self._answers_written.wait()

    def _decode(self, data: bytes) -> Sequence[tuple[Any, LiftedProduce | None]]:
        """The calls of a message, a Produce with its payloads beside it where they are large.
        Raises TooLarge, InvalidArgument."""
        limits, descriptor = self._limits, self._calls_class.DESCRIPTOR
        if len(data) > limits.message_bytes_max:
            raise message_too_large("a message of calls", len(data), limits.message_bytes_max)
        if self._counts_fields:
            require_few(data, descriptor, limits.message_fields_max)
        try:
            lifted = in_place.lift(data) if self._carries_batches else None
            if lifted is not None:
                rest, payloads = lifted
                paired = in_place.pair(self._calls_class.FromString(rest).calls, payloads)
                if paired is not None:
                    return paired
            return [(call, None) for call in self._calls_class.FromString(data).calls]
        except DecodeError as error:
            raise undecodable(descriptor.name, error) from None

    def _start(self, call: Any, produce: LiftedProduce | None, size: int) -> None:
        """Starts the handler of a call, or answers at once why not. The handler's first step is
        taken in a later turn of the loop, in the order of these starts."""
        name = call.WhichOneof("request")
        refusal = self._refusal(call.number, name, size)
        if refusal is not None:
            if name is not None:
                self._methods[name].count(refusal)
            self._answer(call.number, refusal, 0, None)
            return
        if self._inflight is not None:
            self._inflight.add(size)
        request = getattr(call, name) if produce is None else produce
        number, timeout_ms = call.number, self._limits.timeout_ms(call.timeout_ms)
        method = self._methods[name]
        task = asyncio.create_task(self._serve(method, number, request, timeout_ms))
        self._running[number] = task
        self._deadlines.add(number, timeout_ms)
        task.add_done_callback(partial(self._ended, number, size, method, timeout_ms))

    def _refusal(self, number: int, name: str | None, size: int) -> OncelogError | None:
        if self._draining:
            return Unavailable("this process is stopping; ask for the leader again")
        if name is None:
            return InvalidArgument("a call without a request that this version knows")
        if number in self._running:
            return InvalidArgument(f"call number {number} is in use", field="number")
        if len(self._running) >= self._limits.stream_calls_max:
            return throttled("stream_calls_max", self._limits.stream_calls_max)
        refusal = None if self._inflight is None else self._inflight.refusal(size)
        if refusal is not None:
            return refusal
        meter = self._meter_of(self._identity)
        return None if meter is None else meter.refusal(size)

    async def _serve(self, method: Method, number: int, request: Any, timeout_ms: int) -> None:
        context = CallContext(
            timeout_ms,
            self._identity,
            self._stream_id,
            self._end,
            self._unread,
            peer=self._peer,
        )
        try:
            if not self._is_read():
                await self._until_read()
            answer = await method.answer(request, context)
        except BaseException:
            context.holds(0)
            raise
        try:
            self._answer(number, answer, self._fields[method.name], context)
        except Exception as error:
            # A reply that is no message: a fault of the handler, not of the stream.
            self._answer(number, method.fault(error), 0, context)

    def _expire(self, number: int) -> None:
        """Its handler is told to end; its caller is answered when it has."""
        self._expired.add(number)
        self._running[number].cancel()

    def _ended(
        self, number: int, size: int, method: Method, timeout_ms: int, task: asyncio.Task[None]
    ) -> None:
        del self._running[number]
        self._deadlines.remove(number)
        if number in self._expired:
            self._expired.remove(number)
            if task.cancelled():
                # Also one that had not begun.
                self._answer(number, method.expired(timeout_ms), 0, None)
        if self._inflight is not None:
            self._inflight.remove(size)
        self._look_if_idle()

    # ------------------------------------------------------------------------------- answers out

    def _answer(self, number: int, answer: Any, field: int, call: CallContext | None) -> None:
        if isinstance(answer, OncelogError):
            framed = bulk.frame_error(number, to_status(answer))
        else:
            framed = bulk.frame_answer(number, field, answer)
            if framed[1] > self._limits.message_bytes_max:
                refusal = message_too_large("a reply", framed[1], self._limits.message_bytes_max)
                framed = bulk.frame_error(number, to_status(refusal))
        meter = self._meter_of(self._identity)
        if meter is not None:
            meter.charge(framed[1])
        self._ready.append((*framed, call))
        self._ready_bytes += framed[1]
        self._answer_ready.set()

    async def _write(self) -> None:
        while True:
            await self._answer_ready.wait()
            self._answer_ready.clear()
            self._writing = True
            while self._ready:
                message, answered = self._take()
                try:
                    await self._context.write(message)
                finally:
                    for call in answered:
                        call.holds(0)
                if self._is_read():
                    self._answers_written.set()
            self._writing = False
            self._answers_written.set()
            self._look_if_idle()

    def _take(self) -> tuple[bytes, list[CallContext]]:
        """All answers that are ready, up to PACK_BYTES, as one message, and the calls whose room is
        given back when it is written."""
        chunks: list[bulk.Chunk] = []
        answered: list[CallContext] = []
        total = 0
        while self._ready and (not total or total + self._ready[0][1] <= PACK_BYTES):
            answer, size, call = self._ready.popleft()
            self._ready_bytes -= size
            chunks.extend(answer)
            if call is not None and call.is_holding:
                answered.append(call)
            total += size
        return bulk.join(chunks), answered

    # -------------------------------------------------------------------------------- running dry

    def _look_if_idle(self) -> None:
        if self._draining and not (self._running or self._ready or self._writing):
            self._idle.set()

    async def _run_dry(self) -> None:
        await self._idle.wait()


def _give_back(call: CallContext | None) -> None:
    if call is not None:
        call.holds(0)
