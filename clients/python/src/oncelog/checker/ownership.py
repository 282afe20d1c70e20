"""Who owned which partition of a group, and who was its member: what follows from answers (I23).

The clock of this is the group's *generation*: each answer to a heartbeat names the one of its
moment, and it grows with every change of members and owners. An answer says that its member owned
what it was assigned in that generation. Offsets that were taken in a member's name say more: that
it owned their partitions from the generation that it had heard of until they were taken, in all
generations that somebody was told of before it asked for that.

Times tell the rest: a member id that was refused, or has left, never comes back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from oncelog.checker.facts import Facts, Place
from oncelog.checker.history import Operation

# Reasons for which a group refuses the heartbeat of who is no member any more.
GONE: Final = frozenset({"UNKNOWN_MEMBER", "FENCED_INSTANCE"})


class Claim(NamedTuple):
    """This member owned a partition in all of these generations."""

    low: int
    high: int
    member: str
    operation: Operation


class Taken(NamedTuple):
    """One step that a service took (`operation` is ok), or may have. `asked_us`: when the very same
    was asked for first; its answer may be that of then."""

    group: str
    place: Place
    # "": of nobody.
    member: str
    generation: int
    since: int | str
    to: int
    # None: a plain commit.
    request: str | None
    operation: Operation
    asked_us: int = 0


class Lives(NamedTuple):
    """Of one member: the first and the last heartbeat that was answered before it left."""

    first: Operation
    last: Operation


class Assigned(NamedTuple):
    """An answer that names a partition."""

    generation: int
    member: str
    instance: str
    operation: Operation


class Ownership:
    """Of all groups."""

    def __init__(self, facts: Facts) -> None:
        # By group: answers in order of their time, with the highest generation told until then.
        self._told: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.assigned: dict[tuple[str, Place], list[Assigned]] = defaultdict(list)
        self.lives: dict[str, dict[str, Lives]] = defaultdict(dict)
        # Of an instance of a group: from when to when each member of its name may have joined.
        self._instances: dict[tuple[str, str], dict[str, tuple[int, int]]] = defaultdict(dict)
        # When a member was surely gone, and what says so.
        self.gone: dict[tuple[str, str], Operation] = {}
        # Groups of which somebody took members out by hand.
        self.meddled = {op.args["group"] for op in facts.of_members if op.do == "remove_member"}
        for operation in facts.of_members:
            if operation.do == "heartbeat":
                self._hear(operation)
        for answers in self._told.values():
            _accumulate(answers)
        self.taken = list(_taken(facts))
        # What was asked for in anybody's name, and may have moved a group's offset back.
        self.moved_back = _moved_back(facts)

    def told_by(self, group: str, moment_us: int) -> int:
        """The highest generation that an answer had told by then; 0: none."""
        told = self._told.get(group, [])
        at = bisect_left(told, (moment_us, 0))
        return told[at - 1][1] if at else 0

    def claims(self) -> dict[tuple[str, Place], list[Claim]]:
        """By partition of a group, in order of generations."""
        found: dict[tuple[str, Place], list[Claim]] = {
            key: [Claim(a.generation, a.generation, a.member, a.operation) for a in answers]
            for key, answers in self.assigned.items()
        }
        for taken in self.taken:
            if taken.member and taken.operation.is_ok:
                high = max(taken.generation, self.told_by(taken.group, taken.asked_us))
                claim = Claim(taken.generation, high, taken.member, taken.operation)
                found.setdefault((taken.group, taken.place), []).append(claim)
        return {key: sorted(claims, key=lambda claim: claim[:3]) for key, claims in found.items()}

    def is_replaced(self, group: str, member: str, before_us: int) -> bool:
        """Somebody else may have taken its place under its name by then: whom its partitions go to
        need not wait for it."""
        return any(
            first < before_us and last > joins[member][0]
            for (whose, _), joins in self._instances.items()
            if whose == group and member in joins
            for other, (first, last) in joins.items()
            if other != member
        )

    def _hear(self, operation: Operation) -> None:
        args, results = operation.args, operation.results
        group, member = args["group"], args["member"]
        if args.get("instance"):
            self._may_join(self._instances[group, args["instance"]], operation)
        leaves, known = bool(args.get("leaving")), self.lives[group].get(member)
        if not operation.is_ok:
            refused = results.get("reason") in GONE and int(args.get("generation", 0)) > 0
            if refused and operation.end_line and not operation.may_have_applied:
                self._note_gone(group, member, operation)
            return
        generation = int(results["generation"])
        self._told[group].append((operation.ended_us, generation))
        if leaves:
            if known is not None and known.first.ended_us < operation.invoked_us:
                self._note_gone(group, member, operation)
            return
        first = operation if known is None else min(known.first, operation, key=_ended)
        last = operation if known is None else max(known.last, operation, key=_invoked)
        self.lives[group][member] = Lives(first, last)
        for item in results.get("assigned", ()):
            place = Place(item["topic"], item["partition"])
            answer = Assigned(generation, member, args.get("instance") or "", operation)
            self.assigned[group, place].append(answer)

    def _may_join(self, joins: dict[str, tuple[int, int]], operation: Operation) -> None:
        """What is sent again, or answered late, may come after the join of another."""
        member, asked_us = operation.args["member"], operation.invoked_us
        first, last = joins.get(member, (asked_us, asked_us))
        if not operation.args.get("generation"):
            last = max(last, operation.ended_us)
        joins[member] = min(first, asked_us), last

    def _note_gone(self, group: str, member: str, operation: Operation) -> None:
        before = self.gone.get((group, member))
        if before is None or operation.ended_us < before.ended_us:
            self.gone[group, member] = operation


def _taken(facts: Facts) -> Iterator[Taken]:
    """Those that were answered. What was asked for several times was asked for when it was first;
    where it was not in one member's one generation, nobody knows in which it was taken."""
    same: dict[tuple[Any, ...], list[Taken]] = defaultdict(list)
    for operation in facts.of_members:
        if operation.do == "take_offsets" and operation.may_have_applied:
            for step in _steps(operation):
                whose = step.request if step.request is not None else step.member
                same[step.request is None, whose, step.group, step.place, step.since, step.to] += [
                    step
                ]
    for steps in same.values():
        if len({(step.member, step.generation) for step in steps}) > 1:
            continue
        asked_us = min(step.operation.invoked_us for step in steps)
        answered = [step for step in steps if step.operation.is_ok]
        if answered:
            first = min(answered, key=lambda step: step.operation.ended_us)
            yield first._replace(asked_us=asked_us)


def _moved_back(facts: Facts) -> dict[tuple[str, Place], list[Operation]]:
    found: dict[tuple[str, Place], list[Operation]] = defaultdict(list)
    for operation in facts.of_members:
        if operation.do == "take_offsets" and operation.may_have_applied:
            for step in _steps(operation):
                if step.since == "any" or (isinstance(step.since, int) and step.to < step.since):
                    found[step.group, step.place].append(operation)
    return found


def _steps(operation: Operation) -> Iterator[Taken]:
    args = operation.args
    if operation.results.get("already_committed"):
        return
    for item in args["offsets"]:
        yield Taken(
            group=args["group"],
            place=Place(item["topic"], item["partition"]),
            member=args["member"],
            generation=int(args.get("generation", 0)),
            since=item.get("from", "any"),
            to=int(item["to"]),
            request=args.get("request"),
            operation=operation,
        )


def _accumulate(answers: list[tuple[int, int]]) -> None:
    answers.sort()
    highest = 0
    for at, (ended_us, generation) in enumerate(answers):
        highest = max(highest, generation)
        answers[at] = (ended_us, highest)


def _ended(operation: Operation) -> int:
    return operation.ended_us


def _invoked(operation: Operation) -> int:
    return operation.invoked_us
