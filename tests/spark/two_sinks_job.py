"""A query in a process of its own that writes to two topics in one transaction of each micro-batch,
and kills itself and its JVM where it is told to; Spark's workers end when they miss their JVM."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The job dies in this batch.
DIES_IN: int = 1


def die_at(place: str, here: str, batch_id: int) -> None:
    """kill -9 of the whole process group."""
    if place == here and batch_id == DIES_IN:
        os.killpg(0, signal.SIGKILL)


def main(
    bootstrap: str, source: str, one: str, other: str, job: str, checkpoint: str, place: str
) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    import oncelog_spark

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    stream = (
        spark.readStream.format("oncelog")
        .option("bootstrap", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "50")
        .option("group", job)
        .option("transactionalSink", "true")
        .load()
    )

    def write(batch: DataFrame, batch_id: int) -> None:
        values = batch.select("key", "value")
        options = {"bootstrap": bootstrap, "inputGroups": job}
        with oncelog_spark.transaction(batch, batch_id, options) as tx:
            tx.write(values, topic=one)
            die_at(place, "between", batch_id)
            tx.write(values, topic=other)
            tx.send(other, f"batch {batch_id}")
            die_at(place, "before", batch_id)
        die_at(place, "after", batch_id)

    query = (
        stream.writeStream.foreachBatch(write)
        .queryName(job)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
