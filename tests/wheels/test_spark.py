"""The connector in a clean environment that is not on PATH, as most programs are started."""

from __future__ import annotations

import pytest

import oncelog
from tests.wheels.environments import Environment

pytestmark = [pytest.mark.integration, pytest.mark.spark]

JOB = """
import sys

import oncelog_spark
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
bootstrap = {"oncelog.bootstrap.servers": sys.argv[1]}
rows = spark.range(100).selectExpr("cast(id as string) as value")
rows.write.format("oncelog").mode("append").options(**bootstrap, topic="numbers").save()
read = spark.read.format("oncelog").options(**bootstrap, subscribe="numbers").load()
print("read", read.count(), "with", oncelog_spark.__version__)
"""


def test_a_job_runs_in_an_environment_that_is_not_on_path(spark: Environment, up: str) -> None:
    with oncelog.connect(up) as log:
        log.admin.create_topic("numbers", partitions=2)
    (spark.home / "job.py").write_text(JOB)
    # By its path, and nothing is activated: the `python3` of PATH is another one.
    printed = spark.run(spark.python, "job.py", up)
    assert printed.splitlines()[-1] == f"read 100 with {oncelog.__version__}"
