"""Callbacks of a plain consumer run in the thread whose call brought them, also where calls of one
consumer are nested, or meet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from oncelog._loop import LoopThread
from oncelog._plain_units import Transactions, TransactionsAcross
from oncelog._serving import Serving
from oncelog.batch import TopicPartition

# Nothing here takes as long: then a thread waits for ever.
STUCK_S = 30.0
PLACES = [TopicPartition("a", 0)]


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    made = LoopThread("test")
    yield made
    made.close()


class Caller:
    """A consumer with one callback; `poll` and `close` tell it something."""

    def __init__(self, loop: LoopThread, callback: Callable[[Sequence[TopicPartition]], object]):
        self._loop = loop
        self._serving = Serving()
        self._callback = self._serving.wrap(callback)
        # Set where `poll` waits; it goes on when it is `released`.
        self.waits = threading.Event()
        self.released = asyncio.Event()

    def poll(self) -> None:
        async def work() -> None:
            self.waits.set()
            await self.released.wait()
            await self._tell()

        self._serving.call(self._loop, work)

    def close(self) -> None:
        self._serving.call(self._loop, self._tell)

    async def _tell(self) -> None:
        assert self._callback is not None
        told = self._callback(PLACES)
        assert isinstance(told, asyncio.Future) or asyncio.iscoroutine(told)
        await told


def in_time(work: Callable[[], object]) -> None:
    """Fails where it never ends."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(STUCK_S)
    assert not thread.is_alive(), "it waits for ever"


def test_a_callback_may_make_a_call_that_calls_back(loop: LoopThread) -> None:
    """`close` within on_revoked, or a signal handler's within poll."""
    told: list[int] = []

    def callback(_: object) -> None:
        told.append(threading.get_ident())
        if len(told) == 1:
            caller.close()

    caller = Caller(loop, callback)
    in_time(caller.close)
    assert len(told) == 2
    assert len(set(told)) == 1, "in the thread that waits"


def test_a_call_of_another_thread_brings_a_thread_of_its_own(loop: LoopThread) -> None:
    told: list[str] = []
    caller = Caller(loop, lambda _: told.append(threading.current_thread().name))
    polling = threading.Thread(target=caller.poll, name="polls", daemon=True)
    polling.start()
    assert caller.waits.wait(STUCK_S)
    closing = threading.Thread(target=caller.close, name="closes", daemon=True)
    closing.start()
    closing.join(STUCK_S)
    assert told == ["closes"]
    loop.post(caller.released.set)
    polling.join(STUCK_S)
    assert told == ["closes", "polls"]


@pytest.mark.parametrize("face", [Transactions, TransactionsAcross])
def test_who_polls_for_whole_transactions_serves_callbacks_too(
    loop: LoopThread, face: type[Transactions] | type[TransactionsAcross]
) -> None:
    told: list[int] = []
    serving = Serving()
    callback = serving.wrap(lambda _: told.append(threading.get_ident()))

    class Told:
        """Of a member that is given its first partitions in this poll, and no records."""

        async def poll(self, timeout_s: float = 1.0) -> None:
            assert callback is not None
            await asyncio.wait_for(_awaited(callback), timeout_s)

        def polled_here(self) -> None:
            """It commits nothing by itself."""

    twin: Any = Told()
    assert face(loop, twin, serving).poll(STUCK_S) is None
    assert told == [threading.get_ident()]


async def _awaited(callback: Callable[[Sequence[TopicPartition]], object]) -> None:
    waited = callback(PLACES)
    assert asyncio.iscoroutine(waited)
    await waited
