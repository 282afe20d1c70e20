"""A large transaction whose commit is on its way while the next one is filled (ADR 98): that one is
sent when it is decided, and taken back with it where it is refused. In virtual time, against a
coordinator that decides when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog._core.routing import PartitionKey
from oncelog.aio.consumer import Consumer
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelogpb import errors
from oncelogpb.v1 import types_pb2 as types
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
from tests.unit.client.scripted import TOPIC_ID

BIG = b"x" * 100_000
# So many of them are no one-shot.
MANY = 12


class Held(ChainServices):
    """`commits`: the answers to commits of open transactions, by TxId; each waits for its own."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: dict[int, asyncio.Future[Any]] = {}
        self.ended: list[int] = []

    async def commit_transaction(self, request: Any) -> Any:
        answer = self.commits.setdefault(request.tx_id, asyncio.get_running_loop().create_future())
        outcome = await asyncio.shield(answer)
        if isinstance(outcome, Exception):
            raise outcome
        self.ended.append(request.tx_id)
        return super().commit_transaction(request)

    def abort_transaction(self, request: Any) -> Any:
        self.ended.append(request.tx_id)
        return super().abort_transaction(request)

    def answer(self, tx_id: int, refusal: errors.OncelogError | None = None) -> None:
        self.commits[tx_id].set_result(refusal)


def held(work: Callable[[TransactionalProducer, Held], Awaitable[Any]], **options: Any) -> None:
    in_flight(work, services=Held(), **options)


async def large(
    producer: TransactionalProducer, consumer: Consumer | None = None, count: int = 3
) -> Any:
    """One of so many more records, left."""
    if consumer is not None:
        given(consumer, count)
    tx = producer.transaction(consumer)
    async with tx:
        for _ in range(MANY):
            await tx.send("a", BIG, partition=0)
    return tx


def test_the_next_one_is_filled_while_it_is_decided_and_sent_behind_it() -> None:
    async def work(producer: TransactionalProducer, services: Held) -> None:
        consumer = reader(producer, 0)
        first = await large(producer, consumer)
        await settled()
        assert first.is_in_flight, "its commit is on its way"
        assert first.state == "committing"
        assert stands(consumer) == 10
        before = len(services.of("produce"))
        second = asyncio.ensure_future(large(producer, consumer))
        await settled()
        assert not second.done()
        assert len(services.of("produce")) == before, "the leaders know one transaction at a time"
        assert services.names().count("begin_transaction") == 1
        services.answer(first.tx_id)
        await first.decided()
        assert first.state == "committed"
        tx = await second
        await settled()
        assert tx.is_in_flight
        assert services.names().count("begin_transaction") == 1, "the first commit has begun it"
        services.answer(tx.tx_id)
        await producer.flush()
        assert tx.state == "committed"
        offsets = [
            (o.from_offset, o.to_offset, o.after_tx_id, request.tx_id)
            for request in services.of("commit_transaction_offsets")
            for o in request.offsets.offsets
        ]
        assert offsets == [(7, 10, 0, first.tx_id), (10, 13, first.tx_id, tx.tx_id)]

    held(work)


def test_with_one_in_flight_it_is_waited_for() -> None:
    async def work(producer: TransactionalProducer, services: Held) -> None:
        leaving = asyncio.ensure_future(large(producer))
        await settled()
        assert not leaving.done()
        services.answer(101)
        assert (await leaving).state == "committed"

    held(work, in_flight=1)


def test_i20_a_small_one_behind_it_is_sent_when_it_is_decided() -> None:
    """In the transaction that its commit has begun: as a message of its own the coordinator would
    have two of this producer."""

    async def work(producer: TransactionalProducer, services: Held) -> None:
        await opened(producer, services, None)
        first = await large(producer)
        await settled()
        small = asyncio.ensure_future(filled(producer, None))
        await settled()
        assert not small.done()
        services.answer(first.tx_id)
        tx = await small
        await settled()
        assert len(services.of("transact")) == 1
        services.answer(tx.tx_id)
        await producer.flush()
        assert (first.state, tx.state) == ("committed", "committed")
        services.decides_at_once = True
        await filled(producer, None)
        await producer.flush()
        assert len(services.of("transact")) == 2, "it goes on with small ones"

    held(work)


REFUSALS = [
    ("commit_transaction", errors.TransactionEnded("its time is over", outcome="ABORTED")),
    ("commit_transaction_offsets", errors.StalePosition("it stands elsewhere")),
    ("commit_transaction_offsets", errors.UnknownOutcome("its answer was lost")),
    ("produce", errors.UnknownTopic("gone")),
]


@pytest.mark.parametrize(("call", "refusal"), REFUSALS)
def test_i21_a_refused_one_takes_back_the_one_that_is_filled(
    call: str, refusal: errors.OncelogError
) -> None:
    async def work(producer: TransactionalProducer, services: Held) -> None:
        consumer = reader(producer, 0)
        services.script[call] = [] if call == "commit_transaction" else [refusal] * 100
        first = await large(producer, consumer)
        if call == "commit_transaction":
            await settled()
        given(consumer, 3)
        tx = producer.transaction(consumer)
        with pytest.raises(errors.OncelogError, match="in flight was not committed") as told:
            async with tx:
                await tx.send("a", b"v", partition=0)
                if call == "commit_transaction":
                    services.answer(first.tx_id, refusal)
                await asyncio.sleep(60)
                services.script[call] = []
                await tx.send("a", b"w", partition=0)
        assert not isinstance(told.value, errors.InDoubt), "it is aborted, whatever was lost"
        assert (first.state, tx.state) == ("aborted", "aborted")
        assert services.ended == [first.tx_id], "what was open is ended"
        with pytest.raises(errors.OncelogError):
            await first.decided()
        if isinstance(refusal, errors.GroupMoved):
            assert consumer._positions.unknown() == [PartitionKey(TOPIC_ID, 0)]
        else:
            assert stands(consumer) == 7, "where the refused one began"
        await producer.flush()
        assert len(services.instances) == 1, "nothing is in doubt"
        services.decides_at_once = True
        assert (await filled(producer, None)).state == "committed"

    held(work)


def test_it_is_aborted_before_the_next_one_begins() -> None:
    async def work(producer: TransactionalProducer, services: Held) -> None:
        first = await large(producer)
        await settled()
        services.answer(first.tx_id, errors.TransactionEnded("no", outcome="ABORTED"))
        with pytest.raises(errors.TransactionEnded):
            await large(producer)
        await large(producer)
        await settled()
        named = [n for n in services.names() if n in ("abort_transaction", "begin_transaction")]
        assert named == ["begin_transaction", "abort_transaction", "begin_transaction"]
        services.answer(max(services.commits))
        await producer.flush()

    held(work)


def test_i04_where_nobody_can_say_the_group_is_asked_and_the_producer_registers_anew() -> None:
    async def work(producer: TransactionalProducer, services: Held) -> None:
        consumer = reader(producer, 0)
        first = await large(producer, consumer)
        await settled()
        services.answer(first.tx_id, errors.UnknownOutcome("its answer was lost"))
        with pytest.raises(errors.UnknownOutcome):
            await producer.flush()
        assert first.state == "in doubt"
        assert consumer._positions.unknown() == [PartitionKey(TOPIC_ID, 0)]
        services.decides_at_once = True
        await filled(producer, None)
        assert len(services.instances) == 2
        assert services.ended == [first.tx_id], "an unnamed one aborts what it does not know of"

    held(work, timeout_ms=5_000)


def test_i04_one_that_is_looked_up_is_committed() -> None:
    async def work(producer: TransactionalProducer, services: Held) -> None:
        consumer = reader(producer, 0)
        first = await large(producer, consumer)
        await settled()
        services.state = types.TRANSACTION_STATE_COMMITTED
        services.answer(first.tx_id, errors.UnknownOutcome("its answer was lost"))
        await producer.flush()
        assert first.state == "committed"
        assert stands(consumer) == 10

    held(work, timeout_ms=5_000)


def test_what_is_damaged_is_committed_and_told() -> None:
    async def work(producer: TransactionalProducer, services: Held) -> None:
        consumer = reader(producer, 0)
        first = await large(producer, consumer)
        await settled()
        tx_id = first.tx_id
        services.answer(tx_id, errors.Damaged("a part of it"))
        with pytest.raises(errors.Damaged):
            await producer.flush()
        assert (first.state, first.tx_id) == ("committed", tx_id)
        assert stands(consumer) == 10

    held(work)


def test_close_waits_for_it() -> None:
    async def work(producer: TransactionalProducer, services: Held) -> None:
        first = await large(producer)
        await settled()
        closing = asyncio.ensure_future(producer.close())
        await settled()
        assert not closing.done()
        services.answer(first.tx_id)
        await closing
        assert first.state == "committed"
        assert services.ended == [first.tx_id, first.tx_id + 1], "and what it began is ended"

    held(work)


def test_i21_one_that_is_interrupted_is_given_up() -> None:
    """Its task ends with the loop, or by a fault of this client, before anything was decided."""

    async def work(producer: TransactionalProducer, services: Held) -> None:
        consumer = reader(producer, 0)
        first = await large(producer, consumer)
        assert first.state == "open"
        flight = first._flight
        assert flight is not None
        flight.answering.cancel()
        with pytest.raises(errors.OncelogError):
            await producer.flush()
        assert first.state == "aborted"
        assert stands(consumer) == 7
        services.decides_at_once = True
        await filled(producer, None)
        assert len(services.instances) == 2, "what may be open is ended by its next instance"
        assert services.ended == [first.tx_id]

    held(work)


def test_one_with_a_commit_seq_goes_alone() -> None:
    async def work(producer: TransactionalProducer, services: Held) -> None:
        async def fill() -> Any:
            tx = producer.transaction(commit_seq=("here", 1))
            async with tx:
                for _ in range(MANY):
                    await tx.send("a", BIG, partition=0)
            return tx

        leaving = asyncio.ensure_future(fill())
        await settled()
        assert not leaving.done()
        services.answer(101)
        assert (await leaving).state == "committed"

    held(work)
