"""What is owed gets done: markers packed per process, retried until taken, GONE, DISK_FULL; offsets
of one-shots in request order; and who waits is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog_server.coordinator.commands import (
    AnswerOffsets,
    BeginTransaction,
    CommitTransaction,
    InitProducer,
    MarkersAnswered,
    ProducerIdentity,
    Transact,
)
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.marker_pace import MOMENT_MS
from oncelog_server.coordinator.values import Manifest, OneShotBatch, OneShotOffsets, TopicParts
from oncelog_server.core.ids import PartitionId, TxId
from oncelogpb.errors import (
    DiskFull,
    Loading,
    NotLeader,
    OncelogError,
    PendingTransaction,
    PermissionDenied,
    StalePosition,
    UnknownOutcome,
    UnknownTopic,
    to_status,
)
from oncelogpb.records import checksum
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import participant_pb2 as pb
from tests.unit.coordinator.harness import ORDERS, Coordinator, apply_all, until

INSTANCE = b"instance-of-p..."
O0, O1 = PartitionId(ORDERS, 0), PartitionId(ORDERS, 1)


def run(story: Callable[[Coordinator], Awaitable[None]], config: Any = None) -> None:
    async def told() -> None:
        coordinator = Coordinator(config=config)
        await story(coordinator)
        coordinator.replica.host.machine.check()
        await coordinator.step_down()

    asyncio.run(told())


async def producer(coordinator: Coordinator, name: str = "p") -> ProducerIdentity:
    granted = await coordinator.replica.submit(InitProducer("g", name, INSTANCE))
    who: ProducerIdentity = granted.producer
    return who


async def committed(
    coordinator: Coordinator, who: ProducerIdentity, request_id: int, *numbers: int
) -> TxId:
    begun = await coordinator.replica.submit(BeginTransaction(who, request_id))
    parts = TopicParts(ORDERS, numbers, (0,) * len(numbers), (1,) * len(numbers))
    await coordinator.replica.submit(CommitTransaction(begun.tx_id, who, Manifest((parts,))))
    tx_id: TxId = begun.tx_id
    return tx_id


def transact(who: ProducerIdentity, number: int, *, offsets: bool = False) -> Transact:
    batch = OneShotBatch(O0, 1, 1, checksum(b"x"), 0, b"x")
    group = offsets_pb.GroupOffsets(group="c")
    group.offsets.add(to_offset=7, from_none=True)
    put = OneShotOffsets("c", group.SerializeToString()) if offsets else None
    return Transact(who, number, (batch,), put)


def is_over(coordinator: Coordinator, *tx_ids: TxId) -> Callable[[], bool]:
    transactions = coordinator.state.transactions
    return lambda: not any(tx_id in transactions for tx_id in tx_ids)


def requests(coordinator: Coordinator) -> list[pb.WriteMarkersRequest]:
    return [r for method, r in coordinator.around.calls if method == "participant.write_markers"]


def test_markers_for_one_process_travel_in_one_message() -> None:
    async def story(c: Coordinator) -> None:
        who = await producer(c)
        tx_id = await committed(c, who, 1, 0, 1, 2)
        await until(is_over(c, tx_id))
        (request,) = requests(c)
        assert [group.partition.number for group in request.groups] == [0, 1, 2]
        assert {group.coordinator_epoch for group in request.groups} == {1}
        assert c.around.counted["markers_written"] == 3
        assert c.around.counted["transactions_committed"] == 1
        assert c.around.labels["open_transactions"] == {"partition": str(c.replica.partition)}, (
            "as all other gauges name it"
        )

    run(story)


def test_i11_one_group_per_participant_and_the_next_carries_all_that_is_due() -> None:
    async def story(c: Coordinator) -> None:
        gate = asyncio.Event()

        async def slow(request: pb.WriteMarkersRequest) -> pb.WriteMarkersReply:
            await gate.wait()
            return apply_all(request)

        c.around.markers = slow
        who = await producer(c)
        tx_ids = [await committed(c, who, number, 0) for number in (1, 2, 3)]
        # What is not under way goes with the next moment (docs/adr/0080).
        await asyncio.sleep(10 * MOMENT_MS / 1000)
        assert len(requests(c)) == 1, "one group at a time"
        gate.set()
        await until(is_over(c, *tx_ids))
        sent = [[m.tx_id for g in r.groups for m in g.markers] for r in requests(c)]
        assert sent == [tx_ids[:1], tx_ids[1:]]

    run(story)


@pytest.mark.parametrize(
    "error",
    [NotLeader("moved"), Loading("soon"), UnknownOutcome("lost"), DiskFull("full")],
    ids=lambda error: error.reason,
)
def test_a_call_that_fails_is_repeated(error: OncelogError) -> None:
    async def story(c: Coordinator) -> None:
        attempts = 0

        def flaky(request: pb.WriteMarkersRequest) -> pb.WriteMarkersReply:
            nonlocal attempts
            attempts += 1
            if attempts < 3:
                raise error
            return apply_all(request)

        c.around.markers = flaky
        who = await producer(c)
        tx_id = await committed(c, who, 1, 0)
        await until(is_over(c, tx_id))
        assert attempts == 3
        assert c.around.counted["markers_refused"] == 2

    run(story)


def test_the_rest_behind_a_refusal_is_sent_again_in_order() -> None:
    async def story(c: Coordinator) -> None:
        refused = False

        def first_only(request: pb.WriteMarkersRequest) -> pb.WriteMarkersReply:
            nonlocal refused
            reply = apply_all(request)
            if not refused and len(request.groups[0].markers) > 1:
                refused = True
                del reply.groups[0].results[1:]
                reply.groups[0].error.CopyFrom(to_status(Loading("not the second one")))
            return reply

        c.around.leader, leader = None, c.around.leader
        c.around.markers = first_only
        who = await producer(c)
        tx_ids = [await committed(c, who, number, 0) for number in (1, 2, 3)]
        c.around.leader = leader
        await until(is_over(c, *tx_ids))
        sent = [[m.tx_id for g in r.groups for m in g.markers] for r in requests(c)]
        assert sent == [tx_ids, tx_ids[1:]]

    run(story)


def no_groups(reply: pb.WriteMarkersReply) -> None:
    del reply.groups[:]


def no_results(reply: pb.WriteMarkersReply) -> None:
    del reply.groups[0].results[:]


def no_status(reply: pb.WriteMarkersReply) -> None:
    reply.groups[0].results[0].ClearField("status")


@pytest.mark.parametrize("spoil", [no_groups, no_results, no_status])
def test_an_answer_that_makes_no_sense_is_a_refusal(
    spoil: Callable[[pb.WriteMarkersReply], None],
) -> None:
    async def story(c: Coordinator) -> None:
        def broken_once(request: pb.WriteMarkersRequest) -> pb.WriteMarkersReply:
            reply = apply_all(request)
            if len(requests(c)) == 1:
                spoil(reply)
            return reply

        c.around.markers = broken_once
        who = await producer(c)
        tx_id = await committed(c, who, 1, 0)
        await until(is_over(c, tx_id))
        assert c.around.counted["markers_refused"] == 1

    run(story)


def test_disk_full_refuses_one_shots_to_that_target_until_it_takes_markers() -> None:
    async def story(c: Coordinator) -> None:
        room = False

        def full(request: pb.WriteMarkersRequest) -> pb.WriteMarkersReply:
            if not room:
                raise DiskFull("no space")
            return apply_all(request)

        c.around.markers = full
        who = await producer(c)
        first = (await c.replica.submit(transact(who, 1))).tx_id
        await until(lambda: c.state.deliveries.is_disk_full(O0))
        with pytest.raises(DiskFull):
            await c.replica.submit(transact(who, 2))
        room = True
        await until(is_over(c, first))
        await c.replica.submit(transact(who, 2))

    run(story)


@pytest.mark.parametrize("leaderless", [True, False])
def test_a_topic_that_etcd_says_is_gone_is_done(leaderless: bool) -> None:
    async def story(c: Coordinator) -> None:
        def unknown(request: pb.WriteMarkersRequest) -> pb.WriteMarkersReply:
            raise UnknownTopic("deleted")

        c.around.markers = unknown
        if leaderless:
            c.around.leader = None
        who = await producer(c)
        tx_id = await committed(c, who, 1, 0)
        await asyncio.sleep(0.01)
        assert not is_over(c, tx_id)(), "only etcd's word counts"
        c.around.gone.add(ORDERS)
        await until(is_over(c, tx_id))

    run(story)


def test_offsets_are_put_until_answered_and_in_request_order() -> None:
    async def story(c: Coordinator) -> None:
        answers: list[Any] = [Loading("soon"), UnknownOutcome("lost"), None, None]
        put: list[offsets_pb.CommitTransactionOffsetsRequest] = []

        def manager(request: offsets_pb.CommitTransactionOffsetsRequest) -> Any:
            put.append(request)
            answer = answers.pop(0)
            if answer is not None:
                raise answer
            return offsets_pb.CommitTransactionOffsetsReply()

        c.around.offsets = manager
        c.around.leader, leader = None, c.around.leader
        who = await producer(c)
        first = (await c.replica.submit(transact(who, 1, offsets=True))).tx_id
        second = (await c.replica.submit(transact(who, 2, offsets=True))).tx_id
        c.around.leader = leader
        await until(is_over(c, first, second))
        assert [request.tx_id for request in put] == [first, first, first, second]
        # The client could not know what #2 may chain on: the coordinator does.
        assert put[0].offsets.offsets[0].after_tx_id == 0
        assert put[3].offsets.offsets[0].after_tx_id == first

    run(story)


def test_i30_the_offset_managers_word_outlives_a_lease_that_comes_back() -> None:
    """Nobody else leads meanwhile, so nobody else asks: the hang that the kill matrix found."""

    async def story(c: Coordinator) -> None:
        def manager(request: offsets_pb.CommitTransactionOffsetsRequest) -> Any:
            c.replica.lapsed = True
            asyncio.get_running_loop().call_later(0.03, setattr, c.replica, "lapsed", False)
            return offsets_pb.CommitTransactionOffsetsReply()

        c.around.offsets = manager
        who = await producer(c)
        tx_id = (await c.replica.submit(transact(who, 1, offsets=True))).tx_id
        await until(is_over(c, tx_id))

    run(story)


def test_the_offset_managers_no_aborts_and_is_told() -> None:
    async def story(c: Coordinator) -> None:
        def manager(request: offsets_pb.CommitTransactionOffsetsRequest) -> Any:
            raise StalePosition("you are behind", committed=9)

        c.around.offsets = manager
        who = await producer(c)
        tx_id = (await c.replica.submit(transact(who, 1, offsets=True))).tx_id
        await until(is_over(c, tx_id))
        with pytest.raises(StalePosition) as told:
            await c.replica.submit(transact(who, 1, offsets=True))
        assert told.value.metadata == {"committed": "9"}
        assert "offsets refused" in c.around.events

    run(story)


def test_offsets_held_by_another_are_waited_for_then_refused_for_good() -> None:
    async def story(c: Coordinator) -> None:
        def manager(request: offsets_pb.CommitTransactionOffsetsRequest) -> Any:
            c.replica.host.pass_time(6_000)
            raise PendingTransaction("held", tx_id=5)

        c.around.offsets = manager
        who = await producer(c)
        tx_id = (await c.replica.submit(transact(who, 1, offsets=True))).tx_id
        await until(is_over(c, tx_id))
        # Not the retriable reason: a repeat of this request number gets the same answer for ever.
        with pytest.raises(OncelogError) as told:
            await c.replica.submit(transact(who, 1, offsets=True))
        assert told.value.reason == "TRANSACTION_ENDED"
        assert told.value.metadata["held_by"] == "0000000000000005"

    run(story, CoordinatorConfig(staged_pending_ms_max=10_000))


def test_i21_a_refusal_of_rights_does_not_end_a_one_shot_whose_offsets_may_be_pending() -> None:
    """The leader before this one may have asked, and been heard: rights are judged first."""

    async def story(c: Coordinator) -> None:
        answers = iter([PermissionDenied("not you"), PermissionDenied("not you")])

        def manager(request: offsets_pb.CommitTransactionOffsetsRequest) -> Any:
            refusal = next(answers, None)
            if refusal is not None:
                raise refusal
            return offsets_pb.CommitTransactionOffsetsReply()

        c.around.offsets = manager
        who = await producer(c)
        tx_id = (await c.replica.submit(transact(who, 1, offsets=True))).tx_id
        await until(is_over(c, tx_id))
        assert (await c.replica.submit(transact(who, 1, offsets=True))).visible

    run(story)


def test_a_new_outbox_redoes_what_is_owed() -> None:
    async def story(c: Coordinator) -> None:
        def silent(request: pb.WriteMarkersRequest) -> pb.WriteMarkersReply:
            raise UnknownOutcome("no answer")

        c.around.markers = silent
        who = await producer(c)
        tx_id = await committed(c, who, 1, 0, 1)
        await c.outbox.stop()
        c.replica.host.failover(lose_tail=False)
        c.replica.host.sync()
        c.around.markers = apply_all
        replica: Any = c.replica
        c.outbox = c.replica.outbox = c.role.outbox(replica, c.env)
        c.outbox.wake()
        await until(is_over(c, tx_id))

    run(story)


def test_i29_a_one_shot_whose_decision_was_torn_off_is_decided_without_a_question() -> None:
    """The records of one decision are frames of their own: a crash may keep the first only."""

    async def story(c: Coordinator) -> None:
        who = await producer(c)
        c.around.leader, leader = None, c.around.leader
        first = (await c.replica.submit(transact(who, 1, offsets=True))).tx_id
        second = (await c.replica.submit(transact(who, 2))).tx_id
        await c.outbox.stop()
        host = c.replica.host
        host.submit(AnswerOffsets(first, None), "both are decided")
        host.sync(host.log_end - 1)
        host.failover(lose_tail=True)
        host.sync()
        c.around.leader = leader
        replica: Any = c.replica
        c.outbox = c.replica.outbox = c.role.outbox(replica, c.env)
        c.outbox.wake()
        await until(is_over(c, first, second))
        asked = [method for method, _ in c.around.calls if method.startswith("offset_manager")]
        assert asked == []

    run(story)


def test_stop_ends_every_task_and_tells_who_waits() -> None:
    async def story(c: Coordinator) -> None:
        async def never(request: pb.WriteMarkersRequest) -> pb.WriteMarkersReply:
            await asyncio.Event().wait()
            return apply_all(request)

        c.around.markers = never
        who = await producer(c)
        tx_id = await committed(c, who, 1, 0)
        waiting = asyncio.ensure_future(c.role._waiting.wait(tx_id, 60_000))
        await asyncio.sleep(0)
        await c.step_down()
        with pytest.raises(UnknownOutcome):
            await waiting
        # After the end a wake does nothing.
        c.outbox.wake()
        c.replica.signal(MarkersAnswered(O1))

    run(story)
