"""Values with types: between the bytes of the column `value` and columns of a schema.

Pure transforms of a DataFrame, for `DataFrame.transform`, by Spark's own functions; Arrow by one of
Python's over whole columns:

    payments = stream.transform(values.from_json("id bigint, amount double"))
    payments.select("key", "value.id")
    records = frame.transform(values.to_json("id", "amount"))

What does not fit the schema fails the query, unless an option says otherwise: a value that silently
becomes null is a record that silently gets lost. A null value (a deletion, in a compacted topic)
stays null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from oncelog_spark import arrow_values
from oncelog_spark.schema import SINK_COLUMNS, SOURCE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Transform = Callable[["DataFrame"], "DataFrame"]
VALUE: Final = "value"
# What stands beside a value, and is no part of it.
BESIDE: Final = {*SOURCE_COLUMNS, *SINK_COLUMNS} - {VALUE}


class AvroMissing(RuntimeError):
    """Spark's Avro functions are not part of PySpark."""


class ArrowMissing(RuntimeError):
    """This Spark has no functions over Arrow columns."""


def from_json(schema: str | StructType, **options: str) -> Transform:
    """`value`, JSON text, becomes a struct of `schema`. `options`: those of Spark's `from_json`;
    `mode="PERMISSIVE"` makes null of what does not fit."""
    from pyspark.sql import functions as F

    chosen = {"mode": "FAILFAST", **options}

    def transform(frame: DataFrame) -> DataFrame:
        text = F.col(VALUE).cast("string")
        return frame.withColumn(VALUE, F.from_json(text, schema, chosen))

    return transform


def to_json(*columns: str, **options: str) -> Transform:
    """The columns become `value`, a JSON object; all of them that are not of a record (`key`,
    `topic`, ...), where none is named. A struct `value`, as `from_json` makes it, becomes its
    fields. `options`: those of Spark's `to_json`; fields that are null are left out."""
    from pyspark.sql import functions as F

    def transform(frame: DataFrame) -> DataFrame:
        packed, rest = _packed(frame, columns)
        return frame.select(*rest, F.to_json(packed, options).alias(VALUE))

    return transform


def from_avro(schema: str, **options: str) -> Transform:
    """`value`, Avro by the schema (JSON text), becomes a struct. Raises AvroMissing."""
    from pyspark.sql import functions as F

    chosen = {"mode": "FAILFAST", **options}

    def transform(frame: DataFrame) -> DataFrame:
        made = _avro(frame, "from_avro", F.col(VALUE).cast("binary"), schema, chosen)
        return frame.withColumn(VALUE, made)

    return transform


def to_avro(schema: str, *columns: str) -> Transform:
    """The columns become `value`, Avro by the schema; which columns, as for `to_json`. Raises
    AvroMissing."""

    def transform(frame: DataFrame) -> DataFrame:
        packed, rest = _packed(frame, columns)
        return frame.select(*rest, _avro(frame, "to_avro", packed, schema).alias(VALUE))

    return transform


def from_arrow(schema: str | StructType) -> Transform:
    """`value`, an Arrow IPC stream of one row, becomes a struct of `schema`: fields by their names;
    what a value lacks is null, what it has besides is left out. A value that is none, or that does
    not fit, fails the query (ArrowValueError). Needs Spark 4.1."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import DataType, StructType

    def transform(frame: DataFrame) -> DataFrame:
        wanted = DataType.fromDDL(schema) if isinstance(schema, str) else schema
        if not isinstance(wanted, StructType):
            raise ValueError(
                f"{schema!r} is no schema: name fields, as in 'id bigint, name string'"
            )
        read = arrow_values.reading(to_arrow_type(wanted, timezone="UTC"))
        struct = _arrow_udf(read, wanted)(F.col(VALUE).cast("binary"))
        return frame.withColumn(VALUE, struct)

    return transform


def to_arrow(*columns: str) -> Transform:
    """The columns become `value`, an Arrow IPC stream of one row, which any Arrow library reads;
    which columns, as for `to_json`. Needs Spark 4.1."""

    def transform(frame: DataFrame) -> DataFrame:
        packed, rest = _packed(frame, columns)
        return frame.select(*rest, _arrow_udf(arrow_values.write, "binary")(packed).alias(VALUE))

    return transform


def _arrow_udf(function: Any, made: Any) -> Any:
    import pyspark

    try:
        from pyspark.sql.pandas.functions import arrow_udf
    except ImportError as error:
        raise ArrowMissing(
            f"Arrow in a value needs Spark 4.1 or later, and this is {pyspark.__version__}: use "
            "from_json and to_json, or another Spark"
        ) from error
    return arrow_udf(function, made)


def _packed(frame: DataFrame, columns: Sequence[str]) -> tuple[Any, list[str]]:
    """What becomes the value, and the columns beside it."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    rest = [name for name in frame.columns if name in BESIDE and name not in columns]
    chosen = list(columns) or [name for name in frame.columns if name not in BESIDE]
    if not chosen:
        raise ValueError("no column is left to make a value of: name some")
    if chosen == [VALUE] and isinstance(frame.schema[VALUE].dataType, StructType):
        return F.col(VALUE), rest
    return F.struct(*chosen), rest


def _avro(frame: DataFrame, name: str, *arguments: Any) -> Any:
    """A Spark that lacks the package says so in two ways, and neither names it."""
    import pyspark
    from pyspark.sql.avro import functions

    try:
        made = getattr(functions, name)(*arguments)
        # Where the function is looked up late, here.
        frame.select(made).schema  # noqa: B018
    except Exception as error:
        if not any(sign in str(error) for sign in ("JavaPackage", "AVRO", "SparkAvroUtils")):
            raise
        raise AvroMissing(
            "Avro is a package of Spark's own that is not here: start Spark with "
            f"--packages org.apache.spark:spark-avro_2.13:{pyspark.__version__}"
        ) from error
    return made
