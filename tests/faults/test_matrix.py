"""The kill matrix in the simulated world: role x failpoint x fault, each over the whole story.

`make faults` runs all of it, at several passings each. The suite runs one fault at each failpoint
of each role, all kinds of faults in turn.
"""

from __future__ import annotations

import functools
import os
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import pytest

from oncelog_server.core import failpoints
from oncelog_server.core.failpoints import TABLE
from tests.faults.cases import CASES, Case, Fault, faults_at
from tests.faults.matrix import Passings, Strike, passing_of
from tests.faults.simulated import count_passings, simulate

# "all": the whole matrix; a number behind it (all:3): so many passings of each case.
SCOPE: Final = os.environ.get("ONCELOG_FAULTS", "")
# Seeds of runs with two faults.
PAIRS: Final = range(600 if SCOPE.startswith("all") else 60)
SECOND_PASSING_MAX: Final = 8


@functools.cache
def passings() -> dict[tuple[str, str], Passings]:
    return count_passings()


def chosen() -> Sequence[tuple[Case, int]]:
    """Cases with the number of the attempt, which chooses the passing."""
    scope, _, attempts = SCOPE.partition(":")
    if scope == "all":
        return [(case, attempt) for attempt in range(int(attempts or 1)) for case in CASES]
    by_place: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in CASES:
        by_place[case.role, case.point].append(case)
    # At each place the fault that was chosen least so far.
    seen: Counter[Fault] = Counter()
    picked = []
    for cases in by_place.values():
        case = min(cases, key=lambda case: seen[case.fault])
        seen[case.fault] += 1
        picked.append((case, 0))
    return picked


def test_every_failpoint_is_passed_in_every_role_that_names_it() -> None:
    named = {(role, point.name) for point in TABLE for role in point.roles}
    assert named - passings().keys() == set()


def test_no_role_passes_a_failpoint_that_it_does_not_name() -> None:
    """Else the matrix would leave it out."""
    named = {(role, point.name) for point in TABLE for role in point.roles}
    assert passings().keys() - named == set()


def test_unset_a_failpoint_does_nothing_and_nothing_is_wrapped() -> None:
    assert not failpoints.armed()
    assert failpoints.reach("driver.append.before") is None


def test_the_suite_runs_every_kind_of_fault() -> None:
    assert {case.fault for case, _ in chosen()} == set(Fault)
    assert {fault for point in TABLE for fault in faults_at(point)} == set(Fault)


@pytest.mark.parametrize(("case", "attempt"), chosen(), ids=lambda value: str(value))
def test_all_promises_hold_over_a_fault(case: Case, attempt: int) -> None:
    """I1, I3-I6, I8-I11, I14, I16, I21, I24, I29, I30, I35: see verdict.py."""
    simulate(_strike(case, attempt))


@pytest.mark.parametrize("seed", PAIRS)
def test_all_promises_hold_over_two_faults(seed: int) -> None:
    """The second one strikes after the first, wherever the story is then: in a recovery, too."""
    chance = random.Random(seed)
    first, second = chance.choice(CASES), chance.choice(CASES)
    simulate(_strike(first, seed), Strike(second, chance.randint(1, SECOND_PASSING_MAX)))


def _strike(case: Case, attempt: int) -> Strike:
    return Strike(case, passing_of(case, passings()[case.role, case.point], attempt))
