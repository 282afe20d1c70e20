"""A refusal after a lost answer, of every call that the client repeats, with its real loop (I4).

The kind of mistake: a call in doubt, then a *final* refusal, loses the doubt.
"""

from __future__ import annotations

from typing import Any

import pytest

from oncelog._core.routing import PartitionKey
from oncelog.aio.transactional_producer import TransactionalProducer
from oncelog.errors import CannotConnect
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import offset_manager_pb2 as offsets
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.scripted import TOPIC_ID, ScriptedTransport, on_virtual_time, protocol_over
from tests.unit.client.test_committing import COMMIT, Group
from tests.unit.client.test_consuming import consuming, reply
from tests.unit.client.test_protocol import answers, ask, produce_request
from tests.unit.client.test_transactions import Services, consumer_of, transacting

LOST = errors.UnknownOutcome("the answer is lost")
PRODUCER = types.Producer(producer_id=1 << 48 | 1, generation=1)
# Calls to one process that are repeated after a lost answer, and a final refusal of each.
REPEATED = {
    "coordinator.commit_transaction": (
        pb.CommitTransactionRequest(tx_id=1 << 48 | 5, producer=PRODUCER),
        errors.ProducerFenced,
    ),
    "coordinator.transact": (
        pb.TransactRequest(producer=PRODUCER, request_number=1),
        errors.UnknownTopic,
    ),
    "coordinator.begin_transaction": (
        pb.BeginTransactionRequest(producer=PRODUCER, request_id=1),
        errors.LimitExceeded,
    ),
    "coordinator.init_producer": (
        pb.InitProducerRequest(name="n", instance_id=b"i" * 16),
        errors.LimitExceeded,
    ),
    "offset_manager.commit_transaction_offsets": (
        offsets.CommitTransactionOffsetsRequest(tx_id=1, offsets=offsets.GroupOffsets(group="g")),
        errors.PermissionDenied,
    ),
}


@pytest.mark.parametrize("method", sorted(REPEATED))
def test_i4_a_final_refusal_after_a_lost_answer_is_an_unknown_outcome(method: str) -> None:
    request, refusal = REPEATED[method]
    transport = ScriptedTransport(5)
    transport.handlers[method] = answers(LOST, refusal("no"))
    told, _ = ask(transport, method, request)
    assert isinstance(told, errors.UnknownOutcome), told
    assert isinstance(told.__cause__, refusal)


@pytest.mark.parametrize("method", sorted(REPEATED))
def test_a_refusal_before_any_lost_answer_is_told_as_it_is(method: str) -> None:
    request, refusal = REPEATED[method]
    transport = ScriptedTransport(5)
    transport.handlers[method] = answers(errors.Loading("x"), refusal("no"))
    told, _ = ask(transport, method, request)
    assert isinstance(told, refusal)


def test_i4_closing_after_a_lost_answer_is_no_promise_that_nothing_happened() -> None:
    request, _ = REPEATED["coordinator.transact"]

    async def work() -> Any:
        transport = ScriptedTransport(5)
        protocol = protocol_over(transport)

        def lost(to: Any, request: Any) -> Any:
            protocol._closed = True
            raise errors.UnknownOutcome("the answer is lost")

        transport.handlers["coordinator.transact"] = lost
        with pytest.raises(errors.UnknownOutcome):
            await protocol.call("coordinator.transact", request)

    on_virtual_time(work)


@pytest.mark.parametrize("refusal", [errors.UnknownTopic, errors.PermissionDenied])
def test_i4_a_final_refusal_of_a_batch_after_a_lost_answer_is_an_unknown_outcome(
    refusal: type[errors.OncelogError],
) -> None:
    transport = ScriptedTransport(5)
    transport.handlers["partition_leader.produce"] = answers(LOST, refusal("no"))
    merged, _ = ask(transport, "partition_leader.produce", produce_request(0))
    told = errors.from_status(merged.results[0].error)
    assert isinstance(told, errors.UnknownOutcome), told


def test_a_batch_of_an_ended_transaction_is_told_so_although_an_answer_was_lost() -> None:
    transport = ScriptedTransport(5)
    ended = errors.TransactionEnded("no")
    transport.handlers["partition_leader.produce"] = answers(LOST, ended)
    merged, _ = ask(transport, "partition_leader.produce", produce_request(0))
    assert isinstance(errors.from_status(merged.results[0].error), errors.TransactionEnded)


def test_a_question_whose_answers_are_lost_is_unavailable_and_in_no_doubt() -> None:
    transport = ScriptedTransport(5)
    transport.handlers["offset_manager.fetch_offsets"] = answers(LOST)
    told, _ = ask(transport, "offset_manager.fetch_offsets", offsets.FetchOffsetsRequest(group="g"))
    # Nobody of that role was ever met.
    assert isinstance(told, CannotConnect), told
    assert not told.may_have_applied


@pytest.mark.parametrize(
    "refusal", [errors.StalePosition, errors.PermissionDenied, errors.PendingTransaction]
)
def test_i15_a_plain_commit_that_took_effect_late_is_never_called_refused(
    refusal: type[errors.OncelogError],
) -> None:
    """It took effect after it was looked for; then another member committed further. That the
    repetition is refused is no word about the first one."""

    async def work(consumer: Any, transport: ScriptedTransport) -> None:
        transport.streams = [[reply(0, 0, 10)]]
        group = Group(transport)
        await consumer.poll(1.0)
        weather = iter([errors.UnknownOutcome("lost")])

        def commit(to: Any, request: Any) -> Any:
            error = next(weather, None)
            if error is None:
                group.at = {0: 99}
            raise error or refusal("another one was faster")

        transport.handlers[COMMIT] = commit
        with pytest.raises(errors.UnknownOutcome) as told:
            await consumer.commit()
        assert isinstance(told.value.__cause__, refusal)
        # The group is asked before anything else is given.
        assert consumer._positions.unknown() == [PartitionKey(TOPIC_ID, 0)]

    consuming(work, group="g")


def test_i4_a_commit_that_begins_the_next_and_is_fenced_on_repetition_learns_that_it_happened() -> (
    None
):
    """Its answer was lost, the name was taken over before the repetition: what is refused is the
    next transaction, and the commit is a fact."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        services.script["commit_transaction"] = [
            errors.UnknownOutcome("lost"),
            errors.ProducerFenced("a later instance took over"),
        ]
        services.state = types.TRANSACTION_STATE_COMMITTED
        consumer = consumer_of(producer, 3)
        async with producer.transaction(consumer) as tx:
            await tx.send("a", b"v")
            await tx.flush()
        assert tx.state == "committed"
        assert consumer.feeding.progress() == []

    transacting(work, name="n")


def test_i6_a_one_shot_in_doubt_is_not_sent_under_another_number() -> None:
    """A late copy of it may still fill the gap that the coordinator sees."""

    async def work(producer: TransactionalProducer, services: Services, _: Any) -> None:
        async with producer.transaction() as tx:
            await tx.send("a", b"1")
        services.script["transact"] = [
            errors.UnknownOutcome("lost"),
            errors.OutOfOrderSequence("gap", expected=1),
        ]
        services.state = types.TRANSACTION_STATE_ONGOING
        tx = producer.transaction()
        with pytest.raises(errors.UnknownOutcome):
            async with tx:
                await tx.send("a", b"2")
        assert [request.request_number for request in services.of("transact")] == [1, 2, 2]

    transacting(work)
