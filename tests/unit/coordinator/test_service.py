"""The handlers, over a machine in memory: shapes, routing, waits, sessions, reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from oncelog_server.coordinator.commands import AnswerOffsets
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.core.ids import CONSUMER_OFFSETS_ID, TxId
from oncelogpb.errors import Loading, OncelogError, StalePosition, Unavailable
from oncelogpb.ids import show_id
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import participant_pb2 as participant_pb
from oncelogpb.v1 import types_pb2 as types
from tests.golden.host import HOUR_MS
from tests.unit.coordinator.calls import (
    INSTANCE,
    batch,
    begin,
    commit,
    exposing,
    init,
    manifest,
    refused,
    run,
)
from tests.unit.coordinator.harness import (
    HEARD_OF_LATER,
    ORDERS,
    UNHEARD_OF,
    Coordinator,
    FakeCall,
    apply_all,
    until,
)


def test_i12_wait_visible_says_where_it_can_be_read() -> None:
    async def story(c: Coordinator) -> None:
        c.around.markers = exposing
        who = await init(c)
        tx_id = await begin(c, who)
        reply = await commit(c, who, tx_id, wait=types.WAIT_VISIBLE)
        assert reply.visible
        assert [(e.partition.number, e.first_offset) for e in reply.exposed] == [(0, 40), (1, 40)]
        # Repeated: at once, and after it is over.
        assert (await commit(c, who, tx_id, wait=types.WAIT_VISIBLE)).exposed == reply.exposed
        await until(lambda: len(c.state.transactions) == 0)
        again = await commit(c, who, tx_id, wait=types.WAIT_VISIBLE)
        assert again.exposed == reply.exposed

    run(story)


def test_i5_wait_visible_shows_a_surplus() -> None:
    """What was sent beside the commit came too late: it is acknowledged, and of nothing."""

    async def story(c: Coordinator) -> None:
        def with_surplus(request: participant_pb.WriteMarkersRequest) -> Any:
            reply = exposing(request)
            reply.groups[0].results[0].exposed[0].surplus_records = 7
            return reply

        c.around.markers = with_surplus
        who = await init(c)
        reply = await commit(c, who, await begin(c, who), wait=types.WAIT_VISIBLE)
        assert sorted(part.surplus_records for part in reply.exposed) == [0, 7]

    run(story)


def test_wait_prepared_does_not_wait_for_markers() -> None:
    async def story(c: Coordinator) -> None:
        c.around.leader = None
        who = await init(c)
        reply = await commit(c, who, await begin(c, who))
        assert not reply.visible

    run(story)


def test_i31_a_wait_ends_with_its_deadline() -> None:
    async def story(c: Coordinator) -> None:
        c.around.leader = None
        who = await init(c)
        tx_id = await begin(c, who)
        request = pb.CommitTransactionRequest(
            tx_id=tx_id, producer=who, manifest=manifest(0), wait=types.WAIT_VISIBLE
        )
        call = FakeCall(timeout_ms=1)
        assert await refused(c.service.commit_transaction(request, call)) == "UNKNOWN_OUTCOME"

    run(story)


def test_a_damaged_part_is_an_error_of_the_wait() -> None:
    async def story(c: Coordinator) -> None:
        def damaging(request: participant_pb.WriteMarkersRequest) -> Any:
            reply = apply_all(request)
            reply.groups[0].results[0].status = participant_pb.MarkerResult.STATUS_DAMAGED
            return reply

        c.around.markers = damaging
        who = await init(c)
        tx_id = await begin(c, who)
        for _ in range(2):
            with pytest.raises(OncelogError) as told:
                await commit(c, who, tx_id, wait=types.WAIT_VISIBLE)
            assert told.value.reason == "DAMAGED"
            assert told.value.metadata["tx_id"] == show_id(tx_id)
            await until(lambda: len(c.state.transactions) == 0)
        got = await c.service.get_transaction(pb.GetTransactionRequest(tx_id=tx_id), FakeCall())
        assert got.transaction.state == types.TRANSACTION_STATE_COMMITTED
        assert [part.partition.number for part in got.transaction.damaged] == [0]
        assert "transaction damaged" in c.around.events

    run(story)


def test_begin_next_rides_on_a_commit_that_is_over() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        tx_id = await begin(c, who)
        await commit(c, who, tx_id)
        await until(lambda: len(c.state.transactions) == 0)
        following = pb.BeginNext(request_id=2)
        first = await commit(c, who, tx_id, begin_next=following)
        again = await commit(c, who, tx_id, begin_next=following)
        assert first.next.result == pb.BeginTransactionReply.RESULT_OPEN
        assert again.next.tx_id == first.next.tx_id

    run(story)


def test_transact_waits_for_the_offset_manager() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        request = pb.TransactRequest(
            producer=who,
            request_number=1,
            batches=[batch()],
            offsets=offsets_pb.GroupOffsets(group="c"),
            wait=types.WAIT_VISIBLE,
        )
        reply = await c.service.transact(request, FakeCall())
        assert reply.visible
        assert next(method for method, _ in c.around.calls) == (
            "offset_manager.commit_transaction_offsets"
        )
        assert (await c.service.transact(request, FakeCall())).tx_id == reply.tx_id
        got = await c.service.get_transaction(
            pb.GetTransactionRequest(tx_id=reply.tx_id), FakeCall()
        )
        assert got.transaction.parts.topics[0].record_count == [1]

    run(story)


def test_i23_a_one_shot_says_whose_its_offsets_are() -> None:
    """The offset manager judges by member and generation, as it does of an ordinary transaction. A
    one-shot has no timeout that could hold positions: none is told."""

    async def story(c: Coordinator) -> None:
        who = await init(c)
        member = offsets_pb.GroupMember(generation=7, member_id="m", instance_id="i")
        request = pb.TransactRequest(
            producer=who,
            request_number=1,
            batches=[batch()],
            offsets=offsets_pb.GroupOffsets(group="c", member=member),
        )
        await c.service.transact(request, FakeCall())
        asked = next(
            asked
            for method, asked in c.around.calls
            if method == "offset_manager.commit_transaction_offsets"
        )
        assert (asked.offsets.member, asked.timeout_ms) == (member, 0)

    run(story)


def one_shot(who: types.Producer, number: int, *, offsets: bool) -> pb.TransactRequest:
    request = pb.TransactRequest(producer=who, request_number=number, batches=[batch()])
    if offsets:
        request.offsets.group = "c"
    return request


def lapse_at_the_decision(c: Coordinator, *, for_seconds: float) -> None:
    """The lease lapses between the journaled decision of a one-shot and its answer."""
    submit = c.replica.submit

    def lapsing(command: object) -> Awaitable[Any]:
        answer = submit(command)
        if isinstance(command, AnswerOffsets) and not c.replica.lapsed:
            c.replica.submit = submit  # type: ignore[method-assign]
            c.replica.lapsed = True
            loop = asyncio.get_running_loop()
            loop.call_later(for_seconds, setattr, c.replica, "lapsed", False)
        return answer

    c.replica.submit = lapsing  # type: ignore[method-assign]


def test_i31_who_waits_is_told_though_the_deciding_answer_was_lost() -> None:
    """Its repeat decides nothing more, and no delivery wakes anybody."""

    async def story(c: Coordinator) -> None:
        def nobody(request: participant_pb.WriteMarkersRequest) -> Any:
            raise Unavailable("no participant is there")

        c.around.markers = nobody
        who = await init(c)
        lapse_at_the_decision(c, for_seconds=0.03)
        shots = [one_shot(who, 1, offsets=True), one_shot(who, 2, offsets=False)]
        async with asyncio.timeout(5):
            replies = await asyncio.gather(*(c.service.transact(s, FakeCall()) for s in shots))
        assert all(reply.tx_id for reply in replies)

    run(story)


def test_i4_a_lapsed_lease_leaves_a_staged_one_shot_in_doubt() -> None:
    """As a step-down does: NOT_LEADER would promise that nothing happened."""

    async def story(c: Coordinator) -> None:
        who = await init(c)
        lapse_at_the_decision(c, for_seconds=60)
        shot = c.service.transact(one_shot(who, 1, offsets=True), FakeCall())
        assert await refused(shot) == "UNKNOWN_OUTCOME"

    run(story)


def test_a_step_down_leaves_a_staged_one_shot_in_doubt() -> None:
    """It is journaled: NOT_LEADER would promise that nothing happened."""

    async def story(c: Coordinator) -> None:
        c.around.leader = None
        who = await init(c)
        request = pb.TransactRequest(
            producer=who,
            request_number=1,
            batches=[batch()],
            offsets=offsets_pb.GroupOffsets(group="c"),
        )
        call = asyncio.ensure_future(c.service.transact(request, FakeCall()))
        await until(lambda: len(c.state.transactions) == 1)
        await c.step_down()
        assert await refused(call) == "UNKNOWN_OUTCOME"

    run(story)


def test_transact_tells_the_offset_managers_no() -> None:
    async def story(c: Coordinator) -> None:
        def no(request: Any) -> Any:
            raise StalePosition("behind", committed=3)

        c.around.offsets = no
        who = await init(c)
        request = pb.TransactRequest(
            producer=who,
            request_number=1,
            batches=[batch()],
            offsets=offsets_pb.GroupOffsets(group="c"),
        )
        assert await refused(c.service.transact(request, FakeCall())) == "STALE_POSITION"

    run(story)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (pb.TransactRequest(request_number=0, batches=[batch()]), "INVALID_ARGUMENT"),
        (pb.TransactRequest(request_number=1), "INVALID_ARGUMENT"),
        (pb.TransactRequest(request_number=1, batches=[batch(0), batch(0)]), "INVALID_ARGUMENT"),
        (pb.TransactRequest(request_number=1, batches=[batch(4)]), "UNKNOWN_PARTITION"),
        (
            pb.TransactRequest(
                request_number=1,
                batches=[batch(partition=types.Partition(topic_id=UNHEARD_OF))],
            ),
            "UNKNOWN_TOPIC",
        ),
        (
            pb.TransactRequest(
                request_number=1,
                # In etcd, and not yet in this process's view.
                batches=[batch(partition=types.Partition(topic_id=HEARD_OF_LATER))],
            ),
            "UNAVAILABLE",
        ),
        (
            pb.TransactRequest(
                request_number=1,
                batches=[batch(partition=types.Partition(topic_id=CONSUMER_OFFSETS_ID))],
            ),
            "INVALID_ARGUMENT",
        ),
        (pb.TransactRequest(request_number=1, batches=[batch(crc32c=1)]), "CORRUPT_BATCH"),
        (pb.TransactRequest(request_number=1, batches=[batch(record_count=2)]), "CORRUPT_BATCH"),
        (
            pb.TransactRequest(request_number=1, batches=[batch(payload=b"x" * 1_100_000)]),
            "TOO_LARGE",
        ),
        (
            pb.TransactRequest(request_number=1, batches=[batch(n) for n in range(65)]),
            "TOO_LARGE",
        ),
    ],
)
def test_transact_refuses_before_the_append_what_a_leader_could(
    request_: pb.TransactRequest, reason: str
) -> None:
    async def story(c: Coordinator) -> None:
        request_.producer.CopyFrom(await init(c))
        end = c.replica.log_end
        assert await refused(c.service.transact(request_, FakeCall())) == reason
        assert c.replica.log_end == end

    run(story)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.InitProducerRequest(name="p"), "instance_id"),
        (pb.InitProducerRequest(instance_id=INSTANCE), "group"),
        (pb.InitProducerRequest(name="p" * 256, instance_id=INSTANCE), "name"),
        (pb.InitProducerRequest(group="g", instance_id=INSTANCE, session=True), "session"),
    ],
)
def test_init_of_a_wrong_shape(request_: pb.InitProducerRequest, field: str) -> None:
    async def story(c: Coordinator) -> None:
        with pytest.raises(OncelogError) as told:
            await c.service.init_producer(request_, FakeCall())
        assert (told.value.reason, told.value.metadata["field"]) == ("INVALID_ARGUMENT", field)

    run(story)


def test_a_manifest_names_each_part_once() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        request = pb.CommitTransactionRequest(tx_id=1 << 48, producer=who, manifest=manifest(1, 1))
        assert await refused(c.service.commit_transaction(request, FakeCall())) == (
            "MANIFEST_MISMATCH"
        )
        request.manifest.CopyFrom(manifest(1))
        request.manifest.topics[0].writer.append(7)
        assert await refused(c.service.commit_transaction(request, FakeCall())) == (
            "INVALID_ARGUMENT"
        )

    run(story)


@pytest.mark.parametrize(
    ("topic_id", "number", "reason"),
    [
        (ORDERS, 4, "UNKNOWN_PARTITION"),
        (CONSUMER_OFFSETS_ID, 16, "UNKNOWN_PARTITION"),
        # Perhaps deleted: etcd will say so, and its markers are done.
        (b"deleted-topic-id", 4, ""),
    ],
)
def test_a_manifest_names_partitions_that_exist(topic_id: bytes, number: int, reason: str) -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        request = pb.CommitTransactionRequest(
            tx_id=await begin(c, who),
            producer=who,
            manifest=manifest(number, topic_id=topic_id),
        )
        call = c.service.commit_transaction(request, FakeCall())
        if reason:
            assert await refused(call) == reason
        else:
            await call

    run(story)


def test_what_another_process_leads_is_not_ours() -> None:
    async def story(c: Coordinator) -> None:
        elsewhere = (c.replica.partition.number + 1) % 16 << 48 | 7
        request = pb.AbortTransactionRequest(tx_id=elsewhere, operator=True)
        assert await refused(c.service.abort_transaction(request, FakeCall())) == "NOT_LEADER"
        plain = types.Producer(producer_id=1 << 63 | 5)
        begun = pb.BeginTransactionRequest(producer=plain)
        assert await refused(c.service.begin_transaction(begun, FakeCall())) == "INVALID_ARGUMENT"

    run(story)


def test_a_session_ends_with_its_stream() -> None:
    async def story(c: Coordinator) -> None:
        call = FakeCall(stream_id=9)
        request = pb.InitProducerRequest(group="g", name="p", instance_id=INSTANCE, session=True)
        who = (await c.service.init_producer(request, call)).producer
        tx_id = await begin(c, who)
        (ended,) = call.ends
        ended()
        c.replica.host.pass_time(CoordinatorConfig().session_grace_ms)
        c.replica.host.tick()
        got = c.state.transactions[TxId(tx_id)]
        assert got.cause.name == "SESSION"

    run(story)


def test_get_and_list_describe_what_is_open() -> None:
    async def story(c: Coordinator) -> None:
        c.around.leader = None
        who = await init(c)
        tx_id = await begin(c, who)
        got = await c.service.get_transaction(pb.GetTransactionRequest(tx_id=tx_id), FakeCall())
        assert got.transaction.state == types.TRANSACTION_STATE_ONGOING
        assert (got.transaction.group, got.transaction.name) == ("g", "p")
        await commit(c, who, tx_id)
        second = await begin(c, who, 2)
        listed = await c.service.list_transactions(pb.ListTransactionsRequest(), FakeCall())
        assert [t.tx_id for t in listed.transactions] == [tx_id, second]
        assert [p.number for p in listed.transactions[0].unacknowledged] == [0, 1]
        filtered = pb.ListTransactionsRequest(states=[types.TRANSACTION_STATE_COMMITTED])
        listed = await c.service.list_transactions(filtered, FakeCall())
        assert [t.tx_id for t in listed.transactions] == [tx_id]
        for none in (
            pb.ListTransactionsRequest(name="other"),
            pb.ListTransactionsRequest(group="other"),
            pb.ListTransactionsRequest(min_age_ms=1),
        ):
            assert not (await c.service.list_transactions(none, FakeCall())).transactions
        limited = await c.service.list_transactions(pb.ListTransactionsRequest(limit=1), FakeCall())
        assert limited.more

    run(story)


def test_an_ended_transaction_is_described_from_its_outcome_and_its_prepare() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        tx_id = await begin(c, who)
        seq = types.CommitSeq(scope="q", number=3)
        await commit(c, who, tx_id, commit_seq=seq)
        await until(lambda: len(c.state.transactions) == 0)
        got = await c.service.get_transaction(pb.GetTransactionRequest(tx_id=tx_id), FakeCall())
        assert got.transaction.visible
        assert got.transaction.commit_seq == seq
        assert list(got.transaction.parts.topics[0].partition) == [0, 1]
        c.replica.host.idle(CoordinatorConfig().outcome_retention_ms + 24 * HOUR_MS)
        c.replica.host.sync()
        got = await c.service.get_transaction(pb.GetTransactionRequest(tx_id=tx_id), FakeCall())
        assert got.transaction == pb.TransactionDescription(
            tx_id=tx_id, state=types.TRANSACTION_STATE_EXPIRED
        )

    run(story)


def test_i11_what_is_decided_is_described_with_its_place_in_the_order_of_commits() -> None:
    async def story(c: Coordinator) -> None:
        async def place_of(tx_id: int) -> int:
            asked = pb.GetTransactionRequest(tx_id=tx_id)
            described = await c.service.get_transaction(asked, FakeCall())
            return int(described.transaction.prepare_offset)

        early, late = await init(c, name="early"), await init(c, name="late")
        first, second = await begin(c, late), await begin(c, early)
        assert (await place_of(first), await place_of(second)) == (0, 0)
        # Decided in the other order.
        await commit(c, early, second)
        await commit(c, late, first)
        kept = [await place_of(second), await place_of(first)]
        assert 0 < kept[0] < kept[1]
        await until(lambda: len(c.state.transactions) == 0)
        assert [await place_of(second), await place_of(first)] == kept

    run(story)


def test_questions_are_answered_in_order() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        tx_id = await begin(c, who)
        number = c.replica.partition.number
        where = types.Partition(topic_id=ORDERS, number=3)
        request = pb.AskTransactionsRequest(
            journal_partition=number,
            questions=[
                pb.Question(tx_id=tx_id + 100, producer=who, partition=where),
                pb.Question(tx_id=tx_id, producer=who, partition=where, bytes_received=1),
                pb.Question(tx_id=number << 48 | 1, producer=who, partition=where),
            ],
        )
        reply = await c.service.ask_transactions(request, FakeCall())
        assert [answer.verdict for answer in reply.answers] == [
            pb.Answer.VERDICT_LATER,
            pb.Answer.VERDICT_ONGOING,
            pb.Answer.VERDICT_NEVER,
        ]
        # Who asked takes part: an abort tells it.
        abort = pb.AbortTransactionRequest(tx_id=tx_id, producer=who)
        await c.service.abort_transaction(abort, FakeCall())
        await until(lambda: bool(c.around.calls))
        (_, sent) = c.around.calls[0]
        assert [group.partition.number for group in sent.groups] == [3]
        too_many = pb.AskTransactionsRequest(
            journal_partition=number, questions=[pb.Question()] * 1_001
        )
        assert await refused(c.service.ask_transactions(too_many, FakeCall())) == "TOO_LARGE"

    run(story)


def test_i04_nothing_is_told_before_epoch_start_is_durable() -> None:
    """Else coordinator 2 redoes a PREPARE that only it has, and dies."""

    async def story(c: Coordinator) -> None:
        who = await init(c)
        tx_id = await begin(c, who)
        c.replica.host.failover(lose_tail=False)
        where = types.Partition(topic_id=ORDERS, number=3)
        asked = pb.AskTransactionsRequest(
            journal_partition=c.replica.partition.number,
            questions=[pb.Question(tx_id=tx_id, producer=who, partition=where)],
        )
        looked = pb.GetTransactionRequest(tx_id=tx_id)
        listed = pb.ListTransactionsRequest()
        assert await refused(c.service.ask_transactions(asked, FakeCall())) == "LOADING"
        assert await refused(c.service.get_transaction(looked, FakeCall())) == "LOADING"
        assert await refused(c.service.list_transactions(listed, FakeCall())) == "LOADING"
        c.replica.host.sync()
        reply = await c.service.ask_transactions(asked, FakeCall())
        assert reply.answers[0].verdict == pb.Answer.VERDICT_ONGOING

    run(story)


def test_a_repeated_begin_is_not_counted_again() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        await begin(c, who)
        await begin(c, who)
        assert c.around.counted["transactions_begun"] == 1

    run(story)


@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_a_leadership_that_ends_before_an_outcome_is_looked_up_says_so(verb: str) -> None:
    """The machine does not keep the transaction; who does is asked a few turns later."""

    async def story(c: Coordinator) -> None:
        who = await init(c)
        tx_id = await begin(c, who)
        await commit(c, who, tx_id)
        await until(lambda: len(c.state.transactions) == 0)
        if verb == "commit":
            again = c.service.commit_transaction(
                pb.CommitTransactionRequest(tx_id=tx_id, producer=who, manifest=manifest(0, 1)),
                FakeCall(),
            )
        else:
            again = c.service.abort_transaction(
                pb.AbortTransactionRequest(tx_id=tx_id, producer=who), FakeCall()
            )
        call = asyncio.gather(again, return_exceptions=True)
        # Submitted in the first turn, durable in the second, looked up in the third.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        c.replica.leads = False
        (told,) = await call
        assert isinstance(told, Loading), told

    run(story)
