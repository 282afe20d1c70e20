"""Walks along each consumer: where it stands in each partition, and how it came there.

A consumer does one thing at a time. `next` is the offset that its next record must have, `base`
where its last commit, seek or position left it: an abort takes it back there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from oncelog.checker.facts import COMMITTED_VIEW, Facts, OffsetCommit, Place
from oncelog.checker.history import Operation
from oncelog.checker.report import Finding
from oncelog.checker.stored_offsets import StoredOffsets, Verdict


class Jump(NamedTuple):
    consumer: str
    place: Place
    offset: int
    expected: int
    lines: list[int]


@dataclass(slots=True)
class _Stand:
    """`line`: of what brought it there."""

    next: int
    line: int
    base: int


def jumps(facts: Facts) -> Iterator[Jump]:
    """Records that are not the next ones."""
    for consumer in sorted(facts.steps):
        stands: dict[Place, _Stand] = {}
        for step in facts.steps[consumer]:
            if step.do != "read":
                _stand_anew(stands, step)
                continue
            dense = step.args.get("isolation", COMMITTED_VIEW) == COMMITTED_VIEW
            for part in step.results.get("parts", ()):
                place = Place(part["topic"], part["partition"])
                stand = stands.get(place)
                for offset, *_ in part.get("records", ()):
                    if stand is None:
                        stand = stands[place] = _Stand(offset, step.end_line, offset)
                    wrong = offset != stand.next if dense else offset < stand.next
                    if wrong:
                        lines = [stand.line, step.end_line]
                        yield Jump(consumer, place, offset, stand.next, lines)
                    stand.next, stand.line = offset + 1, step.end_line


def wrong_resumes(facts: Facts, stored: StoredOffsets) -> Iterator[Finding]:
    """Positions that are neither the consumer's own base, nor where a commit of its own ends that
    is on its way, nor the group's."""
    commits = _commits_by_consumer(facts)
    asked = _asked_by_place(facts)
    for consumer in sorted(facts.steps):
        stands: dict[Place, _Stand] = {}
        events: list[Operation | OffsetCommit] = [
            *facts.steps[consumer],
            *commits.get(consumer, ()),
        ]
        events.sort(key=_moment)
        for event in events:
            if isinstance(event, OffsetCommit):
                stand = stands.get(event.place)
                if stand is not None:
                    stand.base = event.to
                continue
            if event.do == "position":
                on_their_way = {
                    (place, commit.to)
                    for place, sent in asked.get(consumer, {}).items()
                    if (commit := _on_its_way(sent, event)) is not None
                }
                yield from _judge(consumer, event, stands, stored, on_their_way)
            if event.do != "read":
                _stand_anew(stands, event)


def passed_over(facts: Facts) -> dict[tuple[str, Place], list[range]]:
    """By consumer and partition: offsets that it never was given, for the first of them were
    deleted."""
    found: dict[tuple[str, Place], list[range]] = {}
    for consumer, steps in facts.steps.items():
        stands: dict[Place, _Stand] = {}
        for step in steps:
            if step.do == "read":
                _stand_behind(stands, step)
                continue
            for item in step.results.get("positions", ()):
                place = Place(item["topic"], item["partition"])
                if "start" in item:
                    # It may have gone back, to give again what an abort took with it.
                    stood = stands[place].next if place in stands else 0
                    stood = item.get("since", stood)
                    found.setdefault((consumer, place), []).append(range(stood, item["offset"]))
            _stand_anew(stands, step)
    return found


def unread_commits(facts: Facts) -> Iterator[tuple[OffsetCommit, int, int]]:
    """Commits of a consumer that say another position than the one where it stood: with that
    position and the line that says so."""
    commits: dict[str, list[OffsetCommit]] = {}
    for steps in facts.offset_commits.values():
        for commit in steps:
            if commit.consumer is not None:
                commits.setdefault(commit.consumer, []).append(commit)
    for consumer in sorted(commits):
        stands: dict[Place, _Stand] = {}
        events: list[tuple[int, int, Operation | OffsetCommit]] = [
            (step.invoked_us, step.line, step) for step in facts.steps.get(consumer, ())
        ]
        events += [(item.asked.invoked_us, item.asked.line, item) for item in commits[consumer]]
        for _, _, event in sorted(events, key=lambda item: item[:2]):
            if isinstance(event, OffsetCommit):
                stand = stands.get(event.place)
                if stand is not None and stand.next != event.to:
                    yield event, stand.next, stand.line
            elif event.do == "read":
                _stand_behind(stands, event)
            else:
                _stand_anew(stands, event)


def _stand_behind(stands: dict[Place, _Stand], read: Operation) -> None:
    """What it was given."""
    for part in read.results.get("parts", ()):
        place = Place(part["topic"], part["partition"])
        for offset, *_ in part.get("records", ())[-1:]:
            base = stands[place].base if place in stands else offset
            stands[place] = _Stand(offset + 1, read.end_line, base)


def _stand_anew(stands: dict[Place, _Stand], step: Operation) -> None:
    if step.do == "seek":
        place = Place(step.args["topic"], step.args["partition"])
        offset = step.args["offset"]
        stands[place] = _Stand(offset, step.end_line, offset)
        return
    for item in step.results.get("positions", ()):
        place, offset = Place(item["topic"], item["partition"]), item["offset"]
        # Who passes over what is deleted commits it as if he had been given it, and an abort takes
        # him back before it.
        before = stands.get(place) if "start" in item else None
        stands[place] = _Stand(offset, step.end_line, offset if before is None else before.base)


def _judge(
    consumer: str,
    step: Operation,
    stands: dict[Place, _Stand],
    stored: StoredOffsets,
    on_their_way: Collection[tuple[Place, int]],
) -> Iterator[Finding]:
    group = step.args.get("group")
    for item in step.results.get("positions", ()):
        place, offset = Place(item["topic"], item["partition"]), item["offset"]
        stand = stands.get(place)
        if "start" in item:
            yield from _judge_skip(consumer, step, item, stand, stored)
            continue
        if stand is not None and stand.base == offset:
            continue
        if (place, offset) in on_their_way:
            continue
        if group is None:
            if stand is not None:
                message = f"{consumer} goes on at {offset} of {place}; it had stood at {stand.next}"
                yield Finding(message, [stand.line, *step.lines])
            continue
        when = (step.invoked_us, step.ended_us)
        judgement = stored.judge((group, place), offset, *when, stable=True)
        empty = stored.judge((group, place), None, *when, stable=True)
        # Where the group may have nothing, the consumer's own `start` says where.
        if Verdict.FITS in (judgement.verdict, empty.verdict):
            continue
        message = (
            f"{consumer} goes on at {offset} of {place}, which group {group} does not have "
            f"({judgement.verdict.value})"
        )
        yield Finding(message, [*judgement.lines, *step.lines])


def _judge_skip(
    consumer: str,
    step: Operation,
    item: Mapping[str, Any],
    stand: _Stand | None,
    stored: StoredOffsets,
) -> Iterator[Finding]:
    """It says that it goes on there because what it stood at is deleted: then it stood before the
    start, and goes on at it, or behind all that there was, where it wants that."""
    place, offset, start = Place(item["topic"], item["partition"]), item["offset"], item["start"]
    if offset != start and (offset < start or item.get("if_deleted") != "latest"):
        message = f"{consumer} goes on at {offset} of {place}, which begins at {start}"
        yield Finding(message, step.lines)
        return
    group = step.args.get("group")
    when = (step.invoked_us, step.ended_us)
    if stand is None and group is None:
        return
    if stand is not None and min(stand.next, stand.base) < start:
        return
    if group is not None and stored.may_be_below((group, place), start, *when):
        return
    stood = f"it stood at {stand.next}" if stand is not None else f"group {group} was not before it"
    message = f"{consumer} goes on at {offset} of {place}, for it begins at {start}; {stood}"
    yield Finding(message, [*([] if stand is None else [stand.line]), *step.lines])


def _commits_by_consumer(facts: Facts) -> dict[str, list[OffsetCommit]]:
    """Those that were answered: they move the base."""
    found: dict[str, list[OffsetCommit]] = {}
    for commits in facts.offset_commits.values():
        for commit in commits:
            if commit.consumer is not None and _answered(commit) is not None:
                found.setdefault(commit.consumer, []).append(commit)
    return found


def _asked_by_place(facts: Facts) -> dict[str, dict[Place, list[OffsetCommit]]]:
    """By consumer; each in the order in which they were asked for."""
    found: dict[str, dict[Place, list[OffsetCommit]]] = {}
    for commits in facts.offset_commits.values():
        for commit in commits:
            if commit.consumer is not None:
                found.setdefault(commit.consumer, {}).setdefault(commit.place, []).append(commit)
    for by_place in found.values():
        for sent in by_place.values():
            sent.sort(key=lambda commit: (commit.asked.invoked_us, commit.asked.line))
    return found


def _on_its_way(sent: Sequence[OffsetCommit], step: Operation) -> OffsetCommit | None:
    """The last one that was asked for before, where nobody knew by then what became of it: an abort
    takes the consumer back to where it ends. What was given up behind it goes with the abort."""
    count = bisect_left(sent, step.line, key=lambda commit: commit.asked.line)
    for commit in reversed(sent[:count]):
        if not 0 < commit.asked.end_line < step.line:
            return commit
        if commit.asked.is_ok:
            return None
    return None


def _answered(commit: OffsetCommit) -> Operation | None:
    if commit.transaction is not None:
        return commit.transaction.told_committed()
    return commit.asked if commit.asked.is_ok else None


def _moment(event: Operation | OffsetCommit) -> tuple[int, int]:
    if isinstance(event, OffsetCommit):
        answered = _answered(event)
        assert answered is not None, "only those that were answered are here"
        return answered.ended_us, answered.end_line
    return event.invoked_us, event.line
