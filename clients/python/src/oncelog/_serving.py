"""Callbacks of a consumer in the plain face: called in the thread that polls or closes it, never on
the loop, so that they may use the consumer.

Which thread that is belongs to the call, not to the consumer: a callback may make a call that calls
back itself (`close`, say), so may the handler of a signal that comes while a thread polls, and
another thread may close the consumer meanwhile. Each of them waits by itself, and serves what its
own call brings.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from oncelog._loop import LoopThread, Serve
from oncelog.aio.member import OnPartitions
from oncelog.batch import TopicPartition

T = TypeVar("T")
# Of the task that does a call's work, and of those that it begins: runs a function in the thread
# that waits for it.
_SERVE: ContextVar[Serve] = ContextVar("oncelog_serve")


class Serving:
    """Of one consumer."""

    def __init__(self) -> None:
        self.has_callbacks = False

    def wrap(self, callback: OnPartitions | None) -> OnPartitions | None:
        """What the loop calls in place of the user's callback."""
        if callback is None:
            return None
        self.has_callbacks = True

        async def called(partitions: Sequence[TopicPartition]) -> None:
            await _SERVE.get()(callback, partitions)

        return called

    def call(self, loop: LoopThread, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As LoopThread.run, with this consumer's callbacks, if it has any."""
        if not self.has_callbacks:
            return loop.run(work())
        return run_serving(loop, lambda _: work())


def run_serving(loop: LoopThread, start: Callable[[Serve], Coroutine[Any, Any, T]]) -> T:
    """As LoopThread.run_serving, with callbacks of any consumer."""

    async def served(serve: Serve) -> T:
        _SERVE.set(serve)
        return await start(serve)

    return loop.run_serving(served)
