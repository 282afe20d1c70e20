"""Benchmarks of what is large, in small: they go through all that they measure, and what they
assert by themselves holds. Figures are nobody's business here. (Of `large_transaction` see its own
test.)"""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import bootstrap, many_partitions

pytestmark = pytest.mark.integration


def said(command: click.Command, *words: str) -> str:
    done = CliRunner().invoke(command, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_partitions_made_of_what_a_start_reads_start(tmp_path: Path) -> None:
    found = said(many_partitions.main, "--small", "--kind=copy", f"--folder={tmp_path}")
    assert found.splitlines()[2].startswith("| copy | 8 |")


def test_i4_a_replica_is_built_beside_live_traffic_and_goes_on_after_kills(tmp_path: Path) -> None:
    found = said(bootstrap.main, "--small", f"--folder={tmp_path}")
    assert "the receiver was killed" in found
    assert "the leader was killed" in found
