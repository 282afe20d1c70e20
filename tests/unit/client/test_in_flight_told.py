"""What is heard of a refusal, and by whom, of transactions of one producer that are on their way:
once, whatever becomes of the transaction that is filled meanwhile; and what the next one knows of
those that were committed before. In virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog._core.positions import After
from oncelog._core.routing import PartitionKey
from oncelog.aio.consumer import Consumer
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.aio.transactions import Transaction
from oncelog.options import ProducerOptions
from oncelogpb import errors
from tests.unit.client.chain_world import (
    ChainServices,
    fails,
    filled,
    given,
    in_flight,
    opened,
    reader,
    require_over,
    sent_back,
    settled,
    stands,
)
from tests.unit.client.compacted import batch_of, nothing_below
from tests.unit.client.scripted import TOPIC_ID, ScriptedTransport
from tests.unit.client.test_consuming import consuming
from tests.unit.client.test_holes import row, some

HELD = PartitionKey(TOPIC_ID, 0)
GONE = errors.UnknownTopic("gone")
Ends = Callable[[TransactionalProducer, Transaction], Awaitable[None]]


async def raises_its_own(producer: TransactionalProducer, tx: Transaction) -> None:
    raise ValueError("of the block")


async def aborts(producer: TransactionalProducer, tx: Transaction) -> None:
    await tx.abort()


async def closes(producer: TransactionalProducer, tx: Transaction) -> None:
    await producer.close()


async def refused_before(
    producer: TransactionalProducer, services: ChainServices, ends: Ends, *, spoilt: bool = False
) -> Transaction:
    """One that is filled when an earlier one is refused, and that ends so."""
    await opened(producer, services, None)
    await filled(producer, None)
    await settled()
    tx = producer.transaction()
    async with tx:
        await tx.send("a", b"v", partition=0)
        if spoilt:
            tx._spoil(errors.UnknownPartition("a record of its own"))
        services.decide(2, GONE)
        await settled()
        await ends(producer, tx)
    return tx


@pytest.mark.parametrize("ends", [raises_its_own, aborts])
def test_i31_a_refusal_that_the_filled_one_did_not_tell_is_told_by_flush(ends: Ends) -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        try:
            tx = await refused_before(producer, services, ends)
        except ValueError:
            assert ends is raises_its_own
        else:
            assert tx.state == "aborted"
        with pytest.raises(errors.UnknownTopic, match="in flight was not committed"):
            await producer.flush()
        # Once.
        await producer.flush()
        services.decides_at_once = True
        assert (await filled(producer, None)).state == "committed"
        await producer.close()

    in_flight(work)


def test_i31_so_it_is_by_the_next_one() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        await refused_before(producer, services, aborts)
        services.decides_at_once = True
        with pytest.raises(errors.UnknownTopic, match="in flight was not committed"):
            await filled(producer, None)
        await producer.flush()

    in_flight(work)


def test_i31_and_by_a_close_that_ends_the_filled_one() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        with pytest.raises(errors.UnknownTopic, match="in flight was not committed"):
            await refused_before(producer, services, closes)

    in_flight(work)


def test_i31_one_with_an_error_of_its_own_tells_that_and_the_next_one_the_refusal() -> None:
    async def nothing(producer: TransactionalProducer, tx: Transaction) -> None:
        pass

    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        with pytest.raises(errors.UnknownPartition, match="of its own"):
            await refused_before(producer, services, nothing, spoilt=True)
        with pytest.raises(errors.UnknownTopic, match="in flight was not committed"):
            await producer.flush()

    in_flight(work)


async def sends(producer: TransactionalProducer, tx: Transaction) -> None:
    """Hears of it, and says something else."""
    with pytest.raises(errors.UnknownTopic):
        await tx.send("a", b"w", partition=0)
    raise ValueError("in other words")


async def flushes(producer: TransactionalProducer, tx: Transaction) -> None:
    with pytest.raises(errors.UnknownTopic):
        await tx.flush()
    raise ValueError("in other words")


async def commits(producer: TransactionalProducer, tx: Transaction) -> None:
    with pytest.raises(errors.UnknownTopic):
        await tx.commit()
    raise ValueError("in other words")


@pytest.mark.parametrize("ends", [sends, flushes, commits])
def test_who_was_told_by_the_filled_one_is_not_told_again(ends: Ends) -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        with pytest.raises(ValueError, match="in other words"):
            await refused_before(producer, services, ends)
        await producer.flush()
        await producer.close()

    in_flight(work)


def test_i21_a_batch_of_before_a_refusal_is_refused_however_often_it_is_tried() -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = await sent_back(producer, services)
        services.decides_at_once = True
        for _ in range(5):
            with pytest.raises(errors.TransactionEnded):
                async with producer.transaction(consumer):
                    raise AssertionError("it holds what is given again")
        assert stands(consumer) == 10
        assert (await filled(producer, consumer)).state == "committed"
        assert stands(consumer) == 13

    in_flight(work)


def test_i21_a_refusal_does_not_forget_the_committed_one_before_it() -> None:
    """Else another producer of the same consumer would not wait until that is visible."""

    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        consumer = reader(producer, 0)
        await opened(producer, services, consumer)
        first, _ = await filled(producer, consumer), await filled(producer, consumer)
        await settled()
        services.decide(2)
        await settled()
        assert consumer._positions.after(HELD) is None, "its coordinator knows"
        services.decide(3, errors.TransactionEnded("no"))
        await settled()
        identity = await producer.identity()
        assert first.tx_id
        assert stands(consumer) == 13
        assert consumer._positions.after(HELD) == After(identity.producer_id, first.tx_id)
        other = TransactionalProducer(
            producer.protocol, ProducerOptions(), name="other", group="others"
        )
        _is_another(services)
        given(consumer, 3)
        before = len(services.names())
        async with other.transaction(consumer) as tx:
            await tx.send("a", b"v", partition=0)
        asked = services.of("get_transaction")
        assert "get_transaction" in services.names()[before:]
        assert asked[-1].tx_id == first.tx_id
        assert asked[-1].only_visibility

    in_flight(work)


def _is_another(services: ChainServices) -> None:
    """From now on another producer registers, at a coordinator of its own."""
    services.next_number = 1
    services.accepted.clear()
    services.outcomes.clear()
    services.decides_at_once = True
    plain = services.init_producer

    def init_producer(request: Any) -> Any:
        reply = plain(request)
        reply.producer.producer_id += 76
        return reply

    services.init_producer = init_producer  # type: ignore[method-assign]


@pytest.mark.parametrize("call", ["has_landed", "told_of"])
def test_whatever_fails_when_one_is_decided_nobody_waits_for_ever(call: str) -> None:
    async def work(producer: TransactionalProducer, services: ChainServices) -> None:
        await opened(producer, services, None)
        made = await filled(producer, None)
        await settled()
        setattr(made, call, fails)
        services.decide(2, None if call == "has_landed" else GONE)
        await require_over(made.decided(), producer.flush())

    in_flight(work)


# ------------------------------------------------------------ what counts as given after a refusal


def hears_of_a_refusal(consumer: Consumer) -> None:
    consumer.feeding._sent_back = GONE


def refuses(consumer: Consumer) -> bool:
    transaction = object()
    try:
        consumer.feeding.feeds(transaction, 0)
    except errors.UnknownTopic:
        return True
    finally:
        consumer.feeding.fed(transaction)
    return False


def test_i21_to_pass_over_what_was_compacted_away_is_not_to_give() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await consumer.poll(2.0) is not None
        hears_of_a_refusal(consumer)
        assert await consumer.poll(2.0) is None
        assert await consumer.position("a", 0) == 9, "it has passed over what is gone"
        assert refuses(consumer)
        assert await consumer.poll(20.0) is not None
        assert not refuses(consumer)

    rows = [[row(number)] for number in (2, 9)]
    first, last = (some(batch_of(one), end=10) for one in rows)
    told = [first, 1.0, some(nothing_below(9), end=9), 5.0, last]
    consuming(work, told, group="g", committed=0)


def test_i21_a_transaction_that_was_gathered_is_given_when_it_is_handed_over() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transactions = consumer.transactions()
        assert await transactions.poll(2.0) is not None
        hears_of_a_refusal(consumer)
        assert await transactions.poll(5.0) is None, "a part of one came, and not its end"
        assert refuses(consumer)
        assert await transactions.poll(20.0) is not None
        assert not refuses(consumer)

    first, second, third, other = (
        batch_of([row(number, tx=tx)]) for number, tx in ((0, 7), (1, 8), (2, 8), (3, 9))
    )
    told = [some(first, second, end=4), 1.0, some(third, end=4), 10.0, some(other, end=4)]
    consuming(work, told)
