"""Typed values, both ways, through the log."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from oncelog_spark import values
from tests.spark.conftest import Lab

pytestmark = pytest.mark.spark

SCHEMA = "id bigint, amount double, tags array<string>"


def test_json_comes_back_as_it_went(lab: Lab) -> None:
    topic = lab.topic(1)
    rows = [(b"a", 1, 2.5, ["x", "y"]), (b"b", 2, None, [])]
    frame = lab.spark.createDataFrame(rows, f"key binary, {SCHEMA}")
    lab.save(frame.transform(values.to_json()), topic=topic)
    assert sorted(map(json.loads, lab.values(topic)), key=lambda value: value["id"]) == [
        {"id": 1, "amount": 2.5, "tags": ["x", "y"]},
        {"id": 2, "tags": []},
    ]
    read = lab.read(topic).transform(values.from_json(SCHEMA))
    found = read.select("key", "value.id", "value.amount", "value.tags").orderBy("id").collect()
    assert [(bytes(row.key), row.id, row.amount, row.tags) for row in found] == rows
    # A struct goes back as its fields, and what is beside it stays there.
    again = read.select("key", "value").transform(values.to_json())
    assert again.columns == ["key", "value"]
    assert [json.loads(row.value)["id"] for row in again.orderBy("key").collect()] == [1, 2]
    named = frame.transform(values.to_json("id", "key"))
    assert named.columns == ["value"]


def test_what_does_not_fit_fails_unless_it_may(lab: Lab) -> None:
    broken = lab.spark.createDataFrame([(b"{",), (None,)], "value binary")
    with pytest.raises(Exception, match="MALFORMED"):
        broken.transform(values.from_json(SCHEMA)).collect()
    told = broken.transform(values.from_json(SCHEMA, mode="PERMISSIVE"))
    assert [row.id for row in told.select("value.id").collect()] == [None, None]
    nothing = broken.filter("value is null").transform(values.from_json(SCHEMA)).collect()
    assert [row.value for row in nothing] == [None]
    with pytest.raises(ValueError, match="name some"):
        broken.select("value").withColumnRenamed("value", "key").transform(values.to_json())


def test_avro_without_its_package_says_what_to_start_spark_with(lab: Lab) -> None:
    schema = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'
    frame = lab.spark.range(1)
    with pytest.raises(values.AvroMissing, match=r"--packages org\.apache\.spark:spark-avro_2\.13"):
        frame.transform(values.to_avro(schema))
    text = frame.selectExpr("cast('x' as binary) as value")
    with pytest.raises(values.AvroMissing, match="--packages"):
        text.transform(values.from_avro(schema))


ALL_KINDS = (
    "id bigint, n smallint, amount double, price decimal(12,2), name string, raw binary, "
    "ok boolean, day date, at timestamp, tags array<string>, counts map<string,int>, "
    "inner struct<a:int,b:string>"
)


def test_arrow_comes_back_as_it_went(lab: Lab) -> None:
    topic = lab.topic(1)
    full = (
        *(b"a", 1, 2, 2.5, Decimal("3.25"), "x", b"\0", True, date(2026, 1, 2)),
        *(datetime(2026, 1, 2, 3, 4, 5, 6), ["x", None], {"k": 1}, (1, "b")),
    )
    empty = (b"b", 2, *[None] * 11)
    frame = lab.spark.createDataFrame([full, empty], f"key binary, {ALL_KINDS}")
    lab.save(frame.transform(values.to_arrow()), topic=topic)
    for value in lab.bytes(topic):
        with pa.ipc.open_stream(value) as stream:
            assert stream.read_all().num_rows == 1
    read = lab.read(topic).transform(values.from_arrow(ALL_KINDS))
    assert read.schema["value"].dataType == frame.drop("key").schema
    found = read.select("key", "value.*", "offset").orderBy("id").collect()
    assert [tuple(row)[:-1] for row in found] == [
        tuple(row) for row in frame.orderBy("id").collect()
    ]
    assert sorted(row.offset for row in found) == [0, 1]
    # A struct goes back as its fields, what is beside it stays there, and what is null, null.
    gone = read.select("key", "value").withColumn("value", F.expr("if(key = 'a', null, value)"))
    again = gone.transform(values.to_arrow()).transform(values.from_arrow("id int"))
    assert again.columns == ["key", "value"]
    ids = [row.value and row.value.id for row in again.orderBy("key").collect()]
    assert ids == [None, 2]


def test_arrow_of_another_schema_fails_the_query(lab: Lab) -> None:
    frame = lab.spark.createDataFrame([("x",)], "id string").transform(values.to_arrow())
    with pytest.raises(Exception, match="field `id` of a value is string, and does not fit int64"):
        frame.transform(values.from_arrow("id bigint")).collect()
    with pytest.raises(Exception, match="a value is no Arrow IPC stream"):
        lab.spark.sql("select '{}' as value").transform(values.from_arrow("id bigint")).collect()
    with pytest.raises(ValueError, match="is no schema"):
        frame.transform(values.from_arrow("bigint"))


def test_arrow_in_a_query_that_streams(lab: Lab, tmp_path: Path) -> None:
    """From a topic of typed values to another one, exactly once."""
    source, target = lab.topic(2), lab.topic(1)
    frame = lab.spark.range(100).selectExpr("id", "id * 2 as twice")
    lab.save(frame.transform(values.to_arrow()), topic=source)
    stream = lab.stream(source).transform(values.from_arrow("id bigint, twice bigint"))
    made = stream.selectExpr("key", "value.twice + 1 as more").transform(values.to_arrow())
    lab.copy(made, tmp_path, topic=target)
    rows = [pa.ipc.open_stream(value).read_all().to_pylist() for value in lab.bytes(target)]
    assert sorted(row["more"] for (row,) in rows) == [2 * n + 1 for n in range(100)]
