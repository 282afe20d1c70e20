"""A query in a process of its own, to be killed: copies a topic in small micro-batches."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")


def main(bootstrap: str, source: str, sink: str, job: str, checkpoint: str, records: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

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
        .option("maxOffsetsPerTrigger", records)
        .option("group", job)
        .option("transactionalSink", job)
        .load()
    )
    query = (
        stream.select("key", "value")
        .writeStream.format("oncelog")
        .option("bootstrap", bootstrap)
        .option("topic", sink)
        .option("producer", job)
        .option("inputGroups", job)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
