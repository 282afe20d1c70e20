"""What stands in a topic, for those who check it."""

from __future__ import annotations

import oncelog
from oncelog.batch import Record, TopicPartition

# A bound that only ends a test that would hang.
COMES_WITHIN_S = 30.0


def read_all(log: oncelog.Log, topic: str) -> list[Record]:
    """All that is readable now, by partition and offset. Offsets have no gaps (I14)."""
    ends = dict(enumerate(log.admin.offsets(topic)))
    found: list[Record] = []
    with log.consumer([topic]) as consumer:
        left = {TopicPartition(topic, number) for number, end in ends.items() if end}
        while left:
            batch = consumer.poll(COMES_WITHIN_S)
            assert batch is not None, f"nothing more of {left} came, of ends {ends}"
            found.extend(record for record in batch if record.offset < ends[record.partition])
            reached = batch.next_offsets().items()
            left -= {place for place, to in reached if to >= ends[place.partition]}
    found.sort(key=lambda record: (record.partition, record.offset))
    for number, end in ends.items():
        offsets = [record.offset for record in found if record.partition == number]
        assert offsets == list(range(end)), f"partition {number} of {topic} has gaps or repeats"
    return found


def values(log: oncelog.Log, topic: str) -> list[bytes]:
    """The same, values only."""
    return [record.value or b"" for record in read_all(log, topic)]


def next_values(consumer: oncelog.Consumer, count: int) -> list[bytes]:
    """The next so many."""
    found: list[bytes] = []
    while len(found) < count:
        batch = consumer.poll(COMES_WITHIN_S)
        assert batch is not None, f"{len(found)} of {count} records came"
        found += [record.value or b"" for record in batch]
    assert len(found) == count, "and no more"
    return found
