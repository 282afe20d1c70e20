"""The consumer against scripted Subscribe streams: what is read ahead, cut, refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog._core.routing import Endpoint, PartitionKey
from oncelog.aio.consumer import Consumer
from oncelog.batch import TopicPartition
from oncelog.errors import Closed
from oncelog.options import ConsumerOptions
from oncelogpb import errors, records
from oncelogpb.v1 import offset_manager_pb2 as offsets
from oncelogpb.v1 import partition_leader_pb2 as leader
from tests.unit.client.scripted import (
    TOPIC_ID,
    ScriptedTransport,
    on_virtual_time,
    place,
    protocol_over,
)

Work = Callable[[Consumer, ScriptedTransport], Awaitable[Any]]


def reply(
    partition: int, first: int, count: int, *, size: int = 1, flip: bool = False
) -> leader.FetchReply:
    values = [b"%d" % offset + b"x" * size for offset in range(first, first + count)]
    payload = records.make_rows([None] * count, values, 0).SerializeToString()
    batch = leader.FetchedBatch(
        kind=leader.FetchedBatch.KIND_DATA,
        first_offset=first,
        record_count=count,
        encoding=records.ROWS,
        crc32c=records.checksum(payload) ^ flip,
        payload=payload,
    )
    part = leader.FetchedPartition(
        partition=place(partition), end_offset=first + count, batches=[batch]
    )
    return leader.FetchReply(partitions=[part])


def refusal(partition: int, error: errors.OncelogError) -> leader.FetchReply:
    part = leader.FetchedPartition(partition=place(partition), error=errors.to_status(error))
    return leader.FetchReply(partitions=[part])


def consuming(
    work: Work,
    *streams: list[Any],
    partitions: tuple[int, ...] = (5,),
    group: str | None = None,
    committed: int | None = None,
    **options: Any,
) -> tuple[Any, float]:
    async def main() -> Any:
        transport = ScriptedTransport(*partitions)
        transport.streams = list(streams)

        def list_offsets(to: Endpoint, request: Any) -> Any:
            listed = [leader.ListedOffset(partition=q.partition) for q in request.queries]
            return leader.ListOffsetsReply(offsets=listed)

        def fetch_offsets(to: Endpoint, request: Any) -> Any:
            known = [
                offsets.CommittedOffset(partition=p, offset=committed) for p in request.partitions
            ]
            return offsets.FetchOffsetsReply(offsets=known)

        transport.handlers["partition_leader.list_offsets"] = list_offsets
        transport.handlers.setdefault("offset_manager.fetch_offsets", fetch_offsets)
        # Who leaves gives a last sign of life.
        transport.handlers["offset_manager.commit_offsets"] = lambda *_: (
            offsets.CommitOffsetsReply()
        )
        names = {
            PartitionKey(TOPIC_ID, number): TopicPartition("a", number)
            for number in range(len(partitions))
        }
        consumer = Consumer(protocol_over(transport), ConsumerOptions(**options), names, group)
        try:
            return await work(consumer, transport)
        finally:
            await consumer.close()

    return on_virtual_time(main)


async def offsets_of(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        batch = await consumer.poll(30.0)
        assert batch is not None
        for record in batch:
            assert (record.value or b"").rstrip(b"x") == b"%d" % record.offset
            found.append(record.offset)
    return found


def wanted(transport: ScriptedTransport) -> list[int]:
    """The offsets that Subscribe was asked to start from."""
    return [
        part.offset
        for request in transport.requests
        if isinstance(request, leader.SubscribeRequest)
        for part in request.partitions
    ]


def test_i15_it_starts_where_the_group_stands_and_cuts_what_lies_before() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 5) == [7, 8, 9, 10, 11]
        assert wanted(transport) == [7]

    consuming(work, [reply(0, 4, 6), reply(0, 10, 2)], group="g", committed=7)


@pytest.mark.parametrize(
    "trouble",
    [errors.NotLeader("x"), errors.UnknownOutcome("the stream broke"), errors.Unavailable("x")],
    ids=lambda error: error.reason,
)
@pytest.mark.parametrize("within", [True, False], ids=["in a reply", "of the stream"])
def test_i14_reading_goes_on_without_gap_where_a_stream_broke(
    trouble: errors.OncelogError, within: bool
) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 5) == [0, 1, 2, 3, 4]
        assert wanted(transport) == [0, 3]

    breaking = refusal(0, trouble) if within else trouble
    consuming(work, [reply(0, 0, 3), breaking], [reply(0, 3, 2)])


def test_a_repeat_of_what_was_read_is_not_given_twice() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 6) == [0, 1, 2, 3, 4, 5]

    consuming(work, [reply(0, 0, 3), reply(0, 0, 3), reply(0, 2, 4)])


def test_i26_a_flipped_bit_is_told_and_not_given() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 3) == [0, 1, 2]
        with pytest.raises(errors.CorruptBatch, match="offset 3"):
            await consumer.poll(5.0)
        assert await consumer.position("a", 0) == 3

    consuming(work, [reply(0, 0, 3), reply(0, 3, 2, flip=True)])


def test_a_batch_for_the_user_holds_what_he_asked_for_at_most() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        sizes = []
        for _ in range(4):
            batch = await consumer.poll(1.0)
            assert batch is not None
            sizes.append(len(batch))
            assert await consumer.position("a", 0) == sum(sizes)
        assert sizes == [4, 4, 4, 1]

    consuming(work, [reply(0, 0, 10), reply(0, 10, 3)], batch_records_max=4)


def test_no_more_is_read_ahead_than_the_limit() -> None:
    """The streams behind the queue are read only as the user takes from it."""
    import asyncio

    given: list[int] = []

    class Counted(list[Any]):
        def __iter__(self) -> Any:
            for number, item in enumerate(list.__iter__(self)):
                given.append(number)
                yield item

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        await consumer.poll(1.0)
        await asyncio.sleep(10)
        assert len(given) < 5
        assert len(await offsets_of(consumer, 40)) >= 40

    streams = Counted(reply(0, 10 * n, 10, size=1_000) for n in range(20))
    consuming(work, streams, prefetch_bytes_max=20_000, batch_records_max=10)


def test_an_offset_out_of_range_is_told_once_and_a_seek_goes_on() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        with pytest.raises(errors.OffsetOutOfRange):
            await consumer.poll(5.0)
        assert await consumer.poll(0.1) is None
        await consumer.seek("a", 0, 2)
        assert await offsets_of(consumer, 2) == [2, 3]

    consuming(work, [refusal(0, errors.OffsetOutOfRange("x"))], [reply(0, 2, 2)])


def test_an_error_of_one_partition_does_not_stop_the_other() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        with pytest.raises(errors.CorruptLog):
            await consumer.poll(5.0)
        assert await offsets_of(consumer, 2) == [0, 1]

    consuming(work, [refusal(0, errors.CorruptLog("x"))], [reply(1, 0, 2)], partitions=(5, 5))


def test_pending_offsets_are_waited_for_and_then_told() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        def pending(to: Endpoint, request: Any) -> Any:
            assert request.stable
            raise errors.PendingTransaction("x")

        transport.handlers["offset_manager.fetch_offsets"] = pending
        with pytest.raises(errors.PendingTransaction):
            await consumer.poll(1.0)

    _, seconds = consuming(work, group="g", pending_timeout_ms=2_000)
    assert 1.0 < seconds <= 2.1


@pytest.mark.parametrize("pending_timeout_ms", [0, 20])
def test_who_does_not_wait_for_pending_offsets_still_waits_for_answers(
    pending_timeout_ms: int,
) -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transport.delay_s = 0.1
        assert await consumer.position("a", 0) == 7

        def pending(to: Endpoint, request: Any) -> Any:
            raise errors.PendingTransaction("x")

        transport.handlers["offset_manager.fetch_offsets"] = pending
        consumer.feeding.forget()
        with pytest.raises(errors.PendingTransaction):
            await consumer.poll(1.0)

    consuming(work, group="g", committed=7, pending_timeout_ms=pending_timeout_ms)


def test_i31_a_poll_ends_when_it_said() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await consumer.poll(3.0) is None

    _, seconds = consuming(work)
    assert seconds < 3.2


def test_a_leader_is_waited_for() -> None:
    import asyncio

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        transport.partitions = [0]
        assert await consumer.poll(1.0) is None
        transport.partitions = [6]
        assert await offsets_of(consumer, 2) == [0, 1]
        await asyncio.sleep(0)

    async def started(consumer: Consumer, transport: ScriptedTransport) -> None:
        await consumer.position("a", 0)
        consumer._protocol.directory.forget_topic("a")
        await work(consumer, transport)

    consuming(started, [reply(0, 0, 2)])


def test_closing_ends_the_iteration_and_a_poll_after_it_says_so() -> None:
    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        seen = []
        async for batch in consumer:
            seen += [record.offset for record in batch]
            await consumer.close()
        assert seen == [0, 1]
        with pytest.raises(Closed):
            await consumer.poll(0.0)

    consuming(work, [reply(0, 0, 2)])


@pytest.mark.parametrize(
    "kind",
    [
        leader.FetchedBatch.KIND_COMMITTED,
        leader.FetchedBatch.KIND_ABORTED,
        leader.FetchedBatch.KIND_CONTROL,
    ],
    ids=leader.FetchedBatch.Kind.Name,
)
def test_what_is_no_data_is_not_given_as_records(kind: leader.FetchedBatch.Kind.ValueType) -> None:
    marker = reply(0, 0, 1)
    marker.partitions[0].batches[0].kind = kind

    async def work(consumer: Consumer, transport: ScriptedTransport) -> None:
        assert await offsets_of(consumer, 2) == [1, 2]

    consuming(work, [marker, reply(0, 1, 2)])
