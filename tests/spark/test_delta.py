"""Exactly once into a Delta table, with the newest Spark that Delta has jars for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.spark.conftest import Lab, numbers
from tests.spark.packages import jars, python_packages
from tests.spark.too_busy import said_by_job

pytestmark = pytest.mark.spark

SPARK = "pyspark==4.2.0"
DELTA = ("io.delta:delta-spark_2.13:4.3.0", "io.delta:delta-storage:4.3.0")


@pytest.fixture
def delta(tmp_path: Path) -> str:
    folder = tmp_path / "jars"
    folder.mkdir()
    return ",".join(str(jar) for jar in jars(folder, *DELTA))


@pytest.fixture
def other_spark(delta: str, tmp_path: Path) -> dict[str, str]:
    """An environment in which PySpark is the one that Delta knows. Not before there are `delta`'s
    jars: it is large."""
    packages = python_packages(tmp_path / "packages", SPARK)
    paths = [str(packages), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **os.environ,
        "SPARK_HOME": str(packages / "pyspark"),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def test_i34_delta_counts_what_the_log_committed(
    lab: Lab, delta: str, other_spark: dict[str, str]
) -> None:
    source = group = ""

    def start() -> list[str]:
        nonlocal source, group
        source, group, folder = lab.topic(), lab.group(), str(lab.checkpoint())
        lab.fill(source, 60)
        return ["-m", "tests.spark.delta_job", lab.bootstrap, source, group, folder, delta]

    said = json.loads(said_by_job(start, other_spark)[-1])
    # Of three batches that were staged one was never committed.
    ended = {"committed": 2, "aborted": 1}
    assert said == {
        "spark": SPARK.partition("==")[2],
        "failed": ["before", "after"],
        "outcomes": [ended, ended],
        "counted": numbers(60),
        "staged": 0,
    }
    assert lab.positions(group, source) == lab.ends(source)
