"""A one-shot whose answer was lost has no TxId to ask about: it is found by its producer and
request number, and the error says them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from oncelog_server.core.ids import ProducerId
from oncelogpb.errors import OncelogError, PendingTransaction, StalePosition
from oncelogpb.ids import show_generation, show_id
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import types_pb2 as types
from tests.unit.coordinator.calls import batch, init, refused, run
from tests.unit.coordinator.harness import Coordinator, FakeCall, until

LATER_INSTANCE = b"a later instance"


def shot(who: types.Producer, number: int = 1, **more: Any) -> pb.TransactRequest:
    return pb.TransactRequest(producer=who, request_number=number, batches=[batch()], **more)


async def transact(c: Coordinator, request: pb.TransactRequest, **of: Any) -> pb.TransactReply:
    reply: pb.TransactReply = await c.service.transact(request, FakeCall(**of))
    return reply


async def look(c: Coordinator, who: types.Producer, number: int) -> pb.GetTransactionReply:
    request = pb.GetTransactionRequest(producer=who, request_number=number)
    reply: pb.GetTransactionReply = await c.service.get_transaction(request, FakeCall())
    return reply


async def told(call: Awaitable[Any]) -> OncelogError:
    with pytest.raises(OncelogError) as error:
        await call
    return error.value


def says_which(error: OncelogError, who: types.Producer, number: int) -> bool:
    return {
        "producer_id": show_id(who.producer_id),
        "generation": show_generation(who.generation),
        "request_number": str(number),
    }.items() <= error.metadata.items()


def test_i4_a_remembered_one_shot_is_found_by_its_number() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        first = await transact(c, shot(who))
        found = await look(c, who, 1)
        assert found.transaction.tx_id == first.tx_id
        assert found.transaction.state == types.TRANSACTION_STATE_COMMITTED
        # Over, replaced, and after a failover.
        await until(lambda: len(c.state.transactions) == 0)
        await init(c, LATER_INSTANCE)
        c.replica.host.sync()
        c.replica.host.failover(lose_tail=False)
        c.replica.host.sync()
        found = await look(c, who, 1)
        assert found.transaction.tx_id == first.tx_id
        assert found.transaction.visible

    run(story)


def test_i4_one_that_waits_and_one_that_was_aborted() -> None:
    async def story(c: Coordinator) -> None:
        async def never(request: Any) -> Any:
            await until(lambda: c.around.leader is None)
            raise StalePosition("no")

        c.around.offsets = never
        who = await init(c)
        request = shot(who, offsets=offsets_pb.GroupOffsets(group="c"))
        lost = await told(transact(c, request, timeout_ms=1))
        assert lost.reason == "UNKNOWN_OUTCOME"
        assert says_which(lost, who, 1)
        waiting = (await look(c, who, 1)).transaction
        assert (waiting.state, waiting.staged) == (types.TRANSACTION_STATE_ONGOING, True)
        c.around.leader = None
        await until(lambda: not c.state.producers[ProducerId(who.producer_id)].staged)
        aborted = (await look(c, who, 1)).transaction
        assert aborted.tx_id == waiting.tx_id
        assert aborted.state == types.TRANSACTION_STATE_ABORTED
        assert aborted.cause == types.ABORT_CAUSE_OFFSETS

    run(story)


def test_i4_one_that_was_passed_over_has_no_transaction() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        seq = types.CommitSeq(scope="q", number=1)
        await transact(c, shot(who, 1, commit_seq=seq))
        await transact(c, shot(who, 2, commit_seq=seq))
        found = await look(c, who, 2)
        assert found.already_committed
        assert not found.HasField("transaction")

    run(story)


def test_i4_one_that_never_came_is_not_guessed_at() -> None:
    async def story(c: Coordinator) -> None:
        who = await init(c)
        await transact(c, shot(who))
        assert await refused(look(c, who, 2)) == "UNKNOWN_TRANSACTION"
        # Nor later, when nothing of it can come any more.
        await init(c, LATER_INSTANCE)
        assert await refused(look(c, who, 2)) == "UNKNOWN_TRANSACTION"
        assert (await look(c, who, 1)).transaction.tx_id
        who.generation += 99
        assert await refused(look(c, who, 1)) == "UNKNOWN_PRODUCER"
        who.producer_id += 99
        assert await refused(look(c, who, 1)) == "UNKNOWN_PRODUCER"

    run(story)


def test_i4_what_is_forgotten_is_told_as_forgotten() -> None:
    """Neither as committed nor as refused: PRODUCER_FENCED would promise that nothing happened."""

    async def story(c: Coordinator) -> None:
        first = await init(c)
        for number in range(1, 19):
            await transact(c, shot(first, number))

        async def is_forgotten(who: types.Producer, number: int) -> bool:
            found = (await look(c, who, number)).transaction
            return (found.state, found.tx_id) == (types.TRANSACTION_STATE_EXPIRED, 0)

        assert await is_forgotten(first, 2)
        assert not await is_forgotten(first, 3)
        second = await init(c, LATER_INSTANCE)
        assert await is_forgotten(first, 2)
        assert not await is_forgotten(first, 3)
        await transact(c, shot(second))
        await init(c, b"the third one...")
        assert await is_forgotten(first, 3)
        assert not await is_forgotten(first, 4)
        lost = await told(transact(c, shot(first, 3)))
        assert lost.reason == "UNKNOWN_OUTCOME"
        assert says_which(lost, first, 3)
        # What was never accepted is refused as ever.
        assert await refused(transact(c, shot(first, 19))) == "PRODUCER_FENCED"
        assert await refused(look(c, first, 19)) == "UNKNOWN_TRANSACTION"

    run(story)


def test_i4_a_one_shot_that_gave_way_says_which_it_was() -> None:
    """Another transaction held its offsets for too long: TRANSACTION_ENDED."""

    async def story(c: Coordinator) -> None:
        def held(request: Any) -> Any:
            c.replica.host.pass_time(20_000)
            raise PendingTransaction("another holds it", tx_id=7)

        c.around.offsets = held
        who = await init(c)
        request = shot(who, offsets=offsets_pb.GroupOffsets(group="c"))
        for _ in range(2):
            ended = await told(transact(c, request))
            assert ended.reason == "TRANSACTION_ENDED"
            assert says_which(ended, who, 1)

    run(story)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.GetTransactionRequest(), "tx_id"),
        (pb.GetTransactionRequest(producer=types.Producer(producer_id=5)), "request_number"),
        (
            pb.GetTransactionRequest(
                tx_id=5, producer=types.Producer(producer_id=5), request_number=1
            ),
            "producer",
        ),
    ],
)
def test_it_is_asked_for_by_one_or_the_other(
    request_: pb.GetTransactionRequest, field: str
) -> None:
    async def story(c: Coordinator) -> None:
        error = await told(c.service.get_transaction(request_, FakeCall()))
        assert error.reason == "INVALID_ARGUMENT"
        assert error.metadata["field"] == field

    run(story)
