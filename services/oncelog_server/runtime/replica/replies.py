"""Replies that wait until the high watermark covers what they were decided on: refusals too, and
answers to questions that changed nothing.

Invariants: replies leave in the order they were decided; only within this node's own lease
deadline (docs/leadership.md, "Leases lie"); one that is lost says whether something may have been
journaled for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import Decision
from oncelogpb.errors import NotLeader, OncelogError, UnknownOutcome


class _Parked(NamedTuple):
    # Released once the HW is at or above this.
    end: int
    future: asyncio.Future[Any]
    reply: object
    # False: nothing was journaled for it.
    recorded: bool


class Replies:
    """Of one replica."""

    def __init__(self, partition: PartitionId, lease_valid: Callable[[], bool]) -> None:
        self._partition = partition
        self._lease_valid = lease_valid
        self._parked: deque[_Parked] = deque()

    def park(
        self, decision: Decision[Any], *, end: int, high_watermark: int
    ) -> asyncio.Future[Any]:
        """`end`: of the log that it was decided on, its own records included."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        item = _Parked(end, future, decision.reply, bool(decision.records))
        if high_watermark >= end and not self._parked:
            self._answer(item)
        else:
            self._parked.append(item)
        return future

    def release(self, high_watermark: int) -> None:
        while self._parked and self._parked[0].end <= high_watermark:
            self._answer(self._parked.popleft())

    def lose(self, why: str) -> None:
        """Fails all that wait: this process will not learn any more whether the records that they
        were decided on become durable, or are cut by the next leader."""
        parked, self._parked = self._parked, deque()
        for item in parked:
            if not item.future.done():
                self._fail(item, _lost(item, self._partition, why))

    def _answer(self, item: _Parked) -> None:
        if item.future.done():
            return
        if not self._lease_valid():
            self._fail(item, _lost(item, self._partition, "the lease ran out"))
        elif isinstance(item.reply, OncelogError):
            self._fail(item, item.reply)
        else:
            item.future.set_result(item.reply)

    @staticmethod
    def _fail(item: _Parked, error: OncelogError) -> None:
        item.future.set_exception(error)
        # A caller that has gone must not make asyncio complain.
        item.future.exception()


def _lost(item: _Parked, partition: PartitionId, why: str) -> OncelogError:
    if item.recorded:
        return UnknownOutcome(
            f"partition {partition}: {why} before the answer was durable; ask before you repeat"
        )
    return NotLeader(f"partition {partition}: {why}; ask for the new leader")
