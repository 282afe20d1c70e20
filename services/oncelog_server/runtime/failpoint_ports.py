"""The ports with their failpoints: wrappers that a process is composed with while failpoints are
armed, and only then. `core.failpoints` names the points.

Left out: watches and server streams (Subscribe): no step of a transaction is in them.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from oncelog_server.core import failpoints
from oncelog_server.core.failpoints import NAMES, Repeat
from oncelog_server.core.ports import Address, Call, Peers
from oncelog_server.runtime.outside import Listener, Outside
from oncelogpb import rpcs
from oncelogpb.errors import OncelogError

# When a copy of a request that the network held back arrives, after the first.
LATE_REQUEST_SECONDS: Final = 1.5

Handle = Callable[[Any, Call], Awaitable[Any]]


def with_failpoints(outside: Outside) -> Outside:
    """With failpoints where they are armed, else as it was."""
    if not failpoints.armed():
        return outside
    make_renewals = outside.renewals
    return dataclasses.replace(
        outside,
        disk=PointedPort("disk", outside.disk),
        etcd=PointedPort("etcd", outside.etcd),
        peers=PointedPeers(outside.peers),
        listener=PointedListener(outside.listener),
        renewals=make_renewals and (lambda: PointedPort("etcd", make_renewals())),
    )


class PointedPort:
    """A port whose methods pass the failpoints `<prefix>.<method>.before` and `.after`."""

    def __init__(self, prefix: str, port: Any) -> None:
        self._port = port
        names = (name.split(".") for name in sorted(NAMES))
        for method in (method for of, *_, method, _ in names if of == prefix):
            if hasattr(port, method):
                setattr(self, method, _around(f"{prefix}.{method}", getattr(port, method)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


def _around(step: str, method: Callable[..., Any]) -> Callable[..., Any]:
    if not inspect.iscoroutinefunction(method):

        def blocking(*given: Any, **named: Any) -> Any:
            failpoints.reach(f"{step}.before")
            result = method(*given, **named)
            failpoints.reach(f"{step}.after")
            return result

        return blocking

    async def awaited(*given: Any, **named: Any) -> Any:
        failpoints.reach(f"{step}.before")
        result = await method(*given, **named)
        failpoints.reach(f"{step}.after")
        return result

    return awaited


class PointedPeers:
    """The Peers port: calls that the table names pass `call.<method>.before` and `.after`."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def call(self, to: Address, method: str, request: Any, *, timeout_ms: int) -> Any:
        if f"call.{method}.before" not in NAMES:
            return await self._peers.call(to, method, request, timeout_ms=timeout_ms)
        failpoints.reach(f"call.{method}.before")
        reply = await self._peers.call(to, method, request, timeout_ms=timeout_ms)
        failpoints.reach(f"call.{method}.after")
        return reply


class PointedListener:
    """The node's Listener: handlers that the table names pass `serve.<method>.before` and
    `.after`."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    async def start(self, handlers: Mapping[str, object]) -> tuple[str, int]:
        return await self._listener.start(
            {name: _PointedHandler(name, handler) for name, handler in handlers.items()}
        )

    async def stop(self) -> None:
        await self._listener.stop()


class _PointedHandler:
    def __init__(self, service: str, handler: object) -> None:
        self._handler = handler
        # The loop holds its tasks weakly.
        self._copies: set[asyncio.Task[None]] = set()
        for method in rpcs.methods(rpcs.find(service)):
            name = f"serve.{rpcs.snake(service)}.{method}"
            if f"{name}.before" in NAMES and hasattr(handler, method):
                served = functools.partial(self._serve, name, getattr(handler, method))
                setattr(self, method, served)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handler, name)

    async def _serve(self, name: str, handle: Handle, request: Any, call: Call) -> Any:
        repeat = failpoints.reach(f"{name}.before")
        if repeat is not None:
            after_s = LATE_REQUEST_SECONDS if repeat is Repeat.LATE else 0.0
            again = self._again(handle, copy.deepcopy(request), call, after_s=after_s)
            task = asyncio.get_running_loop().create_task(again)
            self._copies.add(task)
            task.add_done_callback(self._copies.discard)
        reply = await handle(request, call)
        failpoints.reach(f"{name}.after")
        return reply

    async def _again(self, handle: Handle, request: Any, call: Call, *, after_s: float) -> None:
        """A copy, whose answer goes nowhere."""
        await asyncio.sleep(after_s)
        try:
            await handle(request, call)
        except OncelogError:
            return
