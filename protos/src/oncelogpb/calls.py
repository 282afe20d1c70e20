"""The client side of our calls over gRPC: many calls in one message over one stream, and the rest.

A service with hot calls has `rpc Stream(stream XxxCalls) returns (stream XxxAnswers)`: a call is
{number, timeout_ms, request}, an answer {number, reply | google.rpc.Status}. A writer takes all
calls that wait and writes one message, which is what makes it quick. Everything here
follows from the descriptors: the field of a call's `oneof` is the RPC's name in snake case.

Invariants:
- calls reach the stream in the order in which `begin` (or `call`) was invoked, also over a
  reconnect of an idle stream;
- nothing is written before the server has accepted the stream, so a call that was never written
  fails with Unavailable, which promises that nothing happened;
- a call that was written and not answered fails with UnknownOutcome: at its deadline, at the end of
  the stream, at close;
- every call ends, at its deadline at the latest (I31).

Left out: retries, redirects, which channel leads where. A CallStream belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2

from oncelogpb import rpcs
from oncelogpb.bulk import Encoded, frame_call, join
from oncelogpb.deadlines import Deadlines
from oncelogpb.errors import (
    InvalidArgument,
    OncelogError,
    Throttled,
    TooLarge,
    Unavailable,
    UnknownOutcome,
    from_status,
)

MESSAGE_BYTES_MAX: Final = 32 * 1024 * 1024
# Our servers end connections that ping more often than every 2 s.
PING_EVERY_MS: Final = 2_500
PING_ANSWERED_MS: Final = 2_000
# gRPC's defaults wait too long for who is back (I29), and do not take a batch of 16 MiB.
CHANNEL_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # The connect timeout: a server that is stopped, not dead, else holds a call for 20 s.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Who is stopped, or whose machine is gone, closes no connection: calls to him are over
    # after PING_EVERY_MS + PING_ANSWERED_MS. (Pings of keepalive, too, wait for `ping_timeout_ms`,
    # a minute by default, and not for `keepalive_timeout_ms`, which bounds unacknowledged bytes.)
    ("grpc.keepalive_time_ms", PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", PING_ANSWERED_MS),
    ("grpc.http2.ping_timeout_ms", PING_ANSWERED_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # A log is not reached through a web proxy: http_proxy in the environment means other traffic.
    ("grpc.enable_http_proxy", 0),
    # One connection per channel, never a shared one: a closed channel must not linger in a pool.
    ("grpc.use_local_subchannel_pool", 1),
)

# A message is closed once it holds so much; one call may be larger. Above 1-2 MiB nothing is won.
PACK_BYTES: Final = 2 * 1024 * 1024
# Limits of one stream; above them a call is Throttled, and nothing has happened.
OPEN_CALLS_MAX: Final = 16_384
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
RETRY_AFTER_MS: Final = 10
# How long a caller waits who does not say.
DEFAULT_TIMEOUT_MS: Final = 30_000
STATUS_KEY: Final = "grpc-status-details-bin"
# The stubs of grpc do not know it.
_AIO: Final[Any] = grpc.aio
_EOF: Final = _AIO.EOF


@dataclass(slots=True, eq=False)
class _Open:
    """A call that is not answered yet."""

    number: int
    method: str
    reply: asyncio.Future[Any]
    # Empty once it was handed to the stream.
    chunks: tuple[bytes | memoryview, ...]
    size: int


class CallStream:
    """Calls to one service of one process. Connects at the first call, and again after a break."""

    def __init__(self, channel: grpc.aio.Channel, service: str) -> None:
        """`service` is a name such as "Coordinator", "coordinator" or the full protobuf name. The
        channel stays the caller's."""
        descriptor = rpcs.find(service)
        self.service = descriptor.name
        self._fields = rpcs.stream_fields(descriptor)
        answers = rpcs.message_class(descriptor.methods_by_name["Stream"].output_type)
        self._stream_method: Any = channel.stream_stream(
            f"/{descriptor.full_name}/Stream",
            request_serializer=None,
            response_deserializer=answers.FromString,
        )
        self._last_number = 0
        self._open: dict[int, _Open] = {}
        self._deadlines = Deadlines(self._expire)
        self._waiting: deque[_Open] = deque()
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[], None]] = []
        self._closed = False

    @property
    def open_calls(self) -> int:
        """Calls that are not answered yet."""
        return len(self._open)

    @property
    def is_idle(self) -> bool:
        """Nobody waits for an answer, nor for its end."""
        return not self._open and not self._listeners

    def begin(
        self, method: str, request: Message | Encoded, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> asyncio.Future[Any]:
        """Puts a call in line, now, and gives the future of its reply: the way to keep several in
        flight in order. Raises InvalidArgument, TooLarge, Throttled or Unavailable at once; the
        future ends with the reply or an OncelogError. Cancelling it abandons the answer."""
        if self._closed:
            raise Unavailable(f"the stream to {self.service} is closed")
        number = self._fields.get(method)
        if number is None:
            raise InvalidArgument(f"{self.service} has no call {method!r} on its stream")
        call_number = self._last_number = self._last_number + 1
        chunks, size = frame_call(call_number, timeout_ms, number, request)
        self._require_room(size)
        loop = asyncio.get_running_loop()
        call = _Open(call_number, method, loop.create_future(), chunks, size)
        call.reply.add_done_callback(partial(self._forget, call_number))
        self._deadlines.add(call_number, timeout_ms)
        self._open[call_number] = call
        self._waiting.append(call)
        self._waiting_bytes += size
        self._wake.set()
        if self._runner is None:
            self._runner = loop.create_task(self._run())
        return call.reply

    async def call(
        self, method: str, request: Message | Encoded, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> Any:
        """The reply. Raises OncelogError; Unavailable means that it was never sent, UnknownOutcome
        that it was and the answer is lost."""
        return await self.begin(method, request, timeout_ms)

    def on_end(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has `listener` called at each end of an accepted stream (a session ended with it), until
        the function that this returns is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def close(self) -> None:
        """Ends the stream and every open call."""
        self._closed = True
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        self._fail(Unavailable("the stream was closed before this call was sent"))

    # ------------------------------------------------------------------------------- the stream

    async def _run(self) -> None:
        """One stream, from connecting to its end."""
        unsent: OncelogError = Unavailable(f"the stream to {self.service} is closed")
        stream = self._stream_method()
        writer: asyncio.Task[None] | None = None
        try:
            # Our servers send initial metadata at once: with it the stream is accepted. The end of
            # a refused one is seen here too.
            await stream.initial_metadata()
            if stream.done():
                unsent = await _refusal(stream)
                return
            writer = asyncio.create_task(self._write(stream))
            await self._read(stream)
            unsent = Unavailable(f"{self.service} ended the stream; call again")
        except grpc.aio.AioRpcError as failure:
            unsent = Unavailable(f"the stream to {self.service} broke: {failure.details()}")
        except grpc.aio.UsageError as failure:
            unsent = Unavailable(f"the channel to {self.service} is closed: {failure}")
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
            stream.cancel()
            self._runner = None
            self._fail(unsent)
            for listener in tuple(self._listeners) if writer is not None else ():
                listener()

    async def _write(self, stream: Any) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    await stream.write(self._take())
        finally:
            # A stream that cannot be written to has ended, whatever its reader still waits for.
            stream.cancel()

    def _take(self) -> bytes:
        """All calls that wait, up to PACK_BYTES, as one message."""
        chunks: list[bytes | memoryview] = []
        size = 0
        while self._waiting and (not size or size + self._waiting[0].size <= PACK_BYTES):
            call = self._waiting.popleft()
            self._waiting_bytes -= call.size
            # One that ended meanwhile was told that it was never sent: so it must not be.
            if not call.reply.done():
                chunks.extend(call.chunks)
                size += call.size
            call.chunks = ()
        return join(chunks)

    async def _read(self, stream: Any) -> None:
        while (answers := await stream.read()) is not _EOF:
            for answer in answers.answers:
                call = self._open.get(answer.number)
                if call is None or call.reply.done():
                    continue
                if answer.HasField("error"):
                    call.reply.set_exception(from_status(answer.error))
                elif answer.WhichOneof("reply") == call.method:
                    call.reply.set_result(getattr(answer, call.method))
                else:
                    call.reply.set_exception(
                        UnknownOutcome(f"{self.service}.{call.method} was answered without a reply")
                    )

    # ---------------------------------------------------------------------------- the open calls

    def _require_room(self, size: int) -> None:
        _require_small(size)
        if len(self._open) >= OPEN_CALLS_MAX:
            raise _throttled("open_calls_max", OPEN_CALLS_MAX)
        if self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise _throttled("waiting_bytes_max", WAITING_BYTES_MAX)

    def _forget(self, number: int, reply: asyncio.Future[Any]) -> None:
        """The call has ended, in whatever way. One that waits stays in line; `_take` drops it."""
        self._open.pop(number, None)
        self._deadlines.remove(number)

    def _expire(self, number: int) -> None:
        call = self._open.get(number)
        if call is None or call.reply.done():
            return
        what = f"{self.service}.{call.method}"
        if call.chunks:
            call.reply.set_exception(Unavailable(f"{what} could not be sent in time"))
        else:
            call.reply.set_exception(UnknownOutcome(f"{what} was not answered in time"))

    def _fail(self, unsent: OncelogError) -> None:
        """Ends every open call: with `unsent` those that were not written."""
        calls = [call for call in self._open.values() if not call.reply.done()]
        self._open.clear()
        self._deadlines.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        for call in calls:
            if call.chunks:
                call.reply.set_exception(type(unsent)(unsent.message, **unsent.metadata))
            else:
                call.reply.set_exception(
                    UnknownOutcome(
                        f"{self.service}.{call.method} was sent, its answer is lost: "
                        f"{unsent.message}"
                    )
                )


# --------------------------------------------------------------------- calls beside the streams


async def unary(
    channel: grpc.aio.Channel,
    service: str,
    method: str,
    request: Message,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> Any:
    """One call by itself; `method` in snake case. Raises OncelogError."""
    descriptor = rpcs.find(service)
    rpc = _rpc(service, method)
    data = _serialize(request)
    call = channel.unary_unary(
        f"/{descriptor.full_name}/{rpc.name}",
        request_serializer=None,
        response_deserializer=rpcs.message_class(rpc.output_type).FromString,
    )
    with _raising(descriptor.name):
        return await call(data, timeout=timeout_ms / 1000)


@contextmanager
def _raising(service: str) -> Iterator[None]:
    """While an answer is awaited: raises OncelogError."""
    task = asyncio.current_task()
    cancelled_before = 0 if task is None else task.cancelling()
    try:
        yield
    except grpc.aio.AioRpcError as failure:
        raise from_rpc_error(failure) from None
    except grpc.aio.UsageError as failure:
        raise Unavailable(f"the channel to {service} is closed: {failure}") from None
    except asyncio.CancelledError:
        # gRPC says so as well where the channel was closed meanwhile; then this task goes on.
        if task is None or task.cancelling() > cancelled_before:
            raise
        raise UnknownOutcome(f"the channel to {service} was closed before it answered") from None


@contextmanager
def _over_at_end(call: Any) -> Iterator[None]:
    try:
        yield
    finally:
        call.cancel()


async def _next_of(call: Any, service: str) -> Any:
    """Its next reply, or _EOF. Raises OncelogError."""
    with _raising(service):
        return await call.read()


async def server_stream(
    channel: grpc.aio.Channel,
    service: str,
    method: str,
    request: Message,
    parse: Callable[[bytes], Any] | None = None,
) -> AsyncGenerator[Any, None]:
    """The replies of a server-streaming call, until the server ends it or the caller stops
    iterating (use contextlib.aclosing). `parse` makes them of their bytes, where generated code is
    not to. Raises OncelogError."""
    descriptor = rpcs.find(service)
    rpc = _rpc(service, method)
    data = _serialize(request)
    call = channel.unary_stream(
        f"/{descriptor.full_name}/{rpc.name}",
        request_serializer=None,
        response_deserializer=parse or rpcs.message_class(rpc.output_type).FromString,
    )(data)
    with _over_at_end(call):
        while (reply := await _next_of(call, descriptor.name)) is not _EOF:
            yield reply


async def exchange(
    channel: grpc.aio.Channel, service: str, method: str, requests: AsyncIterator[Message]
) -> AsyncGenerator[Any, None]:
    """The replies of a call that streams both ways, until either side ends it. Raises
    OncelogError."""
    descriptor = rpcs.find(service)
    rpc = _rpc(service, method)
    call = channel.stream_stream(
        f"/{descriptor.full_name}/{rpc.name}",
        request_serializer=_serialize,
        response_deserializer=rpcs.message_class(rpc.output_type).FromString,
    )(requests)
    with _over_at_end(call):
        while (reply := await _next_of(call, descriptor.name)) is not _EOF:
            yield reply


def _throttled(limit: str, maximum: int) -> Throttled:
    return Throttled(
        f"{limit} = {maximum} of one stream is reached: wait for answers first",
        limit=limit,
        maximum=maximum,
        retry_after_ms=RETRY_AFTER_MS,
    )


def from_rpc_error(failure: grpc.aio.AioRpcError) -> OncelogError:
    """The error behind a failed call."""
    trailing: Any = failure.trailing_metadata()
    return from_status(_status(failure.code(), failure.details(), trailing or ()))


def _rpc(service: str, method: str) -> MethodDescriptor:
    rpc = rpcs.methods(rpcs.find(service)).get(method)
    if rpc is None:
        raise InvalidArgument(f"{service} has no call {method!r}")
    return rpc


def _serialize(message: Message) -> bytes:
    data = message.SerializeToString()
    _require_small(len(data))
    return data


def _require_small(size: int) -> None:
    """The transport's own refusal has no reason of ours: nobody could say that nothing happened.
    Raises TooLarge."""
    if size > MESSAGE_BYTES_MAX:
        raise TooLarge(
            f"a call of {size} bytes is above message_bytes_max = {MESSAGE_BYTES_MAX}; send or ask "
            "for less at once",
            limit="message_bytes_max",
            maximum=MESSAGE_BYTES_MAX,
        )


async def _refusal(stream: Any) -> OncelogError:
    """Why a stream was not accepted. Nothing was written, so a status that promises nothing is
    Unavailable here."""
    error = from_status(
        _status(await stream.code(), await stream.details(), await stream.trailing_metadata() or ())
    )
    return Unavailable(error.message) if isinstance(error, UnknownOutcome) else error


def _status(
    code: grpc.StatusCode, details: str | None, trailing: Iterable[tuple[str, str | bytes]]
) -> status_pb2.Status:
    for key, value in trailing:
        if key == STATUS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break
    return status_pb2.Status(code=code.value[0], message=details or code.name)
