"""PURE: how many tasks read a batch, and which ranges each of them reads.

A task costs Spark about as much as reading tens of thousands of records: two Python workers take
it up, each with its own hand-shake. So the ranges of a small batch share tasks, and a large batch
has one task for each range, as the Kafka source has.

Invariants: each range is in exactly one task; ranges of one partition never share one, for a fetch
names a partition once; the order within a range is that of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oncelog_spark.offsets import OffsetRange, TopicPartition

# What is read by one task rather than by two. Of records; and of bytes, as far as they are known.
TASK_RECORDS: Final = 50_000
TASK_BYTES: Final = 16 * 1024 * 1024
# Of a batch whose positions its transaction carries, as far as it has ranges.
TASKS_OF_A_TRANSACTION: Final = 2
# Partitions that one fetch may name are far more; a task that waits for one holds back the others.
TASK_RANGES_MAX: Final = 100


def packed(
    ranges: Sequence[OffsetRange],
    *,
    record_bytes: float = 0.0,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """Ranges by task, similar in size. `record_bytes`: of a record, as far as it is known; 0: it is
    not. `min_partitions` and `max_records` ask for more tasks."""
    total = sum(part.offset_count for part in ranges)
    tasks = max(
        min_partitions or 1,
        -(-total // TASK_RECORDS),
        -(-int(total * record_bytes) // TASK_BYTES),
        -(-total // max_records) if max_records else 1,
        -(-len(ranges) // TASK_RANGES_MAX),
    )
    if tasks >= len(ranges):
        return [(part,) for part in ranges]
    bins: list[_Task] = [_Task() for _ in range(tasks)]
    # The largest first, each into the task that has least so far.
    for part in sorted(ranges, key=lambda part: (-part.offset_count, part)):
        fitting = [task for task in bins if task.takes(part, max_records)]
        if not fitting:
            bins.append(fitting_task := _Task())
            fitting = [fitting_task]
        min(fitting, key=lambda task: task.offset_count).add(part)
    return [tuple(sorted(task.parts)) for task in bins if task.parts]


def tasks_at_least(transactional_sink: str | None) -> int:
    """By what becomes of a batch that fails: the driver knows whose transaction to end only where
    one task at least succeeded. What is left open holds the group's positions, and a query that
    begins anew waits for their time to be over."""
    return 1 if transactional_sink is None else TASKS_OF_A_TRANSACTION


class _Task:
    """Ranges that are gathered for one task."""

    def __init__(self) -> None:
        self.parts: list[OffsetRange] = []
        self.offset_count = 0
        self._partitions: set[TopicPartition] = set()

    def takes(self, part: OffsetRange, max_records: int | None) -> bool:
        if part.partition in self._partitions or len(self.parts) >= TASK_RANGES_MAX:
            return False
        return max_records is None or self.offset_count + part.offset_count <= max_records

    def add(self, part: OffsetRange) -> None:
        self.parts.append(part)
        self.offset_count += part.offset_count
        self._partitions.add(part.partition)
