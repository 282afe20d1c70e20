"""The type that keeps the doubt of a request, and its table: what is told after a lost answer."""

from __future__ import annotations

import pytest

from oncelog._core.routing import METHODS
from oncelogpb import errors, rpcs
from oncelogpb.doubt import FACTS, READS, RIGHTS, Doubt, facts_of
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types

LOST = errors.UnknownOutcome("the answer is lost")
SERVICES = (
    "cluster",
    "coordinator",
    "offset_manager",
    "participant",
    "partition_leader",
    "replication",
)
STREAMS = ("stream", "follow")


def test_every_call_of_the_protos_is_a_question_or_says_which_refusals_are_facts() -> None:
    """The tables are complete, and name nothing that is not there."""
    called = {
        f"{service}.{name}"
        for service in SERVICES
        for name in rpcs.methods(rpcs.find(service))
        if name not in STREAMS
    }
    assert called == set(FACTS) | READS
    assert not set(FACTS) & READS
    assert set(METHODS) <= called


def test_no_refusal_of_rights_nor_one_that_passes_is_a_fact() -> None:
    """Rights are judged before a request is looked up, and what passes says nothing of a copy that
    is still on its way. A marker alone is never given up."""
    for method, facts in FACTS.items():
        assert facts.because
        assert facts.reasons <= set(errors.BY_REASON), method
        if method == "participant.write_markers":
            continue
        assert not facts.reasons & RIGHTS, method
        passing = {r for r in facts.reasons if errors.BY_REASON[r].rule.retriable}
        assert not passing, method


def test_without_a_lost_answer_every_error_is_told_as_it_is() -> None:
    for method in FACTS:
        for reason, kind in errors.BY_REASON.items():
            error = kind("x")
            assert Doubt(method).as_reported(error) is error, (method, reason)


@pytest.mark.parametrize("method", sorted(FACTS))
def test_i4_after_a_lost_answer_a_refusal_that_is_no_fact_is_an_unknown_outcome(
    method: str,
) -> None:
    for reason, kind in errors.BY_REASON.items():
        doubt = Doubt(method)
        doubt.as_reported(LOST)
        assert doubt.lost
        error = kind("no")
        told = doubt.as_reported(error)
        if kind.rule.may_have_applied or reason in facts_of(method).reasons:
            assert told is error, reason
            continue
        assert isinstance(told, errors.UnknownOutcome), reason
        assert told.__cause__ is error
        assert method in told.message
        assert reason in told.message


def test_i4_a_doubt_does_not_end_with_refusals_in_between() -> None:
    doubt = Doubt("coordinator.commit_transaction")
    doubt.as_reported(LOST)
    doubt.as_reported(errors.NotLeader("x"))
    assert doubt.as_reported(errors.ProducerFenced("x")).reason == "UNKNOWN_OUTCOME"


def test_what_another_may_have_sent_is_in_doubt_from_the_beginning() -> None:
    doubt = Doubt.inherited("offset_manager.commit_transaction_offsets")
    assert doubt.as_reported(errors.PermissionDenied("x")).reason == "UNKNOWN_OUTCOME"
    assert doubt.as_reported(errors.StalePosition("x")).reason == "STALE_POSITION"


@pytest.mark.parametrize("method", sorted(READS))
def test_a_question_leaves_no_doubt(method: str) -> None:
    doubt = Doubt(method)
    assert doubt.as_reported(LOST).reason == "UNAVAILABLE"
    assert not doubt.as_reported(LOST).may_have_applied
    assert not doubt.lost
    assert doubt.as_reported(errors.UnknownTopic("x")).reason == "UNKNOWN_TOPIC"


def test_giving_up_raises_what_is_told_with_its_cause() -> None:
    doubt = Doubt("partition_leader.create_topic")
    doubt.as_reported(LOST)
    cause = errors.TopicExists("x")
    with pytest.raises(errors.UnknownOutcome) as told:
        doubt.give_up(cause)
    assert told.value.__cause__ is cause
    with pytest.raises(errors.TopicExists):
        Doubt("partition_leader.create_topic").give_up(cause)


def test_an_unknown_outcome_names_what_can_be_asked_for() -> None:
    request = pb.TransactRequest(request_number=5)
    request.producer.producer_id, request.producer.generation = 0x0003000000000005, 7 << 32 | 3
    names = {"producer_id": "0003000000000005", "generation": "7.3", "request_number": "5"}
    doubt = Doubt("coordinator.transact", request)
    assert doubt.as_reported(errors.UnknownOutcome("lost")).metadata == names
    assert doubt.as_reported(errors.Unavailable("x")).metadata == names

    commit = pb.CommitTransactionRequest(tx_id=0x0001000000000002, producer=types.Producer())
    told = Doubt("coordinator.commit_transaction", commit).as_reported(
        errors.UnknownOutcome("lost")
    )
    assert told.metadata == {"tx_id": "0001000000000002"}
