"""Parts that requests name: no marker goes where none can arrive, and their number has a limit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog_server.coordinator.commands import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    PartitionAsked,
    Transact,
)
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.values import Manifest, TopicParts
from oncelog_server.core.ids import TRANSACTION_CONTROL_ID, PartitionId, TopicId
from oncelogpb.errors import OncelogError
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import participant_pb2 as participant_pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.coordinator.calls import batch, begin, init, manifest, refused, run
from tests.unit.coordinator.harness import ORDERS, Coordinator, FakeCall, apply_all, until
from tests.unit.coordinator.world import A0, BATCHES, OFFSETS, World, said

JOURNAL = types.Partition(topic_id=TRANSACTION_CONTROL_ID, number=0)
SOON = TopicId(b"a topic to come.")


def parts(count: int) -> tuple[PartitionId, ...]:
    return tuple(PartitionId(A0.topic_id, number) for number in range(count))


@pytest.mark.parametrize("rpc", ["begin", "abort", "begin_next"])
def test_the_transaction_journal_takes_part_in_nothing(rpc: str) -> None:
    """No coordinator takes markers: they would be sent for ever."""

    async def story(c: Coordinator) -> None:
        who = await init(c)
        call: Any
        if rpc == "begin":
            asked = pb.BeginTransactionRequest(producer=who, request_id=1, parts=[JOURNAL])
            call = c.service.begin_transaction(asked, FakeCall())
        elif rpc == "abort":
            ending = pb.AbortTransactionRequest(
                tx_id=await begin(c, who), producer=who, parts=[JOURNAL]
            )
            call = c.service.abort_transaction(ending, FakeCall())
        else:
            following = pb.BeginNext(request_id=2, parts=[JOURNAL])
            committing = pb.CommitTransactionRequest(
                tx_id=await begin(c, who), producer=who, begin_next=following
            )
            reply = await c.service.commit_transaction(committing, FakeCall())
            assert reply.next_error.code == 3, "INVALID_ARGUMENT, beside the commit"
            return
        assert await refused(call) == "INVALID_ARGUMENT"

    run(story)


@pytest.mark.parametrize("kind", ["commit", "transact"])
def test_a_partition_that_was_just_added_is_waited_for(kind: str) -> None:
    """The client knows of it before this process does: UNKNOWN_PARTITION would be final."""

    async def story(c: Coordinator) -> None:
        who = await init(c)
        request: Any
        if kind == "commit":
            request = pb.CommitTransactionRequest(
                tx_id=await begin(c, who), producer=who, manifest=manifest(4)
            )
            call = c.service.commit_transaction
        else:
            request = pb.TransactRequest(producer=who, request_number=1, batches=[batch(4)])
            call = c.service.transact
        assert await refused(call(request, FakeCall())) == "UNKNOWN_PARTITION"
        c.around.in_etcd.add(PartitionId(ORDERS, 4))
        assert await refused(call(request, FakeCall())) == "UNAVAILABLE"
        c.around.topics[ORDERS] = c.around.topics[ORDERS]._replace(partitions=5)
        await call(request, FakeCall())

    run(story)


def test_a_marker_for_a_partition_that_never_was_is_done() -> None:
    """Its topic was unknown here when the transaction was decided, so nobody could tell."""

    async def story(c: Coordinator) -> None:
        never = PartitionId(SOON, 9)

        def nobody(request: participant_pb.WriteMarkersRequest) -> Any:
            assert request.groups[0].partition.topic_id != SOON, "nobody leads it"
            return apply_all(request)

        c.around.markers = nobody
        c.around.leaderless.add(never)
        who = await init(c)
        request = pb.CommitTransactionRequest(
            tx_id=await begin(c, who), producer=who, manifest=manifest(9, topic_id=SOON)
        )
        c.around.in_etcd.add(never)
        await c.service.commit_transaction(request, FakeCall())
        await asyncio.sleep(0.05)
        assert len(c.state.transactions) == 1, "only etcd's word counts"
        c.around.in_etcd.remove(never)
        await until(lambda: len(c.state.transactions) == 0)

    run(story)


# ----------------------------------------------------------------------------------------- limits


def limit_of(refusal: Any) -> str:
    assert isinstance(refusal, OncelogError), refusal
    assert refusal.reason == "THROTTLED"
    return refusal.metadata["limit"]


def test_participants_of_open_transactions_are_counted() -> None:
    world = World(participants_max=10)
    tx_id = world.begin(1, parts=parts(8))
    other = world.init(b"another instance", "other")
    assert limit_of(world.ask(BeginTransaction(other, 1, parts=parts(3)))) == "participants_max"
    # What asks is counted too; offsets always, for a commit must name them.
    for number in range(100, 105):
        where = PartitionId(A0.topic_id, number)
        world.host.signal(PartitionAsked(tx_id, world.who, where, 0))
    world.host.signal(PartitionAsked(tx_id, world.who, OFFSETS, 0))
    assert world.state.participants == 11
    assert limit_of(world.ask(BeginTransaction(other, 1))) == "participants_max"
    assert limit_of(world.ask(Transact(other, 1, BATCHES))) == "participants_max"
    commit = CommitTransaction(tx_id, world.who, Manifest())
    assert said(world.ask(commit)) == "MANIFEST_MISMATCH", "the offsets that asked are remembered"
    # An abort is never refused; hints that find no room are left out: who is not told asks.
    world.ask(AbortTransaction(tx_id, world.who, parts(500)))
    assert world.state.participants <= 13
    assert world.state.deliveries.waiting_markers == world.state.participants


def test_markers_that_wait_are_counted_until_they_are_taken() -> None:
    world = World(participants_max=10)
    wide = Manifest((TopicParts(A0.topic_id, tuple(range(9)), (0,) * 9, (1,) * 9),))
    tx_id = world.begin(1)
    world.ask(CommitTransaction(tx_id, world.who, wide))
    assert world.state.participants == 9
    second = world.begin(2)
    assert limit_of(world.ask(CommitTransaction(second, world.who, wide))) == "participants_max"
    world.host.failover(lose_tail=False)
    world.host.sync()
    assert world.state.participants == 9
    assert limit_of(world.ask(CommitTransaction(second, world.who, wide))) == "participants_max"


def test_a_limit_above_which_nothing_begins_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="participants_max"):
        CoordinatorConfig(participants_max=1_000).validate()
