"""What becomes of records: from the chunk that they were put into to where they stand.

A *chunk* holds the records that were put between two sealings of one topic. Sealing makes *parts*
of it: a batch of one partition each, or one record that was refused. A record is known by its row
in the chunk; where it stands follows from its place in the part. Nothing is kept per record, and
nothing at all once nobody asks: receipts hold their chunk, chunks know nothing of receipts.

Records of a transaction become known with its verdict, all at once.

Threads: everything here changes on the loop, and may be read by others: what is set last
(`settled`, `parts`, `done`) says that all else is there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from oncelog._core.routing import PartitionKey
from oncelogpb import errors

# Ranks of a chunk's records (their places in its parts, one after the other) -> their rows.
Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of one record."""

    topic: str
    # None: it was refused before it was given one.
    partition: int | None
    # Offset in the committed log. None: it failed; or its transaction's commit did not wait until
    # it was visible (`wait="visible"`).
    offset: int | None
    # Microseconds since 1970: the one that `send` named, or the time of sealing.
    timestamp_us: int
    # Which record it was: those of a producer (or transaction) and topic are counted from 0 in the
    # order of `send`; those of a table by their row.
    index: int
    # Why it is not there, or may not be. None: it is.
    error: errors.OncelogError | None = None


class Part:
    """Records of one chunk that share a fate: a batch, or a single one that was refused."""

    __slots__ = ("base", "count", "deliveries", "error", "offset", "partition", "settled", "start")

    def __init__(
        self,
        deliveries: Deliveries,
        start: int,
        count: int,
        partition: PartitionKey | None,
        error: errors.OncelogError | None,
    ) -> None:
        """`start`: its first rank. `partition` None: it was refused, for `error`."""
        # None once it is settled: they know each other no longer than they must.
        self.deliveries: Deliveries | None = deliveries
        self.start = start
        self.count = count
        self.partition = partition
        # Sequence of its first record: in a transaction, its place among all of the partition.
        self.base = 0
        self.offset: int | None = None
        self.error = error
        self.settled = False

    def succeed(self, offset: int | None) -> None:
        """It is durable. `offset` is of its first record, where the leader said one."""
        self.offset = offset
        self._settle()

    def fail(self, error: errors.OncelogError) -> None:
        """None of it will be tried again."""
        self.error = error
        self._settle()

    def _settle(self) -> None:
        deliveries, self.deliveries = self.deliveries, None
        if deliveries is not None:
            self.settled = True
            deliveries.settle(self)


class Verdict:
    """What became of a transaction, for its records."""

    __slots__ = ("_firsts", "done", "error", "waiters")

    def __init__(self) -> None:
        self.done = False
        self.error: errors.OncelogError | None = None
        self._firsts: Mapping[PartitionKey, int] = {}
        self.waiters: list[Callable[[], None]] = []

    def commit(self, firsts: Mapping[PartitionKey, int]) -> None:
        """It is committed; `firsts` are the offsets of its first records, where they are known."""
        self._firsts = firsts
        self._end()

    def fail(self, error: errors.OncelogError) -> None:
        """It is aborted, or nobody could say. What comes first counts."""
        if not self.done:
            self.error = error
            self._end()

    def offset(self, partition: PartitionKey, place: int) -> int | None:
        first = self._firsts.get(partition)
        return None if first is None else first + place

    def _end(self) -> None:
        if not self.done:
            self.done = True
            wake(self.waiters)


class Deliveries:
    """Of one chunk. `verdict` is its transaction's."""

    __slots__ = (
        "_order",
        "_ranks",
        "_starts",
        "_times",
        "first",
        "origin",
        "parts",
        "topic",
        "verdict",
        "waiters",
        "width",
    )

    def __init__(self, topic: str, origin: Any, verdict: Verdict | None = None) -> None:
        """`origin` hears of each part that is settled, as `part_settled(deliveries, part)`."""
        self.topic = topic
        self.origin = origin
        self.verdict = verdict
        # None: not sealed yet.
        self.parts: list[Part] | None = None
        # Index of its first record.
        self.first = 0
        # Entries a record takes where it is put.
        self.width = 1
        self.waiters: list[Callable[[], None]] = []
        self._times: Any = 0
        self._order: Order | None = None
        # Made when a record is asked for first: where parts start, and the ranks of rows.
        self._starts: list[int] = []
        self._ranks: Order | None = None

    # ------------------------------------------------------------------------------- on the loop

    def seal(self, parts: list[Part], order: Order | None, times: Any) -> None:
        """What was made of it. `order` None: the parts hold the rows in their order. `times` is one
        for all, or a column. Settles what was refused."""
        self._order, self._times, self.parts = order, times, parts
        for part in parts:
            if part.error is not None:
                part.fail(part.error)

    def fail(self, count: int, error: errors.OncelogError, times: Any = 0) -> None:
        """Nothing of its `count` records goes out."""
        self.seal([Part(self, 0, count, None, error)], None, times)

    def settle(self, part: Part) -> None:
        self.origin.part_settled(self, part)
        wake(self.waiters)

    # --------------------------------------------------------------------------- from any thread

    def find(self, row: int) -> Delivery | None:
        """Of the record of this row; None while nobody knows."""
        verdict = self.verdict
        if self.parts is None:
            if verdict is None or not verdict.done:
                return None
            error = verdict.error or errors.InvalidArgument(
                "this record came when its transaction was ending: it is not part of it"
            )
            return Delivery(self.topic, None, None, 0, self.first + row, error)
        if verdict is not None and not verdict.done:
            return None
        assert row < self.parts[-1].start + self.parts[-1].count, "a record is in its own cell"
        rank = self._rank(row)
        if not self._part_at(rank).settled and verdict is None:
            return None
        return next(self.of_ranks(range(rank, rank + 1)))

    def of_part(self, part: Part) -> Iterator[Delivery]:
        """Of each of its records, in order, once they are known."""
        return self.of_ranks(range(part.start, part.start + part.count))

    def of_ranks(self, ranks: Sequence[int]) -> Iterator[Delivery]:
        for rank in ranks:
            part = self._part_at(rank)
            row = rank if self._order is None else int(self._order[rank])
            error, offset = part.error, None
            if self.verdict is not None:
                error = self.verdict.error or error
                if error is None and part.partition is not None:
                    offset = self.verdict.offset(part.partition, part.base + rank - part.start)
            elif error is None and part.offset is not None:
                offset = part.offset + rank - part.start
            number = None if part.partition is None else part.partition.number
            time_us = _time_of(self._times, row)
            yield Delivery(self.topic, number, offset, time_us, self.first + row, error)

    @property
    def hub(self) -> Deliveries | Verdict:
        """Whose waiters hear when something becomes known."""
        return self if self.verdict is None else self.verdict

    def _rank(self, row: int) -> int:
        if self._order is None:
            return row
        if self._ranks is None:
            ranks = np.empty(len(self._order), dtype=np.int64)
            ranks[self._order] = np.arange(len(self._order))
            self._ranks = ranks
        return int(self._ranks[row])

    def _part_at(self, rank: int) -> Part:
        assert self.parts is not None, "it is sealed"
        if not self._starts:
            self._starts = [part.start for part in self.parts]
        return self.parts[bisect_right(self._starts, rank) - 1]


# Failures that `flush` tells one by one; beyond them it tells their number.
FAILURES_KEPT_MAX: Final = 100


class Failures:
    """Records that were not delivered since somebody was told."""

    def __init__(self) -> None:
        self._kept: list[Delivery] = []
        self._count = 0
        self._may_have_applied = False

    @property
    def count(self) -> int:
        return self._count

    def add(self, deliveries: Deliveries, part: Part) -> None:
        assert part.error is not None, "it failed"
        self._count += part.count
        self._may_have_applied |= part.error.may_have_applied
        room = FAILURES_KEPT_MAX - len(self._kept)
        if room > 0:
            ranks = range(part.start, part.start + min(room, part.count))
            self._kept.extend(deliveries.of_ranks(ranks))

    def take(self) -> tuple[list[Delivery], int, bool] | None:
        """The first of them in order, how many there are, and whether something may have happened
        with any; None where there are none. They are told now."""
        if not self._count:
            return None
        kept = sorted(self._kept, key=lambda delivery: delivery.index)
        taken = kept, self._count, self._may_have_applied
        self._kept, self._count, self._may_have_applied = [], 0, False
        return taken


def wake(waiters: list[Callable[[], None]]) -> None:
    """Tells each of them, once."""
    due = waiters[:]
    del waiters[: len(due)]
    for tell in due:
        tell()


def _time_of(times: Any, row: int) -> int:
    if isinstance(times, int):
        return times
    found = times[row]
    return int(found if isinstance(found, int) else found.value)
