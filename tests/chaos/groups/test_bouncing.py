"""A short run of bounces: three members, each way to be hit, and one service (`make chaos-groups`
runs all of it)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
# A bound that only ends a test that would hang.
PATIENCE_S = 300
# Kills, stops and ends a worker, in this order, then kills the offset manager.
SEED = 6


def test_i14_i21_i23_members_are_bounced_and_each_record_is_copied_once_in_order() -> None:
    command = [
        *(sys.executable, "-m", "tests.chaos.groups", "--variant=members", f"--seed={SEED}"),
        *("--records=4500", "--seconds=15", "--later=4", "--session-ms=3000"),
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "all promises held" in done.stdout
