"""The thin jobs: the runner, a backfill, a join of two topics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oncelog_spark.jobs import joined_topics
from oncelog_spark.jobs.runner import main
from tests.spark.conftest import Lab, numbers
from tests.spark.test_streaming import forget_commit

pytestmark = pytest.mark.spark

FUNCTIONS = """
def double(records):
    return records.selectExpr("key", "cast(cast(value as string) * 2 as int) as value") \\
        .selectExpr("key", "cast(value as string) as value")

def wrong(records):
    return records.select("key")
"""


@pytest.fixture
def shell(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs `oncelog-spark` in a folder with functions, on the session of the tests."""
    (tmp_path / "functions_here.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ONCELOG_BOOTSTRAP", lab.bootstrap)
    return lambda *arguments: CliRunner().invoke(main, arguments)


def test_i34_the_runner_runs_a_function_once_and_again(lab: Lab, shell: Any) -> None:
    source, sink = lab.topic(), lab.topic()
    lab.fill(source, 50)
    doubled = sorted(str(2 * number) for number in range(50))
    given = ["--transform", "functions_here:double", "--from", source, "--to", sink]
    stream = ["run", *given, "--once", "--max-offsets", "30", "--name", f"job-{source}"]
    dry = shell(*stream, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert f"from {source} to {sink}" in dry.output
    assert lab.values(sink) == []
    first = shell(*stream)
    assert first.exit_code == 0, first.output
    assert f"job-{source}: 50 records in 2 batches" in first.stdout
    assert ", 0 behind" in first.stdout
    assert "0 records in 0 batches" in shell(*stream).stdout
    assert sorted(lab.values(sink)) == doubled
    assert lab.positions(f"job-{source}", source) == lab.ends(source)

    again = lab.topic()
    batch = ["backfill", *given[:-1], again, "--txn-id", "2013", "--name", f"fill-{source}"]
    assert "50 records in 1 batches" in shell(*batch).stdout
    assert shell(*batch).exit_code == 0
    assert sorted(lab.values(again)) == doubled

    wrong = shell("run", "--transform", "functions_here:wrong", "--from", source, "--to", sink)
    assert wrong.exit_code == 2
    assert "needs a column `value`" in wrong.stderr


def test_i34_a_join_of_two_topics_gives_each_pair_once(lab: Lab) -> None:
    left, right, sink, checkpoint = lab.topic(1), lab.topic(1), lab.topic(), lab.checkpoint()
    one, two, name = lab.group(), lab.group(), lab.group()
    lab.fill(left, 40)
    lab.fill(right, 40, first=20)

    def pairs() -> Any:
        limits = {"transactionalSink": name, "maxOffsetsPerTrigger": "25"}
        return joined_topics.joined(
            lab.stream(left, group=one, **limits), lab.stream(right, group=two, **limits)
        )

    options: Any = {"topic": sink, "producer": name, "inputGroups": f"{one},{two}"}
    lab.copy(pairs(), checkpoint, **options)
    forget_commit(checkpoint)
    lab.copy(pairs(), checkpoint, **options)
    found = sorted(json.loads(value)["left"] for value in lab.values(sink))
    assert found == numbers(20, first=20)
    assert lab.positions(two, right) == lab.ends(right)
