"""PURE: positions of many partitions, as Spark stores them, limits them and splits them.

A position vector is written as the Kafka source writes it, {"topic": {"0": 5}}, so that what users
know works as `startingOffsets`. In checkpoints an entry "~topicIds" is added, which no topic can be
named: a topic that was deleted and created again is another topic.

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

TOPIC_IDS: Final = "~topicIds"
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


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def offset_count(self) -> int:
        return self.end - self.start


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
                f"begins at {self.earliest}"
            )
        return f"{self.partition}: it ends at {self.latest}, before {self.position}"


def parse_positions(text: str) -> dict[TopicPartition, int]:
    """{"topic": {"0": 5}} as users write it; -2 stands for earliest, -1 for latest. Raises
    ValueError."""
    shape = 'must be earliest, latest or JSON like {"topic": {"0": 5}}'
    try:
        parsed = json.loads(text)
        positions = {
            TopicPartition(str(topic), int(number)): _whole(offset)
            for topic, numbers in parsed.items()
            if topic != TOPIC_IDS
            for number, offset in numbers.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{shape}, not {text}") from None
    if not positions:
        raise ValueError(f"{shape}, not empty")
    if any(offset < EARLIEST_MARK or tp.number < 0 for tp, offset in positions.items()):
        raise ValueError("offsets are whole numbers from 0, or -2 (earliest), or -1 (latest)")
    return positions


def to_json(vector: Vector) -> dict[str, Any]:
    """For Spark's checkpoint; the same vector always gives the same text."""
    document: dict[str, Any] = {}
    for partition in sorted(vector.positions):
        entry = document.setdefault(partition.topic, {})
        entry[str(partition.number)] = vector.positions[partition]
    document[TOPIC_IDS] = {topic: vector.topic_ids[topic] for topic in sorted(vector.topic_ids)}
    return document


def from_json(document: Mapping[str, Any]) -> Vector:
    """The way back."""
    positions = {
        TopicPartition(topic, int(number)): int(offset)
        for topic, numbers in document.items()
        if topic != TOPIC_IDS
        for number, offset in numbers.items()
    }
    return Vector(positions, dict(document.get(TOPIC_IDS, {})))


def limit_step(start: Positions, latest: Positions, limit: int) -> dict[TopicPartition, int]:
    """Where a step of at most `limit` offsets ends: each partition gets its share by backlog, what
    rounding leaves goes to the largest remainders. Partitions that `start` lacks do not move."""
    backlog = {tp: max(0, end - start.get(tp, end)) for tp, end in latest.items()}
    total = sum(backlog.values())
    step = min(limit, total)
    share = {tp: step * lag // total if total else 0 for tp, lag in backlog.items()}
    left = step - sum(share.values())
    by_remainder = sorted(backlog, key=lambda tp: (-(step * backlog[tp] % max(total, 1)), tp))
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


def ranges(
    start: Positions, end: Positions, *, min_partitions: int | None = None
) -> list[OffsetRange]:
    """What to read, in one range per partition, or in at least about `min_partitions` ranges of
    similar size. Empty partitions have none."""
    whole = [OffsetRange(tp, start[tp], end[tp]) for tp in sorted(end) if start[tp] < end[tp]]
    if min_partitions is None or len(whole) >= min_partitions:
        return whole
    total = sum(part.offset_count for part in whole)
    pieces: list[OffsetRange] = []
    for part in whole:
        wanted = max(1, round(min_partitions * part.offset_count / total))
        pieces.extend(_split(part, min(wanted, part.offset_count)))
    return pieces


def _split(part: OffsetRange, pieces: int) -> Sequence[OffsetRange]:
    edges = [part.start + part.offset_count * piece // pieces for piece in range(pieces + 1)]
    return [OffsetRange(part.partition, low, high) for low, high in itertools.pairwise(edges)]


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value
