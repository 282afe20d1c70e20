"""Who calls over the simulated network: processes (the Peers port) and clients (their Transport).

Each keeps one connection per address and service, and makes it anew after its end. A caller's calls
may meet a *fate* (`fates`): an answer that is lost, a request that comes twice or late.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import aclosing
from typing import Any

from oncelog._core.routing import Endpoint
from oncelog_server.core.ports import Address
from tests.simulation.fates import Fates
from tests.simulation.network import Connection, Network


class _Connections:
    """Of one caller."""

    def __init__(self, network: Network, caller: str, fates: Fates | None) -> None:
        self.network = network
        self._caller = caller
        self._fates = fates
        self._open: dict[tuple[int, str], Connection] = {}
        # The caller has hung up on everybody.
        self._over = False

    async def call(
        self,
        port: int,
        method: str,
        request: Any,
        timeout_ms: int,
        on_end: Callable[[], None],
    ) -> Any:
        async def go(message: Any) -> Any:
            connection = self.to(port, method, on_end)
            try:
                return await self.network.call(connection, method, message, timeout_ms)
            finally:
                if self._over:
                    # A request that came late opened it again.
                    self.end()

        if self._fates is None:
            return await go(request)
        return await self._fates.meet(method, request, go)

    def to(self, port: int, method: str, on_end: Callable[[], None]) -> Connection:
        """Raises Unavailable."""
        service = method.partition(".")[0]
        connection = self._open.get((port, service))
        if connection is None or not connection.alive:
            connection = self.network.connect(self._caller, port, on_end)
            self._open[port, service] = connection
        return connection

    def end_to(self, port: int) -> None:
        """All connections to one process."""
        for place in [place for place in self._open if place[0] == port]:
            self.network.end(self._open.pop(place))

    def end(self) -> None:
        self._over = True
        for connection in self._open.values():
            self.network.end(connection)
        self._open.clear()


class SimPeers:
    """The Peers port of the process of a role."""

    def __init__(self, network: Network, role: str, fates: Fates | None = None) -> None:
        self._connections = _Connections(network, role, fates)

    async def call(self, to: Address, method: str, request: Any, *, timeout_ms: int) -> Any:
        return await self._connections.call(to.port, method, request, timeout_ms, _nobody)

    async def exchange(
        self, to: Address, method: str, requests: AsyncIterator[Any]
    ) -> AsyncGenerator[Any, None]:
        """The Streams port."""
        connection = self._connections.to(to.port, method, _nobody)
        async with aclosing(
            self._connections.network.exchange(connection, method, requests)
        ) as replies:
            async for reply in replies:
                yield reply

    async def close(self) -> None:
        self._connections.end()


class SimTransport:
    """The client's Transport. Calls to one process are begun in the order of `begin`.

    `find` says which port an address leads to now: in the simulator every run of a process has a
    port of its own, and where addresses are names (Kubernetes), the next run has its predecessor's.
    """

    def __init__(
        self,
        network: Network,
        *,
        caller: str = "client",
        fates: Fates | None = None,
        find: Callable[[int], int] = int,
    ) -> None:
        self._network = network
        self._find = find
        self._fates = fates
        self._connections = _Connections(network, caller, fates)
        self._listeners: dict[tuple[Endpoint, str], list[Callable[[], None]]] = defaultdict(list)

    def begin(
        self, to: Endpoint, method: str, request: Any, timeout_ms: int
    ) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.call(to, method, request, timeout_ms))

    async def call(self, to: Endpoint, method: str, request: Any, timeout_ms: int) -> Any:
        ended = self._ended(to, method)
        return await self._connections.call(self._find(to.port), method, request, timeout_ms, ended)

    async def stream(self, to: Endpoint, method: str, request: Any) -> AsyncGenerator[Any, None]:
        connection = self._connections.to(self._find(to.port), method, self._ended(to, method))
        replies = self._network.stream(connection, method, request)
        async with aclosing(replies):
            async for reply in replies:
                yield reply

    def on_end(
        self, to: Endpoint, service: str, listener: Callable[[], None]
    ) -> Callable[[], None]:
        listeners = self._listeners[to, service]
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    def retain(self, members: Collection[Endpoint]) -> None:
        """Nothing is held for who is gone."""

    def abandon(self, to: Endpoint) -> None:
        self._connections.end_to(self._find(to.port))

    async def close(self) -> None:
        self._connections.end()

    def die(self) -> None:
        """The client's process ends in this step: what it tries from now on reaches nobody."""
        if self._fates is not None:
            self._fates.dead = True
        self._connections.end()

    def _ended(self, to: Endpoint, method: str) -> Callable[[], None]:
        listeners = self._listeners[to, method.partition(".")[0]]

        def tell() -> None:
            for listener in tuple(listeners):
                listener()

        return tell


def _nobody() -> None:
    """A process asks anew what a broken connection took with it."""
