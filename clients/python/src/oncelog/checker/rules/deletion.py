"""I32: what retention and truncations delete."""

from __future__ import annotations

from collections.abc import Iterator

from oncelog.checker.facts import COMMITTED, COMMITTED_VIEW, Facts, Place, Start, lines_of
from oncelog.checker.history import NEVER_US, Operation
from oncelog.checker.report import Finding
from oncelog.checker.rules.case import Case


def i32_only_what_may_go_is_deleted(case: Case) -> Iterator[Finding]:
    """What is deleted of a partition is the front of its committed log, for ever: its start never
    goes back, is never above its end, nor above all that anybody had asked for, and who begins to
    read after it was told is given nothing before it. And nothing goes that may not: a truncation
    was asked for that names it, or all before the start is older than the topic's `retention.ms`,
    or what is left is `retention.bytes` without it."""
    for place, starts in case.deletions.starts():
        yield from _went_back(place, starts)
        yield from _above_the_end(case.facts, place, starts)
        yield from _too_early(case, place, starts)
    yield from _given_what_is_deleted(case)


def _went_back(place: Place, starts: list[Start]) -> Iterator[Finding]:
    highest: Start | None = None
    told = iter(starts)
    upcoming = next(told, None)
    # What readers tell they may have heard long before they were asked.
    asked = [start for start in starts if start.operation.do in ("list_offsets", "truncate")]
    for start in sorted(asked, key=lambda item: item.operation.invoked_us):
        while upcoming is not None and upcoming.told_us < start.operation.invoked_us:
            if highest is None or upcoming.offset > highest.offset:
                highest = upcoming
            upcoming = next(told, None)
        if highest is not None and start.offset < highest.offset:
            message = f"the start of {place} went back from {highest.offset} to {start.offset}"
            yield Finding(message, lines_of([highest.operation, start.operation]))
            return


def _above_the_end(facts: Facts, place: Place, starts: list[Start]) -> Iterator[Finding]:
    for asked, end in facts.ends[COMMITTED_VIEW].get(place, ()):
        for start in starts:
            if start.told_us < asked.invoked_us and start.offset > end:
                message = f"{place} begins at {start.offset}, above its end {end}"
                yield Finding(message, lines_of([start.operation, asked]))
                return


def _too_early(case: Case, place: Place, starts: list[Start]) -> Iterator[Finding]:
    """The first one only: the others follow from it."""
    reached = 0
    for start in starts:
        if start.offset <= reached:
            continue
        reached = start.offset
        asked = case.deletions.asked_before(place, start.told_us)
        if asked is not None and start.offset > asked:
            message = (
                f"{place} begins at {start.offset}, and only {asked} records had been asked for"
            )
            yield Finding(message, lines_of([start.operation]))
            return
        against = case.deletions.why_not(start)
        if against is not None:
            message = f"{place} was deleted too early, up to {start.offset}: {against}"
            yield Finding(message, case.deletions.proof(start))
            return


def _given_what_is_deleted(case: Case) -> Iterator[Finding]:
    facts = case.facts
    begun = {
        consumer: min(step.invoked_us for step in steps) for consumer, steps in facts.steps.items()
    }
    for read in facts.reads:
        if read.args.get("isolation", COMMITTED_VIEW) not in COMMITTED:
            continue
        begun_us = min(read.invoked_us, begun.get(read.args.get("consumer", ""), NEVER_US))
        for part in read.results.get("parts", ()):
            place = Place(part["topic"], part["partition"])
            first = min((record[0] for record in part.get("records", ())), default=None)
            start = None if first is None else _told_above(facts, place, first, begun_us)
            if start is not None:
                message = f"offset {first} of {place} was read, and it began at {start.offset} then"
                yield Finding(message, _lines(start, read))


def _told_above(facts: Facts, place: Place, offset: int, moment_us: int) -> Start | None:
    """A start above it that somebody was told before then."""
    for start in facts.starts.get(place, ()):
        if start.offset > offset and start.told_us < moment_us:
            return start
    return None


def _lines(start: Start, read: Operation) -> list[int]:
    return lines_of([start.operation, read])
