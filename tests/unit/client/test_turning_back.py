"""A transaction that does not come about gives its input back (I21): whoever goes on, with this
producer or another, must get the polled batch again."""

from __future__ import annotations

from typing import Any

import pytest

import oncelog
from oncelog import aio
from oncelog._loop import LoopThread
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.options import ProducerOptions
from oncelogpb import errors
from tests.unit.client.scripted import ScriptedTransport, protocol_over
from tests.unit.client.test_transactions import Services, consumer_of, transacting


@pytest.mark.parametrize("why", ["closed", "fenced", "a bad argument"])
def test_i21_a_transaction_that_cannot_be_made_sends_the_consumer_back(why: str) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        await producer.start()
        consumer = consumer_of(producer, 3)
        assert await consumer.position("a", 0) == 10
        if why == "closed":
            await producer.close()
        elif why == "fenced":
            services.script["transact"] = [errors.ProducerFenced("in the background")]
            with pytest.raises(errors.ProducerFenced):
                async with producer.transaction() as tx:
                    await tx.send("a", b"v")
        with pytest.raises(errors.OncelogError):
            producer.transaction(
                consumer, wait="for ever" if why == "a bad argument" else "visible"
            )
        assert await consumer.position("a", 0) == 7
        assert consumer.feeding.progress() == []

    transacting(work, name="n")


def test_i21_a_transaction_that_cannot_be_entered_sends_the_consumer_back() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        async with producer.transaction() as first:
            await first.send("a", b"v")
            consumer = consumer_of(producer, 3)
            with pytest.raises(errors.InvalidArgument, match="under way"):
                async with producer.transaction(consumer):
                    raise AssertionError("it is never entered")
            assert await consumer.position("a", 0) == 7

    transacting(work)


def test_i21_the_plain_face_sends_the_consumer_back_too() -> None:
    loop = LoopThread("a test")

    async def make() -> tuple[aio.TransactionalProducer, aio.Consumer]:
        protocol = protocol_over(ScriptedTransport(5))
        producer = aio.TransactionalProducer(protocol, ProducerOptions(), name="n", group=None)
        return producer, consumer_of(producer, 3)

    try:
        producer, reading = loop.run(make())
        consumer = oncelog.Consumer(loop, reading)
        plain = oncelog.TransactionalProducer(loop, producer)
        plain.close()
        with pytest.raises(errors.OncelogError, match="closed"):
            plain.transaction(consumer)
        assert consumer.position("a", 0) == 7
    finally:
        loop.close()
