"""Threads that end a transaction while another one commits it, and what a connection remembers of
what was closed. Here tasks are the threads: the plain face runs them all on one loop."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from oncelog.aio.log import Log
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.errors import Closed
from oncelog.options import ConnectOptions
from oncelogpb import errors
from tests.unit.client.scripted import ScriptedTransport, on_virtual_time, protocol_over
from tests.unit.client.test_interruptions import (
    COUNT,
    MOMENTS_S,
    SMALL,
    by_block,
    committed_counts,
    fill,
    with_a_way_back,
)
from tests.unit.client.test_transactions import BIG, Services, consumer_of, transacting


@pytest.mark.parametrize("value", [SMALL, BIG], ids=["one message", "opened"])
@pytest.mark.parametrize("after_s", MOMENTS_S)
def test_i3_closing_a_producer_in_the_middle_of_its_commit_is_a_clear_end(
    value: bytes, after_s: float
) -> None:
    """What is asked for is waited for, what is not is aborted, and its sender is told why."""

    async def work(
        producer: TransactionalProducer, services: Services, transport: ScriptedTransport
    ) -> None:
        with_a_way_back(transport)
        await producer.start()
        consumer = consumer_of(producer, 3)
        tx = producer.transaction(consumer)
        task = asyncio.create_task(by_block(producer, tx, value))
        await asyncio.sleep(after_s)
        await producer.close()
        (told,) = await asyncio.gather(task, return_exceptions=True)
        if told is None:
            assert tx.state == "committed"
            assert committed_counts(services) == [COUNT]
            assert await consumer.position("a", 0) == 10
        else:
            assert isinstance(told, Closed), repr(told)
            assert committed_counts(services) == []
            assert tx.state in ("aborted", "buffering"), "the second was never entered"
        with pytest.raises(Closed):
            producer.transaction()

    transacting(work)


@pytest.mark.parametrize("value", [SMALL, BIG], ids=["one message", "opened"])
@pytest.mark.parametrize("after_s", MOMENTS_S)
def test_i3_i4_a_commit_that_another_thread_aborts_meanwhile_ends_as_the_coordinator_decides(
    value: bytes, after_s: float
) -> None:
    async def work(
        producer: TransactionalProducer, services: Services, transport: ScriptedTransport
    ) -> None:
        with_a_way_back(transport)
        await producer.start()
        tx = producer.transaction()
        task = asyncio.create_task(by_block(producer, tx, value))
        await asyncio.sleep(after_s)
        await tx.abort()
        (told,) = await asyncio.gather(task, return_exceptions=True)
        if told is None:
            assert tx.state == "committed"
            assert committed_counts(services) == [COUNT]
        else:
            assert isinstance(told, errors.InvalidArgument), repr(told)
            assert tx.state == "aborted"
            assert committed_counts(services) == []
        async with producer.transaction() as following:
            await fill(following, value)
        assert following.state == "committed"

    transacting(work)


def test_a_commit_in_doubt_that_another_thread_aborts_says_so() -> None:
    async def work(producer: TransactionalProducer, services: Services, transport: Any) -> None:
        with_a_way_back(transport)
        await producer.start()
        tx = producer.transaction()
        services.script["transact"] = [errors.UnknownOutcome("lost")] * 1_000
        task = asyncio.create_task(by_block(producer, tx, SMALL))
        await asyncio.sleep(1)
        await tx.abort()
        (told,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(told, errors.UnknownOutcome)
        assert tx.state == "in doubt"

    transacting(work, timeout_ms=3_000)


def test_a_connection_forgets_what_was_closed() -> None:
    """Else one that makes a producer per request would grow for ever."""

    async def work() -> None:
        transport, services = ScriptedTransport(5, 5), Services()
        transport.handlers["coordinator.init_producer"] = services.handler(
            "coordinator.init_producer"
        )
        protocol = protocol_over(transport)
        log = Log("boot:1", ConnectOptions(), protocol=protocol)
        closed = []
        for _ in range(3):
            for made in (
                await log.producer(),
                await log.transactional_producer(),
                await log.consumer(["a"]),
            ):
                closed.append(weakref.ref(made))
                await made.close()
                await made.close()
        del made
        # What a task of theirs still holds goes with its last step.
        await asyncio.sleep(1)
        gc.collect()
        assert [one() for one in closed if one() is not None] == []
        assert transport.listeners == []
        open_ = await log.producer()
        await log.close()
        with pytest.raises(Closed):
            await open_.send("a", b"v")

    on_virtual_time(work)
