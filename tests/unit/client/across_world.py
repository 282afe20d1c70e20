"""Partitions, a coordinator and a consumer of whole transactions, all of them models: what is given
against what was written, over random orders of everything."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from oncelog._core.across import Across, Gathered, Standing, Told, journal_of
from oncelog._core.beyond import Beyond, decode, encode
from oncelog._core.pending import HeldBatch, Part
from oncelog._core.routing import PartitionKey
from oncelog._core.units import Piece, Unit, Written

# Of one unit.
SIZE = 100
AHEAD_MAX = 5_000


def key(number: int) -> PartitionKey:
    return PartitionKey(b"t" * 16, number)


def unit_of(partition: PartitionKey, tx_id: int, first: int, *, edition: int = 1) -> Unit:
    """One record."""
    written = Written(tx_id, 7, 1, 1_000 + first)
    piece = Piece(partition, written, first, HeldBatch(1, 1, 0, b""), 0, is_last=True)
    unit = Unit(piece, edition)
    unit.count(piece)
    unit.part.held_bytes = SIZE
    return unit


@dataclass
class Stored:
    """A transaction."""

    place: int
    participants: frozenset[PartitionKey]
    # Where its part is still there.
    kept: set[PartitionKey]


@dataclass
class Log:
    """One partition: TxIds in the order in which they became readable, 0: plain records."""

    units: list[int] = field(default_factory=list)
    # So many can be read.
    readable: int = 0


class Cluster:
    """What was written."""

    def __init__(self, chance: random.Random, *, partitions: int, groups: int, count: int) -> None:
        self.logs = {key(number): Log() for number in range(partitions)}
        self.strangers = [key(100), key(101)]
        self.stored: dict[int, Stored] = {}
        queues: dict[PartitionKey, dict[int, list[int]]] = {
            partition: {group: [] for group in range(groups)} for partition in self.logs
        }
        for place in range(1, count + 1):
            group = chance.randrange(groups)
            tx_id = (group << 48) + chance.randrange(1 << 20) * 1_000 + place
            among = chance.sample(list(self.logs), chance.randint(1, partitions))
            also = chance.sample(self.strangers, chance.randint(0, 1))
            kept = {one for one in among if chance.random() > 0.05} or {among[0]}
            self.stored[tx_id] = Stored(place, frozenset([*among, *also]), kept)
            for partition in kept:
                queues[partition][group].append(tx_id)
        for partition, by_group in queues.items():
            log = self.logs[partition]
            while left := [group for group, queue in by_group.items() if queue]:
                log.units.append(by_group[chance.choice(left)].pop(0))
                if chance.random() < 0.2:
                    log.units.append(0)

    def told(self, tx_id: int) -> Told:
        stored = self.stored[tx_id]
        unreadable = {
            partition
            for partition in stored.kept
            if tx_id not in self.logs[partition].units[: self.logs[partition].readable]
        }
        return Told(stored.place, stored.participants, frozenset(unreadable))


class Reader:
    """A consumer that may be aborted, die, and come again."""

    def __init__(self, cluster: Cluster, partitions: Iterable[PartitionKey]) -> None:
        self.cluster = cluster
        self.partitions = list(partitions)
        self.committed: dict[PartitionKey, tuple[int, str]] = dict.fromkeys(
            self.partitions, (0, "")
        )
        # (partition, offset) of what was given and committed; and of what was given since.
        self.processed: list[tuple[PartitionKey, int]] = []
        self.tentative: list[tuple[PartitionKey, int]] = []
        self.edition = 0
        self.paused: set[PartitionKey] = set()
        self.longest = 0
        self.restart()

    def restart(self) -> None:
        self.across = Across(self._let_go)
        self.held: set[Part] = set()
        self.paused.clear()
        self._begin()

    def abort(self) -> None:
        """Back to what was committed."""
        self._begin()

    def _begin(self) -> None:
        self.tentative = []
        self.edition += 1
        self.editions = dict.fromkeys(self.partitions, self.edition)
        self.positions = {place: at for place, (at, _) in self.committed.items()}
        self.beyond: dict[PartitionKey, Beyond] = {
            place: decode(metadata)[0] for place, (_, metadata) in self.committed.items()
        }
        self.fetched = dict(self.positions)
        self.follow()

    def commit(self) -> None:
        self.processed += self.tentative
        self.tentative = []
        for place in self.partitions:
            self.committed[place] = self.positions[place], encode(self.beyond[place], "x y")

    def follow(self) -> None:
        self.across.follow(
            {
                place: Standing(
                    None if place in self.paused else self.editions[place],
                    self.positions[place],
                    self.beyond[place],
                )
                for place in self.partitions
            }
        )

    def pause(self, place: PartitionKey) -> None:
        self.paused ^= {place}
        self.edition += 1
        self.editions[place] = self.edition
        self.fetched[place] = self.positions[place]
        self.follow()

    def read(self, place: PartitionKey) -> bool:
        log, at = self.cluster.logs[place], self.fetched[place]
        if place in self.paused or at >= log.readable or place in self.across.far_ahead(AHEAD_MAX):
            return False
        unit = unit_of(place, log.units[at], at, edition=self.editions[place])
        self.held.add(unit.part)
        self.fetched[place] += 1
        move = self.across.add(unit)
        if move is not None:
            self._move(move.partition, move.position, move.beyond)
        self.longest = max(self.longest, len(self.held))
        return True

    def read_each(self, places: Iterable[PartitionKey]) -> bool:
        """True where there was something."""
        found = [self.read(place) for place in places]
        return any(found)

    def ask(self, tx_id: int) -> None:
        gathered = self.across.untold.get(tx_id)
        if gathered is not None:
            self.across.learn(gathered, self.cluster.told(tx_id))

    def ask_again(self) -> None:
        """Of what is held up: as the client does."""
        for gathered, missing in self.across.held_up():
            told = self.cluster.told(gathered.tx_id)
            self.across.learn(gathered, told)
            for place in missing:
                if place not in told.unreadable:
                    gathered.ends[place] = self.cluster.logs[place].readable

    def take(self) -> Gathered | None:
        known = {
            unit.written.tx_id
            for line in self.across._lines.values()
            for entry in line.entries
            if not entry.is_given
            for unit in [entry.unit]
        }
        taken = self.across.take()
        if taken is None:
            return None
        gathered, moves = taken
        for move in moves:
            self._move(move.partition, move.position, move.beyond)
        for place, unit in gathered.units.items():
            self.tentative.append((place, unit.first_offset))
            self._let_go(unit.part)
        if gathered.tx_id:
            self._judge(gathered, known)
        return gathered

    def _judge(self, gathered: Gathered, known: set[int]) -> None:
        stored = self.cluster.stored[gathered.tx_id]
        assert set(gathered.units) == stored.kept & set(self.partitions), "it is whole"
        earlier = [
            tx_id
            for tx_id in known
            if tx_id
            and journal_of(tx_id) == journal_of(gathered.tx_id)
            and self.cluster.stored[tx_id].place < stored.place
            and tx_id not in self.across.untold
        ]
        assert not earlier, "what was here of its group came before"

    def _move(self, place: PartitionKey, position: int, beyond: Beyond) -> None:
        assert position >= self.positions[place]
        self.positions[place], self.beyond[place] = position, beyond

    def _let_go(self, part: Part) -> None:
        self.held.remove(part)
