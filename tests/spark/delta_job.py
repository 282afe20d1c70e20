"""The recipe of spark/README.md for Delta, in a Spark of its own that has Delta's jars:
stages a query's batches under the TxId, fails before and after commits, settles, and prints what
counts, as JSON.

    python -m tests.spark.delta_job BOOTSTRAP SOURCE GROUP FOLDER JARS
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Seconds: only ends a query that would hang.
PATIENCE_S: Final = 600
SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # What Delta keeps of its log is read with so many tasks: 50, where nothing is said.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def session(jars: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,4]").config("spark.jars", jars)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(bootstrap: str, source: str, group: str, folder: str, jars: str) -> None:
    spark = session(jars)
    import oncelog_spark

    staging, settled = f"{folder}/staging", f"{folder}/settled"
    options = {"bootstrap": bootstrap, "producer": group, "inputGroups": group}
    failures = ["before the commit", "after the commit"]

    def write(batch: DataFrame, batch_id: int) -> None:
        from pyspark.sql.functions import lit

        with oncelog_spark.transaction(batch, batch_id, options) as tx:
            if not tx.replayed:
                staged = batch.selectExpr("cast(value as string) as value")
                staged = staged.withColumn("tx_id", lit(tx.tx_id))
                staged.write.format("delta").mode("append").partitionBy("tx_id").save(staging)
            if batch_id == 1 and failures[:1] == ["before the commit"]:
                raise RuntimeError(failures.pop(0))
        if batch_id == 1 and failures:
            raise RuntimeError(failures.pop(0))

    def settle(*, delete: bool) -> dict[str, int]:
        """Moves what was committed, deletes what was not. May run twice, and end halfway."""
        rows = spark.read.format("delta").load(staging)
        outcomes: dict[str, int] = {}
        for (tx_id,) in rows.select("tx_id").distinct().collect():
            found = oncelog_spark.outcome(tx_id, options).value
            outcomes[found] = outcomes.get(found, 0) + 1
            of_this = f"tx_id = {tx_id}"
            if found == "committed":
                one = rows.where(of_this).write.format("delta").mode("overwrite")
                one.option("replaceWhere", of_this).partitionBy("tx_id").save(settled)
            if found != "open" and delete:
                spark.sql(f"DELETE FROM delta.`{staging}` WHERE {of_this}")
        return outcomes

    reader = spark.readStream.format("oncelog").option("bootstrap", bootstrap)
    reader = reader.option("subscribe", source).option("startingOffsets", "earliest")
    reader = reader.option("group", group).option("transactionalSink", group)
    stream = reader.option("maxOffsetsPerTrigger", "30").load()
    writer = stream.writeStream.foreachBatch(write).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    failed = []
    while True:
        query = writer.start()
        try:
            if not query.awaitTermination(PATIENCE_S):
                raise RuntimeError("the query does not end")
            break
        except Exception as error:
            said = next(
                (one for one in ("before", "after") if f"{one} the commit" in str(error)), ""
            )
            if not said:
                raise
            failed.append(said)
        finally:
            query.stop()
    halfway, whole = settle(delete=False), settle(delete=True)
    counted = spark.read.format("delta").load(settled).select("value").collect()
    report = {
        "spark": spark.version,
        "failed": failed,
        "outcomes": [halfway, whole],
        "counted": sorted(row.value for row in counted),
        "staged": spark.read.format("delta").load(staging).count(),
    }
    print(json.dumps(report))
    spark.stop()


if __name__ == "__main__":
    Path(sys.argv[4]).mkdir(parents=True, exist_ok=True)
    main(*sys.argv[1:])
