"""A short run of chaos under a Spark job: the kinds that tell most, once each (`make spark-chaos`
runs all of them)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
# A bound that only ends a test that would hang.
PATIENCE_S = 1800
SEED = 3
KINDS = (
    "lost checkpoint, orphans",
    "kill workers",
    "stop in commit",
    "zombie driver",
    "pause coordinator",
    "answers lost",
)


def test_i21_i34_a_job_whose_driver_workers_and_services_fail_is_exactly_once() -> None:
    only = [word for kind in KINDS for word in ("--only", kind)]
    command = [
        *(sys.executable, "-m", "tests.spark.chaos", f"--seed={SEED}"),
        *("--seconds=30", "--records=900", "--once", *only),
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "none lost, none twice, in order" in done.stdout
    assert "all promises held" in done.stdout
