"""Makes a failing day small: `python -m tests.simulation.shrink SEED [--without ...]`.

A plan is data. Its applications and faults are removed, its nodes, hands and faults made fewer, its
trouble shorter, its network and clocks good, one change at a time, for as long as a day fails for
the same kind of reason (*delta debugging*). Each change gives another run, for chance is drawn in
another order; so a smaller plan is tried under a few seeds, and the smallest that fails is told
with the command that runs it again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from tests.simulation.plan import Plan, changed, changes
from tests.simulation.seeds import outcome_of_plan
from tests.simulation.sim import kind_of
from tests.simulation.swarm import plan_of

# Seeds under which a smaller plan is tried: its own, and some more.
SEEDS_TRIED: Final = 4
TRIES_MAX: Final = 400
# No day has more; an unlimited number of faults becomes this one first.
FAULTS_OF_A_DAY: Final = 64

T = TypeVar("T")
# What is wrong with a day of this plan and seed; "" where it is clean.
Judge = Callable[[Plan, int], str]


class Failing(NamedTuple):
    """A day that fails."""

    plan: Plan
    seed: int
    wrong: str


class Shrinker:
    """Of one failing day. `tries` counts the days that were run."""

    def __init__(self, judge: Judge, *, seeds: int = SEEDS_TRIED, tries_max: int = TRIES_MAX):
        self._judge = judge
        self._seeds = seeds
        self._tries_max = tries_max
        self.tries = 0

    def shrink(self, failing: Failing, said: Callable[[Failing], None]) -> Failing:
        """The smallest that was found; `said` hears of each smaller one."""
        kind = _kind(failing.wrong)
        smaller: Failing | None = failing
        while smaller is not None:
            failing = smaller
            smaller = self._smaller(failing, kind)
            if smaller is not None:
                said(smaller)
        return failing

    def _smaller(self, failing: Failing, kind: str) -> Failing | None:
        for plan in candidates(failing.plan):
            for seed in range(failing.seed, failing.seed + self._seeds):
                if self.tries == self._tries_max:
                    return None
                self.tries += 1
                wrong = self._judge(plan, seed)
                if wrong and _kind(wrong) == kind:
                    return Failing(plan, seed, wrong)
        return None


def _kind(wrong: str) -> str:
    """The words before what a run lists: a smaller run lists less."""
    return re.split(r"[\[({]", kind_of(wrong))[0].strip()


def candidates(plan: Plan) -> Iterator[Plan]:
    """Smaller plans, those first that take most away."""
    for faults in fewer(plan.faults):
        yield dataclasses.replace(plan, faults=faults)
    for applications in fewer(plan.applications):
        if applications:
            yield dataclasses.replace(plan, applications=applications)
    for name, value in _simpler(plan):
        yield dataclasses.replace(plan, **{name: value})
    for role, count in plan.nodes.items():
        if count > 1:
            yield dataclasses.replace(plan, nodes={**plan.nodes, role: count - 1})


def fewer(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """One half of them, the other half, then without each single one."""
    half = len(items) // 2
    if half > 1:
        yield tuple(items[:half])
        yield tuple(items[half:])
    for index in range(len(items)):
        yield (*items[:index], *items[index + 1 :])


def _simpler(plan: Plan) -> Iterator[tuple[str, Any]]:
    """What may be set otherwise, by itself."""
    wanted: dict[str, Any] = {
        "nodes": dict.fromkeys(plan.nodes, 1),
        "hands": 1,
        "faults_max": min(plan.faults_max // 2, FAULTS_OF_A_DAY) or 1,
        "trouble_s": round(plan.trouble_s / 2, 1) if plan.trouble_s > 1 else plan.trouble_s,
        "client_calls": (0.0,),
        "process_calls": (0.0,),
        "slowness": 1.0,
        "paces": (1.0,),
        "etcd_ms": 0.0,
        "rollout": "one by one",
        "control_replicas": 1,
        "replicas": {},
        "min_insync_replicas": 2,
        "spice": dataclasses.replace(
            plan.spice, large=0.0, flush=0.0, abort=0.0, interrupt=0.0, slow=0.0, cramped=0.0
        ),
    }
    for name, value in wanted.items():
        if getattr(plan, name) != value:
            yield name, value


def command_of(failing: Failing) -> str:
    """Runs it again."""
    changed_to = json.dumps(changes(plan_of(failing.seed), failing.plan))
    return f".venv/bin/python -m tests.simulation.workload {failing.seed} --change '{changed_to}'"


def judge(plan: Plan, seed: int) -> str:
    return outcome_of_plan(plan, seed).wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("seed", type=int)
    parser.add_argument("--without", default="", help="applications and faults, with commas")
    parser.add_argument("--change", default="{}", help="fields of the plan, as JSON")
    parser.add_argument("--tries", type=int, default=TRIES_MAX, help="days to run at most")
    options = parser.parse_args()
    drawn = plan_of(options.seed, [name for name in options.without.split(",") if name])
    plan = changed(drawn, json.loads(options.change))
    # A run prints its trace where it fails; here only what is left of it counts.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    wrong = judge(plan, options.seed)
    if not wrong:
        print(f"seed {options.seed} is clean")
        return 1
    shrinker = Shrinker(judge, tries_max=options.tries)
    failing = shrinker.shrink(Failing(plan, options.seed, wrong), _say)
    print(f"\nafter {shrinker.tries} days, the smallest:\n{failing.plan}\n{failing.wrong}")
    print(command_of(failing))
    return 0


def _say(failing: Failing) -> None:
    plan = failing.plan
    print(
        f"seed {failing.seed}: {len(plan.applications)} applications, faults "
        f"{', '.join(plan.faults) or 'none'} (at most {plan.faults_max}), "
        f"{sum(plan.nodes.values())} processes, {plan.trouble_s:.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
