"""Writes records as Avro and reads them back, in a Spark of its own that was started with Spark's
Avro package: prints what came back, as JSON."""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "payment",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
)


def main(bootstrap: str, topic: str, jars: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from oncelog_spark import values

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    rows = [(b"a", 1, "x", ["p", "q"]), (b"b", 2, None, [])]
    frame = spark.createDataFrame(rows, "key binary, id bigint, note string, tags array<string>")
    writer = frame.transform(values.to_avro(SCHEMA)).write.format("oncelog").mode("append")
    writer.option("bootstrap", bootstrap).option("topic", topic).save()
    reader = spark.read.format("oncelog").option("bootstrap", bootstrap)
    read = reader.option("subscribe", topic).load().transform(values.from_avro(SCHEMA))
    found = read.select("value.id", "value.note", "value.tags").orderBy("id").collect()
    print(json.dumps({"found": [row.asDict() for row in found]}))
    # What is no Avro of the schema fails the query; unless it may be null.
    broken = spark.createDataFrame([(b"\xff",)], "value binary")
    try:
        broken.transform(values.from_avro(SCHEMA)).collect()
    except Exception as error:
        print(json.dumps({"refused": "avro" in str(error).lower()}))
    told = broken.transform(values.from_avro(SCHEMA, mode="PERMISSIVE")).collect()
    print(json.dumps({"permissive": [list(row.value) for row in told]}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
