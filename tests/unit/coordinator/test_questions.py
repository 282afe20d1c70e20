"""What participants hear about TxIds that no coordinator has given out (I30)."""

from __future__ import annotations

import pytest

from oncelog_server.coordinator import unborn
from oncelog_server.coordinator.commands import ProducerIdentity
from oncelog_server.coordinator.unborn import Claim, Unborn
from oncelog_server.core.ids import (
    Generation,
    JournalOffset,
    PartitionId,
    ProducerId,
    TopicId,
    TxId,
)
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.coordinator.calls import begin, init, refused, run
from tests.unit.coordinator.harness import ORDERS, Coordinator, FakeCall, until

NEVER, LATER = pb.Answer.VERDICT_NEVER, pb.Answer.VERDICT_LATER
WHERE = types.Partition(topic_id=ORDERS, number=3)


async def ask(c: Coordinator, tx_id: int, who: types.Producer) -> int:
    question = pb.Question(tx_id=tx_id, producer=who, partition=WHERE, bytes_received=10)
    request = pb.AskTransactionsRequest(
        journal_partition=c.replica.partition.number, questions=[question]
    )
    reply: pb.AskTransactionsReply = await c.service.ask_transactions(request, FakeCall())
    return reply.answers[0].verdict


def test_i30_a_txid_that_nobody_gave_out_is_answered_never() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        far = c.replica.partition.number << 48 | 999
        assert await ask(c, far, who) == LATER
        end = c.replica.log_end
        await until(lambda: c.replica.high_watermark == end)
        assert await ask(c, far, who) == NEVER
        # Many questions cost one record a second.
        for number in range(50):
            assert await ask(c, far + number, who) == LATER
        assert c.replica.log_end <= end + 1
        c.replica.host.pass_time(1_000)
        for number in range(50):
            await ask(c, far + number, who)
        assert c.replica.log_end == end + 1

    run(story)


def test_i31_a_txid_that_nobody_gave_out_is_unknown() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        far = c.replica.partition.number << 48 | 999
        get = c.service.get_transaction(pb.GetTransactionRequest(tx_id=far), FakeCall())
        assert await refused(get) == "UNKNOWN_TRANSACTION"
        commit = pb.CommitTransactionRequest(tx_id=far, producer=who)
        assert await refused(c.service.commit_transaction(commit, FakeCall())) == (
            "UNKNOWN_TRANSACTION"
        )
        # As long as the lease holds: else a later coordinator may know it.
        c.replica.lapsed = True
        get = c.service.get_transaction(pb.GetTransactionRequest(tx_id=far), FakeCall())
        assert await refused(get) == "NOT_LEADER"

    run(story)


def test_what_waits_for_a_proof_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unborn, "UNBORN_KEPT", 2)
    who = ProducerIdentity(ProducerId(1), Generation(1))
    claims = [Claim(TxId(n), who, PartitionId(TopicId(b"t" * 16), 0)) for n in range(1, 5)]
    waiting = Unborn()
    for n, claim in enumerate(claims[:3]):
        waiting.asked(claim, log_end=JournalOffset(10 + n), now_ms=n)
    waiting.proved(JournalOffset(20))
    assert [waiting.is_disproved(c, below=JournalOffset(21)) for c in claims] == [
        True,
        True,
        False,
        False,
    ]
    # The first did not ask again for a minute.
    waiting.asked(claims[3], log_end=JournalOffset(20), now_ms=60_000)
    waiting.proved(JournalOffset(25))
    assert [waiting.is_disproved(c, below=JournalOffset(26)) for c in claims] == [
        False,
        True,
        False,
        True,
    ]
    waiting.check()


def test_a_txid_below_the_log_end_is_never_proved_away() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        tx_id = await begin(c, who)
        assert await ask(c, tx_id, who) == pb.Answer.VERDICT_ONGOING
        assert not len(c.state.unborn)

    run(story)
