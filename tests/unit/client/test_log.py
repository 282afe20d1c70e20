"""What a connection does with what it made: it closes all, and runs consume, transform, produce."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oncelog._stopping import stopping
from oncelog.aio.consumer import Consumer
from oncelog.aio.log import Log
from oncelog.aio.producer import Producer
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.errors import BufferFailed, CannotConnect, Closed
from oncelog.options import ConnectOptions
from oncelogpb import errors
from tests.unit.client.scripted import ScriptedTransport, on_virtual_time, protocol_over


def log_over(transport: ScriptedTransport) -> Log:
    return Log("boot:1", ConnectOptions(), protocol=protocol_over(transport))


class Made:
    """What a connection keeps; its close may fail, or wait for an answer."""

    def __init__(self, failure: Exception | None = None, *, waits_s: float = 0.0) -> None:
        self.failure = failure
        self.waits_s = waits_s
        self.closed = False
        self.on_closed: Callable[[], object] = lambda: None

    async def close(self) -> None:
        await asyncio.sleep(self.waits_s)
        self.closed = True
        if self.failure is not None:
            raise self.failure


def test_closing_waits_for_all_at_once_where_nobody_answers() -> None:
    async def work() -> None:
        log = log_over(ScriptedTransport(5))
        for _ in range(50):
            log._keep(cast(Producer, Made(waits_s=10.0)))
        began = asyncio.get_running_loop().time()
        await log.close()
        assert asyncio.get_running_loop().time() - began == 10.0

    on_virtual_time(work)


def test_a_bug_that_closing_meets_is_told_before_what_was_not_delivered() -> None:
    async def work() -> None:
        log = log_over(ScriptedTransport(5))
        for failure in (ZeroDivisionError("ours"), errors.Throttled("newest")):
            log._keep(cast(Producer, Made(failure)))
        with pytest.raises(ZeroDivisionError):
            await log.close()

    on_virtual_time(work)


def test_closing_closes_all_and_raises_what_failed_of_the_newest() -> None:
    async def work() -> None:
        log = log_over(ScriptedTransport(5))
        made = [Made(), Made(errors.TooLarge("older")), Made(), Made(errors.Throttled("newest"))]
        for one in made:
            log._keep(cast(Producer, one))
        with pytest.raises(errors.Throttled, match="newest"):
            await log.close()
        assert all(one.closed for one in made)
        with pytest.raises(Closed):
            await log.protocol.topic("b")
        await log.close()

    on_virtual_time(work)


class Steps:
    """A consumer that always has a batch, and a producer whose transactions end as scripted."""

    def __init__(self, *ends: errors.OncelogError | None) -> None:
        self.ends = list(ends)
        # Nothing is in flight.
        self.line = SimpleNamespace(taken_back=0, at_most=lambda _: nullcontext())

    async def poll(self, timeout_s: float) -> Any:
        return "batch" if self.ends else None

    def transaction(self, consumer: object) -> Steps:
        return self

    async def flush(self) -> None: ...

    async def __aenter__(self) -> Steps:
        return self

    async def __aexit__(self, *exception: object) -> None:
        end = self.ends.pop(0)
        if end is not None:
            raise end


async def run_over(steps: Steps) -> int:
    async def step(batch: object, tx: object) -> None: ...

    log = log_over(ScriptedTransport(5))
    return await log.run(
        cast(Consumer, steps), step, cast(TransactionalProducer, steps), idle_timeout_s=1.0
    )


@pytest.mark.parametrize(
    "passing",
    [
        errors.TransactionEnded("x"),
        errors.NotLeader("x"),
        errors.UnknownOutcome("x"),
        BufferFailed("no room"),
        CannotConnect("no coordinator", problem="role_silent"),
    ],
    ids=lambda error: error.reason,
)
def test_a_run_repeats_what_passes_by_itself(passing: errors.OncelogError) -> None:
    steps = Steps(None, passing, passing, None)
    assert on_virtual_time(lambda: run_over(steps))[0] == 2


@pytest.mark.parametrize(
    "fatal",
    [
        errors.ProducerFenced("x"),
        errors.InvalidArgument("x"),
        CannotConnect("not trusted", problem="certificate"),
    ],
    ids=lambda error: error.reason,
)
def test_a_run_ends_where_repeating_cannot_help(fatal: errors.OncelogError) -> None:
    steps = Steps(None, fatal, None)
    with pytest.raises(type(fatal)):
        on_virtual_time(lambda: run_over(steps))
    assert steps.ends == [None]


def test_consumers_close_while_producers_can_still_end_their_transactions() -> None:
    async def work() -> None:
        log = log_over(ScriptedTransport(5))
        producer = Made()
        consumers: list[_ConsumerOf] = [_ConsumerOf(producer), _ConsumerOf(producer)]
        for made in (consumers[0], producer, consumers[1]):
            log._keep(cast(Producer, made))
        await log.close()
        assert [consumer.found_closed for consumer in consumers] == [False, False]
        assert producer.closed

    on_virtual_time(work)


class _ConsumerOf(Consumer):
    """Whose `on_revoked` looks for the producer, at some time while it closes."""

    def __init__(self, producer: Made) -> None:
        self._of = producer
        self.found_closed: bool | None = None
        self.on_closed = lambda: None

    async def close(self) -> None:
        await asyncio.sleep(1.0)
        self.found_closed = self._of.closed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda it: it.name)
def test_a_run_stops_at_a_signal_that_nobody_handles(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    told: list[str] = []
    try:
        with stopping([number], lambda: told.append("stop")):
            signal.raise_signal(number)
            assert signal.getsignal(number) is before
    except KeyboardInterrupt:
        told.append("interrupted")
    assert told == ["stop"]
    assert signal.getsignal(number) is before


def test_a_run_leaves_a_signal_to_the_program_that_handles_it() -> None:
    handled: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: handled.append(number))
    try:
        with stopping([signal.SIGINT], lambda: pytest.fail("it is the program's")):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert handled == [signal.SIGINT]
