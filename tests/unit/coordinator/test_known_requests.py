"""A request that is known gets its old answer, whatever has happened since; and a commit's answer is
its own: what came along with it is told beside it."""

from __future__ import annotations

import pytest

from oncelog_server.coordinator.config import CoordinatorConfig
from oncelogpb.errors import from_status
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.coordinator.calls import begin, commit, init, run
from tests.unit.coordinator.harness import ORDERS, Coordinator, until

LATER_INSTANCE = b"a later instance"
SOMEBODY_ELSE = b"somebody else..."


def why_no_next(reply: pb.CommitTransactionReply) -> str:
    assert not reply.HasField("next")
    return from_status(reply.next_error).reason


@pytest.mark.parametrize("is_over", [False, True])
def test_i1_i4_a_commit_is_a_fact_although_its_next_is_fenced(is_over: bool) -> None:
    async def story(c: Coordinator) -> None:
        if not is_over:
            c.around.leader = None
        who = await init(c)
        tx_id = await begin(c, who)
        first = await commit(c, who, tx_id, begin_next=pb.BeginNext(request_id=2))
        assert first.HasField("next")
        # The answer is lost, and somebody takes the name over.
        await init(c, LATER_INSTANCE)
        if is_over:
            await until(lambda: len(c.state.transactions) == 0)
        again = await commit(c, who, tx_id, begin_next=pb.BeginNext(request_id=2))
        assert why_no_next(again) == "PRODUCER_FENCED"
        assert again.visible is is_over

    run(story)


@pytest.mark.parametrize(
    ("following", "why"),
    [
        (pb.BeginNext(request_id=2, timeout_ms=4_000_000), "INVALID_TIMEOUT"),
        (pb.BeginNext(request_id=0), "STALE_REQUEST_ID"),
        (
            pb.BeginNext(request_id=2, parts=[types.Partition(topic_id=ORDERS, number=9)]),
            "UNKNOWN_PARTITION",
        ),
        (
            pb.BeginNext(request_id=2, parts=[types.Partition(topic_id=b"short")]),
            "INVALID_ARGUMENT",
        ),
        (
            pb.BeginNext(request_id=2, commit_seq=types.CommitSeq(scope="s" * 256)),
            "INVALID_ARGUMENT",
        ),
    ],
)
def test_i4_a_commit_happens_whatever_refuses_the_next(following: pb.BeginNext, why: str) -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        tx_id = await begin(c, who)
        for _ in range(2):
            reply = await commit(c, who, tx_id, begin_next=following)
            assert why_no_next(reply) == why
        await until(lambda: len(c.state.transactions) == 0)
        # Nothing is left open.
        await begin(c, who, 3)

    run(story)


def test_a_commit_makes_room_for_its_next() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        tx_id = await begin(c, who)
        reply = await commit(c, who, tx_id, begin_next=pb.BeginNext(request_id=2))
        assert reply.next.result == pb.BeginTransactionReply.RESULT_OPEN

    run(story, CoordinatorConfig(open_transactions_max=1))


def test_a_commit_that_changed_nothing_begins_no_next() -> None:
    """ALREADY_COMMITTED leaves its transaction open, and the caller is told so."""

    async def story(c: Coordinator) -> None:
        who = await init(c)
        seq = types.CommitSeq(scope="q", number=1)
        await commit(c, who, await begin(c, who), commit_seq=seq)
        tx_id = await begin(c, who, 2)
        reply = await commit(c, who, tx_id, commit_seq=seq, begin_next=pb.BeginNext(request_id=3))
        assert reply.already_committed
        assert why_no_next(reply) == "CONCURRENT_TRANSACTION"

    run(story)
