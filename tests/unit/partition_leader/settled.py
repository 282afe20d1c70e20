"""A committed log settled in memory, and what that must equal: each frame read on its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from oncelog_server.core.block import Block
from oncelog_server.core.frame import Frame, FrameKind, StoredFrame
from oncelog_server.core.settling import Stretch
from oncelog_server.partition_leader.committed_log import COMMITTED_TABLE, ROW_BYTES
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.partition_leader.settling import PartitionSettler
from oncelogpb import records

SETTLER = PartitionSettler()


class Record(NamedTuple):
    """As a reader sees it."""

    key: bytes | None
    value: bytes | None
    timestamp_us: int
    headers: tuple[tuple[str, bytes | None], ...]


def records_of(encoding: int, payload: bytes | memoryview) -> list[Record]:
    rows = records.decode_rows(records.as_rows(encoding, payload)).rows
    return [
        Record(
            row.key if row.HasField("key") else None,
            row.value if row.HasField("value") else None,
            row.timestamp_us,
            tuple((h.key, h.value if h.HasField("value") else None) for h in row.headers),
        )
        for row in rows
    ]


TIMES = st.integers(-(2**62), 2**62)
HEADERS = st.lists(
    st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2
).map(tuple)
RECORDS = st.builds(
    Record,
    st.none() | st.binary(max_size=4),
    st.none() | st.binary(max_size=9),
    TIMES,
    st.just(()) | HEADERS,
)


def encoded(given: Sequence[Record], compression: records.Compression | None) -> tuple[int, bytes]:
    """None: as rows."""
    keys, values, times, headers = (list(column) for column in zip(*given, strict=True))
    if compression is None:
        return records.ROWS, records.make_rows(keys, values, times, headers).SerializeToString()
    batch = records.make_batch(keys, values, times, headers)
    return records.ARROW_V1, records.encode_arrow(batch, compression).to_pybytes()


PAYLOADS = st.builds(
    lambda given, compression: (given, *encoded(given, compression)),
    st.lists(RECORDS, min_size=1, max_size=20),
    st.sampled_from([None, None, *records.Compression]),
)


def frame_of(given: tuple[Sequence[Record], int, bytes], **fields: Any) -> Frame:
    """DATA, as it comes out of a request."""
    found, encoding, payload = given
    return Frame(
        FrameKind.DATA,
        payload,
        record_count=len(found),
        encoding=encoding,
        max_timestamp_us=max(record.timestamp_us for record in found),
        client_crc=records.checksum(payload),
        **fields,
    )


def stretches_of(
    machine: PartitionMachine, from_offset: int, rows_a_piece: int = 1_000
) -> list[Stretch]:
    """As of a snapshot of the machine as it is."""
    snapshot = machine.snapshot()
    rows = snapshot.tables[COMMITTED_TABLE].rows
    size = rows_a_piece * ROW_BYTES
    pieces = [rows[at : at + size] for at in range(0, len(rows), size)]
    return list(SETTLER.stretches(snapshot.state, pieces, from_offset))


def frames_in(
    stretches: Iterable[Stretch], journal: Sequence[StoredFrame]
) -> Iterator[tuple[Stretch, StoredFrame]]:
    for stretch in stretches:
        for stored in journal:
            if stored.end > stretch.journal_offset and stored.at.offset < stretch.journal_end:
                yield stretch, stored


def settle(
    machine: PartitionMachine, journal: Sequence[StoredFrame], from_offset: int, *, below: int
) -> list[Block]:
    """All that is readable, or deleted since, as of a machine of which nothing is above the HW."""
    assert below == machine.next_offset, "a snapshot holds what is below the HW"
    begin = max(from_offset, machine.committed.start_offset)
    return list(SETTLER.blocks(frames_in(stretches_of(machine, begin), journal)))
