"""Typed values, both ways, through the log."""

from __future__ import annotations

import json

import pytest

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
