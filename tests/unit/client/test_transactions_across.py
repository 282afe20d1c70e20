"""`Consumer.transactions(across=True)` against scripted streams and coordinators: what is waited
for, how long, and what a commit says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from oncelog._core.routing import Endpoint
from oncelog.aio import across
from oncelog.aio.consumer import Consumer
from oncelog.batch import TopicPartition
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2 as coordinator
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.scripted import TOPIC_ID, ScriptedTransport, place
from tests.unit.client.test_consuming import consuming
from tests.unit.client.test_gathering import part_of

SIZE = 16 * 1024
TWO = (5, 5)


def unit(partition: int, tx: int, at: int, *, end: int | None = None) -> leader.FetchReply:
    """One record, which is all that its transaction has in this partition."""
    reply = part_of(tx, at, end=at + 1 if end is None else end, size=SIZE)
    reply.partitions[0].partition.number = partition
    return reply


def described(
    tx_id: int,
    *partitions: int,
    unacknowledged: tuple[int, ...] = (),
    damaged: tuple[int, ...] = (),
) -> coordinator.GetTransactionReply:
    parts = types.Manifest.Topic(
        topic_id=TOPIC_ID,
        partition=partitions,
        writer=[0] * len(partitions),
        record_count=[1] * len(partitions),
    )
    told = coordinator.TransactionDescription(
        tx_id=tx_id,
        state=types.TRANSACTION_STATE_COMMITTED,
        parts=types.Manifest(topics=[parts]),
        unacknowledged=[place(number) for number in unacknowledged],
        damaged=[types.ExposedPart(partition=place(number)) for number in damaged],
        prepare_offset=tx_id & 0xFFFF,
    )
    return coordinator.GetTransactionReply(transaction=told)


def everywhere(transport: ScriptedTransport, *partitions: int, end: int = 1) -> None:
    """Each transaction has parts in these, which end there."""
    answers(transport, lambda tx_id: described(tx_id, *partitions))
    ends(transport, end)


def ends(transport: ScriptedTransport, end: int) -> None:
    def handler(to: Endpoint, request: leader.ListOffsetsRequest) -> leader.ListOffsetsReply:
        listed = [
            leader.ListedOffset(partition=q.partition, offset=end if q.latest else 0)
            for q in request.queries
        ]
        return leader.ListOffsetsReply(offsets=listed)

    transport.handlers["partition_leader.list_offsets"] = handler


def answers(
    transport: ScriptedTransport, answer: Callable[[int], coordinator.GetTransactionReply]
) -> None:
    transport.handlers["coordinator.get_transaction"] = lambda to, request: answer(request.tx_id)


async def parts_of_next(
    transactions: across.TransactionsAcross, timeout_s: float = 60.0
) -> tuple[int, list[tuple[int, int]]]:
    """Its TxId, and (partition, offset) of its parts."""
    given = await transactions.poll(timeout_s)
    assert given is not None
    assert len(given.read()) == given.record_count
    return given.tx_id, [(part.partition, part.first_offset) for part in given.parts]


def test_i3_a_transaction_is_given_once_its_last_part_came() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        everywhere(transport, 0, 1)
        transactions = consumer.transactions(across=True)
        assert await transactions.poll(3.0) is None
        assert await consumer.position("a", 0) == 0
        assert await parts_of_next(transactions) == (7, [(0, 0), (1, 0)])
        assert (await consumer.position("a", 0), await consumer.position("a", 1)) == (1, 1)
        assert transport.count("coordinator.get_transaction") < 15

    consuming(work, [unit(0, 7, 0), 9.0, unit(1, 7, 0)], partitions=TWO)


def test_i11_transactions_of_a_group_are_given_in_the_order_of_their_commits() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        answers(transport, lambda tx_id: described(tx_id, *({7: (0, 2), 8: (1,)}[tx_id])))
        ends(transport, 1)
        transactions = consumer.transactions(across=True)
        assert [(await parts_of_next(transactions))[0] for _ in range(2)] == [7, 8]

    stream = [unit(1, 8, 0), unit(0, 7, 0), 5.0, unit(2, 7, 0)]
    consuming(work, stream, partitions=(5, 5, 5))


def test_i14_a_commit_says_what_was_given_beyond_a_position() -> None:
    one, other = 7, (3 << 48) + 8

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        answers(transport, lambda tx_id: described(tx_id, *((0, 1) if tx_id == one else (0,))))
        ends(transport, 1)
        transactions = consumer.transactions(across=True)
        assert await parts_of_next(transactions) == (other, [(0, 1)])
        (step,) = consumer.feeding.offset_commits(consumer.feeding.progress(), 0)
        assert (step.to_offset, step.metadata) == (0, "oncelog-across/1 3:2")
        # It is aborted, and comes again.
        consumer.feeding.rewind()
        transport.streams = [[unit(0, one, 0), unit(0, other, 1)]]
        assert consumer.feeding.progress() == []
        assert await parts_of_next(transactions) == (other, [(0, 1)])
        consumer.feeding.committed_in(consumer.feeding.progress(), None)
        assert consumer.feeding.progress() == []
        consumer.feeding.rewind()
        transport.streams = [[unit(0, one, 0), unit(0, other, 1), unit(1, one, 0)]]
        assert await parts_of_next(transactions) == (one, [(0, 0), (1, 0)])
        steps = consumer.feeding.offset_commits(consumer.feeding.progress(), 0)
        assert [(step.to_offset, step.metadata) for step in steps] == [(2, ""), (1, "")]
        assert await transactions.poll(1.0) is None

    consuming(work, [unit(0, one, 0), unit(0, other, 1)], partitions=TWO)


def test_what_a_coordinator_has_said_is_not_asked_again_after_a_rewind() -> None:
    stream = [unit(0, 7, 0), unit(1, 7, 0)]

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        everywhere(transport, 0, 1)
        transactions = consumer.transactions(across=True)
        for _ in range(5):
            assert (await parts_of_next(transactions))[0] == 7
            consumer.feeding.rewind()
            transport.streams = [stream]
        assert transport.count("coordinator.get_transaction") == 1

    consuming(work, stream, partitions=TWO)


def test_i31_a_part_that_is_not_there_any_more_is_not_waited_for() -> None:
    """Its records were removed: the partition is read up to where it ends."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        unacknowledged = [(1,), ()]
        answers(
            transport,
            lambda tx_id: described(
                tx_id,
                0,
                1,
                unacknowledged=unacknowledged.pop(0) if len(unacknowledged) > 1 else (),
            ),
        )
        transactions = consumer.transactions(across=True)
        assert await parts_of_next(transactions) == (7, [(0, 0)])
        assert transport.count("coordinator.get_transaction") == 2

    consuming(work, [unit(0, 7, 0)], partitions=TWO)


def test_i3_where_a_partition_ends_is_asked_after_its_part_can_be_read() -> None:
    """It may come between the two."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        readable: list[float] = []
        looked: list[float] = []
        now_s = asyncio.get_running_loop().time

        def answer(tx_id: int) -> coordinator.GetTransactionReply:
            if len(readable) < 4:
                readable.append(now_s())
                return described(tx_id, 0, 1, unacknowledged=(1,))
            readable.append(now_s())
            return described(tx_id, 0, 1)

        def end(to: Endpoint, request: leader.ListOffsetsRequest) -> leader.ListOffsetsReply:
            if request.queries[0].latest:
                looked.append(now_s())
            offset = 1 if len(readable) > 4 else 0
            listed = [
                leader.ListedOffset(partition=q.partition, offset=offset if q.latest else 0)
                for q in request.queries
            ]
            return leader.ListOffsetsReply(offsets=listed)

        answers(transport, answer)
        transport.handlers["partition_leader.list_offsets"] = end
        transactions = consumer.transactions(across=True)
        assert await parts_of_next(transactions) == (7, [(0, 0), (1, 0)])
        assert looked
        assert min(looked) > readable[4]

    consuming(work, [unit(0, 7, 0), 9.0, unit(1, 7, 0)], partitions=TWO)


def test_i31_a_damaged_part_is_not_waited_for() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        answers(transport, lambda tx_id: described(tx_id, 0, 1, damaged=(1,)))
        # There is more to be read.
        ends(transport, 9)
        assert await parts_of_next(consumer.transactions(across=True)) == (7, [(0, 0)])

    consuming(work, [unit(0, 7, 0)], partitions=TWO)


def test_i31_a_part_that_does_not_come_is_named() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        unreadable = described(7, 0, 1, unacknowledged=(1,))
        answers(transport, lambda tx_id: unreadable if tx_id == 7 else described(tx_id, 0))
        transactions = consumer.transactions(across=True)
        # What is of another group is given meanwhile.
        assert await parts_of_next(transactions) == ((3 << 48) + 8, [(0, 1)])
        assert await transactions.poll(3.0) is None
        for _ in range(2):
            with pytest.raises(
                errors.PendingTransaction, match=r"0000000000000007 .* its part in 'a' partition 1"
            ):
                await transactions.poll(8.0)
        await consumer.pause(TopicPartition("a", 1))
        assert await transactions.poll(8.0) is None

    stream = [unit(0, 7, 0), unit(0, (3 << 48) + 8, 1)]
    consuming(work, stream, partitions=TWO, pending_timeout_ms=5_000)


def test_i31_a_transaction_that_its_coordinator_has_forgotten_is_named() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        expired = coordinator.TransactionDescription(tx_id=7, state=types.TRANSACTION_STATE_EXPIRED)
        answers(transport, lambda tx_id: coordinator.GetTransactionReply(transaction=expired))
        transactions = consumer.transactions(across=True)
        for _ in range(2):
            with pytest.raises(errors.UnknownTransaction, match=r"seek\('a', 0, 1\)"):
                await transactions.poll(5.0)
        transport.streams = [[]]
        await consumer.seek("a", 0, 1)
        assert await transactions.poll(1.0) is None

    consuming(work, [unit(0, 7, 0)])


def test_i3_a_transaction_whose_parts_are_forgotten_is_named() -> None:
    """That it names none does not say that it has none elsewhere: it would be given torn."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        forgotten = coordinator.TransactionDescription(
            tx_id=7,
            state=types.TRANSACTION_STATE_COMMITTED,
            visible=True,
            prepare_offset=9,
            parts_forgotten=True,
        )
        answers(transport, lambda tx_id: coordinator.GetTransactionReply(transaction=forgotten))
        transactions = consumer.transactions(across=True)
        for _ in range(2):
            with pytest.raises(errors.UnknownTransaction, match=r"seek\('a', 0, 1\)"):
                await transactions.poll(5.0)
        transport.streams = [[]]
        await consumer.seek("a", 0, 1)
        assert await transactions.poll(1.0) is None

    consuming(work, [unit(0, 7, 0)])


def test_i31_a_coordinator_that_is_away_is_waited_for_and_named() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        def away(tx_id: int) -> coordinator.GetTransactionReply:
            raise errors.Unavailable("it is starting")

        answers(transport, away)
        transactions = consumer.transactions(across=True)
        assert await transactions.poll(10.0) is None
        with pytest.raises(errors.OncelogError, match="it is starting"):
            await transactions.poll(90.0)
        everywhere(transport, 0)
        assert await parts_of_next(transactions) == (7, [(0, 0)])

    consuming(work, [unit(0, 7, 0)], pending_timeout_ms=40_000)


@pytest.mark.parametrize("is_away", [True, False])
def test_i31_a_group_whose_coordinator_does_not_help_stops_no_other(is_away: bool) -> None:
    """However many of its transactions are here."""
    stuck = [(2 << 48) + n for n in range(1, 71)]
    good = (5 << 48) + 1

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        def answer(tx_id: int) -> coordinator.GetTransactionReply:
            if tx_id == good:
                return described(tx_id, 1)
            if is_away:
                raise errors.Unavailable("it is starting")
            expired = types.TRANSACTION_STATE_EXPIRED
            return coordinator.GetTransactionReply(
                transaction=coordinator.TransactionDescription(tx_id=tx_id, state=expired)
            )

        answers(transport, answer)
        given: object
        try:
            given = await parts_of_next(consumer.transactions(across=True))
        except errors.OncelogError as error:
            given = error
        assert given == (good, [(1, 0)])

    stream = [*(unit(0, tx_id, n, end=n + 1) for n, tx_id in enumerate(stuck)), unit(1, good, 0)]
    consuming(work, stream, partitions=TWO)


def test_i31_who_may_not_ask_is_told_so() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        def refused(tx_id: int) -> coordinator.GetTransactionReply:
            raise errors.PermissionDenied("no describe on transactions")

        answers(transport, refused)
        with pytest.raises(errors.PermissionDenied):
            await consumer.transactions(across=True).poll(10.0)

    consuming(work, [unit(0, 7, 0)])


def test_a_fault_of_this_client_is_raised() -> None:
    """Else it would ask again and again, without a word."""
    asked: list[int] = []

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        def fault(tx_id: int) -> coordinator.GetTransactionReply:
            asked.append(tx_id)
            assert len(asked) < 5, "it is asked once before it is raised"
            raise ZeroDivisionError

        answers(transport, fault)
        transactions = consumer.transactions(across=True)
        with pytest.raises(ZeroDivisionError):
            await transactions.poll(10.0)

    consuming(work, [unit(0, 7, 0)])


def test_i28_who_is_ahead_of_a_partition_that_lags_is_fetched_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 100
    ahead: list[int] = []

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        async def stream(
            to: Endpoint, method: str, request: leader.SubscribeRequest
        ) -> AsyncGenerator[leader.FetchReply, None]:
            at = {part.partition.number: part.offset for part in request.partitions}
            while min(at.values()) < count:
                for number, offset in at.items():
                    # The other one lags: it gives one where this one could give ten.
                    for n in range(offset, min(count, offset + (1 if number else 10))):
                        yield unit(number, n + 1, n, end=count)
                        at[number] = n + 1
                await asyncio.sleep(0.1)
            await asyncio.sleep(3_600)

        everywhere(transport, 0, 1, end=count)
        monkeypatch.setattr(transport, "stream", stream)
        transactions = consumer.transactions(across=True)
        for n in range(count):
            _, parts = await parts_of_next(transactions)
            assert parts == [(0, n), (1, n)]
            fetched = consumer._positions.fetch_position(consumer._assigned.key("a", 0))
            ahead.append((fetched or 0) - n)

    bounds: dict[str, Any] = {"prefetch_bytes_max": 4 * SIZE, "buffer_memory_bytes": 16 * SIZE}
    consuming(work, partitions=TWO, **bounds)
    # What waits, the queue, and what was on its way.
    assert 5 < max(ahead) <= 8 + 4 + 2


def test_what_cannot_be_is_refused() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        consumer.transactions()
        with pytest.raises(errors.InvalidArgument, match="the other way"):
            consumer.transactions(across=True)

    consuming(work, group="g")

    async def alone(consumer: Consumer, transport: ScriptedTransport) -> None:
        transactions = consumer.transactions(across=True)
        assert consumer.transactions(across=True) is transactions
        with pytest.raises(errors.InvalidArgument, match="the other way"):
            consumer.transactions()
        with pytest.raises(errors.InvalidArgument, match="offsets that you name"):
            consumer.feeding.require_named()
        with pytest.raises(errors.InvalidArgument, match="gives whole transactions since"):
            await consumer.poll(0.0)

    consuming(alone)
