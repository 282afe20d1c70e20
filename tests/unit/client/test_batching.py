"""What was sent is what is sealed: every record once, in order within its partition."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._core import batching
from oncelog._core.batching import Layout, Sealed, TopicBuffer, make_extra, seal_arrow, seal_records
from oncelog._core.partitioners import crc32_hashes
from oncelog.batch import Chunk, Record
from oncelogpb import records
from oncelogpb.errors import InvalidArgument, TooLarge, UnknownPartition

NOW_US = 1_700_000_000_000_000


def layout(partitions: int = 4, *, sticky: int = 1, batch_bytes: int = 64 * 1024) -> Layout:
    return Layout(
        topic="t",
        partitions=partitions,
        sticky=sticky,
        key_hash=crc32_hashes,
        now_us=NOW_US,
        batch_bytes=batch_bytes,
        compression=records.Compression.NONE,
    )


def flat(rows: list[tuple[Any, ...]]) -> list[Any]:
    return [entry for row in rows for entry in row]


def read(sealed: list[Sealed]) -> dict[int, list[Record]]:
    """What a consumer would see, by partition; the server's own judgement is asked first."""
    seen: dict[int, list[Record]] = {}
    for batch in sealed:
        records.validate(
            batch.encoding,
            batch.payload,
            batch.record_count,
            batch.crc32c,
            max_timestamp_us=batch.max_timestamp_us,
        )
        chunk = Chunk(
            "t",
            batch.partition,
            first_offset=len(seen.get(batch.partition, [])),
            encoding=batch.encoding,
            payload=batch.payload,
            skip=0,
            count=batch.record_count,
        )
        seen.setdefault(batch.partition, []).extend(chunk.records())
    return seen


maybe_bytes = st.one_of(st.none(), st.binary(max_size=8))
header_lists = st.lists(st.tuples(st.text(max_size=4), maybe_bytes), max_size=2)
sent_records = st.tuples(
    maybe_bytes,
    maybe_bytes,
    st.one_of(st.none(), header_lists),
    st.one_of(st.none(), st.integers(0, 3)),
    st.one_of(st.none(), st.integers(-(10**15), 10**15)),
)


@given(st.lists(sent_records, min_size=1, max_size=60))
def test_every_record_is_sealed_once_in_order_where_it_belongs(sent: list[tuple[Any, ...]]) -> None:
    items = flat([(v, k, make_extra(h, t), p) for v, k, h, p, t in sent])
    seen = read(seal_records(items, layout()))
    expected: dict[int, list[tuple[Any, ...]]] = {}
    for value, key, headers, partition, time_us in sent:
        if partition is None:
            partition = 1 if key is None else int(crc32_hashes([key])[0]) % 4
        time_us = NOW_US if time_us is None else time_us
        expected.setdefault(partition, []).append((key, value, time_us, tuple(headers or ())))
    assert {
        partition: [(r.key, r.value, r.timestamp_us, r.headers) for r in found]
        for partition, found in seen.items()
    } == expected


@pytest.mark.parametrize(
    ("count", "encoding"), [(1, records.ROWS), (15, records.ROWS), (16, records.ARROW_V1)]
)
def test_few_records_travel_as_rows_and_more_as_arrow(count: int, encoding: int) -> None:
    (sealed,) = seal_records([b"v", None, None, None] * count, layout())
    assert (sealed.encoding, sealed.record_count) == (encoding, count)


def test_a_chunk_that_outgrew_the_batch_size_is_split_and_a_single_large_record_is_not() -> None:
    many = seal_records([b"x" * 100, None, None, None] * 5_000, layout(batch_bytes=64 * 1024))
    assert len(many) > 1
    assert max(len(sealed.payload) for sealed in many) < 128 * 1024
    assert sum(sealed.record_count for sealed in many) == 5_000
    (one,) = seal_records([b"x" * 200_000, None, None, None], layout(batch_bytes=64 * 1024))
    assert one.record_count == 1


def test_records_without_a_key_go_to_one_partition_per_chunk() -> None:
    sealed = seal_records([b"v", None, None, None] * 40, layout(sticky=3))
    assert {batch.partition for batch in sealed} == {3}


def test_a_partition_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(UnknownPartition, match="partitions 0 to 3, not 4"):
        seal_records([b"v", None, None, 4], layout())


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (b"x", b"x"), (bytearray(b"x"), b"x"), (memoryview(b"x"), b"x")],
)
def test_what_is_bytes_becomes_bytes(value: object, expected: bytes | None) -> None:
    assert batching.check_bytes("value", value) == expected


@pytest.mark.parametrize("value", ["text", 7, [1]])
def test_what_is_not_bytes_is_refused_at_the_call(value: object) -> None:
    with pytest.raises(InvalidArgument, match="encode it first"):
        batching.check_bytes("value", value)


def test_the_error_of_a_large_record_names_the_limit() -> None:
    with pytest.raises(TooLarge) as caught:
        batching.refuse_size(batching.RECORD_BYTES_MAX + 1)
    assert caught.value.metadata["limit"] == "record_bytes_max"


def test_taking_a_buffer_empties_it_of_exactly_what_was_taken() -> None:
    buffer = TopicBuffer("t", 1_000)
    buffer.items.extend((b"a", None, None, None))
    buffer.room -= 17
    taken, size = buffer.take()
    assert (taken, size, buffer.items, buffer.room) == ([b"a", None, None, None], 17, [], 1_000)


def test_arrow_data_is_sealed_by_its_keys_and_partitions() -> None:
    table = pa.RecordBatch.from_pydict(
        {
            "value": [b"%d" % n for n in range(40)],
            "key": [None if n % 2 else b"k" for n in range(40)],
        }
    )
    home = int(crc32_hashes([b"k"])[0]) % 4
    sticky = (home + 1) % 4
    seen = read(seal_arrow(table, layout(sticky=sticky)))
    expected = {
        home: [b"%d" % n for n in range(0, 40, 2)],
        sticky: [b"%d" % n for n in range(1, 40, 2)],
    }
    assert {p: [r.value for r in found] for p, found in seen.items()} == expected
    chosen = table.append_column("partition", pa.array([n % 3 for n in range(40)]))
    assert {p: len(found) for p, found in read(seal_arrow(chosen, layout())).items()} == {
        0: 14,
        1: 13,
        2: 13,
    }


def test_arrow_data_without_a_value_column_or_with_another_one_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no column 'value'"):
        seal_arrow(pa.RecordBatch.from_pydict({"key": [b"k"]}), layout())
    with pytest.raises(InvalidArgument, match="unknown column 'offset'"):
        seal_arrow(pa.RecordBatch.from_pydict({"value": [b"v"], "offset": [1]}), layout())
