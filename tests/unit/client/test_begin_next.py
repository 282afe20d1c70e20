"""The transaction that a commit has begun for the next one (`begin_next`): who may use it, and that
nobody leaves it open."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.aio.transactional_producer import TransactionalProducer
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.test_transactions import BIG, Services, consumer_of, transacting


async def overflow(producer: TransactionalProducer, **options: Any) -> None:
    """One that is too large for a one-shot, so that its commit begins the next."""
    async with producer.transaction(**options) as tx:
        for _ in range(5):
            await tx.send("a", BIG)


@pytest.mark.parametrize("timeout_ms", [5_000, 600_000])
def test_i30_one_that_was_begun_with_another_timeout_is_aborted_not_used(timeout_ms: int) -> None:
    """The coordinator counts by what it was told at the beginning."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        await overflow(producer, timeout_ms=60_000)
        async with producer.transaction(timeout_ms=timeout_ms) as tx:
            await tx.send("a", b"v")
            await tx.flush()
        assert [request.tx_id for request in services.of("abort_transaction")] == [102]
        asked = [request.timeout_ms for request in services.of("begin_transaction")]
        assert asked == [60_000, timeout_ms]

    transacting(work)


def test_one_that_was_begun_with_the_default_timeout_is_used_where_that_is_asked_for() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        await overflow(producer)
        await overflow(producer, timeout_ms=60_000)
        assert len(services.of("begin_transaction")) == 1
        (first, second) = services.of("commit_transaction")
        assert (first.begin_next.timeout_ms, second.begin_next.timeout_ms) == (0, 60_000)

    transacting(work)


def test_a_small_one_uses_what_is_open_and_does_not_go_beside_it() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        await overflow(producer)
        async with producer.transaction() as tx:
            await tx.send("a", b"v")
        assert tx.tx_id == 102
        assert "transact" not in services.names()

    transacting(work)


def test_one_that_was_flushed_begins_the_next_and_one_that_was_not_begins_none() -> None:
    """Who begins early does so again, and is spared the call; who does not goes at once again."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        for flushed in (True, True, False, False):
            async with producer.transaction() as tx:
                await tx.send("a", b"v")
                if flushed:
                    await tx.flush()
        names = services.names()
        assert [names.count(name) for name in ("begin_transaction", "transact")] == [1, 1]
        begun = [call.HasField("begin_next") for call in services.of("commit_transaction")]
        assert begun == [True, True, False]

    transacting(work)


def test_i21_a_commit_seq_begins_for_itself_and_begins_nothing_for_others() -> None:
    """What is begun without the number could not be told that it was committed before."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        await overflow(producer)
        await overflow(producer, commit_seq=("s", 1))
        assert [request.tx_id for request in services.of("abort_transaction")] == [102]
        begun, committed = services.of("begin_transaction")[1], services.of("commit_transaction")[1]
        assert (begun.commit_seq.scope, begun.commit_seq.number) == ("s", 1)
        assert committed.commit_seq == begun.commit_seq
        assert not committed.HasField("begin_next")

    transacting(work)


def test_one_that_ended_before_it_was_given_is_not_used() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        reply = pb.CommitTransactionReply()
        reply.next.result = pb.BeginTransactionReply.RESULT_ENDED
        reply.next.tx_id = 99
        services.script["commit_transaction"] = [reply]
        await overflow(producer)
        await overflow(producer)
        assert [request.tx_id for request in services.of("commit_transaction")] == [101, 102]
        assert len(services.of("begin_transaction")) == 2

    transacting(work)


def test_i30_closing_ends_what_was_begun_for_nobody() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        await overflow(producer)
        await producer.close()
        assert [request.tx_id for request in services.of("abort_transaction")] == [102]

    transacting(work)


def test_i4_a_next_transaction_that_was_refused_does_not_touch_the_commit() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        reply = pb.CommitTransactionReply()
        reply.next_error.CopyFrom(errors.to_status(errors.LimitExceeded("open_transactions_max")))
        services.script["commit_transaction"] = [reply]
        consumer = consumer_of(producer, 3)
        async with producer.transaction(consumer) as tx:
            await tx.send("a", b"v")
            await tx.flush()
        assert tx.state == "committed"
        assert consumer.feeding.progress() == []
        async with producer.transaction() as tx:
            await tx.send("a", b"v")
        assert services.names()[-1] == "transact", "nothing is open beside it"

    transacting(work)


def test_i16_a_producer_whose_next_transaction_is_fenced_stops_after_the_commit() -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        reply = pb.CommitTransactionReply()
        reply.next_error.CopyFrom(errors.to_status(errors.ProducerFenced("a later instance")))
        services.script["commit_transaction"] = [reply]
        async with producer.transaction() as tx:
            await tx.send("a", b"v")
            await tx.flush()
        assert tx.state == "committed"
        with pytest.raises(errors.ProducerFenced):
            producer.transaction()
        assert len(services.of("init_producer")) == 1, "and it fences nobody"

    transacting(work, name="n")


def test_i29_a_next_transaction_of_which_no_answer_came_is_asked_for_by_its_request_id() -> None:
    """It may be open: a one-shot or another Begin beside it would be refused until its timeout."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.state = types.TRANSACTION_STATE_COMMITTED
        services.script["commit_transaction"] = [errors.UnknownOutcome("lost")] * 200
        async with producer.transaction() as tx:
            await tx.send("a", b"v")
            await tx.flush()
        assert tx.state == "committed"
        services.script.clear()
        async with producer.transaction() as tx:
            await tx.send("a", b"v")
        asked = services.of("commit_transaction")[0].begin_next.request_id
        assert services.of("begin_transaction")[-1].request_id == asked
        assert services.of("commit_transaction")[-1].tx_id == services.last_tx
        assert len(services.of("init_producer")) == 1

    transacting(work)


@pytest.mark.parametrize("refusal", [errors.Unsupported("x"), errors.UnknownOutcome("lost")])
def test_i30_one_that_nobody_can_name_is_ended_by_a_new_instance(refusal: Exception) -> None:
    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.state = types.TRANSACTION_STATE_COMMITTED
        services.script["commit_transaction"] = [errors.UnknownOutcome("lost")] * 200
        async with producer.transaction() as tx:
            await tx.send("a", b"v")
            await tx.flush()
        services.script = {"begin_transaction": [refusal] * 200}
        with pytest.raises(errors.OncelogError):
            async with producer.transaction() as tx:
                await tx.send("a", b"v")
        services.script.clear()
        async with producer.transaction() as tx:
            await tx.send("a", b"v")
        assert len(services.of("init_producer")) >= 2
        assert tx.state == "committed"

    transacting(work, name="n")
