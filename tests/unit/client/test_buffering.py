"""A buffered consumer against scripted journals: positions of its group, disks that are full, what
is dropped with a change of positions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from oncelog._core.routing import Endpoint
from oncelog.aio.buffering import BEGIN_ATTEMPTS_MAX
from oncelog.aio.consumer import Consumer
from oncelog.batch import Record, TopicPartition
from oncelog.errors import BufferFailed
from oncelog.options import ConsumerOptions, make_options
from oncelogpb import errors, records
from oncelogpb.v1 import offset_manager_pb2 as offsets
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2
from tests.unit.client.scripted import Counted, ScriptedTransport, place
from tests.unit.client.test_consuming import consuming, refusal, wanted

Kind = leader.FetchedBatch
MEMORY: dict[str, Any] = {"delivery": "buffered", "buffer_memory_bytes": 64 * 1024}


def data(at: int, count: int, *, tx: int = 0, size: int = 1) -> leader.FetchedBatch:
    values = [b"%d" % (at + number) + b"x" * size for number in range(count)]
    payload = records.make_rows([None] * count, values, 0).SerializeToString()
    return leader.FetchedBatch(
        kind=Kind.KIND_DATA,
        first_offset=at,
        record_count=count,
        encoding=records.ROWS,
        crc32c=records.checksum(payload),
        payload=payload,
        tx_id=tx,
        producer=types_pb2.Producer(producer_id=tx),
    )


def marker(at: int, tx: int, count: int) -> leader.FetchedBatch:
    return leader.FetchedBatch(
        kind=Kind.KIND_COMMITTED if count else Kind.KIND_ABORTED,
        first_offset=at,
        record_count=1,
        tx_id=tx,
        producer=types_pb2.Producer(producer_id=tx),
        marker_writers=[0] if count else [],
        marker_counts=[count] if count else [],
    )


def journal(*batches: leader.FetchedBatch, partition: int = 0) -> leader.FetchReply:
    part = leader.FetchedPartition(partition=place(partition), batches=batches)
    return leader.FetchReply(partitions=[part])


# Journal: 0 plain, 1-3 t5, 4 plain, 5-6 t6, 7 commits t6, 8 commits t5, 9 t7
WHOLE = (
    data(0, 1),
    data(1, 3, tx=5),
    data(4, 1),
    data(5, 2, tx=6),
    marker(7, 6, 2),
    marker(8, 5, 3),
    data(9, 1, tx=7),
)


# What each offset holds, by its journal offset.
ORDER = (0, 4, 5, 6, 1, 2, 3)


async def offsets_of(consumer: Consumer, count: int) -> list[int]:
    """Of the next so many records, which are those of WHOLE."""
    found: list[int] = []
    while len(found) < count:
        batch = await consumer.poll(30.0)
        assert batch is not None
        for record in batch:
            assert (record.value or b"").rstrip(b"x") == b"%d" % ORDER[record.offset]
            found.append(record.offset)
    return found


async def large_ones(consumer: Consumer) -> list[int]:
    found: list[int] = []
    while len(found) < 10:
        batch = await consumer.poll(30.0)
        assert batch is not None
        found += [record.offset for record in batch]
    return found


async def records_of(consumer: Consumer, count: int) -> AsyncIterator[Record]:
    while count > 0:
        batch = await consumer.poll(30.0)
        assert batch is not None
        for record in batch:
            count -= 1
            yield record


def committed_metadata(transport: ScriptedTransport) -> list[tuple[int, str]]:
    return [
        (one.to_offset, one.metadata)
        for request in transport.requests
        if isinstance(request, offsets.CommitOffsetsRequest)
        for one in request.offsets.offsets
    ]


def test_i15_a_commit_says_where_in_the_journal_to_go_on() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 3) == [0, 1, 2]
        await consumer.commit()
        assert await offsets_of(consumer, 2) == [3, 4]
        await consumer.commit()
        assert await offsets_of(consumer, 2) == [5, 6]
        await consumer.commit()
        # In the middle of t6, of t5, and behind all with t7 open.
        assert committed_metadata(transport)[:3] == [
            (3, "oncelog-buffered/1 1 7 1"),
            (5, "oncelog-buffered/1 1 8 1"),
            (7, "oncelog-buffered/1 9 10 0"),
        ]

    consuming(work, [journal(*WHOLE)], group="g", batch_records_max=1, **MEMORY)


def test_i15_a_consumer_begins_where_its_group_says() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        def fetch_offsets(to: Endpoint, request: Any) -> Any:
            known = offsets.CommittedOffset(
                partition=place(0), offset=5, metadata="oncelog-buffered/1 1 8 1"
            )
            return offsets.FetchOffsetsReply(offsets=[known])

        transport.handlers["offset_manager.fetch_offsets"] = fetch_offsets
        assert await offsets_of(consumer, 2) == [5, 6]
        assert wanted(transport) == [1]

    consuming(work, [journal(*WHOLE[1:])], group="g", **MEMORY)


def test_i15_without_a_tuple_the_journal_is_read_from_its_front() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 2) == [5, 6]
        assert wanted(transport) == [0]

    consuming(work, [journal(*WHOLE)], group="g", committed=5, **MEMORY)


def test_a_sign_of_life_keeps_the_tuple() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 7) == [0, 1, 2, 3, 4, 5, 6]
        await consumer.commit()
        assert await consumer.poll(5.0) is None
        assert set(committed_metadata(transport)) == {(7, "oncelog-buffered/1 9 10 0")}
        assert len(committed_metadata(transport)) > 1

    consuming(work, [journal(*WHOLE)], group="g", sign_of_life_ms=1_000, **MEMORY)


def test_i14_a_seek_gives_what_lies_there_whatever_was_read_ahead() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 5) == [0, 1, 2, 3, 4]
        for to in (2, 6, 0):
            transport.streams = [[journal(*WHOLE)]]
            await consumer.seek("a", 0, to)
            assert await offsets_of(consumer, 7 - to) == list(range(to, 7))

    consuming(work, [journal(*WHOLE)], batch_records_max=1, **MEMORY)


def test_a_paused_partition_gives_nothing_and_goes_on_where_it_was() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 3) == [0, 1, 2]
        await consumer.pause(TopicPartition("a", 0))
        assert await consumer.poll(0.5) is None
        await consumer.resume()
        transport.streams = [[journal(*WHOLE[1:])]]
        assert await offsets_of(consumer, 4) == [3, 4, 5, 6]

    consuming(work, [journal(*WHOLE)], batch_records_max=1, **MEMORY)


def test_i14_a_leader_that_ends_the_stream_costs_nothing_that_is_held() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 7) == [0, 1, 2, 3, 4, 5, 6]
        assert wanted(transport) == [0, 5, 8]

    consuming(
        work,
        [journal(*WHOLE[:3]), None],
        [journal(*WHOLE[3:5]), None],
        [journal(*WHOLE[5:])],
        **MEMORY,
    )


def test_i26_a_flipped_bit_is_told() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        with pytest.raises(errors.CorruptBatch):
            await consumer.poll(5.0)

    flipped = data(1, 3, tx=5)
    flipped.crc32c ^= 1
    consuming(work, [journal(flipped)], **MEMORY)


def test_i28_a_full_disk_is_told_by_each_poll_and_reading_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    large = [data(1 + n, 1, tx=5, size=30_000) for n in range(10)]
    buffers = tmp_path / "buffers"
    # No folder can be made there.
    buffers.write_text("in the way")

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 1) == [0]
        for _ in range(3):
            transport.streams = [[journal(*large)]]
            with pytest.raises(BufferFailed, match="nothing is lost"):
                await consumer.poll(5.0)
        buffers.unlink()
        transport.streams = [[journal(*large, marker(11, 5, 10))]]
        assert await large_ones(consumer) == list(range(1, 11))

    consuming(work, [journal(data(0, 1)), journal(*large)], buffer_dir=buffers, **MEMORY)
    assert not list(buffers.glob("consumer-*"))


def test_what_cannot_be_read_back_is_read_again(tmp_path: Path) -> None:
    large = [data(1 + n, 1, tx=5, size=30_000) for n in range(10)]

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 1) == [0]
        (file,) = tmp_path.glob("*/part-*")
        file.write_bytes(bytes(file.stat().st_size))
        everything = [data(0, 1), *large, marker(11, 5, 10)]
        transport.streams = [[journal(everything[-1])], [journal(*everything)]]
        with pytest.raises(BufferFailed, match="cannot be read back"):
            await large_ones(consumer)
        assert await large_ones(consumer) == list(range(1, 11))
        assert wanted(transport) == [0, 11, 1]

    first = [journal(data(0, 1)), journal(*large), None]
    consuming(work, first, buffer_dir=tmp_path, **MEMORY)


def test_i28_what_one_partition_cannot_read_back_costs_the_others_nothing(tmp_path: Path) -> None:
    large = [data(n, 1, tx=5, size=30_000) for n in range(10)]

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        # The queue is full: the streams of both wait, and the first one goes on first.
        assert await consumer.poll(0.0) is None
        await asyncio.sleep(1.0)
        first = await consumer.poll(5.0)
        assert first is not None
        assert [record.partition for record in first] == [0]
        (file,) = tmp_path.glob("*/part-*")
        file.write_bytes(bytes(file.stat().st_size))
        transport.streams = [[journal(*large, marker(10, 5, 10), partition=1)]]
        with pytest.raises(BufferFailed, match="cannot be read back"):
            await consumer.poll(5.0)
        found = [record async for record in records_of(consumer, 11)]
        assert sorted((one.partition, one.offset) for one in found) == [
            (0, 1),
            *((1, number) for number in range(10)),
        ]
        # Nobody asked for the first partition again.
        assert wanted(transport) == [0, 0, 0]

    of_first = [0.1, journal(data(0, 1, size=30_000)), journal(data(1, 1))]
    of_second = [
        0.2,
        journal(*large, marker(10, 5, 10), partition=1),
        journal(data(11, 1), partition=1),
    ]
    options = {"buffer_dir": tmp_path, "prefetch_bytes_max": 20_000, **MEMORY}
    consuming(work, of_first, of_second, partitions=(5, 6), **options)


@pytest.mark.parametrize("by", ["pause", "seek", "forget"])
def test_i28_who_changes_a_position_and_does_not_poll_is_not_read_ahead_for(by: str) -> None:
    replies = Counted([journal(data(n, 1, size=10_000)) for n in range(200)])

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transport.streams = [replies]
        assert [record.offset async for record in records_of(consumer, 1)] == [0]
        if by == "pause":
            await consumer.pause(TopicPartition("a", 0))
        elif by == "seek":
            await consumer.seek("a", 0, 150)
        else:
            consumer._positions.forget()
        await asyncio.sleep(60.0)
        # What the queue may hold, and as much that waits.
        assert replies.asked < 12
        transport.streams = [[journal(data(n, 1, size=10_000)) for n in range(200)]]
        await consumer.seek("a", 0, 150)
        await consumer.resume()
        assert [record.offset async for record in records_of(consumer, 2)] == [150, 151]

    consuming(work, batch_records_max=1, prefetch_bytes_max=30_000, **MEMORY)


def test_what_waits_for_a_paused_partition_holds_back_no_other() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await consumer.poll(0.0) is None
        await consumer.pause(TopicPartition("a", 0))
        await asyncio.sleep(60.0)
        found = [record.partition async for record in records_of(consumer, 20)]
        assert found == [1] * 20

    streams = [
        [journal(data(n, 1, size=10_000), partition=number) for n in range(200)]
        for number in (0, 1)
    ]
    options = {"batch_records_max": 1, "prefetch_bytes_max": 30_000, **MEMORY}
    consuming(work, *streams, partitions=(5, 6), **options)


def test_who_has_no_partition_any_more_holds_nothing(tmp_path: Path) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 1) == [0]
        assert list(tmp_path.glob("*/part-*"))
        await consumer.assign([])
        assert not list(tmp_path.glob("*/part-*"))

    first = [journal(data(0, 1), *(data(1 + n, 1, tx=5, size=30_000) for n in range(10)))]
    consuming(work, first, buffer_dir=tmp_path, **MEMORY)


def test_uncommitted_is_for_who_waits_for_nothing() -> None:
    with pytest.raises(errors.InvalidArgument, match="has nothing to wait for"):
        make_options(ConsumerOptions, {"isolation": "uncommitted", "delivery": "buffered"})


# ------------------------------------------------------------------------- journals without a front


def points(
    transport: ScriptedTransport, start: int, known: dict[int, tuple[int, int, int]]
) -> None:
    """What a leader says of offsets: where in its journal they lie; below `start` they are gone."""

    def list_offsets(to: Endpoint, request: leader.ListOffsetsRequest) -> leader.ListOffsetsReply:
        found = leader.ListOffsetsReply()
        for query in request.queries:
            listed = found.offsets.add(partition=query.partition, offset=query.offset)
            if query.offset < start:
                error = errors.OffsetOutOfRange("gone", start=start, end=7)
                listed.error.CopyFrom(errors.to_status(error))
            elif query.offset in known:
                earliest, iterator, given = known[query.offset]
                listed.journal_point.earliest = earliest
                listed.journal_point.iterator = iterator
                listed.journal_point.given = given
        return found

    transport.handlers["partition_leader.list_offsets"] = list_offsets


def test_i14_a_journal_without_its_front_is_read_from_where_its_leader_says() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        # Offset 3 is the second of t6 (5 and 6, exposed at 7), while t5 (1 to 3) was open.
        points(transport, 2, {3: (1, 7, 1)})
        assert await offsets_of(consumer, 4) == [3, 4, 5, 6]
        assert wanted(transport) == [1]

    consuming(work, [journal(*WHOLE[1:])], group="g", committed=3, **MEMORY)


def test_i14_the_word_of_a_leader_counts_more_than_what_stands_beside_an_offset() -> None:
    """What its group knows is of a journal that an unclean election has replaced."""

    def known(to: Endpoint, request: Any) -> offsets.FetchOffsetsReply:
        reply = offsets.FetchOffsetsReply()
        for partition in request.partitions:
            reply.offsets.add(partition=partition, offset=3, metadata="oncelog-buffered/1 8 8 1")
        return reply

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transport.handlers["offset_manager.fetch_offsets"] = known
        points(transport, 0, {3: (1, 7, 1)})
        assert await offsets_of(consumer, 4) == [3, 4, 5, 6]
        assert wanted(transport) == [1]

    consuming(work, [journal(*WHOLE[1:])], group="g", committed=3, **MEMORY)


@pytest.mark.parametrize("if_deleted", ["error", "earliest"])
def test_i14_a_buffered_reader_gives_nothing_that_was_deleted(if_deleted: str) -> None:
    """Also where the journal has it still, and the group knows where."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        points(transport, 4, {4: (1, 8, 0)})
        if if_deleted == "error":
            with pytest.raises(errors.OffsetOutOfRange, match="offsets 2 to 3 of 'a'"):
                await consumer.poll(5.0)
            await consumer.seek("a", 0, 4)
        assert await offsets_of(consumer, 3) == [4, 5, 6]
        assert wanted(transport) == [1]
        skipped = {} if if_deleted == "error" else {TopicPartition("a", 0): 2}
        assert consumer.skipped == skipped

    consuming(work, [journal(*WHOLE[1:])], group="g", committed=2, if_deleted=if_deleted, **MEMORY)


def test_i14_a_seek_while_its_leader_is_asked_gives_nothing_that_was_deleted() -> None:
    """What the leader said is of another position, and the journal still has what was deleted."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        points(transport, 4, {4: (1, 8, 0)})
        inner, is_asked = transport.handlers["partition_leader.list_offsets"], asyncio.Event()

        def list_offsets(to: Endpoint, request: leader.ListOffsetsRequest) -> Any:
            is_asked.set()
            return inner(to, request)

        transport.handlers["partition_leader.list_offsets"] = list_offsets
        polling = asyncio.create_task(consumer.poll(0.0))
        # The answer is on its way now.
        await is_asked.wait()
        await polling
        await consumer.seek("a", 0, 0)
        await asyncio.sleep(1)
        assert wanted(transport) == [1], "where what the leader said is"
        assert await offsets_of(consumer, 3) == [4, 5, 6]
        assert consumer.skipped == {TopicPartition("a", 0): 4}

    whole = [journal(*WHOLE)]
    consuming(work, whole, whole, group="g", committed=4, if_deleted="earliest", **MEMORY)


def gone_from(start: int) -> leader.FetchReply:
    return refusal(0, errors.OffsetOutOfRange("the journal begins later", start=start, end=90))


def test_a_front_that_goes_meanwhile_has_its_leader_asked_again() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        # The first word is of a front that is gone by then.
        known = {3: (0, 0, 3)}
        points(transport, 0, known)
        inner = transport.handlers["partition_leader.list_offsets"]

        def list_offsets(to: Endpoint, request: leader.ListOffsetsRequest) -> Any:
            answer = inner(to, request)
            known[3] = (1, 7, 1)
            return answer

        transport.handlers["partition_leader.list_offsets"] = list_offsets
        assert await offsets_of(consumer, 4) == [3, 4, 5, 6]
        assert wanted(transport) == [0, 1]
        assert consumer.skipped == {}

    consuming(work, [gone_from(1)], [journal(*WHOLE[1:])], group="g", committed=3, **MEMORY)


def test_a_front_that_goes_again_and_again_is_told_and_not_as_a_deletion() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        points(transport, 0, {3: (0, 0, 3)})
        with pytest.raises(errors.OffsetOutOfRange, match="the journal begins later"):
            await consumer.poll(60.0)
        assert wanted(transport) == [0] * (BEGIN_ATTEMPTS_MAX + 1)
        assert consumer.skipped == {}
        assert await offsets_of(consumer, 4) == [3, 4, 5, 6]

    # Above the position: an offset and a journal offset are two things.
    refused = [[gone_from(6)] for _ in range(BEGIN_ATTEMPTS_MAX + 1)]
    consuming(
        work, *refused, [journal(*WHOLE)], group="g", committed=3, if_deleted="earliest", **MEMORY
    )


@pytest.mark.parametrize("if_deleted", ["error", "earliest", "latest"])
def test_i15_who_stands_above_the_end_is_told_what_the_leader_says(if_deleted: str) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        def list_offsets(to: Endpoint, request: leader.ListOffsetsRequest) -> Any:
            listed = leader.ListedOffset(partition=place(0))
            error = errors.OffsetOutOfRange("3 lies above the end, 2", start=0, end=2)
            listed.error.CopyFrom(errors.to_status(error))
            return leader.ListOffsetsReply(offsets=[listed])

        transport.handlers["partition_leader.list_offsets"] = list_offsets
        for _ in range(2):
            with pytest.raises(errors.OffsetOutOfRange, match="3 lies above the end, 2"):
                await consumer.poll(5.0)
        assert wanted(transport) == [], "no journal is read from its front for it"
        assert consumer.skipped == {}
        points(transport, 0, {3: (0, 0, 3)})
        assert await offsets_of(consumer, 4) == [3, 4, 5, 6]

    consuming(work, [journal(*WHOLE)], group="g", committed=3, if_deleted=if_deleted, **MEMORY)


def test_i14_a_leader_that_moved_is_not_asked_where_to_begin() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        points(transport, 0, {})
        inner = transport.handlers["partition_leader.list_offsets"]
        refused = [errors.NotLeader("x"), errors.Unavailable("x")]

        def list_offsets(to: Endpoint, request: leader.ListOffsetsRequest) -> Any:
            if not refused:
                return inner(to, request)
            error = refused.pop()
            if isinstance(error, errors.Unavailable):
                raise error
            listed = leader.ListedOffset(partition=place(0))
            listed.error.CopyFrom(errors.to_status(error))
            return leader.ListOffsetsReply(offsets=[listed])

        transport.handlers["partition_leader.list_offsets"] = list_offsets
        assert await offsets_of(consumer, 7) == list(range(7))

    consuming(work, [journal(*WHOLE)], **MEMORY)
