"""What is provably absent: a record that is not where everything was read.

A partition is covered up to a moment where a listing of its end that was asked at that moment or
later gave an end below which every offset was read by somebody, from where it begins on. Whatever
had to be readable by that moment, and was not found, is missing: unless it can have stood where all
is deleted, at an offset that nobody ever read. What was asked for after somebody knew of a record
behind all of these cannot; and where there are more such records than such offsets, some of them
are missing as well.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from oncelog.checker.facts import COMMITTED_VIEW, Facts, Place, Sent, Transaction
from oncelog.checker.history import NEVER_US, Operation


class Covered(NamedTuple):
    """All that was readable at `until_us` was read; `line`: the listing that says so. Or it was
    deleted before anybody read it: `holes` are so many offsets, all filled by `filled_us`."""

    until_us: int
    line: int
    holes: int = 0
    filled_us: int = 0


class Coverage:
    """See the module."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._covered: dict[Place, Covered] = {}
        for place, ends in facts.ends[COMMITTED_VIEW].items():
            found = _covered(facts, place, ends)
            if found is not None:
                self._covered[place] = found

    def missing(self, sent: Sent, since_us: int) -> list[int] | None:
        """The lines that prove that a record, readable since `since_us`, is nowhere. None: it was
        read, or nothing proves that it is not there."""
        if since_us == NEVER_US or self._facts.positions(sent.value):
            return None
        if sent.partition is None:
            places = self._facts.places(sent.topic)
        else:
            places = [Place(sent.topic, sent.partition)]
        covered = [self._covered.get(place) for place in places]
        lines: list[int] = []
        for item in covered:
            if item is None or item.until_us < since_us:
                return None
            if item.holes and _asked_us(sent) <= item.filled_us:
                return None
            lines.append(item.line)
        return sorted(set(lines)) or None

    def unfound(self, sent: Sent, since_us: int) -> tuple[Place, Covered] | None:
        """Where a record, readable since `since_us`, can only have stood in a hole. None: it was
        read, or may be somewhere else."""
        if since_us == NEVER_US or sent.partition is None or self._facts.positions(sent.value):
            return None
        place = Place(sent.topic, sent.partition)
        covered = self._covered.get(place)
        if covered is None or not covered.holes or covered.until_us < since_us:
            return None
        return place, covered

    def readable_since(self, transaction: Transaction) -> int:
        """From when on a transaction's records must be readable, if it committed: from the answer
        that said so, else from the first look after its commit at which nothing was on its way."""
        visible = transaction.told_visible()
        if visible is not None:
            return visible.ended_us
        told, asked = transaction.told_committed(), transaction.asked_to_commit()
        if told is not None:
            return self._settled_after(told.ended_us)
        return NEVER_US if asked is None else self._settled_after(asked.invoked_us)

    def _settled_after(self, moment_us: int) -> int:
        settled = self._facts.settled_us
        at = bisect_left(settled, moment_us)
        return settled[at] if at < len(settled) else NEVER_US


def _covered(facts: Facts, place: Place, ends: list[tuple[Operation, int]]) -> Covered | None:
    """Up to the latest listing that says so."""
    known = facts.seen[COMMITTED_VIEW].get(place, {})
    # Below it all may be deleted.
    start = facts.deleted_below(place)
    prefix = start
    while prefix in known:
        prefix += 1
    listings = [(asked.invoked_us, asked.end_line) for asked, end in ends if end <= prefix]
    if not listings:
        return None
    unread = [offset for offset in range(start) if offset not in known]
    if not unread:
        return Covered(*max(listings))
    behind = [seen.first_us for offset, seen in known.items() if offset > unread[-1]]
    behind += [asked.ended_us for asked, end in ends if end > unread[-1]]
    behind += [item.told_us for item in facts.starts[place] if item.offset > unread[-1]]
    return Covered(*max(listings), len(unread), min(behind))


def _asked_us(sent: Sent) -> int:
    """It was not readable before."""
    asked = sent.operation if sent.transaction is None else sent.transaction.asked_to_commit()
    return NEVER_US if asked is None else asked.invoked_us


def expected(transaction: Transaction) -> list[Sent]:
    """The records that a commit of this transaction shows: what was sent before it was asked for,
    by the writers that its manifest names, as many as it counts of each, from the first on. What a
    writer sent behind that is surplus, and of nothing."""
    asked = transaction.asked_to_commit()
    if asked is None:
        return []
    sends = [sent for sent in transaction.sends if sent.operation.invoked_us <= asked.invoked_us]
    manifest = asked.args.get("manifest")
    if manifest is None:
        return sends
    counted: dict[tuple[object, ...], list[Sent]] = {}
    for sent in sends:
        counted.setdefault((sent.topic, sent.partition, sent.writer), []).append(sent)
    found: list[Sent] = []
    for part in manifest:
        if len(part) > 3:
            found.extend(_counted(counted.get(tuple(part[:3]), []), part[3]))
    return found


def _counted(of_part: list[Sent], count: int) -> list[Sent]:
    """The first `count` records of a writer; none where it is not known which these are: one that
    nobody acknowledged may have been left out."""
    if len(of_part) == count:
        return of_part
    first = [sent for sent in of_part if sent.operation.may_have_applied][:count]
    is_certain = len(first) == count and all(sent.operation.is_ok for sent in first)
    return first if is_certain else []
