"""What stands beside an offset is a part of where a commit starts (ADR 63): two consumers that have
given the same transactions beyond one position commit only once (I21)."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog._core.positions import Origin
from oncelog.aio.consumer import Consumer
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.batch import TopicPartition
from oncelogpb.v1 import offset_manager_pb2 as offsets
from tests.unit.client.scripted import ScriptedTransport
from tests.unit.client.test_consuming import consuming, offsets_of, reply
from tests.unit.client.test_read_across_before import ONE, OTHER, stands_at_0
from tests.unit.client.test_transactions import Services, consumer_of, transacting
from tests.unit.client.test_transactions_across import (
    TWO,
    answers,
    described,
    ends,
    parts_of_next,
    unit,
)


def said(commit: offsets.OffsetCommit) -> tuple[str | None, str | None, int, str]:
    """(kind of from, metadata that it starts from, to, metadata)."""
    beside = commit.from_metadata if commit.HasField("from_metadata") else None
    return commit.WhichOneof("from"), beside, commit.to_offset, commit.metadata


def test_i21_who_stands_alone_reads_across_and_says_what_it_starts_from() -> None:
    """The group stands where it stood: only what was given beyond has changed."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        committed = stands_at_0(transport, {})
        answers(transport, lambda tx_id: described(tx_id, *((0, 1) if tx_id == ONE else (0,))))
        ends(transport, 1)
        transactions = consumer.transactions(across=True)
        assert await parts_of_next(transactions) == (OTHER, [(0, 1)])
        await consumer.commit()
        await consumer.pause(TopicPartition("a", 1))
        # Nothing was given since.
        await consumer.commit()
        assert [said(commit) for commit in committed] == [
            ("from_offset", "", 0, "oncelog-across/1 3:2"),
        ]

    consuming(work, [unit(0, ONE, 0), unit(0, OTHER, 1)], partitions=TWO, group="g")


def test_i21_each_commit_starts_from_what_the_last_one_has_left() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        committed = stands_at_0(transport, {0: "whatever the group has"})
        await offsets_of(consumer, 5)
        await consumer.commit()
        await offsets_of(consumer, 5)
        await consumer.commit()
        await consumer.seek("a", 0, 2)
        transport.streams = [[reply(0, 2, 8)]]
        await offsets_of(consumer, 5)
        await consumer.commit()
        assert [said(commit) for commit in committed] == [
            ("from_offset", "whatever the group has", 5, ""),
            ("from_offset", "", 10, ""),
            ("from_any", None, 7, ""),
        ]

    consuming(work, [reply(0, 0, 10)], group="g", batch_records_max=5)


def test_i21_a_sign_of_life_overwrites_nothing_that_another_one_has_given_since() -> None:
    """It is refused where somebody has; and who lives is not what a consumer knows better."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        committed = stands_at_0(transport, {0: "oncelog-buffered/1 of somebody"})
        await offsets_of(consumer, 5)
        await consumer.close()
        assert [said(commit) for commit in committed] == [
            (
                "from_offset",
                "oncelog-buffered/1 of somebody",
                0,
                "oncelog-buffered/1 of somebody",
            )
        ]

    consuming(work, [reply(0, 0, 10)], group="g")


def sent(services: Services) -> list[tuple[str | None, str | None, int, str]]:
    return [
        said(offset) for request in services.of("transact") for offset in request.offsets.offsets
    ]


@pytest.mark.parametrize("named", [False, True])
def test_i21_a_transaction_says_what_it_starts_from(named: bool) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = consumer_of(producer, 3)
        [key] = consumer._positions.assigned
        consumer._positions.start(key, 7, 7, beside="what the group has")
        for to in (10, 12):
            metadata = consumer.group_metadata()
            consumer._positions.fetched(key, to)
            consumer._positions.given(key, to)
            async with producer.transaction(None if named else consumer) as tx:
                if named:
                    await tx.send_offsets({TopicPartition("a", 0): to}, metadata)
        assert sent(services) == [
            ("from_offset", "what the group has", 10, ""),
            ("from_offset", "", 12, ""),
        ]

    transacting(work)


def test_i21_who_asks_where_to_start_is_told_the_metadata_too() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = consumer_of(producer, 3)
        [key] = consumer._positions.assigned
        metadata = consumer.group_metadata()
        assert metadata.since == {TopicPartition("a", 0): 7}
        consumer._positions.start(key, 7, 7, beside="beside")
        assert await consumer.feeding.since(TopicPartition("a", 0)) == (7, "beside")
        consumer._positions.start(key, 7, Origin.NONE, beside="")
        assert await consumer.feeding.since(TopicPartition("a", 0)) == (Origin.NONE, None)

    transacting(work)
