"""Tasks that are cancelled wherever they are: nothing is committed in part, the consumer stands
where the outcome says, and the producer goes on or says why it does not (I3, I21)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oncelog._core.routing import Endpoint
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.aio.transactions import Transaction
from oncelogpb import errors
from tests.unit.client.scripted import ScriptedTransport
from tests.unit.client.test_transactions import BIG, Services, consumer_of, transacting

SMALL = b"v"
COUNT = 6
# A call takes a millisecond there and one back: these are all its moments, several times over.
MOMENTS_S = [step * 0.0005 for step in range(1, 24)]
ENDED = ("committed", "aborted", "in doubt")
Use = Callable[[TransactionalProducer, Transaction, bytes], Coroutine[Any, Any, None]]


async def by_block(_: TransactionalProducer, tx: Transaction, value: bytes) -> None:
    async with tx:
        await fill(tx, value)


async def by_hand(producer: TransactionalProducer, tx: Transaction, value: bytes) -> None:
    tx.enter()
    await fill(tx, value)
    await tx.commit()
    await tx.leave(None)


async def fill(tx: Transaction, value: bytes) -> None:
    for _ in range(COUNT):
        await tx.send("a", value, partition=0)


def with_a_way_back(transport: ScriptedTransport) -> None:
    """Answers travel, too: a call may have been done when its caller is cancelled."""

    def later(handler: Callable[[Endpoint, Any], Any]) -> Callable[[Endpoint, Any], Any]:
        async def back(reply: Any) -> Any:
            await asyncio.sleep(transport.delay_s)
            return reply

        return lambda to, request: back(handler(to, request))

    for method, handler in list(transport.handlers.items()):
        if method != "cluster.get_metadata":
            transport.handlers[method] = later(handler)


def committed_counts(services: Services) -> list[int]:
    """How many records each commit that the coordinator saw covers."""
    counts = [
        sum(count for topic in request.manifest.topics for count in topic.record_count)
        for request in services.of("commit_transaction")
    ]
    return counts + [
        sum(batch.record_count for batch in request.batches) for request in services.of("transact")
    ]


@pytest.mark.parametrize("value", [SMALL, BIG], ids=["one message", "opened"])
@pytest.mark.parametrize("use", [by_block, by_hand])
@pytest.mark.parametrize("after_s", MOMENTS_S)
def test_i3_a_cancelled_transaction_is_whole_or_nothing_and_its_producer_goes_on(
    use: Use, value: bytes, after_s: float
) -> None:
    async def work(
        producer: TransactionalProducer, services: Services, transport: ScriptedTransport
    ) -> None:
        with_a_way_back(transport)
        await producer.start()
        consumer = consumer_of(producer, 3)
        tx = producer.transaction(consumer)
        task = asyncio.create_task(use(producer, tx, value))
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if tx.state not in ENDED:
            # Who commits by hand may try again: it must not commit what is left of it.
            with contextlib.suppress(errors.OncelogError):
                await tx.commit()
        await tx.leave(asyncio.CancelledError())
        assert set(committed_counts(services)) <= {COUNT}, "committed in part"
        if tx.state == "committed":
            assert await consumer.position("a", 0) == 10
        elif tx.state == "aborted":
            assert await consumer.position("a", 0) == 7
            assert committed_counts(services) == []
        else:
            assert consumer._positions.unknown(), "the group is asked where it stands"
        async with producer.transaction() as following:
            await fill(following, value)
        assert following.state == "committed"

    transacting(work)


def test_a_transaction_whose_block_was_never_reached_is_ended_by_its_abort() -> None:
    """An interrupt may come between `__enter__` and the block: then nobody calls `__exit__`."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        tx = producer.transaction()
        await tx.__aenter__()
        with pytest.raises(errors.InvalidArgument, match="under way: abort it"):
            await producer.transaction().__aenter__()
        await tx.abort()
        async with producer.transaction() as following:
            await fill(following, SMALL)
        assert following.state == "committed"

    transacting(work)


@pytest.mark.parametrize("after_s", MOMENTS_S)
def test_i21_a_block_that_is_cancelled_in_its_abort_too_gives_its_input_back(
    after_s: float,
) -> None:
    async def work(
        producer: TransactionalProducer, services: Services, transport: ScriptedTransport
    ) -> None:
        with_a_way_back(transport)
        await producer.start()
        consumer = consumer_of(producer, 3)
        tx = producer.transaction(consumer)

        async def wait_inside() -> None:
            async with tx:
                await fill(tx, BIG)
                await asyncio.sleep(after_s)
                raise ZeroDivisionError

        task = asyncio.create_task(wait_inside())
        for _ in range(2):
            await asyncio.sleep(after_s / 2 + 0.0002)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert tx.state == "aborted"
        assert await consumer.position("a", 0) == 7
        async with producer.transaction() as following:
            await fill(following, BIG)
        assert following.state == "committed"

    transacting(work)
