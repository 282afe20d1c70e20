"""One call to one process: again until it succeeds, fails for good, or its deadline comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from oncelog._core import retries, routing
from oncelog._core.routing import Endpoint, Key, PartitionKey
from oncelog._metadata import Metadata
from oncelogpb import errors
from oncelogpb.doubt import READS, Doubt


class Repeating(Metadata):
    """See the module."""

    async def repeat(
        self,
        method: str,
        request: Any,
        deadline: float,
        locate: Callable[[], Awaitable[Endpoint]],
        key: Key | PartitionKey | None,
        patience: float | None = None,
    ) -> Any:
        """Until it succeeds, fails for good, or the deadline comes; `patience` is the deadline of
        waiting for a pending transaction."""
        idempotent = routing.method_of(method).idempotent
        doubt = Doubt(method, request)
        began_ms = self.now_ms()
        attempt = 0
        while True:
            endpoint: Endpoint | None = None
            try:
                self.require_open()
                endpoint = await locate()
                # A question may be given up while its process is silent: nothing happened.
                end = self.until(method, began_ms, deadline) if method in READS else deadline
                reply = await self.transport.call(endpoint, method, request, self.remaining_ms(end))
                self.met(method)
                return reply
            except errors.OncelogError as error:
                self.met(method, error)
                action = retries.action_for(error)
                if not retries.is_repeatable(action, idempotent=idempotent):
                    doubt.give_up(error)
                if key is None:
                    self.doubt_processes(error)
                if endpoint is not None:
                    self.suspect(endpoint, error)
                moved = key is not None and self.learn_failure(key, error)
                if not moved or attempt % 2:
                    until = self.until(method, began_ms, deadline)
                    if patience is not None and isinstance(error, errors.PendingTransaction):
                        until = patience
                    await self.back_off_before(until, attempt, error, doubt, method)
                doubt.as_reported(error)
                attempt += 1

    async def back_off_before(
        self,
        deadline: float,
        attempt: int,
        error: errors.OncelogError,
        doubt: Doubt,
        method: str,
    ) -> None:
        """Waits, or raises how the call ended where the deadline leaves no time."""
        wait = retries.wait_ms(error, attempt, self.chance())
        if self.now_ms() + wait >= deadline:
            doubt.give_up(self.explained(error, method))
        await asyncio.sleep(wait / 1000)
