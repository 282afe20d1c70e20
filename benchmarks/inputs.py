"""Topics that are read and not written: filled once in a run for each side and shape, then read
again in each round. What is read comes from the page cache, as a consumer that is not far behind
gets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from benchmarks.measure import Shape

# So many for each second of a round: what a pass takes must be well above what it takes to begin,
# and what a pipeline reads must not end before its time.
RECORDS_PER_SECOND: Final = 400_000
BYTES_PER_SECOND: Final = 120_000_000
RECORDS_MIN: Final = 20_000


class Input(NamedTuple):
    topic: str
    records: int


class Inputs:
    """Of one side: `create(topic, partitions)` and `fill(topic, value, records)` are its own."""

    def __init__(
        self,
        create: Callable[[str, int], None],
        fill: Callable[[str, bytes, int], None],
    ) -> None:
        self._create = create
        self._fill = fill
        self._made: dict[tuple[int, int, int], Input] = {}

    def of(self, shape: Shape, seconds: float) -> Input:
        records = records_for(shape.value_bytes, seconds)
        key = (shape.value_bytes, shape.partitions, records)
        if key not in self._made:
            topic = "input-{}-{}-{}".format(*key)
            self._create(topic, shape.partitions)
            self._fill(topic, b"v" * shape.value_bytes, records)
            self._made[key] = Input(topic, records)
        return self._made[key]


def records_for(value_bytes: int, seconds: float) -> int:
    fitting = min(RECORDS_PER_SECOND, BYTES_PER_SECOND // value_bytes)
    return max(int(fitting * seconds), RECORDS_MIN)
