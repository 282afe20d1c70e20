"""Batches: round trips of both encodings, what `validate` refuses, and that no damage gets by."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelogpb import arrow_message, records
from oncelogpb.errors import CorruptBatch, InvalidArgument, OncelogError, TooLarge
from oncelogpb.records import ARROW_V1, ROWS, BatchLimits, Compression
from oncelogpb.v1 import types_pb2 as pb

BYTES = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=8), BYTES), max_size=3)
TIMES = st.integers(-(2**62), 2**62)
RECORDS = st.lists(st.tuples(BYTES, BYTES, TIMES, HEADERS), min_size=1, max_size=30)


def batch_of(content: list[tuple[bytes | None, bytes | None, int, Any]]) -> pa.RecordBatch:
    keys, values, times, headers = zip(*content, strict=True)
    return records.make_batch(keys, values, times, [h or None for h in headers])


def sample(count: int = 100) -> pa.RecordBatch:
    return records.make_batch(
        [b"key-%d" % i if i % 3 else None for i in range(count)],
        [b"value-%d" % i * 5 for i in range(count)],
        list(range(1_000, 1_000 + count)),
        [[("trace", b"%d" % i), ("empty", None)] if i % 2 else None for i in range(count)],
    )


def check(
    encoding: int, payload: bytes, count: int, limits: BatchLimits = records.DEFAULT_LIMITS
) -> None:
    records.validate(encoding, payload, count, records.checksum(payload), limits)


@given(RECORDS, st.sampled_from(list(Compression)))
@settings(max_examples=150, deadline=None)
def test_an_arrow_batch_survives_its_encoding(content: Any, compression: Any) -> None:
    batch = batch_of(content)
    payload = records.encode_arrow(batch, compression).to_pybytes()
    records.validate(
        ARROW_V1,
        payload,
        len(content),
        records.checksum(payload),
        max_timestamp_us=max(row[2] for row in content),
    )
    assert records.decode_arrow(payload).equals(batch)
    assert records.max_timestamp_of(ARROW_V1, payload) == max(row[2] for row in content)


@given(RECORDS)
@settings(max_examples=150, deadline=None)
def test_rows_and_arrow_hold_the_same_records(content: Any) -> None:
    batch = batch_of(content)
    rows = records.arrow_to_rows(batch)
    payload = rows.SerializeToString()
    check(ROWS, payload, len(content))
    assert records.rows_to_arrow(rows).equals(batch)
    assert records.decode(ROWS, payload).equals(batch)
    arrow = records.encode_arrow(batch).to_pybytes()
    assert records.as_rows(ARROW_V1, arrow) == payload
    assert records.as_rows(ROWS, payload) == payload


@given(st.integers(1, 40), st.integers(0, 200), st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_a_slice_is_encoded_as_its_own_records(count: Any, start: Any, length: Any) -> None:
    part = sample(300).slice(start, min(length, count))
    payload = records.encode_arrow(part).to_pybytes()
    check(ARROW_V1, payload, part.num_rows)
    assert records.decode_arrow(payload).equals(part)


def test_a_small_slice_without_headers_is_a_small_message() -> None:
    whole = records.make_batch([b"key"] * 10_000, [b"value"] * 10_000, 1)
    nulls = whole.set_column(3, "headers", pa.nulls(10_000, records.HEADERS))
    assert nulls.equals(whole)
    for batch in (whole.slice(10, 20), nulls.slice(10, 20)):
        payload = records.encode_arrow(batch).to_pybytes()
        check(ARROW_V1, payload, 20)
        assert records.decode_arrow(payload).equals(batch)
        assert len(payload) < 2_000


@pytest.mark.parametrize("compression", list(Compression))
def test_i26_a_flipped_bit_is_caught_by_the_crc_and_harms_nothing_without_it(
    compression: Compression,
) -> None:
    """Under the CRC that its client made, no damage passes. Under a CRC made over the damage, what
    passes may hold other values, but it decodes to the right count."""
    original = records.encode_arrow(sample(), compression).to_pybytes()
    crc = records.checksum(original)
    chance = random.Random(26)
    for _ in range(3_000):
        damaged = bytearray(original)
        for _ in range(chance.choice((1, 1, 2, 8))):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        payload = bytes(damaged)
        if payload == original:
            continue
        with pytest.raises(CorruptBatch, match="CRC32C"):
            records.validate(ARROW_V1, payload, 100, crc)
        try:
            check(ARROW_V1, payload, 100)
        except OncelogError:
            continue
        assert records.decode_arrow(payload).num_rows == 100
        records.as_rows(ARROW_V1, payload)


def test_i26_cut_or_extended_messages_are_refused() -> None:
    payload = records.encode_arrow(sample()).to_pybytes()
    for cut in (0, 4, 8, 100, len(payload) // 2, len(payload) - 1):
        with pytest.raises(CorruptBatch):
            check(ARROW_V1, payload[:cut], 100)
    with pytest.raises(CorruptBatch):
        check(ARROW_V1, payload + b"\0" * 8, 100)


def test_i26_damaged_rows_are_named_or_decode() -> None:
    original = records.arrow_to_rows(sample()).SerializeToString()
    chance = random.Random(26)
    for _ in range(3_000):
        damaged = bytearray(original)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        try:
            check(ROWS, bytes(damaged), 100)
        except OncelogError:
            continue
        assert records.decode(ROWS, bytes(damaged)).num_rows == 100


REFUSALS = [
    # in order of precedence: encoding, count, size, CRC, content
    ("unknown encoding", InvalidArgument, {"encoding": 0}, "encoding"),
    ("encoding of the future", InvalidArgument, {"encoding": 9}, "encoding"),
    ("no records", InvalidArgument, {"record_count": 0}, "record_count"),
    ("too large", TooLarge, {"limits": BatchLimits(max_batch_bytes=10)}, "max_batch_bytes"),
    ("wrong CRC", CorruptBatch, {"crc": 1}, "crc32c"),
    ("wrong count", CorruptBatch, {"record_count": 99}, "record_count"),
    ("rows called Arrow", CorruptBatch, {"encoding": ROWS}, None),
    ("wrong time", CorruptBatch, {"max_timestamp_us": 5}, "max_timestamp_us"),
]


@pytest.mark.parametrize(("story", "kind", "change", "names"), REFUSALS, ids=lambda v: str(v))
def test_a_refusal_names_what_is_wrong(story: Any, kind: Any, change: Any, names: Any) -> None:
    payload = records.encode_arrow(sample()).to_pybytes()
    arguments = {
        "encoding": ARROW_V1,
        "payload": payload,
        "record_count": 100,
        "crc": records.checksum(payload),
        **change,
    }
    with pytest.raises(kind) as refusal:
        records.validate(**arguments)
    if names is not None:
        assert names in (refusal.value.metadata.get("field"), refusal.value.metadata.get("limit"))


def test_another_schema_is_refused() -> None:
    other = pa.record_batch([pa.array([b"x"] * 3)], names=["value"]).serialize().to_pybytes()
    with pytest.raises(CorruptBatch, match="key, value, timestamp, headers"):
        check(ARROW_V1, other, 3)


def test_a_null_timestamp_is_refused() -> None:
    columns = list(sample(3).columns)
    columns[2] = pa.array([1, None, 3], records.TIMESTAMP)
    batch = pa.RecordBatch.from_arrays(columns, names=records.SCHEMA_V1.names)
    with pytest.raises(CorruptBatch, match="must not be null"):
        check(ARROW_V1, batch.serialize().to_pybytes(), 3)


def test_a_bomb_is_refused_before_it_is_decompressed() -> None:
    batch = records.make_batch([None] * 20, [b"\0" * 1_000_000] * 20, 1)
    payload = records.encode_arrow(batch, Compression.ZSTD).to_pybytes()
    assert len(payload) < 20_000
    with pytest.raises(TooLarge) as refusal:
        check(ARROW_V1, payload, 20, BatchLimits(decompressed_bytes_max=10_000_000))
    assert refusal.value.metadata["limit"] == "decompressed_bytes_max"


def test_a_bomb_that_lies_about_its_size_is_refused() -> None:
    batch = records.make_batch([None] * 20, [b"\0" * 100_000] * 20, 1)
    payload = bytearray(records.encode_arrow(batch, Compression.LZ4).to_pybytes())
    head = arrow_message.read_head(memoryview(payload))
    offset, _ = max(head.buffers, key=lambda buffer: buffer[1])
    struct.pack_into("<q", payload, head.body_start + offset, 1_000)
    with pytest.raises(CorruptBatch):
        check(ARROW_V1, bytes(payload), 20)


@pytest.mark.parametrize("inner", [b"", b"\x22\x00" * 500_000], ids=["rows", "headers"])
def test_rows_that_would_fill_the_memory_are_refused_unparsed(inner: Any) -> None:
    row = pb.Row.FromString(inner).SerializeToString()
    one = pb.Rows(rows=[pb.Row.FromString(row)]).SerializeToString()
    payload = one * (1 if inner else 1_000_000)
    limits = BatchLimits(decompressed_bytes_max=16 * 1024 * 1024)
    with pytest.raises(TooLarge) as refusal:
        check(ROWS, payload, 1, limits)
    assert refusal.value.metadata["limit"] == "decompressed_bytes_max"


def test_what_takes_long_is_judged_off_the_loop() -> None:
    plain = records.encode_arrow(sample()).to_pybytes()
    packed = records.encode_arrow(sample(), Compression.LZ4).to_pybytes()
    assert not records.needs_offload(ARROW_V1, plain)
    assert records.needs_offload(ARROW_V1, packed)
    assert not records.needs_offload(ROWS, b"x")
    assert records.needs_offload(ROWS, b"x" * 100_000)
    assert not records.needs_offload(ARROW_V1, b"rubbish")


def test_conform_casts_fills_and_names_the_column() -> None:
    batch = pa.record_batch({"value": pa.array(["a", "b"]), "key": pa.array([b"k", None])})
    got = records.conform(batch, default_timestamp_us=7)
    assert got.equals(records.make_batch([b"k", None], [b"a", b"b"], 7))
    with pytest.raises(InvalidArgument, match="unknown column 'valeu'"):
        records.conform(pa.record_batch({"valeu": pa.array([b""])}), default_timestamp_us=7)
    with pytest.raises(InvalidArgument, match="no column 'value'"):
        records.conform(pa.record_batch({"key": pa.array([b""])}), default_timestamp_us=7)
    with pytest.raises(InvalidArgument, match="column 'value' is list"):
        records.conform(pa.record_batch({"value": pa.array([[1]])}), default_timestamp_us=7)


@pytest.mark.parametrize("count", [1, 15, 16, 40])
def test_few_records_are_sealed_as_rows(count: Any) -> None:
    batch = records.seal(sample(count))
    assert batch.encoding == (ROWS if count < 16 else ARROW_V1)
    assert batch.record_count == count
    records.validate(
        batch.encoding,
        batch.payload,
        count,
        batch.crc32c,
        max_timestamp_us=batch.max_timestamp_us,
    )
    assert records.decode(batch.encoding, batch.payload).equals(sample(count))


def rows_at(*times_us: int) -> bytes:
    return records.make_rows(
        [None] * len(times_us), [b"v"] * len(times_us), times_us
    ).SerializeToString()


def arrow_at(*times_us: int) -> bytes:
    batch = records.make_batch([None] * len(times_us), [b"v"] * len(times_us), times_us)
    return bytes(records.encode_arrow(batch).to_pybytes())


@pytest.mark.parametrize("claimed", [3, 4, 6])
@pytest.mark.parametrize(("encoding", "encoded"), [(ROWS, rows_at), (ARROW_V1, arrow_at)])
def test_the_highest_time_is_what_it_is_said_to_be(
    encoding: int, encoded: Any, claimed: int
) -> None:
    payload = encoded(1, 5, 3)
    crc = records.checksum(payload)
    records.validate(encoding, payload, 3, crc, max_timestamp_us=5)
    with pytest.raises(CorruptBatch, match="max_timestamp_us"):
        records.validate(encoding, payload, 3, crc, max_timestamp_us=claimed)


@pytest.mark.parametrize("count", [1, 3])
def test_rows_are_as_many_as_they_are_said_to_be(count: int) -> None:
    with pytest.raises(CorruptBatch, match="record_count"):
        check(ROWS, rows_at(1, 2), count)


def test_what_is_large_and_no_message_is_judged_off_the_loop_too() -> None:
    assert records.needs_offload(ARROW_V1, bytes(records.ARROW_OFFLOAD_BYTES + 1))
    assert not records.needs_offload(ARROW_V1, bytes(records.ARROW_OFFLOAD_BYTES))


@pytest.mark.parametrize("column", range(4))
def test_columns_of_other_lengths_are_refused(column: int) -> None:
    head = arrow_message.read_head(memoryview(records.encode_arrow(sample()).to_pybytes()))
    records._require_layout(head)
    nodes = list(head.nodes)
    nodes[column] = (99, 0)
    with pytest.raises(CorruptBatch, match="lengths"):
        records._require_layout(head._replace(nodes=tuple(nodes)))


def test_a_time_that_is_null_is_the_time_of_sending() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"value": [b"a", b"b"], "timestamp": pa.array([None, 7], records.TIMESTAMP)}
    )
    times = records.conform(batch, default_timestamp_us=5).column(2)
    assert times.cast(pa.int64()).to_pylist() == [5, 7]


def compressed_body(*buffers: bytes) -> tuple[memoryview, arrow_message.Head]:
    body, places = b"", []
    for buffer in buffers:
        places.append((len(body), len(buffer)))
        body += buffer
    head = arrow_message.Head(1, (), tuple(places), True, 0, len(body))
    return memoryview(body), head


def claim(size: int, rest: bytes = b"") -> bytes:
    return struct.pack("<q", size) + rest


def test_what_is_decompressed_is_counted_as_claimed_and_what_is_raw_as_it_is() -> None:
    body, head = compressed_body(claim(1_000, b"zz"), b"", claim(-1, b"raw"))
    assert arrow_message.decompressed_bytes(body, head) == 1_003


@pytest.mark.parametrize("buffer", [claim(-2), claim(-(2**63)), b"short"])
def test_claims_that_make_no_sense_are_refused(buffer: bytes) -> None:
    """A negative one would hide the bombs beside it."""
    with pytest.raises(arrow_message.Malformed):
        arrow_message.decompressed_bytes(*compressed_body(buffer))


@pytest.mark.parametrize("node", [(2, 3), (2, -1), (-1, 0)])
def test_nodes_that_make_no_sense_are_refused(node: tuple[int, int]) -> None:
    head = arrow_message.Head(1, (node,), (), False, 0, 0)
    with pytest.raises(arrow_message.Malformed):
        arrow_message._check(head)


@pytest.mark.parametrize("buffer", [(-1, 1), (0, -1), (5, 6), (11, 0)])
def test_buffers_outside_of_the_body_are_refused(buffer: tuple[int, int]) -> None:
    head = arrow_message.Head(1, (), (buffer,), False, 0, 10)
    with pytest.raises(arrow_message.Malformed):
        arrow_message._check(head)


def test_what_is_no_record_batch_is_told_so() -> None:
    schema = records.SCHEMA_V1.serialize().to_pybytes()
    with pytest.raises(arrow_message.Malformed, match="not a RecordBatch"):
        arrow_message.read_head(memoryview(schema))


@pytest.mark.parametrize("claimed", [-1, 7, arrow_message.METADATA_BYTES_MAX + 1])
def test_metadata_of_no_sensible_size_is_refused(claimed: int) -> None:
    message = struct.pack("<Ii", arrow_message.CONTINUATION, claimed) + bytes(8_192)
    with pytest.raises(arrow_message.Malformed, match=f"metadata of {claimed} bytes"):
        arrow_message.read_head(memoryview(message))


def test_metadata_version_4_is_read_too() -> None:
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.SCHEMA_V1, options=options) as writer:
        # The schema goes out with the first one.
        writer.write_batch(sample())
        start = sink.tell()
        writer.write_batch(sample())
        end = sink.tell()
    message = sink.getvalue().slice(start, end - start).to_pybytes()
    assert arrow_message.read_head(memoryview(message)).row_count == 100


def pairs_flat(count: int) -> arrow_message._Flat:
    """A table at 8 whose field 0 is a vector of so many pairs."""
    table = struct.pack("<HHHxx", 6, 8, 4) + struct.pack("<iI", 8, 4)
    return arrow_message._Flat(table + struct.pack("<I", count) + bytes(16 * count))


def test_a_vector_has_as_many_pairs_as_any_schema_needs() -> None:
    most = arrow_message.ENTRIES_MAX
    assert pairs_flat(most).pairs(8, 0) == ((0, 0),) * most
    with pytest.raises(arrow_message.Malformed, match="more than"):
        pairs_flat(most + 1).pairs(8, 0)


def test_nothing_is_read_from_before_the_start() -> None:
    """Python would take it from the end."""
    with pytest.raises(arrow_message.Malformed, match="before its start"):
        arrow_message._Flat(bytes(64)).number("<I", -8)
