"""The thin jobs: the runner, a backfill, a join of two topics, totals whose state is emitted."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oncelog_spark import batch_transaction
from oncelog_spark.jobs import joined_topics, running_totals
from oncelog_spark.jobs.runner import FAILED, main
from tests.spark.conftest import AVAILABLE_SECONDS_MAX, Lab, numbers
from tests.spark.test_streaming import forget_commit

pytestmark = pytest.mark.spark

FUNCTIONS = """
def double(records):
    return records.selectExpr("key", "cast(cast(value as string) * 2 as int) as value") \\
        .selectExpr("key", "cast(value as string) as value")

def wrong(records):
    return records.select("key")

def broken(records):
    return records.selectExpr("cast(raise_error('the seventh') as string) as value")
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
    failed = shell(
        "run", "--transform", "functions_here:broken", "--from", source, "--to", sink, "--once"
    )
    assert failed.exit_code == FAILED
    assert "the seventh" in failed.stderr


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


def test_i34_each_state_of_a_running_aggregation_is_emitted_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sink, group, checkpoint = lab.topic(1), lab.topic(1), lab.group(), lab.checkpoint()
    keys = lab.spark.range(60).selectExpr(
        "cast(id % 3 as string) as key", "cast(id as string) as value"
    )
    lab.save(keys.coalesce(1), topic=source)
    options = {"bootstrap": lab.bootstrap, "producer": group, "inputGroups": group}
    stream = lab.stream(source, group=group, transactionalSink=group, maxOffsetsPerTrigger="20")
    commit, commits = batch_transaction.commit, itertools.count()

    def failing(*arguments: Any) -> None:
        """The second commit, of batch 1, fails before its effect."""
        if next(commits) == 1:
            raise RuntimeError("before its effect")
        commit(*arguments)

    def run() -> None:
        writer = running_totals.emitting(running_totals.totals(stream), sink, options)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query = writer.start()
        try:
            assert query.awaitTermination(AVAILABLE_SECONDS_MAX)
        finally:
            query.stop()

    monkeypatch.setattr(batch_transaction, "commit", failing)
    # The state of batch 1 was in the checkpoint already, of its output nothing is visible.
    with pytest.raises(Exception, match="before its effect"):
        run()
    assert len(lab.values(sink)) == 3
    run()
    # As if it had died between the commit of the last batch and Spark's note of it.
    forget_commit(checkpoint)
    run()
    # And it goes on from the state of the batch that was replayed.
    lab.save(keys.where("id < 3").coalesce(1), topic=source)
    run()
    states = [json.loads(value) for value in lab.values(sink)]
    # Four batches of three keys, none twice; the last ones are the sums of all.
    assert Counter(state["batch"] for state in states) == {0: 3, 1: 3, 2: 3, 3: 3}
    totals = {
        number: sorted(state["total"] for state in states if state["batch"] == number)
        for number in (0, 2, 3)
    }
    assert totals[0] == [57.0, 63.0, 70.0]
    assert totals[2] == [570.0, 590.0, 610.0]
    assert totals[3] == [570.0, 591.0, 612.0]
    assert {state["rows"] for state in states if state["batch"] == 3} == {21}
    assert lab.positions(group, source) == lab.ends(source)
