"""PURE: positions of many partitions, as Spark stores them, limits them and splits them.

A position vector is written as the Kafka source writes it, {"topic": {"0": 5}}, so that what users
know works as `startingOffsets`. In checkpoints an entry "~topicIds" is added, which no topic can be
named: a topic that was deleted and created again is another topic. The first batch's end also says,
under "~from", where that batch begins: Spark writes it down nowhere, and asks the source again.

Invariants: positions are offsets of the committed log, and may be those of records that compaction
took out; ranges are half-open; a limited step takes min(limit, backlog) offsets exactly and never
goes back. A compacted topic has fewer records than offsets.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

# Entries that are no topics begin with it.
OWN: Final = "~"
TOPIC_IDS: Final = "~topicIds"
FROM: Final = "~from"
# In JSON, as in the Kafka source: an edge of the partition instead of an offset.
EARLIEST_MARK: Final = -2
LATEST_MARK: Final = -1


class TopicPartition(NamedTuple):
    """A partition as users name it."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


# Next offset to read, by partition.
Positions = Mapping[TopicPartition, int]


class Edge(Enum):
    """A place that each partition knows for itself."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Vector:
    """What a checkpoint holds: positions, and the ids that the topics had."""

    positions: Positions
    topic_ids: Mapping[str, str]
    # Where the first batch of a query begins; None: of another batch.
    begin: Positions | None = None

    @property
    def is_initial(self) -> bool:
        """Where a query begins; and where its first batch ends, if that is empty."""
        return self.begin == self.positions


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def offset_count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Times:
    """Places by time, milliseconds since the epoch: the first record at or after it."""

    # One for all partitions, or one for each.
    of: int | Mapping[TopicPartition, int]

    def at(self, partition: TopicPartition) -> int:
        return self.of if isinstance(self.of, int) else self.of[partition]


# Where a read begins or ends, as an option says it.
Place = Edge | Positions | Times


class Loss(NamedTuple):
    """A position that the log cannot serve (any more)."""

    partition: TopicPartition
    position: int
    earliest: int
    latest: int

    def __str__(self) -> str:
        if self.position < self.earliest:
            return (
                f"{self.partition}: offsets {self.position} to {self.earliest - 1} are deleted, it "
                f"begins at {self.earliest} ({counted(self.offset_count)})"
            )
        return f"{self.partition}: it ends at {self.latest}, before {self.position}"

    @property
    def offset_count(self) -> int:
        """Of the offsets that are deleted."""
        return max(0, self.earliest - self.position)


def counted(offset_count: int) -> str:
    """Of offsets, not of records: a compacted topic has fewer of these."""
    return f"{offset_count:,} offset{'' if offset_count == 1 else 's'}"


def parse_positions(text: str) -> dict[TopicPartition, int]:
    """{"topic": {"0": 5}} as users write it; -2 stands for earliest, -1 for latest. Raises
    ValueError."""
    positions = _by_partition(text, 'must be earliest, latest or JSON like {"topic": {"0": 5}}')
    if any(offset < EARLIEST_MARK for offset in positions.values()):
        raise ValueError("offsets are whole numbers from 0, or -2 (earliest), or -1 (latest)")
    return positions


def parse_times(text: str) -> Times:
    """{"topic": {"0": 1767225600000}}. Raises ValueError."""
    times = _by_partition(text, 'must be JSON like {"topic": {"0": 1767225600000}}')
    if any(time_ms < 0 for time_ms in times.values()):
        raise ValueError("times are milliseconds since 1970, whole numbers from 0")
    return Times(times)


def _by_partition(text: str, shape: str) -> dict[TopicPartition, int]:
    try:
        parsed = json.loads(text)
        numbers = {
            TopicPartition(str(topic), int(number)): _whole(value)
            for topic, values in parsed.items()
            if not topic.startswith(OWN)
            for number, value in values.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{shape}, not {text}") from None
    if not numbers:
        raise ValueError(f"{shape}, not empty")
    if any(partition.number < 0 for partition in numbers):
        raise ValueError(f"{shape}, with partitions from 0")
    return numbers


def to_json(vector: Vector) -> dict[str, Any]:
    """For Spark's checkpoint; the same vector always gives the same text."""
    document = positions_json(vector.positions)
    document[TOPIC_IDS] = {topic: vector.topic_ids[topic] for topic in sorted(vector.topic_ids)}
    if vector.begin is not None:
        document[FROM] = positions_json(vector.begin)
    return document


def positions_json(positions: Positions) -> dict[str, Any]:
    """{"topic": {"0": 5}}, in order."""
    document: dict[str, Any] = {}
    for partition in sorted(positions):
        entry = document.setdefault(partition.topic, {})
        entry[str(partition.number)] = positions[partition]
    return document


def from_json(document: Mapping[str, Any]) -> Vector:
    """The way back."""
    begin = document.get(FROM)
    return Vector(
        _positions(document),
        dict(document.get(TOPIC_IDS, {})),
        None if begin is None else _positions(begin),
    )


def _positions(document: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, numbers in document.items()
        if not topic.startswith(OWN)
        for number, offset in numbers.items()
    }


def limit_step(start: Positions, latest: Positions, limit: int) -> dict[TopicPartition, int]:
    """Where a step of at most `limit` offsets ends: each partition gets its share by backlog, what
    rounding leaves goes to the largest remainders. Partitions that `start` lacks do not move."""
    behind = backlog(start, latest)
    total = sum(behind.values())
    step = min(limit, total)
    share = {tp: step * lag // total if total else 0 for tp, lag in behind.items()}
    left = step - sum(share.values())
    by_remainder = sorted(behind, key=lambda tp: (-(step * behind[tp] % max(total, 1)), tp))
    for partition in by_remainder[:left]:
        share[partition] += 1
    return {tp: start.get(tp, latest[tp]) + share[tp] for tp in latest}


def forward(start: Positions, latest: Positions) -> dict[TopicPartition, int]:
    """`latest`, but never behind `start`."""
    return {tp: max(end, start.get(tp, end)) for tp, end in latest.items()}


def kept(positions: Positions, *, earliest: Positions) -> dict[TopicPartition, int]:
    """`positions`, but never below what is kept."""
    return {tp: max(position, earliest.get(tp, position)) for tp, position in positions.items()}


def losses(positions: Positions, *, earliest: Positions, latest: Positions) -> list[Loss]:
    """Positions outside of what the log holds."""
    return [
        Loss(tp, position, earliest[tp], latest[tp])
        for tp, position in sorted(positions.items())
        if not earliest[tp] <= position <= latest[tp]
    ]


def replaced_topics(now: Mapping[str, str], then: Mapping[str, str]) -> list[str]:
    """Topics whose id changed: deleted and created again."""
    return sorted(topic for topic, known in then.items() if now.get(topic, known) != known)


def backlog(start: Positions, latest: Positions) -> dict[TopicPartition, int]:
    """Offsets that are there to be read, of each partition. One that `start` lacks has none yet."""
    return {tp: max(0, end - start.get(tp, end)) for tp, end in latest.items()}


def ranges(
    start: Positions,
    end: Positions,
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """What to read, in one range per partition, or in more: none longer than `max_records`, and
    then at least about `min_partitions` of similar size. Empty partitions have none."""
    pieces = [OffsetRange(tp, start[tp], end[tp]) for tp in sorted(end) if start[tp] < end[tp]]
    if max_records is not None:
        pieces = [
            piece for part in pieces for piece in _split(part, -(-part.offset_count // max_records))
        ]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    total = sum(part.offset_count for part in pieces)
    return [
        piece
        for part in pieces
        for piece in _split(part, round(min_partitions * part.offset_count / total))
    ]


def _split(part: OffsetRange, wanted: int) -> Sequence[OffsetRange]:
    pieces = min(max(wanted, 1), part.offset_count)
    edges = [part.start + part.offset_count * piece // pieces for piece in range(pieces + 1)]
    return [OffsetRange(part.partition, low, high) for low, high in itertools.pairwise(edges)]


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value
