"""`Consumer.transactions` against scripted streams: how much is taken, and disks that are full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncelog.aio.consumer import Consumer
from oncelog.aio.units import Transactions
from oncelog.batch import TopicPartition
from oncelog.errors import BufferFailed
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import Counted, ScriptedTransport, place
from tests.unit.client.test_consuming import consuming

SIZE = 16 * 1024
# Replies that the queue takes, and one that is above.
BOUNDED: dict[str, Any] = {"prefetch_bytes_max": 4 * SIZE, "buffer_memory_bytes": 64 * 1024}


def part_of(tx: int, at: int, *, end: int, size: int = SIZE) -> leader.FetchReply:
    """One record of a transaction; `end` is what can be read."""
    payload = records.make_rows([None], [b"x" * size], 0).SerializeToString()
    batch = leader.FetchedBatch(
        kind=leader.FetchedBatch.KIND_DATA,
        first_offset=at,
        record_count=1,
        encoding=records.ROWS,
        crc32c=records.checksum(payload),
        payload=payload,
        tx_id=tx,
    )
    part = leader.FetchedPartition(partition=place(0), end_offset=end, batches=[batch])
    return leader.FetchReply(partitions=[part])


async def offset_of_next(transactions: Transactions) -> int:
    transaction = await transactions.poll(30.0)
    assert transaction is not None
    assert len(transaction.read()) == transaction.record_count
    return transaction.first_offset


def test_i28_what_is_read_ahead_of_whole_transactions_is_bounded(tmp_path: Path) -> None:
    replies = Counted([part_of(1 + n, n, end=n + 1) for n in range(200)])

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transport.streams = [replies]
        transactions = consumer.transactions()
        for number in range(100):
            assert await offset_of_next(transactions) == number
            # The queue, the one that is above, what is gathered, and what was given.
            assert replies.asked <= number + 9
            assert not list(tmp_path.glob("*/part-*"))

    consuming(work, buffer_dir=tmp_path, **BOUNDED)


def test_i28_whole_transactions_are_given_though_the_disk_is_full(tmp_path: Path) -> None:
    buffers = tmp_path / "buffers"
    # No folder can be made there.
    buffers.write_text("in the way")
    small = [part_of(1 + n, n, end=100) for n in range(3)]
    large = [part_of(9, 3 + n, end=100) for n in range(20)]

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transactions = consumer.transactions()
        assert [await offset_of_next(transactions) for _ in range(3)] == [0, 1, 2]
        for _ in range(3):
            with pytest.raises(BufferFailed, match="nothing is lost"):
                await transactions.poll(5.0)
        assert replies.asked < 15
        buffers.unlink()
        assert await offset_of_next(transactions) == 3
        assert await offset_of_next(transactions) == 23

    after = part_of(10, 23, end=24)
    replies = Counted([*small, *large, after])
    streams: list[Any] = [replies]
    consuming(work, *streams, buffer_dir=buffers, **BOUNDED)


def test_i28_the_end_of_a_transaction_is_seen_though_the_next_has_no_room(tmp_path: Path) -> None:
    buffers = tmp_path / "buffers"
    buffers.write_text("in the way")

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transactions = consumer.transactions()
        # Three fill the memory; the fourth is another one's.
        assert await offset_of_next(transactions) == 0
        assert await offset_of_next(transactions) == 3

    one = [part_of(5, n, end=4) for n in range(3)]
    consuming(work, [*one, part_of(6, 3, end=4)], buffer_dir=buffers, **BOUNDED)


def test_i14_what_waits_for_room_goes_with_its_position(tmp_path: Path) -> None:
    buffers = tmp_path / "buffers"
    buffers.write_text("in the way")

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transactions = consumer.transactions()
        with pytest.raises(BufferFailed):
            await transactions.poll(5.0)
        transport.streams = [[part_of(5, 9, end=10)]]
        await consumer.seek("a", 0, 9)
        assert await offset_of_next(transactions) == 9
        await consumer.pause(TopicPartition("a", 0))
        assert await transactions.poll(0.1) is None

    consuming(work, [part_of(5, n, end=100) for n in range(20)], buffer_dir=buffers, **BOUNDED)


def test_a_transaction_that_was_let_go_of_says_so(tmp_path: Path) -> None:
    replies = [part_of(1, n, end=n + 1 if n == 2 else 3) for n in range(3)]
    replies += [part_of(2, 3 + n, end=6) for n in range(3)]

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transactions = consumer.transactions()
        first = await transactions.poll(30.0)
        assert first is not None
        batches = iter(first)
        assert len(next(batches)) == 1
        second = await transactions.poll(30.0)
        assert second is not None
        with pytest.raises(errors.InvalidArgument, match=r"let go of.*keep what `read` gives"):
            next(batches)
        with pytest.raises(errors.InvalidArgument, match="let go of"):
            first.read()
        assert len(second.read()) == 3
        with pytest.raises(errors.InvalidArgument, match="go through them once"):
            second.read()

    consuming(work, replies, buffer_dir=tmp_path, **BOUNDED)
