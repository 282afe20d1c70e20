"""What was sent is what is sealed: every record once, in order within its partition."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog._core import buffers
from oncelog._core.batching import Layout, Pieces, Refused, Sealed, seal_arrow, seal_cell
from oncelog._core.buffers import BARE, COLUMNS, KEYED, Cell, TopicBuffer, make_extra
from oncelog._core.deliveries import Deliveries, Delivery
from oncelog._core.partitioners import crc32_hashes
from oncelog.aio.recorder import _parcels
from oncelog.batch import Chunk, Record
from oncelogpb import records
from oncelogpb.errors import InvalidArgument, TooLarge, UnknownPartition

NOW_US = 1_700_000_000_000_000


def layout(
    partitions: int = 4,
    *,
    sticky: int = 1,
    batch_bytes: int = 64 * 1024,
    max_batch_bytes: int = 16 * 1024 * 1024,
    compression: records.Compression = records.Compression.NONE,
) -> Layout:
    return Layout(
        topic="t",
        partitions=partitions,
        sticky=sticky,
        key_hash=crc32_hashes,
        now_us=NOW_US,
        batch_bytes=batch_bytes,
        compression=compression,
        max_batch_bytes=max_batch_bytes,
    )


EXTRA = make_extra({"name": b"h"}, 5)


class Origin:
    """Where records were put; remembers the parts that were settled."""

    def __init__(self) -> None:
        self.settled: list[Any] = []

    def part_settled(self, deliveries: Deliveries, part: Any) -> None:
        self.settled.append(part)


def cell_of(rows: list[tuple[Any, ...]], first: int = 0) -> Cell:
    """Taken, with records (value, key, extra, partition), of which `first` came before."""
    used = max((n for row in rows for n, entry in enumerate(row) if entry is not None), default=0)
    cell = Cell(Deliveries("t", Origin()), (BARE, KEYED, COLUMNS, COLUMNS)[used])
    for row in rows:
        cell.put(row)
    cell.count = len(cell.items)
    cell.deliveries.first = first
    return cell


def buffer_of(*rows: tuple[Any, ...]) -> TopicBuffer:
    """What these records were put into."""
    buffer = TopicBuffer("t", 1_000, lambda topic: Deliveries(topic, Origin()))
    for row in rows:
        buffer.put_aside(row)
    return buffer


def seal_rows(rows: list[tuple[Any, ...]], into: Layout) -> list[Sealed]:
    """Rows that are all sealed."""
    pieces = seal_cell(cell_of(rows), into)
    assert len(pieces.batches()) == len(pieces.pieces), "none is refused"
    return pieces.batches()


def read(sealed: Pieces | list[Sealed]) -> dict[int, list[Record]]:
    """What a consumer would see, by partition; the server's own judgement is asked first."""
    seen: dict[int, list[Record]] = {}
    for batch in sealed.batches() if isinstance(sealed, Pieces) else sealed:
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
    rows = [(v, k, make_extra(h, t), p) for v, k, h, p, t in sent]
    seen = read(seal_rows(rows, layout()))
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
    (sealed,) = seal_rows([(b"v", None, None, None)] * count, layout())
    assert (sealed.encoding, sealed.record_count) == (encoding, count)


def test_a_chunk_that_outgrew_the_batch_size_is_split_and_a_single_large_record_is_not() -> None:
    many = seal_rows([(b"x" * 100, None, None, None)] * 5_000, layout(batch_bytes=64 * 1024))
    assert len(many) > 1
    assert max(len(sealed.payload) for sealed in many) < 128 * 1024
    assert sum(sealed.record_count for sealed in many) == 5_000
    (one,) = seal_rows([(b"x" * 200_000, None, None, None)], layout(batch_bytes=64 * 1024))
    assert one.record_count == 1


def test_records_without_a_key_go_to_one_partition_per_chunk() -> None:
    sealed = seal_rows([(b"v", None, None, None)] * 40, layout(sticky=3))
    assert {batch.partition for batch in sealed} == {3}


def test_a_partition_that_does_not_exist_is_refused_by_name() -> None:
    (refused,) = seal_cell(cell_of([(b"v", None, None, 4)]), layout()).pieces
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, UnknownPartition)
    assert "partitions 0 to 3, not 4" in refused.error.message


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (b"x", b"x"), (bytearray(b"x"), b"x"), (memoryview(b"x"), b"x")],
)
def test_what_is_bytes_becomes_bytes(value: object, expected: bytes | None) -> None:
    assert buffers.check_bytes("value", value) == expected


@pytest.mark.parametrize("value", ["text", 7, [1]])
def test_what_is_not_bytes_is_refused_at_the_call(value: object) -> None:
    with pytest.raises(InvalidArgument, match="encode it first"):
        buffers.check_bytes("value", value)


def test_the_error_of_a_large_record_names_the_limit() -> None:
    with pytest.raises(TooLarge) as caught:
        buffers.refuse_size(buffers.RECORD_BYTES_MAX + 1)
    assert caught.value.metadata["limit"] == "record_bytes_max"


def test_taking_a_buffer_empties_it_of_exactly_what_was_taken() -> None:
    buffer = buffer_of((b"a", None, None, None))
    buffer.room -= 17
    taken = buffer.take()
    assert taken is not None
    assert (taken[0].column(0), taken[0].width, taken[1]) == ([b"a"], 1, 17)
    assert (buffer.cell.items, buffer.room) == ([], 1_000)
    assert buffer.cell.deliveries.first == 1
    assert buffer.take() is None, "nothing came since"


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


# ------------------------------------------------------------------ what becomes of each record


def delivered(cell: Cell, pieces: Pieces) -> list[Delivery]:
    """Of each record, in the order of `send`, where each batch is acknowledged at the offset that
    is the number of its partition's records before it."""
    ends: dict[int, int] = {}
    parcels = _parcels(b"t" * 16, cell, pieces)
    parts = cell.deliveries.parts
    assert parts is not None
    assert [parcel.part for parcel in parcels] == [part for part in parts if not part.error]
    for part in parts:
        if part.error is None:
            assert part.partition is not None
            first = ends.get(part.partition.number, 0)
            part.succeed(first)
            ends[part.partition.number] = first + part.count
    found = [cell.deliveries.find(row) for row in range(cell.record_count)]
    return [delivery for delivery in found if delivery is not None]


chosen_or_not = st.one_of(st.none(), st.integers(0, 6))


@given(
    st.lists(
        st.tuples(st.binary(max_size=6), maybe_bytes, chosen_or_not, st.integers(0, 10**15)),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from([1, 3, 4]),
    st.sampled_from([64, 64 * 1024]),
)
def test_each_record_learns_where_it_stands_or_why_it_does_not(
    sent: list[tuple[bytes, bytes | None, int | None, int]], partitions: int, max_bytes: int
) -> None:
    """One bad record takes no good one along: a partition that is not there, a record too large."""
    rows = [
        (value * (20 if index % 7 == 6 else 1), key, make_extra(None, time_us), partition)
        for index, (value, key, partition, time_us) in enumerate(sent)
    ]
    cell = cell_of(rows, first=100)
    into = layout(partitions, sticky=0, batch_bytes=64, max_batch_bytes=max_bytes)
    pieces = seal_cell(cell, into)
    seen = read(pieces)
    told = delivered(cell, pieces)
    assert [delivery.index for delivery in told] == list(range(100, 100 + len(sent)))
    for (value, _, extra, partition), delivery in zip(rows, told, strict=True):
        assert extra is not None
        assert delivery.timestamp_us == extra.timestamp_us
        if partition is not None and partition >= partitions:
            assert isinstance(delivery.error, UnknownPartition)
        elif delivery.error is not None:
            assert isinstance(delivery.error, TooLarge)
            assert len(value) + 8 > max_bytes / 2, "a small one is never too large"
        else:
            assert delivery.partition is not None
            assert delivery.offset is not None
            assert seen[delivery.partition][delivery.offset].value == value
    assert sum(len(found) for found in seen.values()) == sum(d.error is None for d in told)


def test_one_bad_record_among_thousands_fails_alone() -> None:
    rows: list[tuple[Any, ...]] = [(b"%d" % n, None, None, n % 3) for n in range(2_001)]
    rows[1_000] = (b"bad", None, None, 99)
    pieces = seal_cell(cell_of(rows), layout())
    assert sum(batch.record_count for batch in pieces.batches()) == 2_000
    (refused,) = [piece for piece in pieces.pieces if isinstance(piece, Refused)]
    assert isinstance(refused.error, UnknownPartition)


def test_what_cannot_be_encoded_is_found_and_fails_alone() -> None:
    """Nobody knows how it could come so far; it takes no other along."""
    rows: list[tuple[Any, ...]] = [(b"%d" % n, None, None, None) for n in range(40)]
    rows[17] = (object(), None, None, None)
    cell = cell_of(rows)
    pieces = seal_cell(cell, layout())
    told = delivered(cell, pieces)
    assert [delivery.index for delivery in told if delivery.error] == [17]
    assert isinstance(told[17].error, InvalidArgument)
    seen = [record.value for record in read(pieces)[1]]
    assert seen == [b"%d" % n for n in range(40) if n != 17], "in order"


@pytest.mark.parametrize("count", [3, 500], ids=["rows", "arrow"])
def test_a_batch_is_never_larger_than_its_topic_takes(count: int) -> None:
    rows = [(b"x" * 400, b"%d" % n, None, 0) for n in range(count)]
    pieces = seal_cell(cell_of(rows), layout(batch_bytes=1_024 * 1_024, max_batch_bytes=2_048))
    assert max(len(batch.payload) for batch in pieces.batches()) <= 2_048
    assert [r.key for r in read(pieces)[0]] == [b"%d" % n for n in range(count)]


def test_a_record_above_what_its_topic_takes_is_refused_by_that_name_alone() -> None:
    rows = [(b"a", None, None, 0), (b"x" * 3_000, None, None, 0), (b"b", None, None, 0)]
    cell = cell_of(rows)
    pieces = seal_cell(cell, layout(max_batch_bytes=2_048))
    told = delivered(cell, pieces)
    assert [delivery.error is None for delivery in told] == [True, False, True]
    assert isinstance(told[1].error, TooLarge)
    assert told[1].error.metadata == {"limit": "max.batch.bytes", "maximum": "2048"}
    assert [record.value for record in read(pieces)[0]] == [b"a", b"b"]


def test_one_bad_row_of_a_table_fails_alone() -> None:
    table = pa.RecordBatch.from_pydict(
        {
            "value": [b"%d" % n for n in range(40)],
            "partition": pa.array([99 if n == 7 else n % 3 for n in range(40)], pa.int32()),
        }
    )
    pieces = seal_arrow(table, layout())
    assert sum(batch.record_count for batch in pieces.batches()) == 39
    assert len(pieces.pieces) - len(pieces.batches()) == 1


def test_a_sealed_batch_says_how_large_it_is_once_loaded() -> None:
    zeros = [(bytes(10_000), None, None, 0)] * 20
    (batch,) = seal_rows(
        zeros, layout(batch_bytes=1_024 * 1_024, compression=records.Compression.ZSTD)
    )
    assert len(batch.payload) < 10_000
    assert batch.loaded_bytes >= 200_000


# ---------------------------------------------------------- records that come while it is sealed


class Busy(list[Any]):
    """Another thread sends while the cell is taken: right after its records were counted."""

    def __init__(self, row: tuple[Any, ...], late: tuple[Any, ...]) -> None:
        super().__init__(row)
        self.late = late

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        counted = list.__len__(self)
        self.extend(self.late)
        self.late = ()
        return counted


def test_a_record_that_comes_while_its_cell_is_taken_is_put_into_the_next() -> None:
    buffer = buffer_of()
    cell = buffer.cell
    cell.items = Busy((b"early",), (b"late",))
    taken = buffer.take()
    assert taken is not None
    assert taken[0].column(0) == [b"early"]
    # Who put it finds that its cell was taken.
    assert buffer.cell is not cell
    assert buffer.was_taken(cell, 0)
    assert not buffer.was_taken(cell, 1)


def test_who_finds_a_cell_busy_puts_into_a_fresh_one_and_the_other_learns_of_it() -> None:
    """Or who was in it was interrupted: nobody waits for him."""
    buffer = buffer_of((b"first", None, None, None))
    other = buffer.cell
    other.busy = True
    cell, place, before = buffer.put_aside((b"mine", None, None, None))
    assert before is other
    assert (cell, place, cell.busy) == (buffer.cell, 0, False)
    assert other.busy, "he is in it still"
    # He puts his now, into the cell that was taken.
    other.items.append(b"his")
    assert not buffer.was_taken(other, 1)
    assert (other.column(0), cell.items) == ([b"first"], [b"mine"])
    assert cell.deliveries.first == 1


@pytest.mark.parametrize(
    ("row", "items"),
    [
        ((b"v", b"k", None, None), [b"v", b"k"]),
        ((b"v", b"", None, None), [b"v", b""]),
        ((b"v", None, None, 0), [b"v", None, None, 0]),
        ((b"v", b"k", EXTRA, None), [b"v", b"k", EXTRA, None]),
    ],
)
def test_the_first_record_that_has_more_begins_a_wider_cell(
    row: tuple[Any, ...], items: list[Any]
) -> None:
    buffer = buffer_of((b"bare", None, None, None))
    bare = buffer.cell
    cell, place, before = buffer.put_aside(row)
    assert before is bare
    assert not bare.busy
    assert (place, cell.items) == (0, items)
    buffer.put_aside((b"bare again", None, None, None))
    taken = buffer.take()
    assert taken is not None
    assert (taken[0].column(1), taken[0].record_count) == ([row[1], None], 2)


def test_a_cell_with_keys_gives_way_to_a_wider_one_and_none_becomes_narrower() -> None:
    buffer = buffer_of((b"a", b"k", None, None))
    keyed = buffer.cell
    cell, _, before = buffer.put_aside((b"b", b"k", None, 1))
    assert before is keyed
    buffer.put_aside((b"c", b"k", None, None))
    assert cell.items == [b"b", b"k", None, 1, b"c", b"k", None, None]
    assert cell.deliveries.first == 1


def test_what_comes_when_all_is_over_is_refused() -> None:
    buffer = buffer_of()
    assert buffer.close() is None
    for row in ((b"v", None, None, None), (b"v", b"k", None, None)):
        with pytest.raises(InvalidArgument, match="had ended"):
            buffer.put_aside(row)
