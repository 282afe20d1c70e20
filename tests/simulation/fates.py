"""What becomes of calls on a bad network: answers are lost, requests arrive twice or late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from oncelogpb import bulk
from oncelogpb.errors import OncelogError, UnknownOutcome

# How late a request may arrive whose caller was told that nobody knows, seconds.
LATE_S_MAX: Final = 2.0

PRODUCE: Final = "partition_leader.produce"

Go = Callable[[Any], Awaitable[Any]]


class Fates:
    """Of the calls of one caller. With the chance `trouble` each, a call's answer is lost, or its
    request comes late, after its caller was told so. Another part of the requests arrive a second
    time."""

    def __init__(self, chance: random.Random, trouble: Callable[[], float]) -> None:
        self._chance = chance
        self._trouble = trouble
        self._late: set[asyncio.Task[None]] = set()
        # Whose calls these are has died.
        self.dead = False

    async def meet(self, method: str, request: Any, go: Go) -> Any:
        """`go` sends the request; it may do so later, and again."""
        if self.dead:
            raise asyncio.CancelledError
        trouble = self._trouble()
        fate = self._chance.random() / trouble if trouble else 9.0
        if fate < 1.0:
            await go(request)
            raise UnknownOutcome(f"{method}: the answer was lost")
        if fate < 1.5:
            self._later(request, go)
            raise UnknownOutcome(f"{method}: the connection broke")
        if fate < 2.0:
            return await self._twice(method, request, go)
        return await go(request)

    async def _twice(self, method: str, request: Any, go: Go) -> Any:
        """Its copy comes later, unless the request is refused: that promises that nothing of it
        stands, and no connection delivers a request again whose answer has come."""
        copy = self._later(request, go)
        try:
            reply = await go(request)
        except OncelogError as error:
            if not error.may_have_applied:
                copy.cancel()
            raise
        # Of several batches each is refused by itself.
        if method == PRODUCE and any(result.HasField("error") for result in reply.results):
            copy.cancel()
        return reply

    def _later(self, request: Any, go: Go) -> asyncio.Task[None]:
        # As it is now: the caller may change its message for the next attempt.
        sent = b"".join(bulk.encode(request).chunks)
        again = bulk.Encoded((sent,), len(sent))
        task = asyncio.get_running_loop().create_task(self._arrive(again, go))
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        return task

    async def _arrive(self, request: Any, go: Go) -> None:
        await asyncio.sleep(self._chance.uniform(0, LATE_S_MAX))
        try:
            await go(request)
        except OncelogError:
            return
