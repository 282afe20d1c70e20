"""The runner before it starts Spark: what it is asked for, and what it says."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from oncelog_spark.jobs import runner
from oncelog_spark.jobs.transform_job import (
    Job,
    JobRefused,
    Summary,
    find_function,
    transformed,
)


def called(*arguments: str) -> Any:
    return CliRunner().invoke(runner.main, arguments)


@pytest.mark.parametrize("command", [(), ("run",), ("backfill",)])
def test_help_is_there(command: tuple[str, ...]) -> None:
    result = called(*command, "--help")
    assert result.exit_code == 0
    assert "exactly once" in result.output or "transaction" in result.output


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--transform", "shouting"], "`module:function`, not 'shouting'"),
        (["--transform", "no_such:shout"], "no module 'no_such'"),
        (["--transform", "json:shout"], r"no function 'shout'; it has .*dumps"),
        (["--transform", "json:dumps", "--option", "tls"], "NAME=VALUE"),
        (["--transform", "json:dumps", "--option", "oncelog.tls.ca="], "is empty"),
    ],
)
def test_what_cannot_run_is_said_before_spark_starts(given: list[str], says: str) -> None:
    result = called("run", "--from", "t", "--to", "u", *given)
    assert result.exit_code == runner.CANNOT_RUN
    assert re.search(says, result.stderr), result.stderr


def test_a_function_is_found_here(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("shouting")
    vars(module)["shout"] = len
    monkeypatch.setitem(sys.modules, "shouting", module)
    assert cast(Any, find_function("shouting:shout")) is len


def test_a_function_that_gives_no_frame_is_refused() -> None:
    job = Job("j", "t", "u", {}, cast(Any, lambda _: 7))
    with pytest.raises(JobRefused, match="gave int, and not a DataFrame"):
        transformed(job, cast(Any, None))


def test_a_summary_counts_each_batch_once_and_what_is_left() -> None:
    def step(number: int, rows: int, end: int) -> dict[str, Any]:
        source = {"latestOffset": '{"t": {"0": 9}}', "endOffset": f'{{"t": {{"0": {end}}}}}'}
        return {"batchId": number, "numInputRows": rows, "sources": [source]}

    summary = Summary(seconds=2.0)
    seen = SimpleNamespace(recentProgress=[step(0, 4, 4), step(1, 3, 7)])
    summary.see(cast(Any, seen))
    seen.recentProgress += [step(1, 3, 7), step(1, 0, 7)]
    summary.see(cast(Any, seen))
    assert (summary.batches, summary.rows, summary.behind) == (2, 7, 2)
    assert summary.line("j") == "j: 7 records in 2 batches, 2.0 s (4/s), 2 behind"


def test_a_query_that_fails_is_told_by_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("the seventh\n\tat org.apache.spark.X")

    monkeypatch.setattr(runner, "session", lambda *_: nullcontext())
    monkeypatch.setattr(runner, "stream_of", failing)
    result = called("run", "--transform", "json:dumps", "--from", "t", "--name", "j")
    assert result.exit_code == runner.FAILED
    assert result.stderr == "oncelog-spark: j failed: the seventh\n"


def test_of_an_error_of_spark_the_java_is_left_out() -> None:
    error = RuntimeError(
        "it broke\n\tat org.apache.spark.X\nJVM stacktrace:\n... 3 more\n\nso it is"
    )
    assert runner._first_lines(error) == "it broke\nso it is"
