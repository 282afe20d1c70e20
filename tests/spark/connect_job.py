"""A client of Spark Connect: has no Spark of its own, and need not have the connector."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(remote: str, bootstrap: str, source: str, sink: str, other: str, folder: str) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    numbers = spark.range(100).selectExpr("cast(id as string) as value")
    writer = numbers.write.format("oncelog").mode("append").option("bootstrap", bootstrap)
    writer.option("topic", source).save()

    def stream(**options: str) -> DataFrame:
        reader = spark.readStream.format("oncelog").option("bootstrap", bootstrap)
        reader = reader.option("subscribe", source).option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", "60").options(**options).load()

    copying = stream(group=sink, transactionalSink="true").select("value").writeStream
    copying = copying.format("oncelog").option("bootstrap", bootstrap).option("topic", sink)
    query = (
        copying.option("inputGroups", sink)
        .queryName(sink)
        .option("checkpointLocation", f"{folder}/{sink}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    def write(batch: DataFrame, batch_id: int) -> None:
        import oncelog_spark

        refused = ""
        try:
            with oncelog_spark.transaction(batch, batch_id, bootstrap=bootstrap):
                pass
        except RuntimeError as error:
            refused = str(error)
        assert "needs a classic session" in refused, refused
        # As if the batch were replayed.
        for _ in range(2):
            writer = batch.select("value").write.format("oncelog").mode("append")
            writer = writer.option("bootstrap", bootstrap).option("topic", other)
            writer.option("producer", other).option("txnId", str(batch_id)).save()

    query = (
        stream()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{folder}/{other}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    reader = spark.read.format("oncelog").option("bootstrap", bootstrap)
    print("read", reader.option("subscribe", sink).load().count(), type(spark).__module__)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
