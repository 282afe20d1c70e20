"""Avro values through the log, with Spark's own Avro package, which PySpark lacks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import Lab
from tests.spark.too_busy import PATIENCE_S, STARTS_MAX, is_too_busy

pytestmark = pytest.mark.spark

# Of an earlier Spark 4: it runs with this one.
PACKAGE = "org.apache.spark:spark-avro_2.13:4.2.0"
FETCH_SECONDS_MAX = 300
JOB = Path(__file__).with_name("avro_job.py")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    if shutil.which("mvn") is None:
        pytest.skip("Spark's Avro package comes from Maven, and there is no mvn")
    copy = ("mvn", "-q", "-B", "dependency:copy", f"-Dartifact={PACKAGE}")
    to = f"-DoutputDirectory={tmp_path}"
    subprocess.run([*copy, to], check=True, cwd=tmp_path, timeout=FETCH_SECONDS_MAX)
    (found,) = tmp_path.glob("spark-avro*.jar")
    return found


def test_avro_comes_back_as_it_went(lab: Lab, package: Path) -> None:
    for _ in range(STARTS_MAX):
        topic = lab.topic(1)
        ran = subprocess.run(
            [sys.executable, JOB, lab.bootstrap, topic, package],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        if ran.returncode == 0 or not is_too_busy(ran.stderr):
            break
    assert ran.returncode == 0, ran.stderr[-4000:]
    said: dict[str, object] = {}
    for line in ran.stdout.splitlines():
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
