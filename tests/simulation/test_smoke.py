"""The seams hold: drivers, machines, elections, journals and client over fakes, in virtual time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oncelog_server.core.roles import ROLES
from tests.simulation.smoke import trace_of

ROOT = Path(__file__).parents[2]
SEEDS = range(100, 106)


@pytest.mark.parametrize("victim", ROLES)
@pytest.mark.parametrize("seed", SEEDS)
def test_i21_exactly_once_over_a_loss_of_power(seed: int, victim: str) -> None:
    trace = trace_of(seed, victim)
    assert any("loses power" in line for line in trace), "the story must have its crash"
    assert any("verified: every record exactly once" in line for line in trace)


@pytest.mark.parametrize("victim", ROLES)
def test_one_seed_gives_one_trace_whatever_the_hash_seed(victim: str) -> None:
    traces = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation.smoke", "7", victim],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0].count(b"\n") > 100
    assert traces[0] == traces[1]
