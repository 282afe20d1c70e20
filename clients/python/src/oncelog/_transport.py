"""The only file of the client that knows grpc: one channel per process, one call stream per role on
it, and the few calls beside the streams.

`Transport` is what the rest of the client asks for; tests give another one. Errors are OncelogError
and nothing else; a lost answer is UnknownOutcome (oncelogpb.calls says when).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from oncelog._core.messages import Produce
from oncelog._core.routing import METHODS, Endpoint
from oncelog.errors import INSTEAD_OF_FORK, Closed, Forked
from oncelog.options import Tls
from oncelogpb import bulk, calls, errors

# How long a channel may take to close, seconds.
CLOSE_SECONDS_MAX: Final = 2.0


class Transport(Protocol):
    """Calls to processes. Belongs to one event loop."""

    def begin(
        self, to: Endpoint, method: str, request: Any, timeout_ms: int
    ) -> asyncio.Future[Any]:
        """Puts a call of a role's stream in line, now: calls to one process keep this order."""
        ...

    async def call(self, to: Endpoint, method: str, request: Any, timeout_ms: int) -> Any:
        """One call, on the role's stream where it travels there."""
        ...

    def stream(self, to: Endpoint, method: str, request: Any) -> AsyncGenerator[Any, None]:
        """The replies of a server-streaming call. Close it (contextlib.aclosing)."""
        ...

    def on_end(
        self, to: Endpoint, service: str, listener: Callable[[], None]
    ) -> Callable[[], None]:
        """Calls `listener` when the role's stream to that process breaks: a session ended with it.
        Returns what takes the listener away."""
        ...

    def retain(self, members: Collection[Endpoint]) -> None:
        """These are the processes there are: what is held for others may go, where nothing runs."""
        ...

    async def close(self) -> None: ...


class GrpcTransport:
    """The real one."""

    def __init__(self, tls: Tls | None = None) -> None:
        """Raises Forked, InvalidArgument."""
        _refuse_in_child()
        bulk.keep_large_blocks()
        self._tls = tls
        self._credentials = None if tls is None else _read_credentials(tls)
        self._channels: dict[Endpoint, grpc.aio.Channel] = {}
        self._streams: dict[tuple[Endpoint, str], calls.CallStream] = {}
        # Calls and streams of replies that run beside the call streams.
        self._beside: Counter[Endpoint] = Counter()
        # Channels of who is no member any more, being closed.
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    def begin(
        self, to: Endpoint, method: str, request: Any, timeout_ms: int
    ) -> asyncio.Future[Any]:
        service, _, name = method.partition(".")
        if isinstance(request, Produce):
            request = request.encoded()
        return self._stream(to, service).begin(name, request, timeout_ms)

    async def call(self, to: Endpoint, method: str, request: Any, timeout_ms: int) -> Any:
        service, _, name = method.partition(".")
        if METHODS[method].streamed:
            return await self._stream(to, service).call(name, request, timeout_ms)
        with self._running_beside(to):
            return await calls.unary(self._channel(to), service, name, request, timeout_ms)

    async def stream(self, to: Endpoint, method: str, request: Any) -> AsyncGenerator[Any, None]:
        service, _, name = method.partition(".")
        with self._running_beside(to):
            replies = calls.server_stream(self._channel(to), service, name, request)
            try:
                async for reply in replies:
                    yield reply
            finally:
                close = getattr(replies, "aclose", None)
                if close is not None:
                    await close()

    def on_end(
        self, to: Endpoint, service: str, listener: Callable[[], None]
    ) -> Callable[[], None]:
        return self._stream(to, service).on_end(listener)

    def retain(self, members: Collection[Endpoint]) -> None:
        for to in self._channels.keys() - set(members):
            held = [key for key in self._streams if key[0] == to]
            if self._beside[to] or not all(self._streams[key].is_idle for key in held):
                continue
            streams = [self._streams.pop(key) for key in held]
            leaving = asyncio.create_task(_end(streams, [self._channels.pop(to)]))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        self._closed = True
        streams, self._streams = list(self._streams.values()), {}
        channels, self._channels = list(self._channels.values()), {}
        await _end(streams, channels)
        await asyncio.gather(*self._leaving, return_exceptions=True)

    @contextlib.contextmanager
    def _running_beside(self, to: Endpoint) -> Iterator[None]:
        self._beside[to] += 1
        try:
            yield
        finally:
            self._beside[to] -= 1
            if not self._beside[to]:
                del self._beside[to]

    def _stream(self, to: Endpoint, service: str) -> calls.CallStream:
        stream = self._streams.get((to, service))
        if stream is None:
            stream = calls.CallStream(self._channel(to), service)
            self._streams[(to, service)] = stream
        return stream

    def _channel(self, to: Endpoint) -> grpc.aio.Channel:
        channel = self._channels.get(to)
        if channel is not None:
            return channel
        if self._closed:
            raise Closed("the connection is closed: connect again")
        _note_first_process()
        options: list[tuple[str, Any]] = list(calls.CHANNEL_OPTIONS)
        if self._credentials is None:
            channel = grpc.aio.insecure_channel(str(to), options=options)
        else:
            assert self._tls is not None
            if self._tls.server_name is not None:
                options.append(("grpc.ssl_target_name_override", self._tls.server_name))
            channel = grpc.aio.secure_channel(str(to), self._credentials, options=options)
        self._channels[to] = channel
        return channel


async def _end(streams: Iterable[calls.CallStream], channels: Iterable[grpc.aio.Channel]) -> None:
    for stream in streams:
        await stream.close()
    for channel in channels:
        # A peer that is stopped must not hold back our end.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(channel.close(None), CLOSE_SECONDS_MAX)


# The process that first opened a channel; 0: none did. A child inherits it.
_first_pid = 0


def _note_first_process() -> None:
    global _first_pid
    _first_pid = _first_pid or os.getpid()


def _refuse_in_child() -> None:
    """gRPC's asyncio part does not survive a fork: in the child a channel waits for threads that
    only the parent has, or crashes. Raises Forked."""
    if _first_pid not in (0, os.getpid()):
        raise Forked(f"this process was forked from one that used a connection: {INSTEAD_OF_FORK}")


def _read_credentials(tls: Tls) -> grpc.ChannelCredentials:
    if (tls.certificate_file is None) != (tls.key_file is None):
        raise errors.InvalidArgument("give certificate_file and key_file, or neither", field="tls")
    try:
        return grpc.ssl_channel_credentials(
            root_certificates=_read(tls.ca_file),
            private_key=_read(tls.key_file),
            certificate_chain=_read(tls.certificate_file),
        )
    except OSError as error:
        raise errors.InvalidArgument(f"a TLS file cannot be read: {error}", field="tls") from None


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
