"""Random days of several applications under random faults: what they were told fits the promises.

The seeds are others with each commit (`sim.fresh_seed`); a failing one is told with the command
that repeats it. `make sim SEEDS=3000` runs more.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.simulation import sim
from tests.simulation.marks import everything
from tests.simulation.seeds import Sum, outcome_of, run_all
from tests.simulation.swarm import plan_of

ROOT: Final = Path(__file__).parents[2]
# A minute and a half of two cores, where they are quick and nobody else has them.
SEEDS: Final = 200
# Where they are not, no more are begun after so long, but for as many.
PATIENCE_S: Final = 300
SEEDS_MIN: Final = 40
TRANSACTIONS_MIN: Final = 20


def test_i1_i3_i4_i5_i6_i15_i21_i22_i29_i30_i32_i35_hold_on_the_days_of_this_commit() -> None:
    first = sim.fresh_seed()
    total = Sum()
    began_s = time.monotonic()

    def has_time(seed: int) -> bool:
        return seed < first + SEEDS_MIN or time.monotonic() < began_s + PATIENCE_S

    seeds = itertools.takewhile(has_time, range(first, first + SEEDS))
    for outcome in run_all(seeds, os.cpu_count() or 1):
        total.add(outcome)
    print("\n".join(sim.summary(total, total.cpu_s)))
    failing = [sim.line_of(seed, wrong) for seed, wrong in sorted(total.wrong.items())]
    assert not failing, "\n".join(failing)
    assert total.seeds >= SEEDS_MIN
    assert total.transactions > TRANSACTIONS_MIN * total.seeds, "days without work show nothing"
    for kind in ("fault", "application") if total.seeds == SEEDS else ():
        missing = everything()[kind] - total.reached[kind]
        assert not missing, f"no day of {SEEDS} had the {kind} {sorted(missing)}"


def test_one_seed_gives_one_day_whatever_the_hash_seed() -> None:
    days = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation.workload", "10", "/dev/stderr"],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
            capture_output=True,
            # It may fail: then both fail alike.
            check=False,
            timeout=120,
        )
        for hash_seed in ("1", "2")
    ]
    assert (days[0].stdout + days[0].stderr).count(b"\n") > 100
    assert days[0].stdout == days[1].stdout
    assert days[0].stderr == days[1].stderr


def test_one_seed_gives_one_day_whatever_ran_before_it() -> None:
    """Else a seed that failed among others could not be repeated alone."""
    alone = outcome_of(10)
    outcome_of(11)
    again = outcome_of(10)
    assert (again.wrong, again.transactions) == (alone.wrong, alone.transactions)
    assert again.reached == alone.reached


def test_days_differ() -> None:
    plans = [plan_of(seed) for seed in range(200)]
    assert len({str(plan) for plan in plans}) == len(plans)
    assert {name for plan in plans for name in plan.applications} == everything()["application"]
    assert {name for plan in plans for name in plan.faults} == everything()["fault"]
