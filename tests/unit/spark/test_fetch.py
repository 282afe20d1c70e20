"""One task reads its range: each record of it once, whatever the batches and fetches (I14, I34)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from bisect import bisect_right
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.protocol import Protocol
from oncelog_spark import fetch
from oncelog_spark.fetch import Chunk, DataLoss, RangeOf, RangeReader
from oncelog_spark.offsets import OffsetRange, TopicPartition
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as pb
from tests.unit.client.compacted import partition_of
from tests.unit.spark.leaders import TOPIC_ID, Leaders

PARTITION = pb.Partition(topic_id=TOPIC_ID, number=0)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def read_range(
    protocol: Protocol, start: int, end: int, *, mind: bool = True, timeout_ms: int = 60_000
) -> Generator[Chunk]:
    part = RangeOf(PARTITION, OffsetRange(T0, start, end))
    reader = RangeReader(protocol, [part], fail_on_data_loss=mind, timeout_ms=timeout_ms)
    with contextlib.closing(reader):
        yield from reader


def offsets(
    leaders: Leaders, start: int, end: int, *, mind: bool = True, timeout_ms: int = 60_000
) -> list[tuple[int, int]]:
    """(offset as it is given, offset that the value names) of each record."""
    return [
        (offset, int(value))
        for chunk in read_range(leaders.protocol, start, end, mind=mind, timeout_ms=timeout_ms)
        for offset, value in zip(
            chunk.offsets.tolist(), chunk.rows.column("value").to_pylist(), strict=True
        )
    ]


def both(numbers: range) -> list[tuple[int, int]]:
    return [(number, number) for number in numbers]


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=8),
    st.integers(1, 3),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_i14_a_range_is_read_whole_and_nothing_beside_it(
    sizes: list[int], per_fetch: int, edges: tuple[float, float]
) -> None:
    start, end = sorted(int(edge * sum(sizes)) for edge in edges)
    assert offsets(Leaders(sizes, batches_per_fetch=per_fetch), start, end) == both(
        range(start, end)
    )


def test_an_empty_range_gives_nothing() -> None:
    assert offsets(Leaders([5]), 3, 3) == []


def test_only_what_is_committed_is_asked_for_and_each_offset_once() -> None:
    leaders = Leaders([4, 4, 4], batches_per_fetch=1)
    offsets(leaders, 0, 12)
    requests = leaders.of("fetch")
    assert {request.isolation for request in requests} == {leader.ISOLATION_COMMITTED}
    assert [request.partitions[0].offset for request in requests] == [0, 4, 8]


def test_i14_offsets_are_kept_where_records_between_were_compacted_away() -> None:
    leaders = Leaders([4, 2, 3, 1, 2], batches_per_fetch=5)
    inner = leaders._fetched

    def with_holes(wanted: leader.FetchPartition) -> leader.FetchedPartition:
        """4, 5 and 9 are not there any more."""
        found = inner(wanted)
        kept = [batch for batch in found.batches if batch.first_offset not in (4, 9)]
        del found.batches[:]
        found.batches.extend(kept)
        return found

    leaders._fetched = with_holes  # type: ignore[method-assign]
    kept = [0, 1, 2, 3, 6, 7, 8, 10, 11]
    for start in range(12):
        for end in range(start, 13):
            assert offsets(leaders, start, end) == [(n, n) for n in kept if start <= n < end]


@pytest.mark.parametrize("seed", range(40))
def test_i14_ranges_of_a_compacted_topic_have_what_is_left_of_them(seed: int) -> None:
    """However the ranges are cut, also where nothing is left of one, and at the end of the log;
    what was taken out is no loss."""
    dice = random.Random(seed)
    log = partition_of(dice, kept_share=dice.random())
    blocks = list(log.blocks())

    def serves(request: leader.FetchRequest) -> leader.FetchReply:
        assert request.with_offsets
        [asked] = request.partitions
        begin = bisect_right(log.edges, asked.offset)
        told = [batch for block in blocks[begin:][: dice.randrange(1, 3)] for batch in block]
        part = leader.FetchedPartition(partition=PARTITION, end_offset=log.end, batches=told)
        return leader.FetchReply(partitions=[part])

    leaders = Leaders([log.end])
    leaders.script["fetch"] = [serves] * 1000
    edges = sorted({0, log.end, *(dice.randrange(log.end + 1) for _ in range(4))})
    found = [
        (low, offset, value)
        for low, high in pairwise(edges)
        for chunk in read_range(leaders.protocol, low, high)
        for offset, value in zip(
            chunk.offsets.tolist(), chunk.rows.column("value").to_pylist(), strict=True
        )
    ]
    assert found == [
        (max(edge for edge in edges if edge <= it.offset), it.offset, it.value) for it in log.kept
    ]


def test_nothing_for_a_while_is_waited_for_and_for_ever_is_a_loss() -> None:
    patience = 3 * fetch.FETCH_WAIT_MS
    nothing = leader.FetchReply(partitions=[leader.FetchedPartition(partition=PARTITION)])
    leaders = Leaders([3, 3])
    leaders.script["fetch"] = [nothing, nothing]
    assert offsets(leaders, 0, 6, timeout_ms=patience) == both(range(6))
    leaders.script["fetch"] = [nothing] * 9
    with pytest.raises(DataLoss, match="t/0 at offset 0, though 6 is the end"):
        offsets(leaders, 0, 6, timeout_ms=patience)
    assert len(leaders.script["fetch"]) in (5, 6), "it gave up after the third"


def test_what_was_deleted_is_a_loss_or_passed_over_as_the_option_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leaders = Leaders([4, 4])
    leaders.starts = [10]
    told = "t/0: offsets 7 to 9 are deleted"
    with pytest.raises(
        DataLoss, match=rf"{told}, it begins at 10 \(3 offsets\).*failOnDataLoss=false"
    ):
        offsets(leaders, 7, 14)
    assert caplog.messages == []
    assert offsets(leaders, 7, 14, mind=False) == both(range(10, 14))
    (warning,) = caplog.messages
    assert told in warning


def test_what_is_deleted_while_a_task_reads_is_a_loss_or_passed_over() -> None:
    def reading(*, mind: bool) -> list[tuple[int, int]]:
        leaders = Leaders([4, 4, 4, 4], batches_per_fetch=1)

        def deletes(request: leader.FetchRequest) -> leader.FetchReply:
            # Behind the first fetch, and before the second.
            reply = leaders._fetch(request)
            leaders.starts, leaders.logs = [8], [[4, 4]]
            return reply

        leaders.script["fetch"] = [deletes]
        return offsets(leaders, 0, 16, mind=mind)

    with pytest.raises(DataLoss, match="t/0: offsets 4 to 7 are deleted"):
        reading(mind=True)
    assert reading(mind=False) == both(range(4)) + both(range(8, 16))


def test_a_whole_range_that_was_deleted_is_passed_over() -> None:
    leaders = Leaders([4])
    leaders.starts = [100]
    with pytest.raises(DataLoss, match="t/0: offsets 5 to 9 are deleted, it begins at 100"):
        offsets(leaders, 5, 10)
    assert offsets(leaders, 5, 10, mind=False) == []


def test_a_position_behind_the_end_is_a_loss_whatever_the_option_says() -> None:
    with pytest.raises(DataLoss, match="offset 6 cannot be read"):
        offsets(Leaders([4]), 6, 8, mind=False)


def test_an_error_of_the_partition_fails_the_task() -> None:
    leaders = Leaders([4])
    part = leader.FetchedPartition(
        partition=PARTITION, error=errors.to_status(errors.CorruptLog("bad"))
    )
    leaders.script["fetch"] = [leader.FetchReply(partitions=[part])]
    with pytest.raises(errors.CorruptLog):
        offsets(leaders, 0, 4)


# --------------------------------------------------------------------------- many ranges, one task


def by_partition(reader: RangeReader) -> dict[TopicPartition, list[int]]:
    found: dict[TopicPartition, list[int]] = {}
    with contextlib.closing(reader):
        for chunk in reader:
            values = [int(value) for value in chunk.rows.column("value").to_pylist()]
            assert chunk.offsets.tolist() == values
            found.setdefault(chunk.partition, []).extend(values)
    return found


def ranges_of(*bounds: tuple[int, int]) -> list[RangeOf]:
    return [
        RangeOf(
            pb.Partition(topic_id=TOPIC_ID, number=number),
            OffsetRange(TopicPartition("t", number), *edges),
        )
        for number, edges in enumerate(bounds)
    ]


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=5),
    st.integers(1, 3),
    st.data(),
)
def test_i14_ranges_that_share_a_task_are_read_whole_and_in_order(
    logs: list[list[int]], per_fetch: int, data: st.DataObject
) -> None:
    bounds = [
        (data.draw(st.integers(0, sum(log) // 2)), data.draw(st.integers(sum(log) // 2, sum(log))))
        for log in logs
    ]
    leaders = Leaders(*logs, batches_per_fetch=per_fetch)
    parts = ranges_of(*bounds)
    reader = RangeReader(leaders.protocol, parts, fail_on_data_loss=True, timeout_ms=60_000)
    assert by_partition(reader) == {
        part.range.partition: list(range(part.range.start, part.range.end))
        for part in parts
        if part.range.offset_count
    }


def test_ranges_that_share_a_task_share_their_fetches() -> None:
    leaders = Leaders([4], [4, 4], [4], batches_per_fetch=1)
    reader = RangeReader(
        leaders.protocol,
        ranges_of((0, 4), (0, 8), (1, 4)),
        fail_on_data_loss=True,
        timeout_ms=60_000,
    )
    by_partition(reader)
    asked = [
        [(part.partition.number, part.offset) for part in request.partitions]
        for request in leaders.of("fetch")
    ]
    assert asked == [[(0, 0), (1, 0), (2, 1)], [(1, 4)]]


def test_what_was_deleted_of_one_range_keeps_no_other_back() -> None:
    leaders = Leaders([4], [4])
    leaders.starts = [10, 0]
    parts = ranges_of((7, 14), (0, 4))
    with pytest.raises(DataLoss, match="t/0: offsets 7 to 9"):
        by_partition(
            RangeReader(leaders.protocol, parts, fail_on_data_loss=True, timeout_ms=60_000)
        )
    goes_on = RangeReader(leaders.protocol, parts, fail_on_data_loss=False, timeout_ms=60_000)
    assert by_partition(goes_on) == {T0: [10, 11, 12, 13], T1: [0, 1, 2, 3]}


def test_a_reader_that_is_closed_early_asks_for_no_more() -> None:
    leaders = Leaders([4] * 50, batches_per_fetch=1)
    reader = RangeReader(
        leaders.protocol, ranges_of((0, 200)), fail_on_data_loss=True, timeout_ms=60_000
    )
    with contextlib.closing(reader):
        next(iter(reader))
    # One that was given, and one ahead of it.
    assert len(leaders.of("fetch")) <= 2


def test_large_batches_are_not_joined_and_small_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes(joined_bytes: int) -> list[int]:
        monkeypatch.setattr(fetch, "JOINED_BYTES", joined_bytes)
        leaders = Leaders([3] * 6, batches_per_fetch=6)
        return [chunk.rows.num_rows for chunk in read_range(leaders.protocol, 0, 18)]

    assert sizes(1_000_000) == [18]
    assert sizes(1) == [3] * 6


def test_only_columns_that_are_asked_for_are_given() -> None:
    leaders = Leaders([2, 2])
    reader = RangeReader(
        leaders.protocol,
        ranges_of((0, 4)),
        fail_on_data_loss=True,
        timeout_ms=60_000,
        columns=["timestamp"],
    )
    assert [chunk.rows.schema.names for chunk in reader] == [["timestamp"]]


@pytest.mark.parametrize("breaks", ["error", "part", "silent", ""])
@pytest.mark.parametrize("streamed", [0, 1, 3, 100])
def test_i14_a_long_range_is_read_whole_however_its_stream_ends(
    monkeypatch: pytest.MonkeyPatch, streamed: int, breaks: str
) -> None:
    monkeypatch.setattr(fetch, "STREAMED_BYTES_MIN", 100)
    if streamed < 100:
        # Where nothing breaks, nobody may take a busy machine for silence.
        monkeypatch.setattr(fetch, "FETCH_WAIT_MS", 50)
    leaders = Leaders([3] * 30, batches_per_fetch=2)
    leaders.streamed, leaders.breaks = streamed, breaks
    assert offsets(leaders, 4, 85) == both(range(4, 85))
    asked = leaders.of("subscribe")
    assert asked, "it is long"
    for request in asked:
        assert request.isolation == leader.ISOLATION_COMMITTED
        assert request.with_offsets
    fetches = len(leaders.of("fetch"))
    assert fetches == 1 if streamed == 100 else fetches > 1


def test_a_short_range_is_not_streamed() -> None:
    leaders = Leaders([3] * 30, batches_per_fetch=2)
    offsets(leaders, 4, 85)
    assert not leaders.of("subscribe")


def test_a_stream_is_closed_with_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "STREAMED_BYTES_MIN", 1)
    leaders = Leaders([3] * 30, batches_per_fetch=1)
    leaders.streamed, leaders.breaks = 100, "silent"
    with contextlib.closing(read_range(leaders.protocol, 0, 90)) as chunks:
        taken = [len(next(chunks).offsets) for _ in range(4)]
    assert taken == [3, 3, 3, 3]
    # What lies ready is bounded: nobody streams the rest.
    assert len(leaders.of("subscribe")) == 1
    assert leaders.run(_tasks) == 1


async def _tasks(_protocol: Any) -> int:
    """Tasks on the loop, with this one, once those that end have."""
    for _ in range(10):
        await asyncio.sleep(0)
    return len(asyncio.all_tasks())
