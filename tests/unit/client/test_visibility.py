"""Waiting until a transaction that moved a position is visible (ADR 72)."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog._core.routing import PartitionKey
from oncelog.aio import visibility
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.aio.visibility import Visibility
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.scripted import TOPIC_ID
from tests.unit.client.test_send_offsets import PLACE
from tests.unit.client.test_transactions import Services, consumer_of, transacting

MOVED = [PartitionKey(TOPIC_ID, 0)]
OUTPUT = types.Partition(topic_id=b"x" * 16, number=3)


def told(**fields: Any) -> pb.GetTransactionReply:
    return pb.GetTransactionReply(transaction=pb.TransactionDescription(**fields))


def not_yet(tx_id: int) -> pb.GetTransactionReply:
    return told(tx_id=tx_id, state=types.TRANSACTION_STATE_COMMITTED, unacknowledged=[OUTPUT])


def test_i21_it_is_waited_for_and_asked_about_once_then() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        visible = told(tx_id=9, state=types.TRANSACTION_STATE_COMMITTED, visible=True)
        services.script["get_transaction"] = [not_yet(8), not_yet(9), visible]
        known = Visibility(producer.protocol)
        assert known.is_known(0), "no transaction moved it"
        assert not known.is_known(9)
        for _again in range(2):
            await known.wait(9, MOVED, 30_000)
        asked = services.of("get_transaction")
        assert asked == [pb.GetTransactionRequest(tx_id=9, only_visibility=True)] * 3
        assert known.is_known(9)

    transacting(work)


@pytest.mark.parametrize(
    "answer",
    [
        errors.UnknownTransaction("forgotten"),
        told(tx_id=9, state=types.TRANSACTION_STATE_EXPIRED),
        # Of a coordinator of before.
        errors.PermissionDenied("describe"),
    ],
)
def test_what_is_forgotten_is_not_waited_for(answer: Any) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["get_transaction"] = [answer]
        await Visibility(producer.protocol).wait(9, MOVED, 0)

    transacting(work)


def test_i31_what_it_waits_for_is_named() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["get_transaction"] = [not_yet(8)] * 1_000
        await producer.protocol.topic("a")
        began = producer.protocol.now_ms()
        with pytest.raises(errors.PendingTransaction) as error:
            await Visibility(producer.protocol).wait(9, MOVED, 3_000)
        assert 3_000 <= producer.protocol.now_ms() - began <= 3_000 + visibility.QUESTION_MS
        named = error.value.metadata
        assert (named["tx_id"], named["partition"]) == ("0000000000000008", "3")
        assert named["topic_id"] == OUTPUT.topic_id.hex()
        for part in ("0000000000000009", "'a' partition 0", "partition 3"):
            assert part in error.value.message

    transacting(work)


def test_i31_a_coordinator_that_is_silent_is_named() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["get_transaction"] = [errors.Unavailable("away")] * 10_000
        with pytest.raises(errors.PendingTransaction, match="does not answer") as error:
            await Visibility(producer.protocol).wait(9, MOVED, 3_000)
        assert error.value.metadata["partition"] == "0", "whose position it moved"

    transacting(work)


@pytest.mark.parametrize("how", ["send_offsets", "one-shot", "open"])
def test_i21_a_second_producer_of_one_consumer_waits_for_the_first(how: str) -> None:
    """Nobody hands over, and the two have no order all the same."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = consumer_of(producer, 3)
        other = TransactionalProducer(producer.protocol, producer._options, name=None, group=None)
        async with producer.transaction() as tx:
            await tx.send_offsets({PLACE: 10}, consumer.group_metadata())
        if how == "send_offsets":
            async with other.transaction() as tx:
                await tx.send_offsets({PLACE: 11}, consumer.group_metadata())
        else:
            consumer._positions.fetched(consumer._assigned.key(*PLACE), 11)
            consumer._positions.given(consumer._assigned.key(*PLACE), 11)
            async with other.transaction(consumer) as tx:
                await tx.send("a", b"x", partition=0)
                if how == "open":
                    await tx.flush()
        [moved] = set(services.asked_visible)
        assert moved == 101
        names = services.names()
        last = max(n for n, name in enumerate(names) if name == "get_transaction")
        assert any(name in ("transact", "commit_transaction") for name in names[last:])
        async with other.transaction() as tx:
            await tx.send_offsets({PLACE: 12}, consumer.group_metadata())
        assert set(services.asked_visible) == {101}, "its own it does not wait for"

    transacting(work)
