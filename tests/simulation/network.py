"""The network of the simulator: handlers called directly, messages as bytes, delays from a seed.

A message is serialized and parsed on its way, so that no object is shared between processes. A
process that is taken off the network answers nothing more: calls on their way to it are
UNAVAILABLE where they had not arrived and UNKNOWN_OUTCOME where they had.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from oncelog._core.routing import Endpoint
from oncelog_server.core.ports import Address
from oncelogpb import bulk, rpcs
from oncelogpb.errors import (
    Internal,
    OncelogError,
    Unavailable,
    UnknownOutcome,
    from_status,
    to_status,
)

DELAY_MS = (0.05, 0.6)
STREAM_REPLIES_MAX = 4


@dataclass
class _Process:
    handlers: Mapping[str, object]
    # Its handlers run as tasks of the process, not of the caller.
    context: contextvars.Context
    alive: bool = True
    stream_end: list[Callable[[], None]] = field(default_factory=list)
    # In order of arrival.
    running: dict[asyncio.Task[Any], None] = field(default_factory=dict)


class _Rpc(NamedTuple):
    """What the descriptors say of one method."""

    service: str
    name: str
    request: type[Any]
    reply: type[Any]

    def handler(self, process: _Process) -> Any:
        return getattr(process.handlers[self.service], self.name)


@dataclass
class SimCall:
    """The Call port."""

    timeout_ms: int
    process: _Process
    identity: str = ""
    stream_id: int = 1
    refused: Mapping[int, OncelogError] = field(default_factory=dict)

    def not_yours(self, owner: str, producer: str) -> OncelogError | None:
        return None

    def on_stream_end(self, callback: Callable[[], None]) -> None:
        self.process.stream_end.append(callback)

    async def room(self, size: int) -> None:
        pass

    def has_room(self, size: int) -> bool:
        return True

    def spare(self) -> int:
        return 1 << 30

    def holds(self, size: int) -> None:
        pass


class Network:
    """All processes of a run, by port."""

    def __init__(self, seed: int, trace: Callable[[str], None]) -> None:
        self._random = random.Random(seed)
        self._trace = trace
        self._processes: dict[int, _Process] = {}
        self._next_port = 7400
        # When the newest message to a port arrives: a connection keeps the order of its messages.
        self._arrival_s: dict[int, float] = {}

    def listen(self, handlers: Mapping[str, object], context: contextvars.Context) -> int:
        port, self._next_port = self._next_port, self._next_port + 1
        self._processes[port] = _Process(handlers, context)
        return port

    def cut(self, port: int) -> None:
        """The process at `port` is gone."""
        process = self._processes.get(port)
        if process is None:
            return
        process.alive = False
        for running in tuple(process.running):
            running.cancel()

    async def call(self, port: int, method: str, request: Any, timeout_ms: int) -> Any:
        service, _, name = method.partition(".")
        sent = _bytes_of(request)
        await self._travel_to(port)
        process = self._processes.get(port)
        if process is None or not process.alive:
            raise Unavailable(f"nobody listens on port {port}")
        descriptor = rpcs.methods(rpcs.find(service))[name]
        handler: Any = process.handlers[rpcs.find(service).name]
        arrived = rpcs.message_class(descriptor.input_type).FromString(sent)
        work = asyncio.get_running_loop().create_task(
            getattr(handler, name)(arrived, SimCall(timeout_ms, process)), context=process.context
        )
        process.running[work] = None
        try:
            reply = await asyncio.wait_for(asyncio.shield(work), timeout_ms / 1000)
        except OncelogError as error:
            self._trace(f"{method} -> {error.reason}")
            await self._travel_back(process, method)
            raise from_status(to_status(error)) from None
        except asyncio.CancelledError:
            if process.alive:
                raise
            raise UnknownOutcome(f"{method}: the process on port {port} went away") from None
        except TimeoutError:
            raise UnknownOutcome(f"{method}: no answer in {timeout_ms} ms") from None
        finally:
            process.running.pop(work, None)
        self._trace(f"{method} -> ok")
        await self._travel_back(process, method)
        return rpcs.message_class(descriptor.output_type).FromString(_bytes_of(reply))

    async def stream(self, port: int, method: str, request: Any) -> AsyncGenerator[Any, None]:
        """The replies of a server-streaming call. Closing it ends the handler."""
        rpc = _rpc(method)
        sent = _bytes_of(request)
        await self._travel_to(port)
        process = self._running(port)
        replies = rpc.handler(process)(rpc.request.FromString(sent), SimCall(0, process))
        # The sender waits while the reader is so many replies behind: flow control.
        queue: asyncio.Queue[Any] = asyncio.Queue(STREAM_REPLIES_MAX)
        pump = asyncio.get_running_loop().create_task(
            _pump(replies, queue), context=process.context
        )
        process.running[pump] = None
        try:
            while True:
                reply = await queue.get()
                await self._travel()
                if isinstance(reply, OncelogError):
                    self._trace(f"{method} -> {reply.reason}")
                    raise from_status(to_status(reply))
                yield rpc.reply.FromString(reply)
        finally:
            pump.cancel()
            process.running.pop(pump, None)

    def _running(self, port: int) -> _Process:
        process = self._processes.get(port)
        if process is None or not process.alive:
            raise Unavailable(f"nobody listens on port {port}")
        return process

    async def _travel_to(self, port: int) -> None:
        now_s = asyncio.get_running_loop().time()
        delay_s = self._random.uniform(*DELAY_MS) / 1000
        arrival_s = max(now_s + delay_s, self._arrival_s.get(port, 0.0) + 1e-9)
        self._arrival_s[port] = arrival_s
        await asyncio.sleep(arrival_s - now_s)

    async def _travel_back(self, process: _Process, method: str) -> None:
        await self._travel()
        if not process.alive:
            raise UnknownOutcome(f"{method}: the answer was lost")

    async def _travel(self) -> None:
        await asyncio.sleep(self._random.uniform(*DELAY_MS) / 1000)


@cache
def _rpc(method: str) -> _Rpc:
    """By "service.name" in snake case."""
    service, _, name = method.partition(".")
    found = rpcs.find(service)
    descriptor = rpcs.methods(found)[name]
    return _Rpc(
        found.name,
        name,
        rpcs.message_class(descriptor.input_type),
        rpcs.message_class(descriptor.output_type),
    )


async def _end_of(work: asyncio.Task[Any], timeout_s: float) -> None:
    """Returns when `work` has ended, or at the timeout; cancels nothing. (`wait_for` over `shield`
    takes three futures and four turns for it.)"""
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    timer = loop.call_later(timeout_s, wake)
    work.add_done_callback(wake)
    try:
        await woken
    finally:
        timer.cancel()
        work.remove_done_callback(wake)


def _unheard(work: asyncio.Task[Any]) -> None:
    """A refusal that nobody waits for is no news; whatever else is raised is a bug, and is told."""
    error = None if work.cancelled() else work.exception()
    if error is not None and not isinstance(error, OncelogError):
        work.get_loop().call_exception_handler(
            {"message": "a handler failed after its caller gave up", "exception": error}
        )


def _bytes_of(message: Any) -> bytes:
    """Of a message, or of one that was joined by hand."""
    return b"".join(bulk.encode(message).chunks)


async def _pump(replies: AsyncGenerator[Any, None], queue: asyncio.Queue[Any]) -> None:
    async with aclosing(replies):
        try:
            async for reply in replies:
                await queue.put(_bytes_of(reply))
            await queue.put(UnknownOutcome("the stream ended"))
        except OncelogError as error:
            await queue.put(error)
        except Exception as error:
            await queue.put(Internal(f"a bug in a handler: {error!r}"))
        except asyncio.CancelledError:
            # The process is gone: the reader hears that the connection broke.
            while queue.full():
                queue.get_nowait()
            queue.put_nowait(UnknownOutcome("the process went away"))
            raise


class SimPeers:
    """The Peers port."""

    def __init__(self, network: Network) -> None:
        self._network = network

    async def call(self, to: Address, method: str, request: Any, *, timeout_ms: int) -> Any:
        return await self._network.call(to.port, method, request, timeout_ms)

    async def close(self) -> None:
        """Nothing is held."""


class SimTransport:
    """The client's Transport. Calls to one process are begun in the order of `begin`."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def begin(
        self, to: Endpoint, method: str, request: Any, timeout_ms: int
    ) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.call(to, method, request, timeout_ms))

    async def call(self, to: Endpoint, method: str, request: Any, timeout_ms: int) -> Any:
        return await self._network.call(to.port, method, request, timeout_ms)

    async def stream(self, to: Endpoint, method: str, request: Any) -> AsyncGenerator[Any, None]:
        replies = self._network.stream(to.port, method, request)
        async with aclosing(replies):
            async for reply in replies:
                yield reply

    def on_end(
        self, to: Endpoint, service: str, listener: Callable[[], None]
    ) -> Callable[[], None]:
        return lambda: None

    def retain(self, members: Collection[Endpoint]) -> None:
        """Nothing is held."""

    async def close(self) -> None:
        """Nothing is held."""
