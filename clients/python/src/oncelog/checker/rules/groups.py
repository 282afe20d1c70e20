"""I23: who may commit for a group that has members, and who is given its records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from oncelog.checker.facts import Place, lines_of
from oncelog.checker.history import Operation
from oncelog.checker.ownership import Assigned, Claim, Ownership, Taken
from oncelog.checker.report import Finding
from oncelog.checker.rules.case import Case


def i23_only_owners_commit(case: Case) -> Iterator[Finding]:
    """In no generation of a group do two members own one partition: neither by what heartbeats are
    answered nor by whose offsets are taken. No offset is taken of a member that was refused, or had
    left, before it was asked for; nor of nobody, while somebody was a member throughout. Plain
    commits of members cover each offset once (again, where the group's offset was moved back).
    And nobody is given records of a partition after another member was told that it owns it, in a
    later generation than he has heard of (but where members were removed by hand, or one instance
    replaces itself). All of it is judged where heartbeats and offsets are in the history as a
    service was asked."""
    ownership = Ownership(case.facts)
    for (group, place), claims in sorted(ownership.claims().items()):
        yield from _two_owners(group, place, claims)
    for taken in ownership.taken:
        yield from _of_nobody(ownership, taken) if not taken.member else _of_gone(ownership, taken)
    yield from _plain_twice(ownership)
    yield from _given_too_late(case, ownership)


def _two_owners(group: str, place: Place, claims: Sequence[Claim]) -> Iterator[Finding]:
    """`claims` in order."""
    reach: dict[str, Claim] = {}
    for claim in claims:
        for member, other in reach.items():
            if member != claim.member and claim.low <= other.high:
                message = (
                    f"{member} and {claim.member} both own {place} of group {group} in generation "
                    f"{claim.low}"
                )
                yield Finding(message, lines_of([other.operation, claim.operation]))
        before = reach.get(claim.member)
        if before is None or before.high < claim.high:
            reach[claim.member] = claim


def _of_gone(ownership: Ownership, taken: Taken) -> Iterator[Finding]:
    gone = ownership.gone.get((taken.group, taken.member))
    if gone is not None and gone.ended_us < taken.asked_us:
        message = (
            f"{taken.member} committed {taken.to} of {taken.place} for group {taken.group}, of "
            "which it was no member any more"
        )
        yield Finding(message, lines_of([gone, taken.operation]))


def _of_nobody(ownership: Ownership, taken: Taken) -> Iterator[Finding]:
    end_us = taken.operation.ended_us
    for member, lives in ownership.lives.get(taken.group, {}).items():
        if lives.first.ended_us < taken.asked_us and end_us < lives.last.invoked_us:
            message = (
                f"nobody committed {taken.to} of {taken.place} for group {taken.group}, of which "
                f"{member} was a member"
            )
            yield Finding(message, lines_of([lives.first, taken.operation, lives.last]))
            return


def _plain_twice(ownership: Ownership) -> Iterator[Finding]:
    by_place: dict[tuple[str, Place], list[Taken]] = defaultdict(list)
    for step in ownership.taken:
        if step.member and step.request is None:
            by_place[step.group, step.place].append(step)
    for (group, place), steps in sorted(by_place.items()):
        if any(step.since == "any" for step in steps):
            continue
        moved_back = ownership.moved_back.get((group, place), ())
        covering: list[Taken] = []
        for step in sorted(steps, key=lambda item: (_start(item), item.to)):
            if _start(step) >= step.to:
                continue
            covering = [before for before in covering if _start(step) < before.to]
            other = next((one for one in covering if not _apart(one, step, moved_back)), None)
            if other is not None:
                message = (
                    f"{other.member} and {step.member} both committed offset {_start(step)} of "
                    f"{place} for group {group}"
                )
                yield Finding(message, lines_of([other.operation, step.operation]))
            covering.append(step)


def _apart(one: Taken, other: Taken, moved_back: Sequence[Operation]) -> bool:
    """The group's offset may have been moved back when one of them was taken and the other not."""
    begin_us = min(one.asked_us, other.asked_us)
    end_us = max(one.operation.ended_us, other.operation.ended_us)
    return any(begin_us <= op.ended_us and op.invoked_us <= end_us for op in moved_back)


def _start(step: Taken) -> int:
    """From nothing: before all."""
    return step.since if isinstance(step.since, int) else -1


def _given_too_late(case: Case, ownership: Ownership) -> Iterator[Finding]:
    for answers in ownership.assigned.values():
        answers.sort(key=lambda answer: answer.operation.ended_us)
    for read in case.facts.reads:
        group, member = read.results.get("group"), read.results.get("member")
        if group is None or member is None or group in ownership.meddled:
            continue
        if ownership.is_replaced(group, member, read.ended_us):
            continue
        for part in read.results.get("parts", ()):
            place = Place(part["topic"], part["partition"])
            answers = ownership.assigned.get((group, place), [])
            newer = _newer(answers, member, int(read.results["generation"]), read.ended_us)
            if newer is not None and part.get("records"):
                message = (
                    f"{member} was given records of {place}, which {newer.member} of group {group} "
                    f"had been told that it owns, in generation {newer.generation}"
                )
                yield Finding(message, lines_of([newer.operation, read]))


def _newer(
    answers: Sequence[Assigned], member: str, generation: int, before_us: int
) -> Assigned | None:
    """Somebody else who was told so before then, in a later generation. `answers` in order."""
    own = next((item.instance for item in answers if item.member == member), "")
    for answer in reversed(answers):
        is_other = answer.member != member and not (own and answer.instance == own)
        if is_other and answer.generation > generation and answer.operation.ended_us < before_us:
            return answer
    return None
