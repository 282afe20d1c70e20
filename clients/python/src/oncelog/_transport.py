"""The only file of the client that knows grpc: one channel per process, one call stream per role on
it, and the few calls beside the streams.

`Transport` is what the rest of the client asks for; tests give another one. Errors are OncelogError
and nothing else; a lost answer is UnknownOutcome (oncelogpb.calls says when).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import grpc
import grpc.aio

from oncelog._core.messages import Produce
from oncelog._core.routing import METHODS, Endpoint
from oncelog._probe import Problem, diagnose
from oncelog._tls import Certificates
from oncelog.errors import INSTEAD_OF_FORK, Closed, Forked
from oncelog.options import Tls
from oncelogpb import bulk, calls, in_place

# Replies that may be large: what makes them of their bytes.
_PARSERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "partition_leader.subscribe": in_place.parse_fetched,
}
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
        """The replies of a server-streaming call, those of a Subscribe as `in_place.fetched` takes
        them. Close it (contextlib.aclosing)."""
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

    def abandon(self, to: Endpoint) -> None:
        """That process is gone: what waits for its answers is over, as calls whose answer is lost
        are."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Diagnosing(Protocol):
    """A transport that can also say what keeps us from a process."""

    async def diagnose(self, to: Endpoint, seconds: float) -> Problem | None:
        """What is wrong below gRPC; None where nothing is. Does not raise."""
        ...


class _Line:
    """What is open to one process: a channel, and a call stream per role."""

    __slots__ = ("beside", "channel", "streams")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.streams: dict[str, calls.CallStream] = {}
        # Calls and streams of replies that run beside the call streams.
        self.beside = 0

    def stream(self, service: str) -> calls.CallStream:
        stream = self.streams.get(service)
        if stream is None:
            stream = self.streams[service] = calls.CallStream(self.channel, service)
        return stream

    @property
    def is_idle(self) -> bool:
        return not self.beside and all(stream.is_idle for stream in self.streams.values())

    @contextlib.contextmanager
    def running_beside(self) -> Iterator[grpc.aio.Channel]:
        self.beside += 1
        try:
            yield self.channel
        finally:
            self.beside -= 1

    async def end(self) -> None:
        for stream in self.streams.values():
            await stream.close()
        # A peer that is stopped must not hold back our end.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.channel.close(None), CLOSE_SECONDS_MAX)


@dataclass(eq=False, slots=True)
class _Watch:
    """Who wants to hear of the end of a role's stream to a process, whichever line carries it."""

    to: Endpoint
    service: str
    listener: Callable[[], None]
    # Takes it away from the stream that carries it now.
    forget: Callable[[], None]


class GrpcTransport:
    """The real one."""

    def __init__(self, tls: Tls | None = None) -> None:
        """Raises Forked, InvalidArgument."""
        _refuse_in_child()
        bulk.keep_large_blocks()
        self._tls = tls
        self._certificates = None if tls is None else Certificates(tls)
        self._credentials = None if self._certificates is None else _credentials(self._certificates)
        self._lines: dict[Endpoint, _Line] = {}
        # Of certificates that were replaced: what runs there goes on to its end.
        self._old: list[_Line] = []
        self._watches: list[_Watch] = []
        # Lines that nobody needs any more, being closed.
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False

    def begin(
        self, to: Endpoint, method: str, request: Any, timeout_ms: int
    ) -> asyncio.Future[Any]:
        service, _, name = method.partition(".")
        if isinstance(request, Produce):
            request = request.encoded()
        return self._line(to).stream(service).begin(name, request, timeout_ms)

    async def call(self, to: Endpoint, method: str, request: Any, timeout_ms: int) -> Any:
        service, _, name = method.partition(".")
        line = self._line(to)
        if METHODS[method].streamed:
            return await line.stream(service).call(name, request, timeout_ms)
        with line.running_beside() as channel:
            return await calls.unary(channel, service, name, request, timeout_ms)

    async def stream(self, to: Endpoint, method: str, request: Any) -> AsyncGenerator[Any, None]:
        service, _, name = method.partition(".")
        with self._line(to).running_beside() as channel:
            replies = calls.server_stream(channel, service, name, request, _PARSERS.get(method))
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
        stream = self._line(to).stream(service)
        watch = _Watch(to, service, listener, stream.on_end(listener))
        self._watches.append(watch)

        def forget() -> None:
            self._watches.remove(watch)
            watch.forget()

        return forget

    def retain(self, members: Collection[Endpoint]) -> None:
        for to in self._lines.keys() - set(members):
            if self._lines[to].is_idle:
                self._leave(self._lines.pop(to))
        self._end_idle()

    def abandon(self, to: Endpoint) -> None:
        line = self._lines.pop(to, None)
        if line is None:
            return
        self._move_watches([watch for watch in self._watches if watch.to == to])
        self._leave(line)

    async def diagnose(self, to: Endpoint, seconds: float) -> Problem | None:
        return await diagnose(to, self._tls, seconds)

    async def close(self) -> None:
        self._closed = True
        lines = [*self._lines.values(), *self._old]
        self._lines.clear()
        self._old.clear()
        for line in lines:
            await line.end()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _line(self, to: Endpoint) -> _Line:
        if self._certificates is not None and self._certificates.have_changed():
            self._credentials = _credentials(self._certificates)
            self._replace_lines()
        line = self._lines.get(to)
        if line is None:
            line = self._lines[to] = _Line(self._open_channel(to))
            self._end_idle()
        return line

    def _replace_lines(self) -> None:
        """New ones from now on."""
        self._old += self._lines.values()
        self._lines.clear()
        self._move_watches(list(self._watches))
        self._end_idle()

    def _move_watches(self, watches: Iterable[_Watch]) -> None:
        """What is bound to a stream, as a session is, moves to the new one: its holder hears what
        it hears of a stream that ended."""
        for watch in watches:
            watch.forget()
            watch.forget = self._line(watch.to).stream(watch.service).on_end(watch.listener)
            asyncio.get_running_loop().call_soon(self._tell, watch)

    def _tell(self, watch: _Watch) -> None:
        if watch in self._watches:
            watch.listener()

    def _end_idle(self) -> None:
        """Of the lines that were replaced, those on which nothing runs any more."""
        for line in [line for line in self._old if line.is_idle]:
            self._old.remove(line)
            self._leave(line)

    def _leave(self, line: _Line) -> None:
        leaving = asyncio.create_task(line.end())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    def _open_channel(self, to: Endpoint) -> grpc.aio.Channel:
        if self._closed:
            raise Closed("the connection is closed: connect again")
        _note_first_process()
        options: list[tuple[str, Any]] = list(calls.CHANNEL_OPTIONS)
        if self._credentials is None:
            return grpc.aio.insecure_channel(str(to), options=options)
        assert self._tls is not None
        if self._tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self._tls.server_name))
        return grpc.aio.secure_channel(str(to), self._credentials, options=options)


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


def _credentials(certificates: Certificates) -> grpc.ChannelCredentials:
    pems = certificates.pems
    return grpc.ssl_channel_credentials(
        root_certificates=pems.ca,
        private_key=pems.key,
        certificate_chain=pems.certificate,
    )
