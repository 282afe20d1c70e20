"""Columns of source and sink."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from oncelog_spark.schema import (
    SchemaError,
    check_sink_schema,
    joined,
    source_arrow_schema,
    source_batch,
)
from oncelogpb.records import make_batch

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
SOURCE = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", HEADERS),
    ]
)


def struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_batches_equal_what_spark_compares_them_with() -> None:
    records = make_batch([b"k", None], [b"v", None], 5, [[("h", b"1"), ("h", None)], None])
    schema = source_arrow_schema(SOURCE)
    batch = source_batch(records, schema, topic="t", partition=2, offsets=pa.array([40, 43]))
    assert batch.schema.equals(to_arrow_schema(SOURCE, timezone="UTC"))
    batch.validate(full=True)
    row = batch.slice(0, 1).to_pylist()[0]
    assert (row["key"], row["value"], row["topic"]) == (b"k", b"v", "t")
    assert (row["partition"], row["offset"]) == (2, 40)
    assert row["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert batch.column("offset").to_pylist() == [40, 43]
    assert batch.column("headers").to_pylist()[1] is None


def test_a_chosen_part_of_the_columns_is_honoured_in_its_order() -> None:
    chosen = struct(offset=LongType(), value=BinaryType())
    batch = source_batch(
        make_batch([b"k"], [b"v"], 5),
        source_arrow_schema(chosen),
        topic="t",
        partition=0,
        offsets=pa.array([0]),
    )
    assert batch.to_pylist() == [{"offset": 0, "value": b"v"}]


def test_columns_that_do_not_exist_are_refused() -> None:
    with pytest.raises(SchemaError, match="no column `offset int`"):
        source_arrow_schema(struct(offset=IntegerType()))
    with pytest.raises(SchemaError, match="nullable"):
        source_arrow_schema(StructType([StructField("key", BinaryType(), nullable=False)]))
    with pytest.raises(SchemaError, match="nullable"):
        source_arrow_schema(StructType([StructField("headers", HEADERS, nullable=False)]))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (struct(key=BinaryType(), topic=StringType()), "needs a column `value`"),
        (struct(value=BinaryType()), "option `topic` or a column"),
        (struct(value=LongType(), topic=StringType()), "`value` is bigint.*binary or string"),
        (struct(value=StringType(), topic=BinaryType()), "`topic` is binary"),
        (struct(value=StringType(), extra=StringType()), "no column `extra`"),
        (struct(value=StringType(), offset=LongType()), "drop column `offset`"),
        (struct(value=StringType(), timestamp=TimestampNTZType()), "timestamp_ntz.*cast"),
        (struct(value=StringType(), headers=StringType()), "array<struct"),
    ],
)
def test_a_frame_that_the_sink_cannot_take_is_refused(schema: StructType, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        check_sink_schema(schema, topic_given=False)


def test_any_order_of_known_columns_is_taken() -> None:
    check_sink_schema(
        struct(
            headers=HEADERS,
            timestamp=TimestampType(),
            partition=IntegerType(),
            key=StringType(),
            value=BinaryType(),
        ),
        topic_given=True,
    )


def test_batches_are_joined_in_order() -> None:
    one, two = pa.record_batch({"value": [b"a"]}), pa.record_batch({"value": [b"b", b"c"]})
    whole = joined([one, two.slice(1)])
    assert whole.column("value").to_pylist() == [b"a", b"c"]
    assert joined([one]) is one
