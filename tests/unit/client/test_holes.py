"""Compacted topics, whose offsets have holes: no reader misses what is left, gives anything twice
or at another offset, or stops where nothing is left."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from oncelog._core import holes
from oncelog.aio.consumer import Consumer
from oncelog.aio.table_view import TableView
from oncelog.batch import Batch, TopicPartition
from oncelogpb import errors, records
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.compacted import (
    Kept,
    batch_of,
    nothing_below,
    partition_of,
    replies,
)
from tests.unit.client.scripted import ScriptedTransport, place
from tests.unit.client.test_consuming import consuming
from tests.unit.client.test_table_view import following
from tests.unit.client.test_transactions_across import everywhere

SEEDS = range(60)
PLACE = TopicPartition("a", 0)


def row(offset: int, *, tx: int = 0, unit: int = 0) -> Kept:
    return Kept(offset, b"k%d" % offset, b"%d" % offset, tx, unit)


def some(*batches: leader.FetchedBatch, end: int) -> leader.FetchReply:
    part = leader.FetchedPartition(partition=place(0), end_offset=end, batches=batches)
    return leader.FetchReply(partitions=[part])


async def read_to(consumer: Consumer, *ends: int) -> list[Batch]:
    """Until it stands at the end of each partition."""
    found: list[Batch] = []
    places = [TopicPartition("a", number) for number in range(len(ends))]
    while True:
        batch = await consumer.poll(2.0)
        if batch is not None:
            assert len(batch), "a batch that is given has records"
            found.append(batch)
        at = [await consumer.position(*it) for it in places]
        if at == list(ends):
            return found
        assert batch is not None, f"nothing more comes at {at}"


# -------------------------------------------------------------------------------------- the rules


def test_a_batch_says_where_its_records_stand() -> None:
    dense = batch_of([row(3), row(4)])
    assert holes.offsets_of(dense) is None
    batch = batch_of([row(3), row(5), row(9)])
    offsets = holes.offsets_of(batch)
    assert offsets is not None
    assert offsets.tolist() == [3, 5, 9]
    assert holes.next_offset(3, 3, offsets) == 10
    assert [holes.skipped(wanted, 3, offsets) for wanted in range(2, 10)] == [
        0,
        0,
        1,
        1,
        2,
        2,
        2,
        2,
    ]
    kept = holes.unpacked(holes.packed(offsets))
    assert kept is not None
    assert kept.tolist() == [3, 5, 9]
    assert holes.unpacked(holes.packed(None)) is None


@pytest.mark.parametrize("behind", [[0, 2], [0, 2, 2], [0, 3, 2], [1, 2, 3]])
def test_a_batch_that_does_not_say_it_of_each_is_corrupt(behind: list[int]) -> None:
    batch = batch_of([row(3), row(5), row(9)])
    batch.offsets[:] = behind
    with pytest.raises(errors.CorruptBatch, match="does not say the offset of each"):
        holes.offsets_of(batch)


# ---------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("seed", SEEDS)
def test_i14_batches_of_a_compacted_topic_have_each_record_at_its_offset(seed: int) -> None:
    dice = random.Random(seed)
    log = partition_of(dice, kept_share=dice.random())
    expected = [(it.offset, it.key, it.value) for it in log.kept]

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        batches = await read_to(consumer, log.end)
        rows = [it for batch in batches for it in batch]
        assert [(it.offset, it.key, it.value) for it in rows] == expected
        columns = [batch.table.to_pydict() for batch in batches]
        assert [it for column in columns for it in column["offset"]] == [
            offset for offset, _, _ in expected
        ]
        for batch in batches:
            assert batch.next_offsets() == {PLACE: list(batch)[-1].offset + 1}
        asked = [one for one in transport.requests if isinstance(one, leader.SubscribeRequest)]
        assert all(one.with_offsets for one in asked)

    consuming(work, replies(dice, log), batch_records_max=dice.choice([1, 2, 3, 1000]))


@pytest.mark.parametrize("seed", SEEDS)
def test_i14_who_begins_in_a_hole_reads_what_is_left_behind_it(seed: int) -> None:
    """After a seek to any offset, and from one that the group has committed."""
    dice = random.Random(seed)
    log = partition_of(dice)
    start = dice.randrange(log.end + 1)
    expected = [it.offset for it in log.kept if it.offset >= start]

    async def sought(consumer: Consumer, transport: ScriptedTransport) -> None:
        await consumer.poll(2.0)
        transport.streams = [replies(dice, log)]
        await consumer.seek("a", 0, start)
        found = await read_to(consumer, log.end)
        assert [it.offset for batch in found for it in batch] == expected

    async def committed(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await consumer.position("a", 0) == start
        found = await read_to(consumer, log.end)
        assert [it.offset for batch in found for it in batch] == expected

    consuming(sought, replies(dice, log))
    consuming(committed, replies(dice, log), group="g", committed=start)


def test_i14_a_batch_is_cut_in_the_middle_of_its_holes_and_goes_on_there() -> None:
    """`batch_records_max`, and a rewind to between two records that are left."""
    batch = batch_of([row(1), row(4), row(5), row(9)])

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        first = await consumer.poll(2.0)
        assert first is not None
        assert [it.offset for it in first] == [1, 4]
        assert first.next_offsets() == {PLACE: 5}
        assert await consumer.position("a", 0) == 5
        assert await consumer.lag() == {PLACE: 0}
        second = await consumer.poll(2.0)
        assert second is not None
        assert [it.offset for it in second] == [5, 9]
        assert await consumer.position("a", 0) == 10
        transport.streams = [[some(batch, end=12)]]
        await consumer.seek("a", 0, 3)
        again = await consumer.poll(2.0)
        assert again is not None
        assert [it.offset for it in again] == [4, 5]

    consuming(work, [some(batch, end=12)], batch_records_max=2)


def test_i14_the_end_of_a_log_is_reached_though_its_last_records_are_gone() -> None:
    """Tombstones whose time is over: nothing is given for them, and the group commits behind."""
    sent: list[offsets_pb.CommitOffsetsRequest] = []

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        def commit(to: Any, request: Any) -> offsets_pb.CommitOffsetsReply:
            sent.append(request)
            return offsets_pb.CommitOffsetsReply()

        transport.handlers["offset_manager.commit_offsets"] = commit
        batch = await consumer.poll(2.0)
        assert batch is not None
        assert [it.offset for it in batch] == [2]
        assert await consumer.poll(2.0) is None
        assert await consumer.position("a", 0) == 9
        await consumer.commit()
        assert [it.to_offset for it in sent[-1].offsets.offsets] == [9]

    told = [some(batch_of([row(2)]), end=9), 1.0, some(nothing_below(9), end=9)]
    consuming(work, told, group="g", committed=0)


# ----------------------------------------------------------------------------- whole transactions


@pytest.mark.parametrize("seed", SEEDS)
def test_i3_whole_transactions_are_what_is_left_of_each(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    log = partition_of(dice, kept_share=dice.random())

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transactions = consumer.transactions()
        found = []
        while (one := await transactions.poll(2.0)) is not None:
            rows = list(one.read())
            assert one.record_count == len(rows)
            assert one.first_offset == rows[0].offset
            assert [it.value for it in rows] == [
                next(kept.value for kept in log.kept if kept.offset == it.offset) for it in rows
            ]
            found.append((one.tx_id, [it.offset for it in rows]))
        assert await consumer.position("a", 0) == log.end
        assert found == log.units()

    # Some of it goes to disk.
    consuming(
        work,
        replies(dice, log),
        buffer_dir=tmp_path,
        buffer_memory_bytes=dice.choice([700, 1 << 20]),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_i3_transactions_over_partitions_are_given_where_a_part_was_compacted_away(
    seed: int, tmp_path: Path
) -> None:
    """Nobody waits for a part of which nothing is left."""
    dice = random.Random(seed)
    logs = [partition_of(dice, number=number, kept_share=dice.random()) for number in range(2)]
    end = max(log.end for log in logs)
    logs = [log._replace(end=end, edges=[*log.edges[:-1], end]) for log in logs]
    expected = {
        (number, offset)
        for number, log in enumerate(logs)
        for offset in (it.offset for it in log.kept)
    }

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        everywhere(transport, 0, 1, end=end)
        transactions = consumer.transactions(across=True)
        found: list[tuple[int, int]] = []
        while (one := await transactions.poll(3.0)) is not None:
            rows = [(it.partition, it.offset) for it in one.read()]
            assert one.record_count == len(rows)
            found += rows
        assert len(found) == len(set(found))
        assert set(found) == expected
        at = [await consumer.position("a", number) for number in range(2)]
        assert at == [end, end]

    consuming(
        work,
        replies(dice, *logs),
        partitions=(5, 5),
        buffer_dir=tmp_path,
        buffer_memory_bytes=dice.choice([700, 1 << 20]),
    )


def test_i3_the_end_of_a_transaction_is_known_where_nothing_is_left_behind_it() -> None:
    """Its last records are gone, and with them the end of the log."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transactions = consumer.transactions()
        one = await transactions.poll(2.0)
        assert one is not None
        assert [it.offset for it in one.read()] == [1, 3]
        assert await consumer.position("a", 0) == 8

    rows = [row(1, tx=7), row(3, tx=7)]
    consuming(work, [some(batch_of(rows), end=8), some(nothing_below(8), end=8)])


# ----------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize("seed", SEEDS)
def test_i33_a_table_of_a_compacted_topic_shows_the_last_value_of_each_key(seed: int) -> None:
    dice = random.Random(seed)
    log = partition_of(dice, kept_share=dice.random())

    async def work(table: TableView, transport: ScriptedTransport) -> None:
        await table.caught_up()
        assert table.snapshot() == log.values()
        assert dict(zip(*table.to_arrow().to_pydict().values(), strict=True)) == log.values()
        assert table.positions == {PLACE: log.end}

    following(work, replies(dice, log), ends={0: log.end})


def test_i3_a_table_shows_a_transaction_behind_which_nothing_is_left() -> None:
    """Up to the end of the log it might go on."""

    async def work(table: TableView, transport: ScriptedTransport) -> None:
        await asyncio.sleep(1.0)
        assert table.snapshot() == {b"k1": b"1", b"k3": b"3"}

    rows = [row(1, tx=7), row(3, tx=7)]
    following(work, [some(batch_of(rows), end=8), some(nothing_below(8), end=8)])


# ------------------------------------------------------------------------------------ held batches


def test_i14_offsets_that_were_moved_to_disk_come_back_whole(tmp_path: Path) -> None:
    big = records.ROWS_BELOW * 4
    rows = [row(3 * n, tx=7) for n in range(big)]

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transactions = consumer.transactions()
        one = await transactions.poll(2.0)
        assert one is not None
        assert list(tmp_path.glob("*/part-*")), "it went to disk"
        assert [it.offset for it in one.read()] == [3 * n for n in range(big)]

    halves = [batch_of(rows[: big // 2]), batch_of(rows[big // 2 :])]
    told = [some(half, end=3 * big - 2) for half in halves]
    consuming(work, told, buffer_dir=tmp_path, buffer_memory_bytes=1)
