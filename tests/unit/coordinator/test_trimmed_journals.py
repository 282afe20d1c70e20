"""What is told of transactions whose frames are gone: the outcome, and what nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog_server.coordinator.commands import OweMarkers
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.core.ids import TxId, journal_offset_of
from oncelogpb.errors import UnknownTransaction
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types
from tests.golden.host import HOUR_MS
from tests.unit.coordinator.calls import batch, begin, commit, init, refused, run
from tests.unit.coordinator.harness import ORDERS, Coordinator, FakeCall, until

SEQ = types.CommitSeq(scope="q", number=3)


async def described(c: Coordinator, tx_id: int) -> pb.TransactionDescription:
    request = pb.GetTransactionRequest(tx_id=tx_id)
    reply: pb.GetTransactionReply = await c.service.get_transaction(request, FakeCall())
    return reply.transaction


async def over(c: Coordinator) -> None:
    await until(lambda: len(c.state.transactions) == 0)


async def one_that_ended(c: Coordinator) -> int:
    who = await init(c)
    tx_id = await begin(c, who)
    await commit(c, who, tx_id, commit_seq=SEQ)
    await over(c)
    return tx_id


def numbers(told: pb.TransactionDescription) -> list[int]:
    return [number for topic in told.parts.topics for number in topic.partition]


def test_i4_an_outcome_is_told_where_its_prepare_is_gone() -> None:
    async def story(c: Coordinator) -> None:
        tx_id = await one_that_ended(c)
        before = await described(c, tx_id)
        assert (numbers(before), before.commit_seq) == ([0, 1], SEQ)
        assert not before.parts_forgotten
        c.replica.log_begins = before.prepare_offset + 1
        after = await described(c, tx_id)
        assert after.parts_forgotten, "that it lists none says nothing"
        before.ClearField("parts")
        before.ClearField("commit_seq")
        after.ClearField("parts")
        after.ClearField("parts_forgotten")
        assert after == before

    run(story)


def test_parts_are_told_as_long_as_the_prepare_is_there() -> None:
    """Its BEGIN says nothing of them."""

    async def story(c: Coordinator) -> None:
        tx_id = await one_that_ended(c)
        before = await described(c, tx_id)
        c.replica.log_begins = before.prepare_offset
        assert await described(c, tx_id) == before

    run(story)


def test_an_aborted_one_says_that_its_parts_are_gone() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        tx_id = await begin(c, who)
        request = pb.AbortTransactionRequest(tx_id=tx_id, producer=who)
        await c.service.abort_transaction(request, FakeCall())
        await over(c)
        assert not (await described(c, tx_id)).parts_forgotten
        c.replica.log_begins = c.replica.log_end
        told = await described(c, tx_id)
        assert told.state == types.TRANSACTION_STATE_ABORTED
        assert told.parts_forgotten

    run(story)


@pytest.mark.parametrize("is_staged", [False, True])
def test_parts_of_a_one_shot_stand_in_its_first_record(is_staged: bool) -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        request = pb.TransactRequest(producer=who, request_number=1, batches=[batch()])
        if is_staged:
            request.offsets.group = "readers"
        reply = await c.service.transact(request, FakeCall())
        await over(c)
        before = await described(c, reply.tx_id)
        assert numbers(before) == [0]
        assert not before.parts_forgotten
        assert (before.prepare_offset > journal_offset_of(TxId(reply.tx_id))) is is_staged
        c.replica.log_begins = journal_offset_of(TxId(reply.tx_id)) + 1
        after = await described(c, reply.tx_id)
        assert after.parts_forgotten
        assert after.state == types.TRANSACTION_STATE_COMMITTED
        assert not numbers(after)

    run(story)


def test_i4_a_repeated_commit_gets_its_answer_from_the_outcome_alone() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        tx_id = await begin(c, who)
        await commit(c, who, tx_id)
        await over(c)
        c.replica.log_begins = c.replica.log_end
        assert (await commit(c, who, tx_id)).visible

    run(story)


def test_what_is_trimmed_while_it_is_read_is_told_without() -> None:
    async def story(c: Coordinator) -> None:
        tx_id = await one_that_ended(c)
        read = c.replica.read_frames

        async def trimmed_meanwhile(offsets: Any) -> Any:
            c.replica.log_begins = c.replica.log_end
            return await read(offsets)

        c.replica.read_frames = trimmed_meanwhile  # type: ignore[method-assign]
        assert (await described(c, tx_id)).parts_forgotten

    run(story)


def test_i4_whoever_asks_hears_the_same_whether_a_slot_is_gone_or_not() -> None:
    async def story(c: Coordinator) -> None:
        tx_id = await one_that_ended(c)
        offset = journal_offset_of(TxId(tx_id))
        machine = c.replica.machine
        assert machine.slots_from() <= offset, "it is told"
        c.replica.host.idle(CoordinatorConfig().outcome_retention_ms + 24 * HOUR_MS)
        c.replica.host.sync()
        assert machine.slots_from() > offset
        assert machine.wanted_from() > offset
        expired = await described(c, tx_id)
        assert expired.state == types.TRANSACTION_STATE_EXPIRED
        c.slots.slots.clear()
        assert await described(c, tx_id) == expired
        question = pb.Question(
            tx_id=tx_id,
            producer=types.Producer(producer_id=1, generation=1),
            partition=types.Partition(topic_id=ORDERS, number=0),
        )
        asked = pb.AskTransactionsRequest(
            journal_partition=c.replica.partition.number, questions=[question]
        )
        [answer] = (await c.service.ask_transactions(asked, FakeCall())).answers
        assert answer.verdict == pb.Answer.VERDICT_EXPIRED

    run(story)


def test_i4_a_transaction_that_waits_for_a_participant_holds_no_frame() -> None:
    """It stands whole in the state, and so in every snapshot: a leader that begins with one has its
    payload, and says what is in it."""

    async def story(c: Coordinator) -> None:
        c.around.leader = None
        who = await init(c)
        request = pb.TransactRequest(producer=who, request_number=1, batches=[batch()])
        tx_id = (await c.service.transact(request, FakeCall())).tx_id
        host = c.replica.host
        assert host.machine.needed_from() == host.log_end
        host.failover(lose_tail=False)
        host.sync()
        c.replica.log_begins = host.log_end
        owed = host.machine.owed(host.high_watermark)
        markers = [marker for o in owed if isinstance(o, OweMarkers) for marker in o.markers]
        payloads = [marker.batch.payload for marker in markers if marker.batch is not None]
        assert payloads == [batch().payload], "its payload is in no frame that must be there"
        told = await described(c, tx_id)
        assert numbers(told) == [0]
        assert not told.parts_forgotten

    run(story)


def test_there_never_was_a_transaction_where_the_log_begins_later() -> None:
    """It is no longer known whether that is the place of a BEGIN: no guess."""

    async def story(c: Coordinator) -> None:
        tx_id = await one_that_ended(c)
        absent = tx_id + 1
        ask = c.service.get_transaction
        request = pb.GetTransactionRequest(tx_id=absent)
        assert await refused(ask(request, FakeCall())) == UnknownTransaction.reason
        c.replica.log_begins = c.replica.log_end
        told = await described(c, absent)
        assert told.state == types.TRANSACTION_STATE_EXPIRED

    run(story)
