"""A client's transport on a bad network: answers are lost, requests arrive twice or late.

`find` says which port an address leads to now: in the simulator every run of a process has a port
of its own, and where addresses are names (Kubernetes), the next run has its predecessor's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

from oncelog._core.routing import Endpoint
from oncelogpb.errors import OncelogError, UnknownOutcome
from tests.simulation.network import Network, SimTransport

# How late a request may arrive whose caller was told that nobody knows, seconds.
LATE_S_MAX: Final = 2.0


class FaultyTransport(SimTransport):
    """With the chance `trouble` each, a call's answer is lost, or its request comes late, after its
    caller was told so. Another part of the requests arrive a second time."""

    def __init__(
        self,
        network: Network,
        chance: random.Random,
        trouble: Callable[[], float],
        find: Callable[[int], int],
    ) -> None:
        super().__init__(network)
        self._trouble = trouble
        self._find = find
        self._chance = chance
        self._late: set[asyncio.Task[None]] = set()

    async def call(self, to: Endpoint, method: str, request: Any, timeout_ms: int) -> Any:
        to = Endpoint(to.host, self._find(to.port))
        trouble = self._trouble()
        fate = self._chance.random() / trouble if trouble else 9.0
        if fate < 1.0:
            await super().call(to, method, request, timeout_ms)
            raise UnknownOutcome(f"{method}: the answer was lost")
        if fate < 1.5:
            self._later(to, method, request, timeout_ms)
            raise UnknownOutcome(f"{method}: the connection broke")
        if fate < 2.0:
            self._later(to, method, request, timeout_ms)
        return await super().call(to, method, request, timeout_ms)

    async def stream(self, to: Endpoint, method: str, request: Any) -> AsyncGenerator[Any, None]:
        there = Endpoint(to.host, self._find(to.port))
        async with aclosing(super().stream(there, method, request)) as replies:
            async for reply in replies:
                yield reply

    def _later(self, to: Endpoint, method: str, request: Any, timeout_ms: int) -> None:
        # The caller may change its message for the next attempt.
        sent = request.SerializeToString() if hasattr(request, "SerializeToString") else request
        again = type(request).FromString(sent) if isinstance(sent, bytes) else request
        task = asyncio.get_running_loop().create_task(self._arrive(to, method, again, timeout_ms))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _arrive(self, to: Endpoint, method: str, request: Any, timeout_ms: int) -> None:
        await asyncio.sleep(self._chance.uniform(0, LATE_S_MAX))
        try:
            await super().call(to, method, request, timeout_ms)
        except OncelogError:
            return
