"""A short run of chaos: the kinds that tell most, once each (`make chaos` runs all of them)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import sandbox

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
# A bound that only ends a test that would hang.
PATIENCE_S = 600
KINDS = ("bounce partition_leader", "pause coordinator", "power off", "disk full")
ON_LOOPBACK = ("bounce partition_leader", "pause coordinator")


def test_i5_i6_i21_i25_i29_machines_die_freeze_and_run_full_under_load() -> None:
    kinds = ON_LOOPBACK if sandbox.command() is None else KINDS
    only = [word for kind in kinds for word in ("--only", kind)]
    command = [sys.executable, "-m", "tests.chaos", "--seconds=30", "--records=9000", *only]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "all promises held" in done.stdout
