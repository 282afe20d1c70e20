"""A real RpcServer on loopback with small handler objects, and what to look at it with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from oncelog_server.runtime.rpc.certificates import read
from oncelog_server.runtime.rpc.health import Health
from oncelog_server.runtime.rpc.limits import RpcLimits
from oncelog_server.runtime.rpc.server import RpcServer
from oncelog_server.runtime.rpc.tls import TlsFiles
from oncelogpb import calls

# Ends a test that hangs; nothing is asserted about it.
HANG_S = 30


class Recorder:
    """A Reporter that remembers."""

    def __init__(self) -> None:
        self.counts: list[tuple[str, dict[str, str]]] = []
        self.events: list[tuple[str, dict[str, object]]] = []

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        self.counts.append((name, labels))

    def gauge(self, name: str, value: float, **labels: str) -> None: ...

    def observe(self, name: str, value_ms: float, **labels: str) -> None: ...

    def replace(
        self, name: str, whose: str, rows: Iterable[tuple[Mapping[str, str], float]]
    ) -> None: ...

    def forget(self, label: str, value: str) -> None: ...

    def event(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))


class Handlers:
    """A handler object whose methods are given by name."""

    def __init__(self, **methods: Callable[..., Any]) -> None:
        for name, method in methods.items():
            setattr(self, name, method)


@asynccontextmanager
async def serving(
    service: str,
    *,
    limits: RpcLimits | None = None,
    reporter: Recorder | None = None,
    tls: TlsFiles | None = None,
    health: Health | None = None,
    **methods: Callable[..., Any],
) -> AsyncIterator[tuple[RpcServer, Any]]:
    server = RpcServer(
        {service: Handlers(**methods)},
        listen="127.0.0.1:0",
        reporter=reporter or Recorder(),
        limits=limits,
        tls=None if tls is None else read(tls),
        health=health,
    )
    port = await server.start()
    channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=calls.CHANNEL_OPTIONS)
    try:
        yield server, channel
    finally:
        await channel.close()
        await server.stop(0)


def run(story: Coroutine[Any, Any, None]) -> None:
    """Runs one asyncio test."""

    async def bounded() -> None:
        await asyncio.wait_for(story, HANG_S)

    asyncio.run(bounded())


async def outcome_of(call: Awaitable[Any]) -> Any:
    """The reply, or the error as a value."""
    try:
        return await call
    except Exception as error:
        return error
