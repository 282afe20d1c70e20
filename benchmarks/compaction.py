"""`python -m benchmarks.compaction`: what compacting a data log costs, in time and memory.

A data log is made on the disk, of records with keys of 16 B that come in random order, and cleaned
to its end, in as many passes as the memory for keys makes of it; then again, when nothing is to be
taken out any more. No rests between pieces, no cluster around it: one thread, as fast as it goes.
Left out: how long a loop waits beside it; disks that are slower than memory.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import click
import numpy as np
import pyarrow as pa

from benchmarks.ending import end_as_by_ctrl_c
from oncelog_server.core.block import Block, Units, block_of
from oncelog_server.partition_leader.settling import PartitionSettler
from oncelog_server.runtime.replica.env import COMPACTION_MAP_BYTES
from oncelog_server.runtime.storage.data_cleaning import HOLES, DataCleaning
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.disk import RealDisk
from oncelogpb import records
from oncelogpb.records import ARROW_V1, Compression

RECORDS_A_BLOCK: Final = 10_000
SEED: Final = 1
MIB: Final = 1 << 20


class Pass(NamedTuple):
    """CPU seconds, and what they were for: others may use the machine, too."""

    keys: int
    keys_s: float
    looked_at: int
    taken_out: int
    files_s: float


@click.command()
@click.option("--count", default=1_000_000, show_default=True, help="Records.")
@click.option("--keys", default=250_000, show_default=True, help="Keys that they are of.")
@click.option("--value-bytes", default=100, show_default=True)
@click.option("--map-mib", default=COMPACTION_MAP_BYTES // MIB, show_default=True)
@click.option("--compression", default="none", type=click.Choice([str(it) for it in Compression]))
@click.option(
    "--directory", default=None, help="Where the log is made; default: as for temp files."
)
def main(
    count: int, keys: int, value_bytes: int, map_mib: int, compression: str, directory: str | None
) -> None:
    """Measure what compaction costs. See benchmarks/README.md."""
    with tempfile.TemporaryDirectory(prefix="oncelog-compaction-", dir=directory) as folder:
        log = DataLog.open(RealDisk(folder), "data")
        blocks = _blocks(count, keys, value_bytes, Compression(compression))
        for block in blocks:
            log.append([block])
        log.sync_and_note(2 * count)
        print(f"{count:,} records of {keys:,} keys: {log.disk_bytes() / MIB:,.0f} MiB")
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        number = 0
        while log.compacted_to < count:
            number += 1
            _tell(f"pass {number}", _clean(log, count, 0, map_mib * MIB))
        print(f"{log.disk_bytes() / MIB:,.0f} MiB are left")
        # All of it is read, and nothing goes.
        _tell("tombstones", _clean(log, count, count, map_mib * MIB))
        after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"memory: {before_kib / 1024:,.0f} MiB before, {after_kib / 1024:,.0f} MiB at most")


def _tell(what: str, took: Pass) -> None:
    said = f"{what}: "
    if took.keys:
        said += f"{took.keys:,} keys in {took.keys_s:.1f} s of CPU, "
    if took.looked_at:
        said += f"{took.looked_at:,} records rewritten, {took.taken_out:,} of them taken out, "
    print(f"{said}files {took.files_s:.1f} s of CPU", flush=True)


def _clean(log: DataLog, below: int, tombstones_below: int, map_bytes: int) -> Pass:
    cleaning = DataCleaning(
        log,
        PartitionSettler(),
        below=below,
        tombstones_below=tombstones_below,
        map_bytes_max=map_bytes,
    )
    began = time.process_time()
    noted = began
    while not cleaning.is_over:
        cleaning.piece()
        if cleaning.next_step == HOLES:
            noted = time.process_time()
    return Pass(
        cleaning.keys,
        noted - began,
        cleaning.records_looked_at,
        cleaning.records_taken_out,
        time.process_time() - noted,
    )


def _blocks(count: int, keys: int, value_bytes: int, compression: Compression) -> Iterator[Block]:
    chance = np.random.default_rng(SEED)
    value = b"v" * value_bytes
    for first in range(0, count, RECORDS_A_BLOCK):
        size = min(RECORDS_A_BLOCK, count - first)
        # A key has 16 bytes: its number, twice.
        numbers = np.repeat(chance.integers(0, keys, size), 2)
        column = pa.Array.from_buffers(
            pa.binary(16), size, [None, pa.py_buffer(numbers.tobytes())]
        ).cast(pa.binary())
        batch = records.make_batch(column, pa.array([value] * size, pa.binary()), first)
        payload = records.encode_arrow(batch, compression).to_pybytes()
        unit = (size, 0, 7, 1 << 32, 0, 0, 2 * first, 1_000 + first)
        yield block_of(
            Units(*((it,) for it in unit)),
            payload,
            first_offset=first,
            exposed_below=2 * (first + size),
            max_timestamp_us=first,
            encoding=ARROW_V1,
            client_crc=records.checksum(payload),
        )


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
