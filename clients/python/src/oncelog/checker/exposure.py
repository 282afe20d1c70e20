"""The order in which records of a partition became readable, and when each of them can have.

The committed log of a partition is a sequence of *exposures*: a plain record, at its append, or all
records that a transaction has there, at its marker. The exposure key of a record is (position of
the exposure, position in the transaction). Each exposure happened at one moment, not before it was
asked for (`from_us`) and not after it was known (`until_us`): acknowledged, told visible, or read,
itself or anything behind it, for offsets are dense. The sequence is possible where such moments can
be chosen in its order: where no exposure has an `until_us` below the `from_us` of one before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from oncelog.checker.facts import COMMITTED_VIEW, Facts, Place, Seen, Transaction
from oncelog.checker.history import NEVER_US, Operation


@dataclass(slots=True)
class Exposure:
    """See the module. The lines name what sets the bounds; `until_told`: by an answer to it, and
    not by a read. `transaction` None: plain."""

    place: Place
    first_offset: int
    transaction: Transaction | None
    seen: list[Seen]
    from_us: int
    from_line: int
    until_us: int = NEVER_US
    until_line: int = 0
    until_told: bool = False

    def __str__(self) -> str:
        if self.transaction is None:
            return f"record {self.seen[0].value!r} at {self.place} offset {self.first_offset}"
        return f"transaction {self.transaction.name} at {self.place} offset {self.first_offset}"


class Contradiction(NamedTuple):
    """`later` stands behind `earlier`, and was readable before `earlier` was asked for."""

    earlier: Exposure
    later: Exposure

    @property
    def lines(self) -> list[int]:
        return [self.earlier.from_line, self.later.until_line]


def exposures(facts: Facts, place: Place) -> list[Exposure]:
    """Of one partition, in order of position. Records that nobody sent, or that stand twice, are
    left out (I6 has them). Records of one transaction that do not stand together are several
    exposures (I9 has them)."""
    found: list[Exposure] = []
    positions = facts.seen[COMMITTED_VIEW].get(place, {})
    previous: Exposure | None = None
    for offset in sorted(positions):
        seen = positions[offset]
        sent = facts.sent.get(seen.value)
        if sent is None or len(facts.positions(seen.value)) > 1:
            previous = None
            continue
        transaction = sent.transaction
        if previous is not None and transaction is not None and previous.transaction is transaction:
            previous.seen.append(seen)
            continue
        asked = sent.operation if transaction is None else transaction.asked_to_commit()
        previous = Exposure(
            place,
            offset,
            transaction,
            [seen],
            from_us=0 if asked is None else asked.invoked_us,
            from_line=0 if asked is None else asked.line,
        )
        _bound_by_answer(previous, sent.operation if transaction is None else None)
        found.append(previous)
    _bound_by_reads(facts, place, found)
    return found


def contradictions(sequence: list[Exposure]) -> Iterator[Contradiction]:
    """Pairs that stand in the wrong order; one per exposure that comes too late."""
    latest: Exposure | None = None
    for exposure in sequence:
        if latest is not None and exposure.until_us < latest.from_us:
            yield Contradiction(latest, exposure)
        if latest is None or exposure.from_us > latest.from_us:
            latest = exposure


def _bound_by_answer(exposure: Exposure, produce: Operation | None) -> None:
    told = produce
    if exposure.transaction is not None:
        told = exposure.transaction.told_visible()
    if told is not None and told.is_ok:
        exposure.until_us, exposure.until_line = told.ended_us, told.end_line
        exposure.until_told = True


def _bound_by_reads(facts: Facts, place: Place, sequence: list[Exposure]) -> None:
    """Backwards: whoever saw a position knew that all before it stand."""
    bounds = [
        (end - 1, operation.ended_us, operation.end_line)
        for operation, end in facts.ends[COMMITTED_VIEW].get(place, ())
        if end > 0
    ]
    bounds.sort()
    first_us, line = NEVER_US, 0
    for exposure in reversed(sequence):
        while bounds and bounds[-1][0] >= exposure.first_offset:
            _, ended_us, end_line = bounds.pop()
            if ended_us < first_us:
                first_us, line = ended_us, end_line
        for seen in exposure.seen:
            if seen.first_us < first_us:
                first_us, line = seen.first_us, seen.line
        if first_us < exposure.until_us:
            exposure.until_us, exposure.until_line = first_us, line
            exposure.until_told = False
