"""From `send` to sealed batches: nothing is lost between threads, timers and chunks, and what
cannot be sealed is told."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pyarrow as pa
import pytest

from oncelog._core.batching import Refused, seal_arrow
from oncelog._core.buffers import TopicBuffer, check_bytes
from oncelog.aio.producer import Producer
from oncelog.aio.recorder import Sticky
from oncelogpb import errors
from tests.unit.client.scripted import ScriptedTransport
from tests.unit.client.test_batching import layout, seal_rows
from tests.unit.client.test_producing import producing


def test_a_record_that_comes_while_its_buffer_is_sealed_goes_after_its_own_linger() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        recorder = producer.recorder
        seal = recorder._seal_here

        def meanwhile(buffer: TopicBuffer, take: Any) -> None:
            seal(buffer, take)
            recorder._seal_here = seal  # type: ignore[method-assign]
            producer._put("a", b"late")

        recorder._seal_here = meanwhile  # type: ignore[method-assign]
        await producer.send("a", b"early")
        await asyncio.sleep(1)

    log, _, _ = producing(work)
    assert log.values(0) == [b"early", b"late"]


def test_what_a_caller_may_change_later_is_copied() -> None:
    mine = bytearray(b"before")
    kept = check_bytes("value", mine)
    mine[:] = b"behind"
    assert kept == b"before"


def test_records_without_a_key_go_round_the_partitions_chunk_by_chunk() -> None:
    sticky = Sticky(lambda: 0.5)
    assert [sticky.take("a", 3) for _ in range(6)] == [1, 2, 0, 1, 2, 0]
    assert [sticky.take("b", 4) for _ in range(2)] == [2, 3]


def test_a_table_of_many_chunks_goes_whole_and_behind_what_was_sent_before() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        await producer.send("a", b"first")
        chunks = [pa.record_batch({"value": pa.array([b"%d" % n] * 20)}) for n in range(3)]
        await producer.send_arrow("a", pa.Table.from_batches(chunks))
        await producer.flush()

    log, _, _ = producing(work)
    assert log.values(0) == [b"first", *[b"0"] * 20, *[b"1"] * 20, *[b"2"] * 20]


def test_a_record_is_of_the_time_that_it_names_or_of_now() -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> None:
        await producer.send("a", b"v", timestamp_us=0)
        await producer.flush()
        await producer.send("a", b"w")
        await producer.flush()

    log, _, _ = producing(work)
    named, now = (batch.max_timestamp_us for batches in log.batches.values() for batch in batches)
    assert named == 0
    assert abs(now - time.time_ns() // 1_000) < 3_600 * 1_000_000


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"value": b"v", "partition": 9}, errors.UnknownPartition),
        ({"topic": "b", "value": b"v"}, errors.UnknownTopic),
    ],
    ids=["another partition", "another topic"],
)
def test_what_cannot_be_sealed_is_told_by_flush_and_holds_no_room(
    record: dict[str, Any], error: type[Exception]
) -> None:
    async def work(producer: Producer, transport: ScriptedTransport) -> int:
        await producer.send(**{"topic": "a", **record})
        with pytest.raises(error):
            await producer.flush()
        return producer.recorder.outstanding

    assert producing(work)[1] == 0


def test_a_partition_below_zero_is_refused_by_name_in_arrow_too() -> None:
    batch = pa.record_batch({"value": [b"v"], "partition": pa.array([-1], pa.int32())})
    (refused,) = seal_arrow(batch, layout()).pieces
    assert isinstance(refused, Refused)
    assert "not -1" in refused.error.message


def test_a_few_large_records_are_split_like_many_small_ones() -> None:
    sealed = seal_rows([(b"x" * 50_000, None, None, None)] * 10, layout(batch_bytes=64 * 1024))
    assert [batch.record_count for batch in sealed] == [1] * 10
