"""What the tests of the data log share: blocks, and logs over the fake disk."""

from __future__ import annotations

import asyncio
from array import array

from crc32c import crc32c

from oncelog_server.core.block import Block, Units, block_of
from oncelog_server.runtime.storage.data_log import DataLog
from oncelogpb.errors import CorruptLog
from tests.simulation.disk import FakeDisk

DIRECTORY = "partitions/p/data"


def block(first: int, *counts: int, payload: bytes = b"", exposed: int | None = None) -> Block:
    """One of units with so many records each; its times and places follow from its offset."""
    firsts = [first + sum(counts[:number]) for number in range(len(counts))]
    units = Units(
        record_count=array("Q", counts),
        tx_id=array("Q", [(1 << 48) + 3 * at for at in firsts]),
        producer_id=array("Q", [7] * len(counts)),
        generation=array("Q", [1 << 32] * len(counts)),
        writer=array("Q", [at % 2 * (2**64 - 1) for at in firsts]),
        base_sequence=array("Q", [0] * len(counts)),
        journal_offset=array("Q", [2 * at + 1 for at in firsts]),
        time_ms=array("q", [1_000 + at for at in firsts]),
    )
    payload = payload or f"records from {first} on".encode()
    return block_of(
        units,
        payload,
        first_offset=first,
        exposed_below=2 * (first + sum(counts)) if exposed is None else exposed,
        max_timestamp_us=-first,
        encoding=2,
        client_crc=crc32c(payload),
    )


def blocks(start: int, end: int, *, payload_bytes: int = 0) -> list[Block]:
    """Of three records each, as many as fit."""
    return [
        block(at, 1, 2, payload=bytes([at % 251]) * payload_bytes)
        for at in range(start, end - 2, 3)
    ]


def open_data(disk: FakeDisk, *, segment_bytes: int = 1 << 20) -> DataLog:
    return DataLog.open(disk, DIRECTORY, segment_bytes=segment_bytes)


def settle(log: DataLog, *of: Block, at: int | None = None) -> None:
    """Appended and noted."""
    log.append(of)
    log.sync_and_note(of[-1].exposed_below if at is None else at)


def read(log: DataLog, offset: int, max_bytes: int = 1 << 20) -> list[Block]:
    return asyncio.run(log.read(offset, max_bytes))


def read_all(log: DataLog) -> list[Block]:
    """From its begin to its settled end, a few blocks at a time."""
    found: list[Block] = []
    offset = log.begin
    while offset < log.settled_end:
        some = read(log, offset, 500)
        assert some, "at least one"
        found += some
        offset = some[-1].end_offset
    return found


def kept(disk: FakeDisk, *, segment_bytes: int = 2_000) -> list[Block]:
    """What the next start finds. What it says is there must be there."""
    log = open_data(disk, segment_bytes=segment_bytes)
    try:
        return read_all(log)
    except CorruptLog as error:
        raise AssertionError(f"what the log says it has is there: {error}") from error
