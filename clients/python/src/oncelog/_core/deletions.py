"""What a consumer does where the records that it should read next were deleted: by the topic's
retention, or by an operator. PURE.

    error      its user is told, at each poll, until he seeks
    earliest   it goes on at the first record that is kept
    latest     it goes on at the end

A leader says so by OFFSET_OUT_OF_RANGE, whose `start` lies above what it was asked for. One whose
start does not says that the partition ends before it: nobody deleted anything, and no option says
where to go on.

Invariant: nothing is passed over without a word. It is counted, each offset once, also where a
transaction is aborted and the same gap is met again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from oncelog._core.routing import PartitionKey
from oncelog.batch import TopicPartition
from oncelogpb import errors

ERROR: Final = "error"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
CHOICES: Final = (ERROR, EARLIEST, LATEST)


class Gap(NamedTuple):
    """Offsets that were deleted before they were read."""

    # What should be read next.
    position: int
    # First offset that is kept.
    start: int
    # One past the last that can be read.
    end: int


def gap_of(error: BaseException, position: int) -> Gap | None:
    """None: it says something else, or a leader that is older than deletions."""
    if not isinstance(error, errors.OffsetOutOfRange):
        return None
    start = _number(error.metadata, "start")
    if start is None or start <= position:
        return None
    end = _number(error.metadata, "end")
    return Gap(position, start, start if end is None else max(start, end))


class Deletions:
    """Of one consumer."""

    def __init__(self, if_deleted: str, *, noun: str = "offsets") -> None:
        """`noun`: what the positions of its view are called."""
        self._if_deleted = if_deleted
        self._noun = noun
        # By partition: how many were passed over, and up to where.
        self._counts: dict[PartitionKey, int] = {}
        self._passed_to: dict[PartitionKey, int] = {}
        # Told of each gap that is passed over: of which partition, where reading goes on, and by
        # which option.
        self.on_passed_over: Callable[[TopicPartition, Gap, int, str], object] = _says_nothing

    @property
    def are_passed_over(self) -> bool:
        """False: the user is told, and decides."""
        return self._if_deleted != ERROR

    def told(self, place: TopicPartition, gap: Gap) -> errors.OffsetOutOfRange:
        """What the user is told."""
        return errors.OffsetOutOfRange(
            f"{self._noun} {gap.position} to {gap.start - 1} of {place.topic!r} partition "
            f"{place.partition} were deleted, by its retention or an operator: it begins at "
            f"{gap.start} now. Seek there (seek_to_beginning), or let a consumer with "
            "if_deleted='earliest' go on there",
            topic=place.topic,
            partition=place.partition,
            position=gap.position,
            start=gap.start,
            end=gap.end,
        )

    def goes_on_at(self, gap: Gap) -> int:
        """Where whoever passes over goes on."""
        assert self.are_passed_over
        return gap.end if self._if_deleted == LATEST else gap.start

    def pass_over(self, partition: PartitionKey, place: TopicPartition, gap: Gap) -> str:
        """Counts it. Returns what is to be said of it."""
        to = self.goes_on_at(gap)
        self.on_passed_over(place, gap, to, self._if_deleted)
        fresh = to - max(gap.position, self._passed_to.get(partition, 0))
        if fresh > 0:
            self._counts[partition] = self._counts.get(partition, 0) + fresh
            self._passed_to[partition] = to
        return (
            f"{place.topic!r} partition {place.partition}: {self._noun} {gap.position} to "
            f"{gap.start - 1} were deleted before they were read; goes on at {to} "
            f"(if_deleted={self._if_deleted!r}), and passes over {to - gap.position}"
        )

    def begin_later(self, place: TopicPartition, gap: Gap) -> None:
        """Who was to begin at the first record that is kept begins where that is now: nothing was
        passed over."""
        self.on_passed_over(place, gap, gap.start, EARLIEST)

    def counts(self, names: Mapping[PartitionKey, TopicPartition]) -> dict[TopicPartition, int]:
        """How many offsets were passed over, of those partitions where some were."""
        found = {names[key]: count for key, count in self._counts.items() if key in names}
        return dict(sorted(found.items()))


def _says_nothing(place: TopicPartition, gap: Gap, to: int, if_deleted: str) -> None:
    """Nobody wants to know."""


def _number(metadata: Mapping[str, str], name: str) -> int | None:
    text = metadata.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
