"""One side of `spark_run`: a Spark session that does what it is told, line by line, in JSON.

Runs as a script, in an environment of its own: Spark's Kafka connector is to be had for an older
Spark than ours. Nothing but PySpark is imported here. Both sides are asked for the same frames and
differ in format name and options only.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ONCELOG = "oncelog"
# The first batches of a query start Python workers and warm the JVM's compiler.
WARM_BATCHES = 3
# A batch that has less of the rows that were asked for does not count.
WHOLE_SHARE = 0.9
SECONDS_MAX = 600
NUMBER_DIGITS = 10
DELETE_AFTER_MS = 1_000


class Side:
    """`server` is the option that says where, with its value."""

    def __init__(self, spark: SparkSession, system: str, server: Mapping[str, str]) -> None:
        self._spark = spark
        self._system = system
        self._server = dict(server)

    def write(self, topic: str, rows: int, size: int) -> dict[str, float]:
        """One batch job: rows without keys, of one transaction with Oncelog."""
        start = time.perf_counter()
        writer = numbered_values(self._spark, rows, size).write.format(self._system).mode("append")
        writer.options(**self._server).option("topic", topic).save()
        return {"seconds": time.perf_counter() - start}

    def read(self, topic: str) -> dict[str, float]:
        """A batch job that reads all columns of all records, and keeps none."""
        start = time.perf_counter()
        reader = self._spark.read.format(self._system).options(**self._server)
        frame = reader.option("subscribe", topic).load()
        frame.write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - start}

    def stream(self, topic: str, sink: str, rows: int) -> dict[str, float]:
        """Micro-batches from log to log, as they come with the defaults of each system: exactly
        once with Oncelog, at least once with Kafka. Milliseconds of a batch, and of its parts."""
        folder = Path(tempfile.mkdtemp(prefix="spark-side-"))
        try:
            return self._stream(topic, sink, rows, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def create(self, topic: str, partitions: int) -> dict[str, float]:
        """A topic of Kafka, whose files go soon after it."""
        jvm: Any = self._spark.sparkContext._jvm
        optional, kafka = jvm.java.util.Optional, jvm.org.apache.kafka.clients.admin
        new = kafka.NewTopic(topic, optional.of(partitions), optional.empty())
        settings = jvm.java.util.HashMap()
        settings.put("file.delete.delay.ms", str(DELETE_AFTER_MS))
        made = jvm.java.util.Collections.singletonList(new.configs(settings))
        with closing(self._admin()) as admin:
            admin.createTopics(made).all().get()
        return {"seconds": 0.0}

    def delete(self, topic: str) -> dict[str, float]:
        """A topic of Kafka."""
        jvm: Any = self._spark.sparkContext._jvm
        with closing(self._admin()) as admin:
            admin.deleteTopics(jvm.java.util.Collections.singletonList(topic)).all().get()
        return {"seconds": 0.0}

    def _admin(self) -> Any:
        jvm: Any = self._spark.sparkContext._jvm
        settings = jvm.java.util.Properties()
        settings.put("bootstrap.servers", self._server["kafka.bootstrap.servers"])
        return jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)

    def _stream(self, topic: str, sink: str, rows: int, folder: Path) -> dict[str, float]:
        reader = self._spark.readStream.format(self._system).options(**self._server)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        reader = reader.option("maxOffsetsPerTrigger", str(rows))
        name = folder.name
        if self._system == ONCELOG:
            reader = reader.option("group", name).option("transactionalSink", name)
        writer = reader.load().select("key", "value").writeStream.format(self._system)
        writer = writer.options(**self._server).option("topic", sink)
        if self._system == ONCELOG:
            writer = writer.option("producer", name).option("inputGroups", name)
        query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
        query.awaitTermination(SECONDS_MAX)
        batches = [json.loads(p.json) if hasattr(p, "json") else p for p in query.recentProgress]
        # Of several partitions Spark's shares are rounded; the last batch is what was left.
        whole = [b["durationMs"] for b in batches if b["numInputRows"] > rows * WHOLE_SHARE]
        durations = whole[WARM_BATCHES:]
        if not durations:
            read = [b["numInputRows"] for b in batches]
            raise SystemExit(f"no batch of {rows} rows behind the first ones: {read}")
        parts = {
            part: statistics.median(d.get(part, 0) for d in durations)
            for part in ("triggerExecution", "addBatch", "walCommit", "commitOffsets")
        }
        return {"seconds": parts["triggerExecution"] / 1000, "batches": len(durations), **parts}


def numbered_values(
    spark: SparkSession, rows: int, size: int, *, tasks: int | None = None
) -> DataFrame:
    """Values of `size` bytes that end with their number, in NUMBER_DIGITS digits."""
    # Padded by a constant: `lpad` to 1 KiB takes Spark ten times as long, and would be half of what
    # is measured.
    number = F.lpad(F.col("id").cast("string"), NUMBER_DIGITS, "0")
    value = F.concat(F.lit("v" * (size - NUMBER_DIGITS)), number).cast("binary")
    return spark.range(0, rows, numPartitions=tasks).select(value.alias("value"))


def main(system: str, server: str, master: str, jars: str) -> None:
    builder = (
        SparkSession.builder.master(master)
        .appName(f"bench {system}")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
    )
    if jars:
        builder = builder.config("spark.jars", jars)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    side = Side(spark, system, json.loads(server))
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        print(json.dumps(getattr(side, request.pop("do"))(**request)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
