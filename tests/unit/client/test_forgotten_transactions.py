"""Transactions that their coordinator has forgotten, in reading across (ADR 64): what their error
says, and what a seek behind them gives again, or leaves out (I21)."""

from __future__ import annotations

from contextlib import suppress

import pytest

from oncelog.aio.across import TransactionsAcross
from oncelog.aio.consumer import Consumer
from oncelog.batch import TopicPartition
from oncelogpb import errors
from oncelogpb.v1 import coordinator_pb2 as coordinator
from oncelogpb.v1 import types_pb2 as types
from tests.unit.client.scripted import ScriptedTransport
from tests.unit.client.test_consuming import consuming
from tests.unit.client.test_read_across_before import stands_at_0
from tests.unit.client.test_transactions_across import (
    TWO,
    answers,
    described,
    ends,
    parts_of_next,
    unit,
)

FORGOTTEN, OTHER, THIRD = 7, (3 << 48) + 8, (4 << 48) + 9


def forgets(transport: ScriptedTransport, **others: tuple[int, ...]) -> None:
    """All others have their part in the first partition, or where it is said."""

    def answer(tx_id: int) -> coordinator.GetTransactionReply:
        if tx_id == FORGOTTEN:
            expired = types.TRANSACTION_STATE_EXPIRED
            told = coordinator.TransactionDescription(tx_id=tx_id, state=expired)
            return coordinator.GetTransactionReply(transaction=told)
        name = {OTHER: "other", THIRD: "third"}[tx_id]
        return described(tx_id, *others.get(name, (0,)))

    answers(transport, answer)
    ends(transport, 3)


async def both_given(transactions: TransactionsAcross) -> list[int]:
    """Two, whatever is told of the forgotten one meanwhile."""
    given: list[int] = []
    for _ in range(20):
        with suppress(errors.UnknownTransaction):
            one = await transactions.poll(3.0)
            given += [] if one is None else [one.tx_id]
    return sorted(given)


async def told(transactions: TransactionsAcross) -> errors.UnknownTransaction:
    with pytest.raises(errors.UnknownTransaction) as caught:
        await transactions.poll(5.0)
    return caught.value


def test_i31_the_error_says_which_where_and_what_to_do() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        forgets(transport, other=(1,))
        transactions = consumer.transactions(across=True)
        given = None
        while given is None:
            with suppress(errors.UnknownTransaction):
                given = await transactions.poll(5.0)
        error = await told(transactions)
        assert "transaction 0000000000000007 ended longer ago" in error.message
        assert "'a' partition 0 from offset 0, 'a' partition 1 from offset 1" in error.message
        assert "seek('a', 0, 1), seek('a', 1, 2)" in error.message
        assert (error.metadata["topic"], error.metadata["partition"]) == ("a", "0")
        assert (error.metadata["tx_id"], error.metadata["seek_to"]) == ("0000000000000007", "1")

    stream = [unit(0, FORGOTTEN, 0), unit(1, OTHER, 0), unit(1, FORGOTTEN, 1)]
    consuming(work, stream, partitions=TWO)


def test_i21_it_is_not_told_while_another_one_waits_before_it() -> None:
    """A seek behind it would leave out that one, too."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        forgets(transport, third=(0, 1))
        transactions = consumer.transactions(across=True)
        assert await transactions.poll(0.0) is None
        with pytest.raises(errors.OncelogError) as waiting:
            await transactions.poll(9.0)
        assert waiting.value.metadata["tx_id"] == "0004000000000009"
        transport.streams = [[unit(1, THIRD, 0)]]
        await consumer.pause(TopicPartition("a", 1))
        await consumer.resume(TopicPartition("a", 1))
        assert await parts_of_next(transactions) == (THIRD, [(0, 0), (1, 0)])
        assert "seek('a', 0, 2)" in (await told(transactions)).message

    stream = [unit(0, THIRD, 0), unit(0, FORGOTTEN, 1)]
    consuming(work, stream, partitions=TWO, pending_timeout_ms=5_000)


LINE = [unit(0, FORGOTTEN, 0), unit(0, OTHER, 1), unit(0, THIRD, 2)]


@pytest.mark.parametrize("is_committed", [True, False])
def test_i21_a_seek_behind_it_gives_nothing_twice_and_loses_nothing(is_committed: bool) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        committed = stands_at_0(transport, {})
        forgets(transport)
        transactions = consumer.transactions(across=True)
        assert await both_given(transactions) == [OTHER, THIRD]
        await told(transactions)
        if is_committed:
            await consumer.commit()
        await consumer.seek("a", 0, 1)
        # What was given and not committed is in the next commit, or comes again.
        assert bool(consumer.feeding.progress()) is not is_committed
        consumer.feeding.rewind()
        transport.streams = [LINE[1:]]
        again = []
        while (one := await transactions.poll(2.0)) is not None:
            again.append(one.tx_id)
        assert sorted(again) == ([] if is_committed else [OTHER, THIRD])
        assert await consumer.position("a", 0) == 3
        await consumer.commit()
        assert (committed[-1].to_offset, committed[-1].metadata) == (3, "")

    consuming(work, LINE, group="g")


def test_i21_a_successor_that_seeks_at_once_gives_nothing_twice() -> None:
    """It was given by its predecessor: the group says so, and is asked first."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        stands_at_0(transport, {0: "oncelog-across/1 3:2"})
        forgets(transport)
        transactions = consumer.transactions(across=True)
        await consumer.seek("a", 0, 1)
        transport.streams = [LINE[1:]]
        assert (await parts_of_next(transactions))[0] == THIRD
        assert await consumer.position("a", 0) == 3

    consuming(work, LINE, group="g")


@pytest.mark.parametrize("back", ["seek", "seek to the beginning"])
def test_who_seeks_back_is_given_all_from_there_again(back: str) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        forgets(transport)
        transactions = consumer.transactions(across=True)
        await both_given(transactions)
        if back == "seek":
            await consumer.seek("a", 0, 0)
        else:
            await consumer.seek_to_beginning()
        transport.streams = [LINE]
        assert await both_given(transactions) == [OTHER, THIRD]

    consuming(work, LINE)
