"""`python -m benchmarks.spark_large_transaction [--gb 10]`: a batch job of Spark's that writes as
much as one likes in one transaction, and what all of it takes in memory; then another job reads it
whole, and counts.

Spark runs here (`local[2]`) and a cluster of three processes beside it. Memory is what each has
resident at most while it is written and while it is read, above what it had after a job of
WARM_UP_BYTES: driver and executor, which are one JVM here whose heap has a limit; Spark's Python
workers in all, which the connector runs in; the services.

Needs its bytes twice on disk, in the folder that `--folder` names.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Final

import click
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import oncelog
from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.large_transaction import (
    GB,
    PARTITIONS,
    VALUE_BYTES,
    WARM_UP_BYTES,
    Memory,
    markdown,
    memory_table,
    pids_over,
    timed,
)
from benchmarks.observer import below, processes_now
from benchmarks.spark_side import NUMBER_DIGITS, numbered_values
from oncelog_spark.jobs.java import provide_java
from oncelog_spark.jobs.local_cluster import local_cluster

HEAP: Final = "1g"
TASKS: Final = 8


@click.command()
@click.option("--gb", default=10.0, show_default=True, help="Payload of the transaction.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where its data goes.")
def main(gb: float, folder: Path | None) -> None:
    """One very large transaction of Spark's. See benchmarks/README.md."""
    size = int(gb * GB)
    with (
        tempfile.TemporaryDirectory() as shims,
        tempfile.TemporaryDirectory(dir=folder) as data,
        local_cluster(Path(data)) as bootstrap,
        oncelog.connect(bootstrap) as log,
    ):
        provide_java(os.environ, Path(shims))
        for topic in ("warm-up", "large"):
            log.admin.create_topic(topic, partitions=PARTITIONS)
        spark = _session()
        try:
            _write(spark, bootstrap, "warm-up", WARM_UP_BYTES)
            assert _count(spark, bootstrap, "warm-up") == WARM_UP_BYTES // VALUE_BYTES
            pids = pids_over(Path(data))
            # Spark is the client.
            del pids["this client"]
            others = {
                "Spark's JVM": lambda: _resident_mib("java"),
                # They come and go.
                "its Python workers": lambda: _resident_mib("pyspark.daemon"),
            }
            with Memory(pids, others) as memory:
                written_s = timed(lambda: _write(spark, bootstrap, "large", size))
                memory.mark("it is written and committed")
                began_s = time.monotonic()
                count = _count(spark, bootstrap, "large")
                read_s = time.monotonic() - began_s
                memory.mark("it is read whole")
                cpu_s = memory.cpu_s
        finally:
            spark.stop()
    assert count == size // VALUE_BYTES, f"{count} records were read"
    rows = [
        ("figure", "value"),
        ("written, MB", f"{size / 10**6:,.0f}"),
        ("written and committed, s", f"{written_s:.1f}"),
        ("read whole, s", f"{read_s:.1f}"),
        ("records, each once", f"{count:,}"),
        *((f"{name}, CPU s", f"{used:.1f}") for name, used in cpu_s.items()),
    ]
    print(markdown(rows), memory_table(memory), sep="\n\n")


def _session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("one large transaction")
    settings = {
        "spark.driver.memory": HEAP,
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _write(spark: SparkSession, bootstrap: str, topic: str, size: int) -> None:
    """Numbered values of VALUE_BYTES, in TASKS tasks, which commit once."""
    frame = numbered_values(spark, size // VALUE_BYTES, VALUE_BYTES, tasks=TASKS)
    writer = frame.write.format("oncelog").mode("append").option("bootstrap", bootstrap)
    writer.option("topic", topic).save()


def _count(spark: SparkSession, bootstrap: str, topic: str) -> int:
    """Of different values."""
    reader = spark.read.format("oncelog").option("bootstrap", bootstrap)
    frame = reader.option("subscribe", topic).schema("value binary").load()
    number = F.substring(
        F.col("value").cast("string"), VALUE_BYTES - NUMBER_DIGITS + 1, NUMBER_DIGITS
    )
    # Each number as a long: as many different ones as there are records, from 0 on.
    [row] = (
        frame.select(number.cast("long").alias("n"))
        .agg(F.count("n"), F.min("n"), F.max("n"), F.sum("n"))
        .collect()
    )
    count, least, most, total = row
    assert (least, most, total) == (0, count - 1, count * (count - 1) // 2), "each, once"
    return int(count)


def _resident_mib(what: str) -> float:
    """Of the processes below this one whose command names `what`; of what they share with others,
    their part."""
    total = 0
    for pid in below(os.getpid(), processes_now()):
        with contextlib.suppress(OSError):
            if what.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
