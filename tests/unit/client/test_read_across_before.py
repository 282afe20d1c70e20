"""What becomes of transactions that were given beyond a group's position (I21): by who reads the
group another way, by a sign of life, by an abort after a pause."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog.aio.consumed import Consumed
from oncelog.aio.consumer import Consumer
from oncelog.batch import TopicPartition
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2 as offsets
from tests.unit.client.scripted import ScriptedTransport
from tests.unit.client.test_consuming import consuming, reply
from tests.unit.client.test_gathering import part_of
from tests.unit.client.test_transactions_across import (
    TWO,
    answers,
    described,
    ends,
    everywhere,
    parts_of_next,
    unit,
)

ONE, OTHER = 7, (3 << 48) + 8


def stands_at_0(
    transport: ScriptedTransport, metadata: dict[int, str]
) -> list[offsets.OffsetCommit]:
    """The group, in each partition. Returns what is committed from now on."""

    def fetch(to: Any, request: Any) -> Any:
        known = [
            offsets.CommittedOffset(partition=p, offset=0, metadata=metadata.get(p.number, ""))
            for p in request.partitions
        ]
        return offsets.FetchOffsetsReply(offsets=known)

    committed: list[offsets.OffsetCommit] = []

    def commit(to: Any, request: Any) -> Any:
        committed.extend(request.offsets.offsets)
        return offsets.CommitOffsetsReply()

    transport.handlers["offset_manager.fetch_offsets"] = fetch
    transport.handlers["offset_manager.commit_offsets"] = commit
    return committed


def test_i21_who_gives_record_by_record_moves_nothing_where_some_were_given_beyond() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        committed = stands_at_0(transport, {1: "oncelog-across/1 3:2"})
        for _ in range(3):
            with pytest.raises(errors.InvalidArgument, match="go on that way"):
                await consumer.poll(3.0)
        assert await consumer.position("a", 0) == 0
        await consumer.commit()
        assert committed == []
        # It may go on where nothing was given beyond.
        transport.streams = [[reply(0, 0, 3)]]
        await consumer.pause(TopicPartition("a", 1))
        batch = await consumer.poll(3.0)
        assert batch is not None
        assert len(batch) == 3

    consuming(work, [reply(0, 0, 3), reply(1, 0, 3)], partitions=TWO, group="g")


def test_i21_who_gives_by_partition_moves_nothing_where_some_were_given_beyond() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        committed = stands_at_0(transport, {0: "oncelog-across/1 3:2"})
        transactions = consumer.transactions()
        for _ in range(3):
            with pytest.raises(errors.InvalidArgument, match="go on that way"):
                await transactions.poll(3.0)
        await consumer.commit()
        assert committed == []
        transport.streams = [[part_of(ONE, 0, end=1)]]
        await consumer.seek("a", 0, 0)
        given = await transactions.poll(3.0)
        assert given is not None
        assert given.first_offset == 0

    consuming(work, [part_of(ONE, 0, end=1)], group="g")


def test_i21_a_sign_of_life_says_what_was_given_beyond() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        committed = stands_at_0(transport, {0: "oncelog-across/1 3:2"})
        with pytest.raises(errors.InvalidArgument, match="go on that way"):
            await consumer.poll(3.0)
        # Who leaves gives one.
        await consumer.close()
        (sign,) = committed
        assert (sign.to_offset, sign.metadata) == (0, "oncelog-across/1 3:2")

    consuming(work, [reply(0, 0, 3)], group="g")


def test_i21_what_was_given_beyond_before_a_pause_comes_again_after_an_abort() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        answers(transport, lambda tx_id: described(tx_id, *((0, 1) if tx_id == ONE else (0,))))
        ends(transport, 1)
        transactions = consumer.transactions(across=True)
        assert await parts_of_next(transactions) == (OTHER, [(0, 1)])
        await consumer.pause(TopicPartition("a", 0))
        assert await transactions.poll(0.5) is None
        await consumer.resume(TopicPartition("a", 0))
        transport.streams = [[5.0, unit(0, ONE, 0), unit(0, OTHER, 1), 1.0, unit(1, ONE, 0)]]
        assert await transactions.poll(0.5) is None
        # Nothing was read since it was resumed.
        consumer.feeding.rewind()
        transport.streams = [[unit(0, ONE, 0), unit(0, OTHER, 1), unit(1, ONE, 0)]]
        given = [await parts_of_next(transactions) for _ in range(2)]
        assert sorted(given) == [(ONE, [(0, 0), (1, 0)]), (OTHER, [(0, 1)])]

    consuming(work, [unit(0, ONE, 0), unit(0, OTHER, 1)], partitions=TWO)


def test_i21_offsets_that_are_named_and_refused_do_not_go_with_the_commit() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        committed = stands_at_0(transport, {})
        everywhere(transport, 0, 1)
        transactions = consumer.transactions(across=True)
        assert (await parts_of_next(transactions))[0] == ONE
        with pytest.raises(errors.InvalidArgument, match="offsets that you name"):
            await consumer.commit({("a", 0): 1})
        assert committed == []
        consumed = Consumed(consumer._protocol, None)
        with pytest.raises(errors.InvalidArgument, match="offsets that you name"):
            await consumed.add({("a", 0): 1}, consumer.group_metadata(), 1)
        assert consumed.messages([], 1) == {}
        consumed.committed([], None)
        assert consumer.feeding.commit_starts()[TopicPartition("a", 0)] == 0

    consuming(work, [unit(0, ONE, 0), unit(1, ONE, 0)], partitions=TWO, group="g")
