"""A failing day is made small, and the same plan gives the same day when it is run again."""

from __future__ import annotations

import dataclasses
import json
import shlex

from tests.simulation.plan import Plan, changed, changes
from tests.simulation.shrink import Failing, Shrinker, command_of
from tests.simulation.swarm import plan_of

SEED = 11


def _wide() -> Plan:
    return dataclasses.replace(
        plan_of(SEED),
        applications=("feeder", "twins", "chain", "job"),
        faults=("power", "sever", "ring", "lease", "eio"),
        nodes={"coordinator": 3, "partition_leader": 3, "offset_manager": 3},
        hands=2,
    )


def _wrong(plan: Plan, seed: int) -> str:
    """As if twins and a ring of coordinators were all that it takes; without the ring, another
    thing is wrong."""
    if "twins" not in plan.applications or plan.nodes["coordinator"] < 2:
        return ""
    return (
        f"I4: two outcomes of 17 {list(plan.applications)}"
        if "ring" in plan.faults
        else "I29: nothing succeeds"
    )


def test_what_a_failure_does_not_need_is_taken_away() -> None:
    shrinker = Shrinker(_wrong)
    seen: list[Failing] = []
    small = shrinker.shrink(Failing(_wide(), SEED, "I4: two outcomes of 4"), seen.append)
    assert small.plan.applications == ("twins",)
    assert small.plan.faults == ("ring",)
    assert dict(small.plan.nodes) == {
        "coordinator": 2,
        "partition_leader": 1,
        "offset_manager": 1,
    }
    assert (small.plan.hands, small.plan.faults_max) == (1, 1)
    assert small.wrong.startswith("I4"), "another kind of failure is another day's"
    assert seen[-1] == small


def test_the_command_runs_the_same_plan() -> None:
    small = Failing(_wide(), SEED, "I4")
    words = shlex.split(command_of(small))
    assert int(words[words.index("--change") - 1]) == SEED
    told = json.loads(words[words.index("--change") + 1])
    assert changed(plan_of(SEED), told) == small.plan
    assert changes(small.plan, small.plan) == {}


def test_days_that_are_tried_have_a_limit() -> None:
    shrinker = Shrinker(_wrong, tries_max=3)
    shrinker.shrink(Failing(_wide(), SEED, "I4: two outcomes of 4"), lambda failing: None)
    assert shrinker.tries == 3
