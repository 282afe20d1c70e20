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
from tests.unit.client.test_transactions import Services, transacting


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
        producer.doubt(0)
        newer = await producer.identity()
        await asyncio.sleep(2)
        assert asked == 2
        assert await producer.identity() is newer

    transacting(work)
