"""A running aggregation: for each key how many records it has had and the sum of their values. The
new state of a key comes out whenever it changes, exactly once.

    changed = totals(spark.readStream.format("oncelog")...)
    writer = emitting(changed, "totals", options).queryName("totals")
    writer.option("checkpointLocation", ...).start()

Spark gives the keys that changed to `foreachBatch` (output mode `update`). They go into one
transaction with the batch's positions, numbered by the batch; a topic with `cleanup.policy=compact`
keeps the newest of each key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import oncelog_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def totals(records: DataFrame) -> DataFrame:
    """`key`, `rows` and `total` of values that are numbers as text; others count as rows alone."""
    from pyspark.sql import functions as F

    numbers = records.selectExpr("key", "try_cast(cast(value as string) as double) as number")
    counted = F.count(F.lit(1)).alias("rows"), F.sum("number").alias("total")
    return numbers.groupBy("key").agg(*counted)


def emitting(changed: DataFrame, topic: str, options: Mapping[str, str]) -> DataStreamWriter:
    """The writer of a query over `totals`; `options` are those of the sink. Give it a checkpoint,
    and start it."""
    from pyspark.sql import functions as F

    def write(batch: DataFrame, batch_id: int) -> None:
        with oncelog_spark.transaction(batch, batch_id, options) as tx:
            state = F.struct("rows", "total", F.lit(batch_id).alias("batch"))
            tx.write(batch.select("key", F.to_json(state).alias("value")), topic=topic)

    return changed.writeStream.outputMode("update").foreachBatch(write)
