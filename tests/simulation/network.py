"""The network of the simulator: handlers called directly, messages as bytes, delays from a seed.

A message is serialized and parsed on its way, so that no object is shared between processes. A
process that is taken off the network answers nothing more: calls on their way to it are
UNAVAILABLE where they had not arrived and UNKNOWN_OUTCOME where they had.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from oncelog._core.routing import Endpoint
from oncelogpb import rpcs
from oncelogpb.errors import OncelogError, Unavailable, UnknownOutcome, from_status, to_status
from services.core.ports import Address

DELAY_MS = (0.05, 0.6)


@dataclass
class _Process:
    handlers: Mapping[str, object]
    alive: bool = True
    stream_end: list[Callable[[], None]] = field(default_factory=list)
    running: set[asyncio.Future[Any]] = field(default_factory=set)


@dataclass
class SimCall:
    """The Call port."""

    timeout_ms: int
    process: _Process
    identity: str = ""
    stream_id: int = 1

    def on_stream_end(self, callback: Callable[[], None]) -> None:
        self.process.stream_end.append(callback)


class Network:
    """All processes of a run, by port."""

    def __init__(self, seed: int, trace: Callable[[str], None]) -> None:
        self._random = random.Random(seed)
        self._trace = trace
        self._processes: dict[int, _Process] = {}
        self._next_port = 7400
        # When the newest message to a port arrives: a connection keeps the order of its messages.
        self._arrival_s: dict[int, float] = {}

    def listen(self, handlers: Mapping[str, object]) -> int:
        port, self._next_port = self._next_port, self._next_port + 1
        self._processes[port] = _Process(handlers)
        return port

    def cut(self, port: int) -> None:
        """The process at `port` is gone."""
        process = self._processes.get(port)
        if process is None:
            return
        process.alive = False
        for running in sorted(process.running, key=id):
            running.cancel()

    async def call(self, port: int, method: str, request: Any, timeout_ms: int) -> Any:
        service, _, name = method.partition(".")
        sent = request.SerializeToString()
        await self._travel_to(port)
        process = self._processes.get(port)
        if process is None or not process.alive:
            raise Unavailable(f"nobody listens on port {port}")
        descriptor = rpcs.methods(rpcs.find(service))[name]
        handler: Any = process.handlers[rpcs.find(service).name]
        arrived = rpcs.message_class(descriptor.input_type).FromString(sent)
        work = asyncio.ensure_future(getattr(handler, name)(arrived, SimCall(timeout_ms, process)))
        process.running.add(work)
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
            process.running.discard(work)
        self._trace(f"{method} -> ok")
        await self._travel_back(process, method)
        return rpcs.message_class(descriptor.output_type).FromString(reply.SerializeToString())

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
        raise Unavailable("the simulator has no server streams")
        yield

    def on_end(
        self, to: Endpoint, service: str, listener: Callable[[], None]
    ) -> Callable[[], None]:
        return lambda: None

    async def close(self) -> None:
        """Nothing is held."""
