"""Arrow in a value, as Spark's workers write and read it."""

from __future__ import annotations

import io
from datetime import UTC
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncelog_spark.arrow_values import ArrowValueError, reading, write

TYPE = pa.struct(
    [
        ("id", pa.int64()),
        ("amount", pa.float64()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
        ("inner", pa.struct([("n", pa.int32())])),
    ]
)
ROWS = st.lists(
    st.none()
    | st.fixed_dictionaries(
        {
            "id": st.none() | st.integers(-(2**63), 2**63 - 1),
            "amount": st.none() | st.floats(allow_nan=False),
            "name": st.none() | st.text(),
            "raw": st.none() | st.binary(),
            "at": st.none() | st.datetimes(timezones=st.just(UTC)),
            "tags": st.none() | st.lists(st.none() | st.text()),
            "inner": st.none() | st.fixed_dictionaries({"n": st.integers(-9, 9)}),
        }
    ),
    max_size=8,
)


def streamed(*batches: pa.RecordBatch) -> bytes:
    """As any other program writes it."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue()


def one(**fields: Any) -> bytes:
    return streamed(pa.RecordBatch.from_pylist([fields]))


def read(values: list[bytes | None], kind: pa.StructType = TYPE) -> list[Any]:
    (found,) = reading(kind)(iter([pa.array(values, pa.binary())]))
    assert found.type == kind
    rows: list[Any] = found.to_pylist()
    return rows


def written(rows: list[Any]) -> list[bytes | None]:
    (found,) = write(iter([pa.array(rows, TYPE)]))
    values: list[bytes | None] = found.to_pylist()
    return values


@given(ROWS)
def test_what_is_written_is_read(rows: list[Any]) -> None:
    assert read(written(rows)) == rows


@given(ROWS)
def test_any_arrow_library_reads_it(rows: list[Any]) -> None:
    for row, value in zip(rows, written(rows), strict=True):
        if value is None:
            assert row is None
            continue
        with pa.ipc.open_stream(value) as stream:
            assert stream.read_all().to_pylist() == [row]


def test_fields_are_found_by_their_names() -> None:
    """Whatever their order, with what is missing, and what is not asked for."""
    kind = pa.struct([("id", pa.int64()), ("name", pa.string())])
    values = [one(name="a", id=1), one(id=2, name="b", more=3), None, one(id=4), one(id=5)]
    assert read(values, kind) == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
        None,
        {"id": 4, "name": None},
        {"id": 5, "name": None},
    ]
    assert read([], kind) == []
    assert read([None], kind) == [None]


def test_a_dictionary_is_what_it_stands_for() -> None:
    """As pandas writes a category."""
    kind = pa.struct([("name", pa.string())])
    values: list[bytes | None] = [
        streamed(pa.RecordBatch.from_arrays([pa.array([word]).dictionary_encode()], names=["name"]))
        for word in ("a", "b", "a")
    ]
    assert [row["name"] for row in read(values, kind)] == ["a", "b", "a"]


def test_a_number_of_another_width_is_taken_where_it_fits() -> None:
    kind = pa.struct([("n", pa.int32())])
    assert read([one(n=7)], kind) == [{"n": 7}]
    with pytest.raises(ArrowValueError, match=r"field `n` of a value is int64, and does not fit"):
        read([one(n=2**40)], kind)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"", "no Arrow IPC stream"),
        (b"{}", "no Arrow IPC stream"),
        (b"\xff\xff\xff\xff\x10\x00\x00\x00" + bytes(16), "no Arrow IPC stream"),
        (one(id=1)[:-30], "no Arrow IPC stream"),
        (streamed(pa.RecordBatch.from_pylist([{"id": 1}, {"id": 2}])), "a value has 2 rows"),
        (streamed(*[pa.RecordBatch.from_pylist([{"id": 1}])] * 2), "a value has 2 rows"),
        (streamed(pa.RecordBatch.from_pylist([{"id": 1}]).slice(0, 0)), "a value has 0 rows"),
        (pa.schema([("id", pa.int64())]).serialize().to_pybytes(), "a value has 0 rows"),
        (one(id="x"), "field `id` of a value is string, and does not fit int64"),
        (
            streamed(pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"])),
            "a value has 2 fields `id`",
        ),
    ],
)
@pytest.mark.parametrize("before", [[], [one(id=1)]], ids=["first", "behind another"])
def test_what_is_none_says_so(before: list[bytes], value: bytes, said: str) -> None:
    with pytest.raises(ArrowValueError, match=said):
        read([*before, value], pa.struct([("id", pa.int64())]))


def test_what_must_be_there_is() -> None:
    kind = pa.struct([pa.field("id", pa.int64(), nullable=False)])
    assert read([one(id=1)], kind) == [{"id": 1}]
    with pytest.raises(ArrowValueError, match="is null, and must not be"):
        read([one(name="a")], kind)


@given(st.binary(max_size=40), st.integers(0, 400))
@example(b"\x80", 92)
def test_damage_is_told_or_gives_a_row(noise: bytes, at: int) -> None:
    """Never memory of something else."""
    whole = one(id=1, name="abc")
    damaged = whole[:at] + noise + whole[at + len(noise) :]
    kind = pa.struct([("id", pa.int64()), ("name", pa.string())])
    try:
        assert len(read([whole, damaged], kind)) == 2
    except ArrowValueError:
        pass
