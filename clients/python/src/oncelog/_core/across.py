"""Puts together the parts that a transaction has in several partitions. PURE.

What a partition gives are units (`oncelog._core.units`): what a transaction has there, whole, or a
batch of plain records. Of each transaction its coordinator is asked in which partitions it has
parts, and where it stands among the commits of its journal partition (its *place*). It is given
when it is *complete*: when each part that may still come to a partition that is read is there.

    partition 0   │ t1 │ s1 │ t2 │            t: transactions of one group, s: of another one
    partition 1   │ s1 │ t1 │                 t2 has a third part, in partition 2
    partition 2   │ t2 │
    given           t1, s1, t2

Partitions expose the transactions of one group in one order (I11), those of different groups in
different ones. So the order is kept by journal partition (a group has one), and what is given is
not always a prefix of a partition: `beyond` says, by journal partition, up to which offset that
partition's transactions were given of what lies behind the position.

Invariant: a transaction is given before a later one of its journal partition, where a part of each
is here; and in each partition always in its order.
Invariant: plain records are given when all before them in their partition was.
Invariant: a part is waited for only where its partition is read, and may still show it: nothing
later of that journal partition came there, and it was not read up to where it would lie (`ends`).

Left out: who asks, and when (`oncelog.aio.inquiry`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from oncelog._core.beyond import Beyond
from oncelog._core.pending import Part
from oncelog._core.routing import PartitionKey
from oncelog._core.units import Unit

# How many units that were given behind one that waits are kept, beside two for each that waits.
GIVEN_KEPT: Final = 64
# What a unit that waits costs beside its records.
UNIT_OVERHEAD_BYTES: Final = 1_024


class Told(NamedTuple):
    """What a coordinator says of a committed transaction."""

    # Among the commits of its journal partition; 0: it did not say.
    place: int
    # Where it has parts that can be read, now or soon.
    participants: frozenset[PartitionKey]
    # Those of which it is not known that it can be read there already.
    unreadable: frozenset[PartitionKey]


class Standing(NamedTuple):
    """Where a consumer stands in a partition that it reads."""

    # Of the position: another one than before means that what was read of it is worthless. None:
    # nothing of it is given now (paused, or about to go).
    edition: int | None
    # None: not known yet.
    position: int | None
    beyond: Beyond


class Gathered:
    """A transaction, as far as it is here; or a batch of plain records."""

    __slots__ = ("ends", "is_over", "told", "tx_id", "units")

    def __init__(self, tx_id: int) -> None:
        self.tx_id = tx_id
        self.units: dict[PartitionKey, Unit] = {}
        self.told: Told | None = None
        # By partition: a part of it that was ever readable lies below.
        self.ends: dict[PartitionKey, int] = {}
        # It was given, or all of it dropped.
        self.is_over = False


class Move(NamedTuple):
    """Where a partition stands after something was given."""

    partition: PartitionKey
    position: int
    beyond: Beyond


@dataclass(slots=True)
class _Entry:
    unit: Unit
    # What it costs while it waits.
    size: int
    is_given: bool = False


@dataclass(slots=True)
class _Line:
    """One partition: what is behind its position, in its order."""

    edition: int | None
    # None: not begun.
    position: int | None
    entries: deque[_Entry] = field(default_factory=deque)
    # How many of them were given.
    given: int = 0
    # Of what is not given: by journal partition, in order.
    waiting: dict[int, deque[_Entry]] = field(default_factory=dict)
    waiting_bytes: int = 0
    # One past what was read.
    end: int = 0
    # By journal partition: the latest place that was seen here, and up to where all was given.
    seen: dict[int, int] = field(default_factory=dict)
    given_to: dict[int, int] = field(default_factory=dict)

    @property
    def beyond(self) -> Beyond:
        position = self.position or 0
        return tuple(sorted((at, to) for at, to in self.given_to.items() if to > position))

    def give(self, entry: _Entry) -> None:
        """Of what was given in a row only the last is kept: where a front waits for long, the rest
        would be as much as the others read meanwhile."""
        entry.is_given = True
        self.given += 1
        if self.given <= GIVEN_KEPT + 2 * (len(self.entries) - self.given):
            return
        kept: deque[_Entry] = deque()
        for one in self.entries:
            if one.is_given and kept and kept[-1].is_given:
                kept.pop()
            kept.append(one)
        self.given -= len(self.entries) - len(kept)
        self.entries = kept


class Across:
    """Of one consumer. `release` takes back what holds a unit's records."""

    def __init__(self, release: Callable[[Part], None]) -> None:
        self._release = release
        self._lines: dict[PartitionKey, _Line] = {}
        self._gathered: dict[int, Gathered] = {}
        # Those of which nothing was told yet.
        self.untold: dict[int, Gathered] = {}
        # The same by journal partition, each in the order in which they came.
        self.untold_of: dict[int, dict[int, Gathered]] = {}
        # By journal partition, what was told, by place; some were given or dropped meanwhile.
        self._told: dict[int, list[tuple[int, int, Gathered]]] = {}
        self._numbers = count()
        # Partitions that begin with plain records.
        self._plain: dict[PartitionKey, None] = {}

    # ------------------------------------------------------------------------------------ reading

    def follow(self, standings: Mapping[PartitionKey, Standing]) -> None:
        """These are the partitions that are read. What was gathered of others, or for a position
        that is not any more, is dropped."""
        for partition in [place for place in self._lines if place not in standings]:
            self._drop(partition)
            del self._lines[partition]
        for partition, standing in standings.items():
            line = self._lines.get(partition)
            if line is not None and line.edition == standing.edition:
                continue
            if line is not None:
                self._drop(partition)
            position = None if standing.edition is None else standing.position
            self._lines[partition] = _Line(
                standing.edition,
                position,
                end=position or 0,
                given_to=dict(standing.beyond),
            )

    def add(self, unit: Unit) -> Move | None:
        """The next of its partition. Where it was given before: how that moves the position."""
        line = self._lines[unit.partition]
        line.end = unit.next_offset
        entry = _Entry(unit, _size(unit))
        line.entries.append(entry)
        tx_id = unit.written.tx_id
        if tx_id and unit.first_offset < line.given_to.get(journal_of(tx_id), 0):
            line.give(entry)
            self._release(unit.part)
            return self._advance(unit.partition)
        line.waiting_bytes += entry.size
        if not tx_id:
            if line.entries[0] is entry:
                self._plain[unit.partition] = None
            return None
        line.waiting.setdefault(journal_of(tx_id), deque()).append(entry)
        gathered = self._gathered.get(tx_id)
        if gathered is None:
            gathered = self._gathered[tx_id] = self.untold[tx_id] = Gathered(tx_id)
            self.untold_of.setdefault(journal_of(tx_id), {})[tx_id] = gathered
        gathered.units[unit.partition] = unit
        self._see(gathered)
        return None

    def pass_over(self, partition: PartitionKey, to: int) -> Move | None:
        """No record stands there between what was added last and `to`. How that moves the
        position."""
        line = self._lines[partition]
        line.end = to
        if line.entries:
            line.entries[-1].unit.next_offset = to
            return None
        line.position = to
        return Move(partition, to, line.beyond)

    def learn(self, gathered: Gathered, told: Told) -> None:
        """What its coordinator says, the first time or again."""
        if self._gathered.get(gathered.tx_id) is not gathered:
            return
        if gathered.told is None:
            self._is_told(gathered.tx_id)
            self._push(gathered, told.place)
        gathered.told = told
        self._see(gathered)

    # ------------------------------------------------------------------------------------- giving

    @property
    def has_one(self) -> bool:
        """`take` gives one."""
        return self._next() is not None

    def take(self) -> tuple[Gathered, list[Move]] | None:
        """The next, and where its partitions stand then. Its parts are the caller's to release."""
        gathered = self._next()
        if gathered is None:
            return None
        for partition, unit in gathered.units.items():
            line = self._lines[partition]
            if gathered.tx_id:
                number = journal_of(gathered.tx_id)
                entry = line.waiting[number].popleft()
                assert entry.unit is unit, "in the order of the partition"
                if not line.waiting[number]:
                    del line.waiting[number]
                line.given_to[number] = unit.next_offset
            else:
                entry = line.entries[0]
                del self._plain[partition]
            line.give(entry)
            line.waiting_bytes -= entry.size
        self._end(gathered)
        return gathered, [self._advance(partition) for partition in gathered.units]

    def has_waiting(self, partition: PartitionKey) -> bool:
        """Some of what was read of it was not given."""
        line = self._lines.get(partition)
        return line is not None and len(line.entries) > line.given

    def held_up(self) -> list[tuple[Gathered, list[PartitionKey]]]:
        """What would be given next, if its parts in these partitions were there."""
        waiting = []
        for number in list(self._told):
            first = self._first(number)
            if first is not None:
                missing = list(self._missing(first))
                if missing:
                    waiting.append((first, missing))
        return waiting

    def foremost(self, gathered: Gathered) -> list[tuple[PartitionKey, Unit]]:
        """Its parts before which nothing waits in their partition."""
        return [
            (partition, unit)
            for partition, unit in gathered.units.items()
            if self._lines[partition].entries[0].unit is unit
        ]

    def far_ahead(self, bytes_max: int, before: Collection[PartitionKey] = ()) -> set[PartitionKey]:
        """Those of which more waits than that, and in which nobody waits for a part: to read on
        there helps nobody now. What is waited for is never held back, so something always goes
        on. Who was far ahead before is so until half of it is given."""
        ahead = {
            partition
            for partition, line in self._lines.items()
            if line.waiting_bytes > (bytes_max // 2 if partition in before else bytes_max)
        }
        if ahead:
            for _, missing in self.held_up():
                ahead.difference_update(missing)
        return ahead

    def clear(self) -> None:
        """Lets go of everything."""
        self.follow({})

    # ------------------------------------------------------------------------------------- inside

    def _next(self) -> Gathered | None:
        for partition in self._plain:
            plain = Gathered(0)
            plain.units[partition] = self._lines[partition].entries[0].unit
            return plain
        ready: list[tuple[int, int, Gathered]] = []
        for number in list(self._told):
            first = self._first(number)
            if first is not None and next(self._missing(first), None) is None:
                earliest = min(unit.written.time_ms for unit in first.units.values())
                ready.append((earliest, number, first))
        return min(ready, default=(0, 0, None), key=lambda item: item[:2])[2]

    def _first(self, number: int) -> Gathered | None:
        """Of a journal partition: what is to be given next. None: nothing is here, or what comes
        before it in a partition is not told yet."""
        heap = self._told[number]
        while heap and heap[0][2].is_over:
            heappop(heap)
        if not heap:
            del self._told[number]
            return None
        first, passed = heap[0][2], set[Gathered]()
        while (blocked := self._blocked(first)) is not None:
            partition, before = blocked
            if before.told is None:
                return None
            passed.add(first)
            if len(first.units) > 1 and (before in passed or _is_later(before, first)):
                self._part_late(first, partition)
            else:
                first = before
        return first

    def _blocked(self, gathered: Gathered) -> tuple[PartitionKey, Gathered] | None:
        """One of its partitions where it is not the first of its journal partition, and who is."""
        number = journal_of(gathered.tx_id)
        for partition, unit in gathered.units.items():
            earliest = self._lines[partition].waiting[number][0].unit
            if earliest is not unit:
                return partition, self._owner(earliest)
        return None

    def _owner(self, unit: Unit) -> Gathered:
        gathered = self._gathered.get(unit.written.tx_id)
        if gathered is not None and gathered.units.get(unit.partition) is unit:
            return gathered
        return next(
            late
            for _, _, late in self._told[journal_of(unit.written.tx_id)]
            if not late.is_over and late.units.get(unit.partition) is unit
        )

    def _part_late(self, gathered: Gathered, partition: PartitionKey) -> None:
        """A partition shows transactions of a group in another order than the others: a part was
        damaged there, and an operator has exposed it since. It is given by itself."""
        assert gathered.told is not None
        late = Gathered(gathered.tx_id)
        late.units[partition] = gathered.units.pop(partition)
        late.told = gathered.told._replace(participants=frozenset([partition]))
        self._push(late, late.told.place)

    def _missing(self, gathered: Gathered) -> Iterator[PartitionKey]:
        """Where parts may still come."""
        assert gathered.told is not None
        participants: Iterable[PartitionKey] = gathered.told.participants
        if len(gathered.told.participants) > len(self._lines):
            participants = (place for place in self._lines if place in gathered.told.participants)
        for partition in participants:
            is_read = partition in self._lines and partition not in gathered.units
            if is_read and self._may_come(partition, gathered, gathered.told):
                yield partition

    def _may_come(self, partition: PartitionKey, gathered: Gathered, told: Told) -> bool:
        line = self._lines[partition]
        if line.position is None:
            # It is not read now: what is in it comes when it is, or goes with it.
            return True
        if told.place and line.seen.get(journal_of(gathered.tx_id), 0) >= told.place:
            return False
        end = gathered.ends.get(partition)
        return end is None or line.end < end

    def _see(self, gathered: Gathered) -> None:
        if gathered.told is None:
            return
        number, place = journal_of(gathered.tx_id), gathered.told.place
        for partition in gathered.units:
            seen = self._lines[partition].seen
            seen[number] = max(seen.get(number, 0), place)

    def _push(self, gathered: Gathered, place: int) -> None:
        number = journal_of(gathered.tx_id)
        heappush(self._told.setdefault(number, []), (place, next(self._numbers), gathered))

    def _advance(self, partition: PartitionKey) -> Move:
        """What was given at the front is behind the position."""
        line = self._lines[partition]
        entries = line.entries
        while entries and entries[0].is_given:
            line.position = entries.popleft().unit.next_offset
            line.given -= 1
        if entries and not entries[0].unit.written.tx_id:
            self._plain[partition] = None
        assert line.position is not None, "it is read"
        return Move(partition, line.position, line.beyond)

    def _drop(self, partition: PartitionKey) -> None:
        """All that was read of it and not given."""
        for entry in self._lines[partition].entries:
            if entry.is_given:
                continue
            self._release(entry.unit.part)
            tx_id = entry.unit.written.tx_id
            if tx_id:
                gathered = self._owner(entry.unit)
                del gathered.units[partition]
                gathered.ends.pop(partition, None)
                if not gathered.units:
                    self._end(gathered)
        self._plain.pop(partition, None)

    def _end(self, gathered: Gathered) -> None:
        gathered.is_over = True
        if self._gathered.get(gathered.tx_id) is gathered:
            del self._gathered[gathered.tx_id]
            self._is_told(gathered.tx_id)

    def _is_told(self, tx_id: int) -> None:
        """Or gone."""
        if self.untold.pop(tx_id, None) is not None:
            number = journal_of(tx_id)
            del self.untold_of[number][tx_id]
            if not self.untold_of[number]:
                del self.untold_of[number]


def journal_of(tx_id: int) -> int:
    """Number of its journal partition."""
    return tx_id >> 48


def _is_later(one: Gathered, other: Gathered) -> bool:
    return one.told is not None and other.told is not None and one.told.place > other.told.place


def _size(unit: Unit) -> int:
    return unit.part.held_bytes + unit.part.spilled_bytes + UNIT_OVERHEAD_BYTES
