"""Arrow in a value: one row, as an Arrow IPC stream, which says its own schema and which any Arrow
library reads (https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format).

What Spark's workers do to each batch for `values.from_arrow` and `values.to_arrow`. A stream begins
with its schema; values of one writer begin alike, so that is parsed once and compared from then on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

# Stands for the schema of a value that is null.
NULL: Final = 0
# After the last batch: no more of them follow.
END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class ArrowValueError(ValueError):
    """A value that is no Arrow IPC stream of one row, or that does not fit the schema."""


def write(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """Structs become bytes; what is null stays null. For `arrow_udf`."""
    for column in columns:
        yield pa.array(_written(column), pa.binary())


def reading(wanted: pa.StructType) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    """Bytes become structs of `wanted`: fields by their names, what a value lacks is null, what it
    has besides is left out. Raises ArrowValueError. For `arrow_udf`."""

    def read(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
        reader = _Reader()
        for column in columns:
            rows = [reader.row(value) for value in column.to_pylist()]
            runs = itertools.groupby(rows, key=lambda row: row.schema_number)
            structs = [_structs([row.batch for row in run], wanted) for _, run in runs]
            yield pa.concat_arrays(structs) if structs else pa.array([], wanted)

    return read


class _Row(NamedTuple):
    """Neighbours with one number have one schema; `batch` is None where the value is null."""

    schema_number: int
    batch: pa.RecordBatch | None


class _Reader:
    """Of one task."""

    def __init__(self) -> None:
        self._start, self._schema, self._number = b"", pa.schema([]), 0

    def row(self, value: bytes | None) -> _Row:
        if value is None:
            return _Row(NULL, None)
        try:
            batch = self._read(value)
        except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            # Names of fields, too, may be damaged.
            raise _no_stream(error) from error
        if batch.num_rows != 1:
            raise ArrowValueError(f"a value has {batch.num_rows} rows: a record is one row")
        return _Row(self._number, batch)

    def _read(self, value: bytes) -> pa.RecordBatch:
        if 0 < len(self._start) < len(value) and value.startswith(self._start):
            stream = pa.BufferReader(value)
            stream.seek(len(self._start))
            message = pa.ipc.read_message(stream)
            if message.type == "record batch" and value[stream.tell() :] in (b"", END):
                return pa.ipc.read_record_batch(message, self._schema)
        with pa.ipc.open_stream(value) as stream:
            table = stream.read_all()
        # Lengths and offsets that lie would have Arrow read other memory.
        table.validate(full=True)
        self._schema, self._start = table.schema, value[: _schema_bytes(value)]
        self._number += 1
        columns = [column.combine_chunks() for column in table.columns]
        return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _no_stream(error: BaseException) -> ArrowValueError:
    return ArrowValueError(f"a value is no Arrow IPC stream: {error}")


def _schema_bytes(value: bytes) -> int:
    """Of the schema at the front of a stream."""
    stream = pa.BufferReader(value)
    pa.ipc.read_message(stream)
    return int(stream.tell())


def _written(column: pa.StructArray) -> list[bytes | None]:
    rows = pa.RecordBatch.from_struct_array(column)
    start = rows.schema.serialize().to_pybytes()
    return [
        start + rows.slice(at, 1).serialize().to_pybytes() + END if valid else None
        for at, valid in enumerate(column.is_valid().to_pylist())
    ]


def _structs(rows: list[pa.RecordBatch | None], wanted: pa.StructType) -> pa.Array:
    """Of neighbours with one schema, or of as many nulls."""
    if rows[0] is None:
        return pa.nulls(len(rows), wanted)
    table = pa.Table.from_batches(rows)
    try:
        table.validate(full=True)
    except pa.ArrowException as error:
        raise _no_stream(error) from error
    return _fitting(table, wanted)


def _fitting(table: pa.Table, wanted: pa.StructType) -> pa.Array:
    columns = []
    for field in wanted:
        names = table.schema.get_all_field_indices(field.name)
        if len(names) > 1:
            raise ArrowValueError(f"a value has {len(names)} fields `{field.name}`")
        column = table.column(names[0]) if names else pa.nulls(table.num_rows, field.type)
        try:
            column = column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ArrowValueError(
                f"field `{field.name}` of a value is {column.type}, and does not fit "
                f"{field.type}: {error}"
            ) from error
        if not field.nullable and column.null_count:
            raise ArrowValueError(f"field `{field.name}` of a value is null, and must not be")
        columns.append(column.combine_chunks() if names else column)
    return pa.StructArray.from_arrays(columns, fields=list(wanted))
