"""Offsets of a consumer that was not given to the transaction: each commit starts where the group
stands, is checked, and is remembered by its consumer (I21)."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog._core.positions import Origin
from oncelog._core.routing import PartitionKey
from oncelog._core.transaction import DEFAULT_TIMEOUT_MS
from oncelog.aio.consumer import Consumer
from oncelog.aio.feeding import GroupMetadata
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.batch import TopicPartition
from oncelog.options import ConsumerOptions
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2 as offsets
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.scripted import TOPIC_ID
from tests.unit.client.test_transactions import Services, consumer_of, transacting

PLACE = TopicPartition("a", 0)
KEY = PartitionKey(TOPIC_ID, 0)


def fresh_consumer(producer: TransactionalProducer, **options: Any) -> Consumer:
    """One that was asked nothing yet. The scripted group stands at 7."""
    return Consumer(producer.protocol, ConsumerOptions(**options), {KEY: PLACE}, "g")


def sent(services: Services) -> list[tuple[str | None, int, int, int]]:
    """(kind of from, from, to, chained on) of each commit's only offset."""
    return [
        (offset.WhichOneof("from"), offset.from_offset, offset.to_offset, offset.after_tx_id)
        for request in services.of("transact")
        for offset in request.offsets.offsets
    ]


def test_i21_each_commit_of_a_loop_starts_where_the_last_one_ended() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = consumer_of(producer, 3)
        for to in (10, 12, 15):
            metadata = consumer.group_metadata()
            async with producer.transaction() as tx:
                await tx.send_offsets({PLACE: to}, metadata)
        assert sent(services) == [
            ("from_offset", 7, 10, 0),
            ("from_offset", 10, 12, 101),
            ("from_offset", 12, 15, 102),
        ]

    transacting(work)


def test_a_place_may_be_a_plain_tuple() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        metadata = consumer_of(producer, 3).group_metadata()
        async with producer.transaction() as tx:
            await tx.send_offsets({("a", 0): 10}, metadata)
        assert sent(services) == [("from_offset", 7, 10, 0)]

    transacting(work)


def test_another_producer_does_not_chain() -> None:
    async def work(producer: TransactionalProducer, services: Services, transport: Any) -> None:
        consumer = consumer_of(producer, 3)
        other = TransactionalProducer(producer.protocol, producer._options, name=None, group=None)
        for one in (producer, other):
            metadata = consumer.group_metadata()
            async with one.transaction() as tx:
                await tx.send_offsets({PLACE: 10 + (one is other)}, metadata)
        assert [chained for *_, chained in sent(services)] == [0, 0]

    transacting(work)


def test_i21_what_was_taken_before_the_first_poll_is_checked_too() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        metadata = fresh_consumer(producer).group_metadata()
        async with producer.transaction() as tx:
            await tx.send_offsets({PLACE: 9}, metadata)
        assert sent(services) == [("from_offset", 7, 9, 0)]

    transacting(work)


@pytest.mark.parametrize(
    ("since", "kind"), [(Origin.NONE, "from_none"), (Origin.ANY, "from_any"), (3, "from_offset")]
)
def test_from_is_what_the_group_had(since: int | Origin, kind: str) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        async with producer.transaction() as tx:
            await tx.send_offsets({PLACE: 9}, GroupMetadata("g", {PLACE: since}))
        ((found, start, to, _after),) = sent(services)
        assert (found, start, to) == (kind, 3 if since == 3 else 0, 9)

    transacting(work)


def test_offsets_of_a_reader_of_the_journal_are_called_that() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        metadata = fresh_consumer(producer, isolation="uncommitted").group_metadata()
        async with producer.transaction() as tx:
            await tx.send_offsets({PLACE: 9}, metadata)
        (request,) = services.of("transact")
        assert request.offsets.offsets[0].view == types.VIEW_JOURNAL

    transacting(work)


def test_the_last_offset_that_is_sent_for_a_partition_counts() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        metadata = consumer_of(producer, 3).group_metadata()
        async with producer.transaction() as tx:
            await tx.send_offsets({PLACE: 8}, metadata)
            await tx.send_offsets({PLACE: 10}, metadata)
        assert sent(services) == [("from_offset", 7, 10, 0)]

    transacting(work)


def test_i21_offsets_of_two_groups_are_both_in_the_manifest_and_no_one_shot() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = consumer_of(producer, 3)
        async with producer.transaction(consumer) as tx:
            await tx.send_offsets({TopicPartition("a", 1): 4}, GroupMetadata("h"))
        assert "transact" not in services.names()
        groups = [request.offsets.group for request in services.of("commit_transaction_offsets")]
        assert sorted(groups) == ["g", "h"]
        (commit,) = services.of("commit_transaction")
        assert [list(topic.partition) for topic in commit.manifest.topics] == [[3]]

    transacting(work)


def test_i21_offsets_beside_those_of_the_consumer_go_in_one_message() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = consumer_of(producer, 3)
        async with producer.transaction(consumer) as tx:
            await tx.send_offsets({TopicPartition("a", 1): 4}, GroupMetadata("g"))
        assert [(kind, to) for kind, _, to, _ in sent(services)] == [
            ("from_any", 4),
            ("from_offset", 10),
        ]

    transacting(work)


def test_offsets_alone_are_a_transaction() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        async with producer.transaction(commit_seq=("s", 4)) as tx:
            await tx.send_offsets({PLACE: 9}, GroupMetadata("g", {PLACE: 7}))
        (request,) = services.of("transact")
        assert (request.offsets.group, request.commit_seq.number) == ("g", 4)

    transacting(work)


@pytest.mark.parametrize(
    "trouble",
    [errors.StalePosition("x", committed=9), errors.UnknownOutcome("x")],
    ids=lambda error: error.reason,
)
def test_i21_after_a_lost_race_or_answer_the_group_is_asked(trouble: errors.OncelogError) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        consumer = consumer_of(producer, 3)
        services.script["transact"] = [trouble] * 100
        with pytest.raises(type(trouble)):
            async with producer.transaction() as tx:
                await tx.send_offsets({PLACE: 10}, consumer.group_metadata())
        assert consumer._positions.unknown() == [KEY]

    transacting(work, timeout_ms=3_000)


def test_a_commit_that_was_made_before_moves_nothing() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        from oncelogpb.v1 import coordinator_pb2 as pb

        consumer = consumer_of(producer, 3)
        services.script["transact"] = [pb.TransactReply(tx_id=90, already_committed=True)]
        async with producer.transaction(commit_seq=("s", 1)) as tx:
            await tx.send_offsets({PLACE: 10}, consumer.group_metadata())
        assert tx.already_committed
        assert consumer._positions.unknown() == [KEY]

    transacting(work)


def test_an_abort_names_the_partition_of_the_offsets() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["commit_transaction"] = [errors.ManifestMismatch("x")]
        with pytest.raises(errors.ManifestMismatch):
            async with producer.transaction() as tx:
                await tx.send("a", b"v", partition=0)
                await tx.flush()
                await tx.send_offsets({PLACE: 9}, GroupMetadata("g"))
        (pending,) = services.of("commit_transaction_offsets")
        (abort,) = services.of("abort_transaction")
        assert [part.number for part in abort.parts] == [0, 3]
        assert pending == offsets.CommitTransactionOffsetsRequest(
            tx_id=101,
            producer=pending.producer,
            offsets=pending.offsets,
            timeout_ms=DEFAULT_TIMEOUT_MS,
        )

    transacting(work)
