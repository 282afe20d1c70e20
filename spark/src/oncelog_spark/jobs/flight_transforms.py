"""PURE: what the flights job does to its data, DataFrame in, DataFrame out.

Statistics are deltas of the micro-batch they were made in: their sums over the whole output equal
the truth only if every micro-batch counted exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from oncelog_spark.jobs.flight_records import LATE_MINUTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENT: Final = (
    "id long, carrier string, tailnum string, origin string, dest string, time_hour string, "
    "flight int, dep_delay int, arr_delay int, air_time int, distance int"
)


def parsed(records: DataFrame) -> DataFrame:
    """Events out of records of the log."""
    event = F.from_json(F.col("value").cast("string"), EVENT)
    return records.select(event.alias("event")).select("event.*")


def enriched(events: DataFrame, airlines: DataFrame) -> DataFrame:
    """Each flight with its airline's name, its status, and what it made of its time."""
    status = (
        F.when(F.col("dep_delay").isNull(), "cancelled")
        .when(F.col("dep_delay") > LATE_MINUTES, "late")
        .otherwise("on time")
    )
    return events.join(F.broadcast(airlines), "carrier", "left").select(
        "id",
        "carrier",
        "airline",
        "flight",
        F.concat_ws("-", "origin", "dest").alias("route"),
        F.col("time_hour").alias("scheduled"),
        status.alias("status"),
        (F.col("dep_delay") - F.col("arr_delay")).alias("made_up"),
        F.expr("(distance * 60) div nullif(air_time, 0)").alias("mph"),
    )


def delay_deltas(events: DataFrame) -> DataFrame:
    """Delay statistics of these events, per carrier."""
    return events.groupBy("carrier").agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.sum("dep_delay").alias("delay_sum"),
        F.max("dep_delay").alias("delay_max"),
    )


def as_records(documents: DataFrame, topic: str) -> DataFrame:
    """Documents as JSON records for the sink, keyed by carrier."""
    return documents.select(
        F.lit(topic).alias("topic"),
        F.col("carrier").alias("key"),
        F.to_json(F.struct("*")).alias("value"),
    )
