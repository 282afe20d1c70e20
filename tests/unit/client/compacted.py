"""A compacted partition, as a leader serves it: blocks with holes, and ranges without any record.

The log is made of units at first: transactions of one or more batches, and plain batches. Then
records are taken out, of whichever unit, and what is left is served in blocks that end wherever
they like, also within a transaction, but not within a plain batch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from oncelogpb import records
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2
from tests.unit.client.scripted import place


class Kept(NamedTuple):
    """One record that is left."""

    offset: int
    key: bytes | None
    value: bytes | None
    # 0: plain.
    tx_id: int
    # A transaction, or a plain batch: which one, from the front.
    unit: int


class Partition(NamedTuple):
    """What is left of it."""

    number: int
    end: int
    kept: list[Kept]
    # The end of each block.
    edges: list[int]

    def blocks(self) -> Iterator[list[leader.FetchedBatch]]:
        """Each as it is told: what is left, then where to read on behind a hole at its end."""
        begin = 0
        for edge in self.edges:
            rows = [it for it in self.kept if begin <= it.offset < edge]
            told = [batch_of(rows)] if rows else []
            if not rows or rows[-1].offset + 1 < edge:
                told.append(nothing_below(edge))
            yield told
            begin = edge

    def values(self) -> dict[bytes, bytes]:
        """Of each key the last one."""
        found: dict[bytes, bytes] = {}
        for row in self.kept:
            if row.key is not None:
                found.pop(row.key, None)
                if row.value is not None:
                    found[row.key] = row.value
        return found

    def units(self, since: int = 0) -> list[tuple[int, list[int]]]:
        """By transaction or plain batch: TxId, and the offsets of what is left behind `since`."""
        found: dict[int, tuple[int, list[int]]] = {}
        for row in self.kept:
            if row.offset >= since:
                found.setdefault(row.unit, (row.tx_id, []))[1].append(row.offset)
        return list(found.values())


def partition_of(
    dice: random.Random, *, number: int = 0, first_tx: int = 1, kept_share: float = 0.4
) -> Partition:
    """Any one. Each transaction has its records side by side."""
    rows: list[Kept] = []
    for unit in range(dice.randrange(1, 12)):
        tx_id = first_tx + unit if dice.random() < 0.6 else 0
        for _ in range(dice.randrange(1, 9)):
            offset = len(rows)
            value = b"%d" % offset if dice.random() < 0.8 else None
            rows.append(Kept(offset, b"%d" % dice.randrange(9), value, tx_id, unit))
    end = len(rows)
    ends = [
        row.offset + 1 for row, behind in pairwise(rows) if row.tx_id or row.unit != behind.unit
    ]
    edges = sorted({*dice.sample(ends, min(len(ends), dice.randrange(5))), end})
    kept = [row for row in rows if dice.random() < kept_share]
    return Partition(number, end, kept, edges)


def batch_of(rows: Sequence[Kept]) -> leader.FetchedBatch:
    """One block."""
    keys, values = [row.key for row in rows], [row.value for row in rows]
    first, count = rows[0].offset, len(rows)
    is_arrow = first % 2 == 0
    if is_arrow:
        payload = records.encode_arrow(records.make_batch(keys, values, 0)).to_pybytes()
    else:
        payload = records.make_rows(keys, values, 0).SerializeToString()
    batch = leader.FetchedBatch(
        kind=leader.FetchedBatch.KIND_DATA,
        first_offset=first,
        record_count=count,
        encoding=types_pb2.ENCODING_ARROW_V1 if is_arrow else records.ROWS,
        crc32c=records.checksum(payload),
        payload=payload,
        time_ms=5,
    )
    if rows[-1].offset - first + 1 > count:
        batch.offsets.extend(row.offset - first for row in rows)
    counts: dict[int, int] = {}
    for row in rows:
        counts[row.unit] = counts.get(row.unit, 0) + 1
    if len(counts) == 1:
        batch.tx_id = rows[0].tx_id
    else:
        told = batch.units
        told.record_counts.extend(counts.values())
        tx_ids = {row.unit: row.tx_id for row in rows}
        told.tx_ids.extend(tx_ids.values())
        told.times_ms.extend([5] * len(counts))
    return batch


def nothing_below(offset: int) -> leader.FetchedBatch:
    """No record stands between what came before and this offset."""
    return leader.FetchedBatch(
        kind=leader.FetchedBatch.KIND_DATA, first_offset=offset, encoding=records.ROWS
    )


def replies(dice: random.Random, *partitions: Partition) -> list[leader.FetchReply]:
    """All of them, some blocks in a reply; those of several partitions in any order."""
    told: list[leader.FetchReply] = []
    lines = [(one, one.blocks()) for one in partitions]
    while lines:
        partition, blocks = dice.choice(lines)
        batches: list[Any] = []
        for _ in range(dice.randrange(1, 4)):
            batches += next(blocks, [])
        if not batches:
            lines.remove((partition, blocks))
            continue
        part = leader.FetchedPartition(
            partition=place(partition.number), end_offset=partition.end, batches=batches
        )
        told.append(leader.FetchReply(partitions=[part]))
    return told
