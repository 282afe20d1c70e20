"""The benchmark itself, for seconds: it goes through what it measures, counts both kinds of usage,
and writes its report. Figures are nobody's business here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import kills, run, scale

pytestmark = pytest.mark.integration

SOME = ("plain-100", "of-75", "flushed", "pipeline-750", "producers-8-in-4", "read-100")


def test_a_short_run_measures_each_workload_and_writes_its_report(tmp_path: Path) -> None:
    results = tmp_path / "results.md"
    words = ["--seconds=0.5", "--rounds=1", "--json", f"--results={results}"]
    for name in (*SOME, "end-to-end", "beside-open"):
        words += ["--only", name]
    done = CliRunner().invoke(run.main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    figures = told["figures"]
    assert set(figures) == {f"{name} on oncelog" for name in (*SOME, "end-to-end", "beside-open")}
    assert set(told["warm_up"]) == set(figures)
    for name, found in figures.items():
        assert found["cpu_us"]["median"] > 0, name
        # Of the client, which knows all of its own, and of servers, which are looked at.
        assert found["by_role"]["client"][1] > 0, name
        assert found["by_role"]["partition_leader"][1] > 0, name
    assert all(limit["value"] > 0 for limit in told["limits"])
    report = results.read_text()
    for name in SOME:
        # A row in the table of rounds, and one in that of the warm-up.
        assert report.count(f"| {name} | cpu_us |") == 2


def test_a_name_that_is_none_is_refused_before_anything_starts() -> None:
    done = CliRunner().invoke(run.main, ["--only", "plain"])
    assert done.exit_code == 2
    assert "--list" in done.output


def test_what_grows_is_measured_at_each_step(tmp_path: Path) -> None:
    words = ["--open=20", "--partitions=20", "--log-mb=2", "--seconds=0.3", f"--folder={tmp_path}"]
    done = CliRunner().invoke(scale.main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [row[:2] for row in rows] == [
        *(["open-transactions", size] for size in ("0", "2", "20")),
        *(["many-partitions", size] for size in ("0", "2", "20")),
        *(["much-log", size] for size in ("0", "2")),
    ]


def test_all_go_on_after_a_producer_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "ROUNDS", 1)
    monkeypatch.setattr(kills, "CALM_S", 0.2)
    done = CliRunner().invoke(kills.main, ["--only", "kill-producer"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[2].startswith("| kill -9 of a process with three producers |")
