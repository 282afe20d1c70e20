"""What moves a consumer: seeks, pauses, leaders that end a stream, options. What was read ahead is
dropped with every move, and nothing is skipped or given twice by it (I14, I15)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog._core.routing import Endpoint
from oncelog.aio.consumer import Consumer
from oncelog.batch import TopicPartition
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import ScriptedTransport
from tests.unit.client.test_consuming import consuming, offsets_of, refusal, reply, wanted

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def test_i14_a_seek_of_one_partition_skips_nothing_of_another() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 4) == [0, 1, 2, 3]
        await consumer.seek("a", 1, 7)
        assert await offsets_of(consumer, 6) == [4, 5, 6, 7, 8, 9]
        assert await offsets_of(consumer, 2) == [10, 11]
        assert wanted(transport) == [0, 0, 10, 7], "what was read ahead of the other one is given"

    first, second = [reply(0, 0, 10)], [reply(0, 10, 2)]
    consuming(work, first, second, partitions=(5, 5), batch_records_max=4)


def test_a_seek_back_gives_what_lies_there_and_not_what_was_read_ahead() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 4) == [0, 1, 2, 3]
        await consumer.seek("a", 0, 2)
        assert await offsets_of(consumer, 4) == [2, 3, 4, 5]

    consuming(work, [reply(0, 0, 10)], [reply(0, 2, 8)], batch_records_max=4)


def test_reading_ahead_goes_on_after_many_seeks() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        for _ in range(5):
            transport.streams = [[reply(0, 0, 10, size=1_000)]]
            await offsets_of(consumer, 2)
            await consumer.seek("a", 0, 0)
        transport.streams = [[reply(0, 10 * n, 10, size=1_000) for n in range(3)]]
        assert len(await offsets_of(consumer, 30)) == 30

    consuming(work, batch_records_max=2, prefetch_bytes_max=15_000)


def test_a_paused_partition_gives_nothing_and_goes_on_where_it_was() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 4) == [0, 1, 2, 3]
        await consumer.pause(A0)
        assert await consumer.poll(0.5) is None
        await consumer.resume()
        transport.streams = [[reply(0, 4, 6)]]
        assert await offsets_of(consumer, 4) == [4, 5, 6, 7]

    consuming(work, [reply(0, 0, 10)], batch_records_max=4)


def test_i14_what_a_pause_dropped_is_read_again() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 4) == [0, 1, 2, 3]
        await consumer.pause(A0)
        await consumer.resume(A0)
        transport.streams = [[reply(0, 4, 6)]]
        assert await offsets_of(consumer, 4) == [4, 5, 6, 7]
        assert wanted(transport) == [0, 4]

    consuming(work, [reply(0, 0, 10)], batch_records_max=4)


def test_i14_partitions_that_come_and_go_disturb_no_other() -> None:
    """What comes gets a stream beside; after some of them there is one stream for all again."""

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        given = await offsets_of(consumer, 2)
        for number in range(1, 6):
            await consumer.seek("a", number, 100 * number)
            await consumer.resume(TopicPartition("a", number))
            given += await offsets_of(consumer, 2)
            await asyncio.sleep(1)
        assert given == list(range(12))
        subscribed = [
            {part.partition.number: part.offset for part in request.partitions}
            for request in transport.requests
            if isinstance(request, leader.SubscribeRequest)
        ]
        assert subscribed[:4] == [{0: 0}, {1: 100}, {2: 200}, {3: 300}]
        assert subscribed[4] == {0: 50, 1: 100, 2: 200, 3: 300, 4: 400}
        assert subscribed[5:] == [{5: 500}]

    others = [TopicPartition("a", number) for number in range(1, 6)]

    async def pausing(consumer: Consumer, transport: ScriptedTransport) -> None:
        await consumer.pause(*others)
        await work(consumer, transport)

    consuming(pausing, [reply(0, 0, 50)], partitions=(5,) * 6, batch_records_max=2)


def test_after_an_error_and_a_seek_a_leader_may_move_again() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        with pytest.raises(errors.OffsetOutOfRange):
            await consumer.poll(5.0)
        await consumer.seek("a", 0, 2)
        assert await offsets_of(consumer, 4) == [2, 3, 4, 5]

    consuming(
        work,
        [refusal(0, errors.OffsetOutOfRange("x"))],
        [reply(0, 2, 2), errors.NotLeader("x")],
        [reply(0, 4, 2)],
    )


def test_a_leader_that_ends_the_stream_leads_no_more() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 2) == [0, 1]
        transport.partitions = [6]
        assert await offsets_of(consumer, 2) == [2, 3]
        asked = [port for method, port in transport.asked if method.endswith("subscribe")]
        assert asked == [5, 6]

    consuming(work, [reply(0, 0, 2), None], [reply(0, 2, 2)])


def test_a_repeat_that_ends_where_reading_stands_gives_no_empty_batch() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 3) == [0, 1, 2]
        transport.streams = []
        assert await consumer.poll(1.0) is None

    consuming(work, [reply(0, 0, 3), reply(0, 1, 2)])


def test_markers_are_no_records() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 4) == [0, 1, 3, 4]

    marker = leader.FetchedBatch(
        kind=leader.FetchedBatch.KIND_COMMITTED, first_offset=2, record_count=1
    )
    between = leader.FetchReply(
        partitions=[leader.FetchedPartition(partition=reply(0, 0, 1).partitions[0].partition)]
    )
    between.partitions[0].batches.append(marker)
    consuming(work, [reply(0, 0, 2), between, reply(0, 3, 2)], isolation="uncommitted")


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("group", [None, "g"])
def test_where_nothing_is_committed_the_option_says_where_to_start(
    start: str, group: str | None
) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        await consumer.position("a", 0)
        (request,) = (r for r in transport.requests if isinstance(r, leader.ListOffsetsRequest))
        assert [query.WhichOneof("at") for query in request.queries] == [start]

    consuming(work, group=group, start=start)


def test_a_listing_that_fails_is_told_and_is_not_zero() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        def refuse(to: Endpoint, request: Any) -> Any:
            error = errors.to_status(errors.CorruptLog("bad"))
            listed = [
                leader.ListedOffset(partition=q.partition, error=error) for q in request.queries
            ]
            return leader.ListOffsetsReply(offsets=listed)

        transport.handlers["partition_leader.list_offsets"] = refuse
        with pytest.raises(errors.CorruptLog):
            await consumer.end_offset("a", 0)

    consuming(work)


def test_closing_ends_a_poll_that_waits() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> float:
        waiting = asyncio.create_task(consumer.poll(60.0))
        await asyncio.sleep(0.5)
        await consumer.close()
        assert await waiting is None
        return asyncio.get_running_loop().time()

    assert consuming(work)[0] < 2
