"""Gathers what is read into whole transactions. PURE.

In the committed log of a partition the records of a transaction are contiguous. Where one ends is
known by the batch behind it, or because nothing more can be read there: a leader makes all of a
transaction readable at once. Plain records are units of their own, a batch each.

What is gathered lies where a buffered consumer holds open transactions, too (`oncelog._held`): in
memory up to a limit, then on disk.

Invariant: a unit is given when it is whole, and in the order of its partition.
Invariant: what was gathered of a partition goes when its position is changed by somebody else (a
seek, a rewind, a pause): it comes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from oncelog._core import holes
from oncelog._core.pending import HeldBatch, Holder, Part
from oncelog._core.routing import PartitionKey


class Written(NamedTuple):
    """Who wrote a batch of the committed log, and when it became readable."""

    # 0: plain.
    tx_id: int
    producer_id: int
    generation: int
    time_ms: int


class Piece(NamedTuple):
    """The next batch of a partition."""

    partition: PartitionKey
    written: Written
    first_offset: int
    batch: HeldBatch
    # Records at the front of the batch that were given before.
    skip: int
    # Nothing of its transaction lies behind it.
    is_last: bool


class Unit:
    """A transaction in one partition, or a batch of plain records."""

    __slots__ = (
        "edition",
        "first_offset",
        "is_over",
        "next_offset",
        "offsets",
        "part",
        "partition",
        "record_count",
        "skip",
        "written",
    )

    def __init__(self, first: Piece, edition: int) -> None:
        self.partition = first.partition
        self.written = first.written
        self.first_offset = first.first_offset
        self.skip = first.skip
        self.record_count = 0
        # Of each batch: that of its first record that counts. In a compacted topic they need not
        # follow each other, nor do those of the records of one.
        self.offsets: list[int] = []
        self.next_offset = first.first_offset
        self.part = Part()
        # It was let go of: the next one was asked for.
        self.is_over = False
        # Of the partition's position, when it was begun.
        self.edition = edition

    def count(self, piece: Piece) -> None:
        """This one is of it."""
        records = piece.batch.record_count - piece.skip
        self.record_count += records
        self.offsets.append(piece.first_offset)
        offsets = holes.unpacked(piece.batch.offsets)
        self.next_offset = holes.next_offset(piece.first_offset, records, offsets)


class Units:
    """Those of one consumer."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        # Not whole yet.
        self._begun: dict[PartitionKey, Unit] = {}
        self._whole: deque[Unit] = deque()

    @property
    def is_one_whole(self) -> bool:
        """`take` gives one."""
        return bool(self._whole)

    def end_before(self, partition: PartitionKey, written: Written) -> None:
        """What was begun there is whole, where this that comes next is another one's."""
        unit = self._begun.get(partition)
        if unit is not None and unit.written.tx_id != written.tx_id:
            self._end(unit)

    def add(self, piece: Piece, edition: int) -> None:
        """The next of its partition."""
        self.end_before(piece.partition, piece.written)
        unit = self._begun.get(piece.partition)
        if unit is None:
            unit = self._begun[piece.partition] = Unit(piece, edition)
        unit.count(piece)
        self._holder.hold(unit.part, piece.batch)
        if piece.is_last or not piece.written.tx_id:
            self._end(unit)

    def pass_over(self, partition: PartitionKey, to: int, *, is_last: bool) -> bool:
        """No record stands there before `to`. `is_last`: nor does anything of what was begun behind
        it. True: what is gathered of it is read up to there; False: nothing is gathered."""
        begun = self._begun.get(partition)
        unit = begun or next(
            (it for it in reversed(self._whole) if it.partition == partition), None
        )
        if unit is None:
            return False
        unit.next_offset = to
        if unit is begun and is_last:
            self._end(unit)
        return True

    def drop_changed(self, editions: Mapping[PartitionKey, int]) -> None:
        """What was gathered for positions that are not any more."""
        for unit in [*self._begun.values(), *self._whole]:
            if editions.get(unit.partition) != unit.edition:
                self._holder.release(unit.part)
        kept = [one for one in self._whole if editions.get(one.partition) == one.edition]
        self._whole = deque(kept)
        for partition, unit in list(self._begun.items()):
            if editions.get(partition) != unit.edition:
                del self._begun[partition]

    def take(self) -> Unit | None:
        """The next whole one. Its part is the caller's to release."""
        return self._whole.popleft() if self._whole else None

    def clear(self) -> None:
        """Lets go of everything."""
        self.drop_changed({})

    def _end(self, unit: Unit) -> None:
        del self._begun[unit.partition]
        self._whole.append(unit)


def pieces_of(unit: Unit, batches: Iterator[HeldBatch]) -> Iterator[tuple[int, int, HeldBatch]]:
    """Of each batch: the offset of its first record that counts, how many before it do not, and the
    batch."""
    skip = unit.skip
    for offset, batch in zip(unit.offsets, batches, strict=False):
        yield offset, skip, batch
        skip = 0
