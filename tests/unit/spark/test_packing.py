"""Ranges into tasks: each in exactly one, few of them where the batch is small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncelog_spark.offsets import OffsetRange, TopicPartition
from oncelog_spark.packing import (
    TASK_BYTES,
    TASK_RANGES_MAX,
    TASK_RECORDS,
    packed,
    tasks_at_least,
)

lengths = st.lists(st.integers(1, 3 * TASK_RECORDS), max_size=40)


def of(sizes: list[int]) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition("t", n), n, n + size) for n, size in enumerate(sizes)]


def sizes_of(tasks: list[tuple[OffsetRange, ...]]) -> list[int]:
    return sorted(sum(part.offset_count for part in task) for task in tasks)


@given(lengths, st.one_of(st.none(), st.integers(1, 60)), st.one_of(st.none(), st.integers(1, 9)))
def test_i14_each_range_is_in_exactly_one_task(
    sizes: list[int], least: int | None, most: int | None
) -> None:
    ranges = of(sizes)
    tasks = packed(ranges, min_partitions=least, max_records=most)
    assert sorted(part for task in tasks for part in task) == ranges
    assert all(tasks), "no task reads nothing"
    assert len(tasks) >= min(least or 0, len(ranges))


@given(lengths, st.integers(1, 3 * TASK_RECORDS))
def test_no_task_has_more_records_than_was_asked_for(sizes: list[int], most: int) -> None:
    ranges = of([min(size, most) for size in sizes])
    assert all(size <= most for size in sizes_of(packed(ranges, max_records=most)))


def test_a_small_batch_is_one_task_and_a_large_one_a_task_for_each_range() -> None:
    small = of([TASK_RECORDS // 6] * 6)
    assert packed(small) == [tuple(small)]
    large = of([TASK_RECORDS] * 6)
    assert packed(large) == [(part,) for part in large]
    assert packed([]) == []


def test_i34_a_batch_that_carries_positions_has_a_task_beside_one_that_fails() -> None:
    """Else nobody tells the driver whose transaction that was."""
    assert tasks_at_least(None) == 1
    assert tasks_at_least("") == tasks_at_least("enricher") == 2


def test_tasks_are_of_similar_size() -> None:
    tasks = packed(of([40_000, 30_000, 20_000, 10_000]))
    assert sizes_of(tasks) == [50_000, 50_000]


def test_large_records_make_more_tasks() -> None:
    ranges = of([100] * 6)
    assert len(packed(ranges, record_bytes=TASK_BYTES / 300)) == 2
    assert len(packed(ranges, record_bytes=TASK_BYTES)) == 6


def test_ranges_of_one_partition_never_share_a_task() -> None:
    halves = [OffsetRange(TopicPartition("t", 0), 0, 5), OffsetRange(TopicPartition("t", 0), 5, 9)]
    other = [OffsetRange(TopicPartition("u", n), 0, 1) for n in range(2)]
    assert packed([*halves, *other]) == [
        (halves[0], other[1]),
        (halves[1], other[0]),
    ]


def test_a_task_has_not_more_ranges_than_wait_for_each_other() -> None:
    tasks = packed(of([1] * (TASK_RANGES_MAX * 3)))
    assert [len(task) for task in tasks] == [TASK_RANGES_MAX] * 3
