"""Avro values through the log, with Spark's own Avro package, which PySpark lacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.spark.conftest import Lab
from tests.spark.packages import jars
from tests.spark.too_busy import said_by_job

pytestmark = pytest.mark.spark

# Of an earlier Spark 4: it runs with this one.
PACKAGE = "org.apache.spark:spark-avro_2.13:4.2.0"
JOB = Path(__file__).with_name("avro_job.py")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (found,) = jars(tmp_path, PACKAGE)
    return found


def test_avro_comes_back_as_it_went(lab: Lab, package: Path) -> None:
    lines = said_by_job(lambda: [JOB, lab.bootstrap, lab.topic(1), package])
    said: dict[str, object] = {}
    for line in lines:
        if line.startswith("{"):
            said.update(json.loads(line))
    assert said == {
        "found": [
            {"id": 1, "note": "x", "tags": ["p", "q"]},
            {"id": 2, "note": None, "tags": []},
        ],
        "refused": True,
        "permissive": [[None, None, None]],
    }
