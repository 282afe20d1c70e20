"""Reading: records and tables are what was sent, whichever way they travelled."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from oncelog.batch import TABLE_SCHEMA, Batch, Chunk, Record, TopicPartition
from oncelogpb import records

KEYS = [b"k", None, b"", b"k3"]
VALUES = [b"v", b"", None, b"v3"]
TIMES = [1, 0, -5, 1_700_000_000_000_000]
HEADERS = [[("a", b"1"), ("a", None)], None, [], [("b", b"")]]


def chunk(encoding: int, *, skip: int = 0, count: int = 4, first_offset: int = 10) -> Chunk:
    if encoding == records.ROWS:
        payload = records.make_rows(KEYS, VALUES, TIMES, HEADERS).SerializeToString()
    else:
        made = records.make_batch(KEYS, VALUES, TIMES, HEADERS)
        payload = records.encode_arrow(made).to_pybytes()
    return Chunk(
        "t",
        2,
        first_offset=first_offset + skip,
        encoding=encoding,
        payload=payload,
        skip=skip,
        count=count,
    )


EXPECTED = [
    Record("t", 2, 10, b"k", b"v", 1, (("a", b"1"), ("a", None))),
    Record("t", 2, 11, None, b"", 0, ()),
    Record("t", 2, 12, b"", None, -5, ()),
    Record("t", 2, 13, b"k3", b"v3", 1_700_000_000_000_000, (("b", b""),)),
]
both = pytest.mark.parametrize("encoding", [records.ROWS, records.ARROW_V1])


@both
def test_records_are_what_was_sent(encoding: int) -> None:
    found = list(Batch([chunk(encoding)]))
    assert found == EXPECTED
    assert all(type(record) is Record for record in found)


@both
@pytest.mark.parametrize(("skip", "count"), [(0, 1), (1, 2), (3, 1)])
def test_a_part_of_a_batch_has_the_offsets_of_its_records(
    encoding: int, skip: int, count: int
) -> None:
    part = chunk(encoding, skip=skip, count=count)
    assert list(part.records()) == EXPECTED[skip : skip + count]
    assert part.next_offset == 10 + skip + count


@both
def test_a_split_chunk_gives_the_same_records(encoding: int) -> None:
    first, rest = chunk(encoding).split(3)
    assert [*first.records(), *rest.records()] == EXPECTED


@both
def test_the_table_has_one_row_a_record_and_names_its_place(encoding: int) -> None:
    table = Batch([chunk(encoding), chunk(encoding, skip=2, count=2)]).table
    assert table.schema.equals(TABLE_SCHEMA)
    assert table.column("offset").to_pylist() == [10, 11, 12, 13, 12, 13]
    assert table.column("value").to_pylist() == [*VALUES, *VALUES[2:]]
    assert table.column("topic").to_pylist() == ["t"] * 6
    assert table.column("partition").to_pylist() == [2] * 6
    table.validate(full=True)


def test_a_table_of_chunks_of_all_kinds_is_their_records_in_order() -> None:
    rows, arrow = records.ROWS, records.ARROW_V1
    chunks = [
        chunk(rows),
        chunk(rows, skip=1, count=2, first_offset=20),
        chunk(arrow, skip=3, count=1, first_offset=30),
        chunk(rows, skip=2, count=1, first_offset=40),
        chunk(arrow, first_offset=50),
        chunk(arrow, first_offset=60),
    ]
    chunks[1].topic = chunks[2].topic = "u"
    chunks[4].partition = 7
    table = Batch(chunks).table
    table.validate(full=True)
    assert table.schema.equals(TABLE_SCHEMA)
    shown = [
        Record(
            row["topic"], row["partition"], row["offset"], row["key"], row["value"],
            int(row["timestamp"].timestamp() * 1_000_000),
            tuple((it["key"], it["value"]) for it in row["headers"] or ()),
        )
        for row in table.to_pylist()
    ]  # fmt: skip
    assert shown == list(Batch(chunks))
    assert Batch([]).table.num_rows == 0


def test_what_comes_out_of_a_table_can_be_sent_again() -> None:
    table = Batch([chunk(records.ARROW_V1)]).table
    again = records.conform(
        pa.RecordBatch.from_struct_array(
            pa.array(table.select(["key", "value", "timestamp", "headers"]).to_pylist())
        ),
        default_timestamp_us=0,
    )
    assert again.column(1).to_pylist() == VALUES


def test_a_batch_says_where_reading_goes_on() -> None:
    batch = Batch([chunk(records.ROWS), chunk(records.ROWS, first_offset=14)])
    assert len(batch) == 8
    assert batch.partitions() == [TopicPartition("t", 2)]
    assert batch.next_offsets() == {TopicPartition("t", 2): 18}
    assert repr(batch) == "<Batch of 8: t/2@10+4, t/2@14+4>"


def test_the_timestamp_is_a_datetime_in_utc() -> None:
    assert EXPECTED[3].timestamp == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert EXPECTED[2].timestamp.year == 1969
