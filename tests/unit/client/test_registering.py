"""Who a transactional producer says it is when it registers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog._core.routing import Endpoint
from oncelog.aio.consumer import Consumer
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.options import ConsumerOptions
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.scripted import ScriptedTransport
from tests.unit.client.test_transactions import Services, consumer_of, transacting


def test_a_named_producer_registers_under_its_name_with_a_session() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        await producer.start()
        (request,) = services.of("init_producer")
        assert (request.name, request.group, request.session) == ("n", "n", True)
        assert len(request.instance_id) == 16

    transacting(work, name="n")


def test_unnamed_producers_are_each_in_a_group_of_their_own() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        other = TransactionalProducer(producer.protocol, producer._options, name=None, group=None)
        together = TransactionalProducer(producer.protocol, producer._options, name=None, group="g")
        for one in (producer, other, together):
            await one.start()
        groups = [request.group for request in services.of("init_producer")]
        assert len(set(groups)) == 3
        assert groups[2] == "g"
        assert {request.name for request in services.of("init_producer")} == {""}

    transacting(work)


def test_who_asks_while_it_registers_waits_for_that_one_registration() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        first, second = await asyncio.gather(producer.identity(), producer.identity())
        assert first is second
        assert services.names() == ["init_producer"]

    transacting(work)


def test_a_consumer_without_a_group_has_no_progress_to_commit() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = Consumer(producer.protocol, ConsumerOptions(), {}, None)
        with pytest.raises(errors.InvalidArgument, match="no group"):
            producer.transaction(consumer)

    transacting(work)


def test_a_takeover_that_is_answered_late_does_not_replace_who_registered_since() -> None:
    async def work(
        producer: TransactionalProducer, services: Services, transport: ScriptedTransport
    ) -> None:
        await producer.identity()
        register, asked = transport.handlers["coordinator.init_producer"], 0

        async def late_at_first(to: Endpoint, request: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked > 1:
                return register(to, request)
            await asyncio.sleep(1)
            forgotten = types.Producer(producer_id=99, generation=1)
            return pb.InitProducerReply(producer=forgotten)

        transport.handlers["coordinator.init_producer"] = late_at_first
        for session_ended in list(transport.listeners):
            session_ended()
        await asyncio.sleep(0.1)
        producer.registration.doubt(await producer.identity(), 0)
        newer = await producer.identity()
        await asyncio.sleep(2)
        assert asked == 2
        assert await producer.identity() is newer

    transacting(work)


async def lose_a_commit(producer: TransactionalProducer, services: Services) -> None:
    services.script["transact"] = [errors.UnknownOutcome("lost")] * 200
    with pytest.raises(errors.UnknownOutcome):
        async with producer.transaction() as tx:
            await tx.send("a", b"v")
    services.script.clear()


async def commit_one(producer: TransactionalProducer) -> None:
    async with producer.transaction() as tx:
        await tx.send("a", b"v")


def test_i16_a_take_over_that_is_refused_late_fences_nobody() -> None:
    """The session breaks, its take-over is on its way; then a lost commit makes the producer
    register a new instance. What the coordinator says of the old one is no word about the new."""

    async def work(
        producer: TransactionalProducer, services: Services, transport: ScriptedTransport
    ) -> None:
        await producer.start()
        register, asked = transport.handlers["coordinator.init_producer"], 0

        async def late_at_first(to: Endpoint, request: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 1:
                await asyncio.sleep(8)
                raise errors.ProducerFenced("this instance was replaced")
            return register(to, request)

        transport.handlers["coordinator.init_producer"] = late_at_first
        for session_ended in list(transport.listeners):
            session_ended()
        await asyncio.sleep(0.1)
        await lose_a_commit(producer, services)
        await commit_one(producer)
        await asyncio.sleep(20)
        await commit_one(producer)
        assert len(set(services.instances)) == 2

    transacting(work, name="n", timeout_ms=3_000)


def test_i16_who_registers_again_after_doubt_says_which_generation_it_held() -> None:
    """Another instance may have taken the name over meanwhile, and is not to be fenced."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        await producer.start()
        await lose_a_commit(producer, services)
        await producer.start()
        first, second = services.of("init_producer")
        assert (first.held_generation, second.held_generation) == (0, 1)
        assert first.instance_id != second.instance_id

    transacting(work, name="n", timeout_ms=3_000)


def test_i16_the_instance_that_was_replaced_stops_and_the_living_goes_on() -> None:
    """A's commit ends in doubt, B starts under the same name: it is A that is told to stop."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        instances: list[bytes] = []

        def init_producer(request: Any) -> Any:
            if instances[-1:] != [request.instance_id]:
                if request.held_generation and request.held_generation < len(instances):
                    raise errors.ProducerFenced("a later instance took over")
                instances.append(request.instance_id)
            identity = types.Producer(producer_id=1, generation=len(instances))
            return pb.InitProducerReply(producer=identity)

        services.init_producer = init_producer  # type: ignore[method-assign]
        await commit_one(producer)
        await lose_a_commit(producer, services)
        other = TransactionalProducer(producer.protocol, producer._options, name="n", group=None)
        await commit_one(other)
        with pytest.raises(errors.ProducerFenced):
            await commit_one(producer)
        with pytest.raises(errors.ProducerFenced):
            producer.transaction()
        await commit_one(other)
        assert len(instances) == 2

    transacting(work, name="n", timeout_ms=3_000)


def test_two_doubts_with_no_registration_between_draw_one_instance_id() -> None:
    """Else the second would meet the generation that the first was given, and take it for that of
    somebody else."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        await producer.start()
        await lose_a_commit(producer, services)
        services.script["init_producer"] = [errors.UnknownOutcome("lost")] * 200
        for _ in range(2):
            with pytest.raises(errors.UnknownOutcome):
                await producer.start()
        services.script.clear()
        await commit_one(producer)
        asked = [(r.instance_id, r.held_generation) for r in services.of("init_producer")]
        assert len(set(asked)) == 2

    transacting(work, name="n", timeout_ms=3_000)


@pytest.mark.parametrize("large", [False, True], ids=["one message", "opened"])
def test_an_unnamed_producer_that_was_forgotten_registers_again(large: bool) -> None:
    """Idle for longer than the coordinator keeps producers without a name."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        await commit_one(producer)
        forgotten = errors.UnknownProducer("no such producer")
        services.script["begin_transaction" if large else "transact"] = [forgotten]
        consumer = consumer_of(producer, 3)
        async with producer.transaction(consumer) as tx:
            await tx.send("a", b"v")
            if large:
                await tx.flush()
        assert tx.state == "committed"
        assert len(set(services.instances)) == 2
        ids = [r.producer.producer_id for r in services.of("transact")]
        assert ids == ([1] if large else [1, 1, 2])

    transacting(work)


def test_a_producer_that_stays_forgotten_is_told_and_does_not_ask_for_ever() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["transact"] = [errors.UnknownProducer("no such producer")] * 5
        with pytest.raises(errors.UnknownProducer):
            await commit_one(producer)
        assert len(services.of("transact")) == 2

    transacting(work)


def test_i16_a_refusal_of_an_earlier_identity_does_not_stop_the_producer() -> None:
    """Its own later registration is what fenced it."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        older = await producer.identity()
        await lose_a_commit(producer, services)
        await producer.start()
        producer.registration.fence(errors.ProducerFenced("by ourselves"), older)
        await commit_one(producer)

    transacting(work, name="n", timeout_ms=3_000)
