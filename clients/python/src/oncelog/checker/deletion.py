"""What of a partition's committed log is deleted, and what may have been.

A *start* that somebody was told says that all before it is deleted. It may be because a truncation
was asked for, because the records before it are older than the topic's `retention.ms`, or because
those behind it are `retention.bytes` without them. Whatever is not known is taken for what would
allow it: a setting that may still have been in force, the most that records can have weighed, the
earliest moment at which a record can have been committed.

Left out: views in journal offsets, whose starts follow from more than what clients ask for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from oncelog.checker.exposure import Exposure
from oncelog.checker.facts import COMMITTED_VIEW, Facts, Place, Sent, Start
from oncelog.checker.history import Operation

RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
UNLIMITED: Final = -1
# A truncation before the end, as it is when it is asked for.
END: Final = "end"
# What a batch adds to one record's own bytes at most, where each record is a batch.
OVERHEAD_BYTES: Final = 2_048
# How much faster than real time what services measure ages by may go, unless a mark says more.
FASTER: Final = 0.001


class Clocks(NamedTuple):
    """How far ages that services measured may be from real time: they may go faster by that
    fraction, and leap by so much in all."""

    faster: float = FASTER
    leaps_us: int = 0

    def age_us(self, real_us: int) -> float:
        """The most that so much real time may have been taken for."""
        return real_us * (1 + self.faster) + self.leaps_us

    def real_us(self, age_us: int) -> int:
        """The least real time that may have been taken for so much."""
        return max(0, int((age_us - self.leaps_us) / (1 + self.faster)))


class Newest(NamedTuple):
    """Of the records before a start: what was asked for last. Its commit was not earlier."""

    from_us: int
    line: int
    what: str


class Deletions:
    """Of all partitions."""

    def __init__(self, facts: Facts, exposures: Mapping[Place, Sequence[Exposure]]) -> None:
        self._facts = facts
        self._exposures = exposures
        self._ordered: dict[Place, tuple[list[int], list[Newest]]] = {}
        self.clocks = _clocks(facts)

    def starts(self) -> Iterator[tuple[Place, list[Start]]]:
        """By partition, in the order in which they were told."""
        for place, starts in sorted(self._facts.starts.items()):
            yield place, sorted(starts, key=lambda start: (start.told_us, start.operation.line))

    def newest_before(self, place: Place, offset: int) -> Newest | None:
        """None: nothing is known of what stood there."""
        if place not in self._ordered:
            sequence = self._exposures.get(place, ())
            newest = accumulate(
                (Newest(item.from_us, item.from_line, str(item)) for item in sequence), max
            )
            self._ordered[place] = [item.first_offset for item in sequence], list(newest)
        firsts, newest_of = self._ordered[place]
        at = bisect_left(firsts, offset)
        return newest_of[at - 1] if at else None

    def asked_before(self, place: Place, moment_us: int) -> int | None:
        """How many records of a partition somebody had asked for until then: of more it cannot
        consist. None: nobody knows which partition some were of."""
        count = 0
        for sent in self._facts.sent.values():
            if sent.topic == place.topic and sent.operation.may_have_applied:
                if sent.partition is None:
                    return None
                asked = _asked(sent)
                count += sent.partition == place.partition and _before(asked, moment_us)
        return count

    def why_not(self, start: Start) -> str | None:
        """What speaks against it, in words. None: something allows it, or nobody knows what the
        topic's settings were."""
        settings = self._facts.settings.get(start.place.topic, ())
        if not any(setting.do == "create_topic" and setting.is_ok for setting in settings):
            return None
        asked = [item for item in settings if item.invoked_us <= start.told_us]
        newest = self.newest_before(start.place, start.offset)
        if any(self._truncates(item, start) for item in self._truncations(start)):
            return None
        after_ms, after_bytes = _shortest(asked, RETENTION_MS), _shortest(asked, RETENTION_BYTES)
        against = []
        if after_ms is not None:
            young = self._too_young(start, newest, after_ms)
            if young is None:
                return None
            against.append(young)
        if after_bytes is not None:
            left = self._bytes_from(start)
            if left is None or left >= after_bytes:
                return None
            against.append(f"{left} bytes are left at most, of {after_bytes}")
        return "; ".join(against) or "nothing may be deleted, by its settings"

    def proof(self, start: Start) -> list[int]:
        """The lines of what `why_not` looked at."""
        newest = self.newest_before(start.place, start.offset)
        settings = self._facts.settings.get(start.place.topic, ())
        lines = [item.line for item in settings if item.invoked_us <= start.told_us]
        return [*lines, *start.operation.lines, *([] if newest is None else [newest.line])]

    # ------------------------------------------------------------------------------------- inside

    def _truncations(self, start: Start) -> Iterator[Operation]:
        for asked in self._facts.truncations.get(start.place.topic, ()):
            partition = asked.args.get("partition")
            is_its = partition is None or partition == start.place.partition
            if is_its and not asked.args.get("dry_run") and asked.invoked_us <= start.told_us:
                yield asked

    def _truncates(self, asked: Operation, start: Start) -> bool:
        """It may have deleted all before that start: also a copy of it, which a network brings
        later. So where it did not name an offset, it may have deleted whatever there was by
        then."""
        before = asked.args["before"]
        return not isinstance(before, int) or start.offset <= before

    def _too_young(self, start: Start, newest: Newest | None, after_ms: int) -> str | None:
        """In words: what before the start had not been there for so long. None: all may have."""
        if newest is not None:
            age_us = self.clocks.age_us(start.told_us - newest.from_us)
            if age_us < after_ms * 1000:
                return f"{newest.what} was {age_us / 1000:.0f} ms old at most, of {after_ms}"
        old = self.asked_before(start.place, start.told_us - self.clocks.real_us(after_ms * 1000))
        if old is not None and old < start.offset:
            return f"only {old} records were {after_ms} ms old at most"
        return None

    def _bytes_from(self, start: Start) -> int | None:
        """The most that all records from there on can have weighed when it was told."""
        known = self._facts.seen[COMMITTED_VIEW].get(start.place, {})
        before = {seen.value for seen in known.values() if seen.offset < start.offset}
        total = 0
        for sent in self._facts.sent.values():
            if sent.topic != start.place.topic or sent.value in before:
                continue
            if sent.partition not in (None, start.place.partition):
                continue
            if sent.operation.may_have_applied and _before(_asked(sent), start.told_us):
                if sent.size is None:
                    return None
                total += sent.size + OVERHEAD_BYTES
        return total


def _asked(sent: Sent) -> Operation | None:
    """What made it readable: it was not before that was asked for."""
    return sent.operation if sent.transaction is None else sent.transaction.asked_to_commit()


def _before(asked: Operation | None, moment_us: int) -> bool:
    return asked is not None and asked.invoked_us <= moment_us


def _shortest(settings: Sequence[Operation], name: str) -> int | None:
    """Of those that may have been in force. None: it was never limited."""
    found = [int(item.args["configs"].get(name) or UNLIMITED) for item in settings]
    return min((value for value in found if value != UNLIMITED), default=None)


def _clocks(facts: Facts) -> Clocks:
    """As marks `clocks` say; the worst of them."""
    told = [mark.fields for mark in facts.history.marks if mark.what == "clocks"]
    return Clocks(
        max([FASTER, *(float(item.get("faster", 0)) for item in told)]),
        sum(int(item.get("leap_ms", 0)) * 1000 for item in told),
    )
