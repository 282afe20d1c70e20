"""What careless programs do with transactions in flight: they commit what was left, close, cancel,
abort, lower the limit. Against a coordinator that has one open transaction of a producer, as the
real one, in virtual time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog._core.positions import Ahead
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.batch import TopicPartition
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2 as pb
from tests.unit.client.chain_world import (
    ChainServices,
    filled,
    given,
    in_flight,
    opened,
    reader,
    settled,
    stands,
)
from tests.unit.client.test_in_flight_large import BIG, MANY, Held, large

REFUSED = errors.TransactionEnded("its time is over", outcome="ABORTED")


class Strict(Held):
    """`open`: TxIds. `beside`: what came while one was open and was refused."""

    def __init__(self) -> None:
        super().__init__()
        self.open: set[int] = set()
        self.beside: list[str] = []
        self.decides_at_once = True

    def _require_none(self, name: str) -> None:
        if self.open:
            self.beside.append(name)
            raise errors.ConcurrentTransaction("the producer has an open transaction")

    def begin_transaction(self, request: Any) -> Any:
        self._require_none("begin_transaction")
        reply = super().begin_transaction(request)
        self.open.add(reply.tx_id)
        return reply

    async def commit_transaction(self, request: Any) -> Any:
        try:
            reply = await super().commit_transaction(request)
        except errors.Damaged:
            # Committed all the same, and the next one with it.
            self.open = {self.last_tx + 1}
            self.last_tx += 1
            raise
        self.open.discard(request.tx_id)
        if reply.HasField("next"):
            self.open.add(reply.next.tx_id)
        return reply

    def known(self, tx_id: int) -> Any:
        """The answer to a Begin whose request id is known."""
        return pb.BeginTransactionReply(result=pb.BeginTransactionReply.RESULT_OPEN, tx_id=tx_id)

    def abort_transaction(self, request: Any) -> Any:
        self.open.discard(request.tx_id)
        return super().abort_transaction(request)

    async def transact(self, request: Any) -> Any:
        self._require_none("transact")
        return await super().transact(request)


def strict(work: Callable[[TransactionalProducer, Strict], Awaitable[Any]], **o: Any) -> None:
    in_flight(work, services=Strict(), **o)


async def left_in_a_run_that_failed(producer: TransactionalProducer) -> Any:
    """A large one, of a producer that has one in flight otherwise."""
    with pytest.raises(ValueError), producer.line.at_most(4):
        tx = await large(producer)
        raise ValueError("of a step")
    assert tx.is_in_flight
    await settled()
    return tx


# ---------------------------------------------------------------------------- the limit is lowered


def test_i20_where_the_limit_was_lowered_one_waits_for_what_is_on_its_way() -> None:
    async def work(producer: TransactionalProducer, services: Strict) -> None:
        first = await left_in_a_run_that_failed(producer)
        second = asyncio.ensure_future(filled(producer, None))
        await settled()
        assert not services.of("transact"), "an open one stands beside it"
        services.answer(first.tx_id)
        await first.decided()
        await settled()
        services.answer(max(services.commits))
        assert (await second).state == "committed"
        assert services.beside == []

    strict(work, in_flight=1)


def test_i21_where_the_limit_was_lowered_a_refusal_takes_it_back() -> None:
    async def work(producer: TransactionalProducer, services: Strict) -> None:
        first = await left_in_a_run_that_failed(producer)
        second = asyncio.ensure_future(filled(producer, None))
        await settled()
        services.answer(first.tx_id, REFUSED)
        with pytest.raises(errors.TransactionEnded, match="in flight was not committed"):
            await second
        assert not services.accepted, "nothing of it was sent"

    strict(work, in_flight=1)


def test_i21_so_it_is_of_small_ones() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        with producer.line.at_most(4):
            await opened(producer, services, None)
            await filled(producer, None)
        await settled()
        second = asyncio.ensure_future(filled(producer, None))
        await settled()
        assert 3 not in services.accepted
        services.decide(2, REFUSED)
        with pytest.raises(errors.TransactionEnded, match="in flight was not committed"):
            await second

    in_flight(work, in_flight=1)


# ----------------------------------------------------------------------- one that was left already


def test_one_that_was_left_is_not_committed_again_nor_given_more() -> None:
    async def work(producer: TransactionalProducer, services: Strict) -> None:
        consumer, other = reader(producer, 0), reader(producer, 1)
        first = await large(producer, consumer)
        given(other, 3, 1)
        with pytest.raises(errors.InvalidArgument, match="on its way"):
            await first.commit()
        with pytest.raises(errors.InvalidArgument, match="on its way"):
            await first.flush()
        with pytest.raises(errors.InvalidArgument, match="on its way"):
            await first.send_offsets({TopicPartition("a", 1): 10}, other.feeding.metadata())
        await settled()
        services.answer(first.tx_id)
        await producer.flush()
        assert first.state == "committed"
        assert consumer.feeding._flights == []
        assert stands(consumer) == 10

    strict(work)


def test_two_tasks_that_commit_one_send_it_once() -> None:
    async def work(producer: TransactionalProducer, services: Strict) -> None:
        before = await large(producer)
        await settled()
        tx = producer.transaction()
        await tx.__aenter__()
        for _ in range(MANY):
            await tx.send("a", BIG, partition=0)
        both = [asyncio.ensure_future(tx.commit()) for _ in range(2)]
        await settled()
        services.answer(before.tx_id)
        await before.decided()
        await asyncio.wait(both)
        assert both[0].exception() is None
        with pytest.raises(errors.InvalidArgument, match="on its way"):
            await both[1]
        await settled()
        services.answer(tx.tx_id)
        await producer.flush()
        assert tx.state == "committed"

    strict(work)


# ------------------------------------------------------------------------------------ what is said


def test_i04_of_one_that_is_aborted_nobody_says_that_it_is_in_doubt() -> None:
    async def work(producer: TransactionalProducer, services: Strict) -> None:
        services.script["produce"] = [errors.UnknownOutcome("its answer was lost")] * 10_000
        tx = await large(producer)
        with pytest.raises(errors.TransactionEnded, match="was aborted"):
            await tx.decided()
        assert tx.state == "aborted"

    strict(work, delivery_timeout_ms=5_000)


def test_i23_what_is_said_of_one_is_what_its_consumer_tells() -> None:
    """It was its own later life that took the instance over: nobody has to stop."""

    async def work(producer: TransactionalProducer, services: Strict) -> None:
        consumer = reader(producer, 0)
        told = errors.UnknownMember("it has joined again since")

        def told_of(error: errors.OncelogError) -> errors.OncelogError:
            return told if isinstance(error, errors.FencedInstance) else error

        services.script["commit_transaction_offsets"] = [errors.FencedInstance("a later life")]
        given(consumer, 3)
        tx = producer.transaction(consumer)
        tx._consumed.told = told_of  # type: ignore[method-assign]
        async with tx:
            for _ in range(MANY):
                await tx.send("a", BIG, partition=0)
        with pytest.raises(errors.UnknownMember):
            await tx.decided()

    strict(work)


def test_i21_one_that_a_thread_begins_while_another_is_refused_is_not_committed() -> None:
    """The refusal comes between its question for trouble and its place."""

    async def work(producer: TransactionalProducer, services: Strict) -> None:
        await large(producer)
        await settled()
        tx = producer.transaction()
        usable = producer.registration.require_usable

        def meanwhile() -> None:
            producer.registration.require_usable = usable  # type: ignore[method-assign]
            producer.line._take_back(REFUSED)

        producer.registration.require_usable = meanwhile  # type: ignore[method-assign]
        tx.enter()
        await tx.send("a", b"v", partition=0)
        services.open.clear()
        with pytest.raises(errors.TransactionEnded, match="in flight was not committed"):
            await tx.leave(None)
        assert tx.state == "aborted"
        assert not services.of("transact")

    strict(work)


def test_a_block_whose_transaction_was_closed_raises_it() -> None:
    async def work(producer: TransactionalProducer, services: Strict) -> None:
        async def fill() -> None:
            async with producer.transaction() as tx:
                await tx.send("a", b"v", partition=0)
                await asyncio.sleep(1)

        filling = asyncio.ensure_future(fill())
        await settled()
        await producer.close()
        with pytest.raises(errors.OncelogError, match="this producer is closed"):
            await filling

    strict(work)


# ---------------------------------------------------------------------- cancelled, aborted, closed


@pytest.mark.parametrize("how", ["cancelled", "aborted"])
def test_i31_one_that_has_not_begun_ends_without_the_one_before_it(how: str) -> None:
    async def work(producer: TransactionalProducer, services: Strict) -> None:
        consumer = reader(producer, 0)
        first = await large(producer, consumer)
        await settled()
        produced = len(services.of("produce"))
        given(consumer, 3)

        async def fill() -> None:
            async with producer.transaction(consumer) as tx:
                for _ in range(MANY):
                    await tx.send("a", BIG, partition=0)
                if how == "aborted":
                    raise ValueError

        second = asyncio.ensure_future(fill())
        await settled()
        if how == "cancelled":
            second.cancel()
        done, _ = await asyncio.wait([second], timeout=5)
        assert done, "it waits for the one before it"
        assert stands(consumer) == 10, "behind the one before it"
        services.answer(first.tx_id)
        await producer.flush()
        await settled()
        assert len(services.of("produce")) == produced, "nothing of it is sent"
        third = await large(producer)
        await settled()
        services.answer(third.tx_id)
        await producer.flush()
        assert (third.state, services.beside) == ("committed", [])

    strict(work)


def test_an_abort_that_is_cancelled_leaves_nothing_open() -> None:
    async def work(producer: TransactionalProducer, services: Strict) -> None:
        async def fill() -> None:
            async with producer.transaction() as tx:
                await tx.send("a", b"v", partition=0)
                await tx.flush()
                await asyncio.sleep(1)

        filling = asyncio.ensure_future(fill())
        await settled()
        assert services.open == {101}
        filling.cancel()
        await asyncio.sleep(0)
        filling.cancel()
        await asyncio.wait([filling])
        following = asyncio.ensure_future(filled(producer, None))
        await settled()
        assert services.beside == [], "it is open still"
        assert (await following).state == "committed"
        assert services.open == set()

    strict(work)


def test_a_close_that_is_cancelled_leaves_nothing_open() -> None:
    async def work(producer: TransactionalProducer, services: Strict) -> None:
        first = await large(producer)
        await settled()
        closing = asyncio.ensure_future(producer.close())
        await settled()
        closing.cancel()
        await asyncio.wait([closing])
        services.answer(first.tx_id)
        await first.decided()
        assert first.state == "committed"
        assert services.open == set(), "what its commit began is nobody's"

    strict(work)


@pytest.mark.parametrize("count", [1, 4])
def test_i20_what_a_damaged_one_has_begun_is_taken(count: int) -> None:
    async def work(producer: TransactionalProducer, services: Strict) -> None:
        first = asyncio.ensure_future(large(producer))
        await settled()
        services.answer(101, errors.Damaged("a part of it"))
        with pytest.raises(errors.Damaged):
            await first
            await producer.flush()
        services.script["begin_transaction"] = [services.known(102)]
        tx = asyncio.ensure_future(filled(producer, None))
        await settled()
        assert services.beside == [], "it goes in the one that is open"
        services.answer(102)
        await tx
        await producer.flush()
        assert tx.result().state == "committed"

    strict(work, in_flight=count)


def test_i20_who_is_cancelled_while_it_asks_what_was_begun_registers_anew() -> None:
    async def work(producer: TransactionalProducer, services: Strict) -> None:
        await large(producer)
        await settled()
        services.answer(101, errors.Damaged("a part of it"))
        with pytest.raises(errors.Damaged):
            await producer.flush()
        services.script["begin_transaction"] = [asyncio.sleep(5, services.known(102))]
        tx = asyncio.ensure_future(filled(producer, None))
        await settled()
        assert services.names()[-1] == "begin_transaction"
        tx.cancel()
        await asyncio.sleep(0)
        # It waits for the answer, to end what it names.
        tx.cancel()
        await asyncio.wait([tx])
        await producer.start()
        assert len(services.instances) == 2, "nobody knows of it any more"

    strict(work)


def kept() -> int:
    gc.collect()
    return sum(isinstance(one, Ahead) for one in gc.get_objects())


def test_what_is_decided_is_not_kept_by_what_comes_behind_it() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        before = kept()
        await filled(producer, consumer)
        for number in range(2, 52):
            await filled(producer, consumer)
            await settled()
            services.decide(number)
            await settled()
        assert kept() - before < 10

    in_flight(work)
