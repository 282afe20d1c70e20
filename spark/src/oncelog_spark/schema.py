"""Columns of source and sink, and their way to and from batches of the log.

Source: exactly the columns of Spark's Kafka source that have a meaning here, all nullable; Spark
checks that the batches a reader yields *equal* the declared Arrow schema, so every batch is built
against it. Sink: `value` and any of the others, in any order; types are checked before a task runs.

Invariant: no Python work per record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
# Name -> Spark's short name of its type, in the order of the Kafka source.
SOURCE_COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": HEADERS_TYPE,
}
# Of these, what the log holds of each record.
RECORD_COLUMNS: Final = ("key", "value", "timestamp", "headers")
# Name -> types that a sink takes.
SINK_COLUMNS: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int", "smallint", "tinyint"),
    "timestamp": ("timestamp",),
    "headers": (HEADERS_TYPE,),
}


class SchemaError(ValueError):
    """A DataFrame that the sink cannot take, or a source schema that it cannot give."""


def source_ddl(*, include_headers: bool) -> str:
    """The source's schema."""
    columns = dict(SOURCE_COLUMNS)
    if not include_headers:
        del columns["headers"]
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def source_arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that batches must equal: of `schema`, which is the source's own or what the
    user chose of it with .schema(). Raises SchemaError for columns that do not exist."""
    from pyspark.sql.pandas.types import to_arrow_schema

    for field in schema.fields:
        kind = field.dataType.simpleString()
        if SOURCE_COLUMNS.get(field.name) != kind:
            known = source_ddl(include_headers=True)
            raise SchemaError(f"the source has no column `{field.name} {kind}`; it has {known}")
        if not field.nullable and field.name in ("key", "value", "headers"):
            raise SchemaError(f"column `{field.name}` may hold nulls: declare it nullable")
    return to_arrow_schema(schema, timezone="UTC")


def record_columns(schema: pa.Schema) -> list[str]:
    """Of the log's columns, those that the source's batches are made of. One at least: it counts
    the records."""
    named = [name for name in RECORD_COLUMNS if name in schema.names]
    return named or ["timestamp"]


def source_batch(
    records: pa.RecordBatch,
    schema: pa.Schema,
    *,
    topic: str,
    partition: int,
    offsets: pa.Int64Array,
) -> pa.RecordBatch:
    """Records of the log, with the offset of each, as a batch of the source."""
    count = records.num_rows
    columns: list[pa.Array] = []
    for field in schema:
        if field.name == "topic":
            column = pa.repeat(pa.scalar(topic, pa.string()), count)
        elif field.name == "partition":
            column = pa.repeat(pa.scalar(partition, pa.int32()), count)
        elif field.name == "offset":
            column = offsets
        else:
            column = records.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_sink_schema(schema: StructType, *, topic_given: bool) -> None:
    """Raises SchemaError where the sink cannot take such a DataFrame, saying what to change."""
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        kind = field.dataType.simpleString()
        accepted = SINK_COLUMNS.get(field.name)
        if field.name == "offset":
            raise SchemaError("drop column `offset`: the log assigns offsets at commit")
        if accepted is None:
            raise SchemaError(
                f"the sink has no column `{field.name}`; it takes {', '.join(SINK_COLUMNS)}"
            )
        if kind not in accepted:
            wanted = " or ".join(accepted)
            raise SchemaError(f"column `{field.name}` is {kind}, but must be {wanted}: cast it")
    duplicates = {name for name in names if names.count(name) > 1}
    if duplicates:
        raise SchemaError(f"column `{min(duplicates)}` is there twice")
    if "value" not in names:
        raise SchemaError("the sink needs a column `value` (binary or string)")
    if "topic" not in names and not topic_given:
        raise SchemaError("where to? give the option `topic` or a column `topic`")


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Several batches of one schema as one. There must be one at least."""
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()
    columns = [column.chunk(0) if column.num_chunks else _none(column) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _none(column: Any) -> pa.Array:
    return pa.nulls(0, column.type)
