"""What the tests of compaction share: records with keys in a data log, and what must be left."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from oncelog_server.core.block import Block, Units, block_of
from oncelog_server.partition_leader.settling import PartitionSettler
from oncelog_server.runtime.storage.data_blocks import decode_block, encoded_block_bytes
from oncelog_server.runtime.storage.data_cleaning import DataCleaning
from oncelog_server.runtime.storage.data_log import DataLog
from oncelogpb import records
from oncelogpb.records import Compression
from tests.unit.partition_leader.settled import Record, encoded, records_of

SETTLER = PartitionSettler()
MAP_BYTES = 1 << 20


class Kept(NamedTuple):
    """A record as it must be found."""

    offset: int
    key: bytes | None
    value: bytes | None


def must_be(
    given: Sequence[tuple[bytes | None, bytes | None]], below: int, tombstones_below: int
) -> list[Kept]:
    """The pure function of docs/adr/0074, in its plainest form."""
    found: list[Kept] = []
    for offset, (key, value) in enumerate(given):
        later = [it for it, _ in given[offset + 1 : below]]
        is_superseded = key is not None and key in later
        is_gone = key is not None and value is None and offset < tombstones_below
        if offset >= below or not (is_superseded or is_gone):
            found.append(Kept(offset, key, value))
    return found


def unit_of(
    first: int,
    given: Sequence[tuple[bytes | None, bytes | None]],
    compression: Compression | None = None,
) -> Block:
    """A block of one unit, from an offset on. None: as rows."""
    rows = [Record(key, value, 1_000 + first, ()) for key, value in given]
    encoding, payload = encoded(rows, compression)
    unit = (len(rows), first % 3, 7, 1 << 32, 0, 0, 2 * first + 1, 1_000 + first)
    return block_of(
        Units(*((it,) for it in unit)),
        payload,
        first_offset=first,
        exposed_below=2 * (first + len(rows)),
        max_timestamp_us=1_000 + first,
        encoding=encoding,
        client_crc=records.checksum(payload),
    )


def blocks_of(
    given: Sequence[tuple[bytes | None, bytes | None]], chance: random.Random, first: int = 0
) -> list[Block]:
    """Of units of any sizes and encodings, joined as it comes."""
    found: list[Block] = []
    at = 0
    while at < len(given):
        units: list[Block] = []
        for _ in range(chance.randint(1, 3)):
            some = given[at : at + chance.randint(1, 5)]
            if some:
                compression = chance.choice([None, *Compression])
                units.append(unit_of(first + at, some, compression))
            at += len(some)
        found.append(SETTLER.joined(units))
    return found


def blocks_in(log: DataLog) -> list[Block]:
    """Also where a loop runs."""
    found: list[Block] = []
    while (offset := found[-1].end_offset if found else log.begin) < log.settled_end:
        part, at = memoryview(log.parts_from(offset, 500)), 0
        while at < len(part):
            found.append(decode_block(part, at))
            at += encoded_block_bytes(found[-1])
    return found


def held(log: DataLog) -> list[Kept]:
    """All that it has, each block sound by itself and behind the one before."""
    found: list[Kept] = []
    at = log.begin
    for block in blocks_in(log):
        assert block.first_offset <= at <= block.end_offset
        at = block.end_offset
        offsets = list(block.offsets)
        assert offsets == sorted(set(offsets))
        assert all(block.first_offset <= it < block.end_offset for it in offsets)
        assert sum(block.units.record_count) == block.record_count == len(offsets)
        assert 0 not in block.units.record_count, "of what is gone nothing is told"
        assert block.client_crc == records.checksum(block.payload)
        rows = records_of(block.encoding, block.payload)
        found += [
            Kept(offset, row.key, row.value) for offset, row in zip(offsets, rows, strict=True)
        ]
    assert at == log.settled_end, "they cover all that is settled"
    return found


def clean(
    log: DataLog,
    below: int,
    tombstones_below: int = 0,
    *,
    said_at: int = 0,
    map_bytes_max: int = MAP_BYTES,
) -> DataCleaning:
    """One pass, as far as memory lets it go."""
    cleaning = DataCleaning(
        log,
        SETTLER,
        below=below,
        tombstones_below=tombstones_below,
        said_at=said_at,
        map_bytes_max=map_bytes_max,
    )
    while not cleaning.is_over:
        cleaning.piece()
    return cleaning
