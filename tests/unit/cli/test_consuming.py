"""`oncelog consume` of settled and compacted topics: whose each record is, and where it stands."""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from oncelogpb import records
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2
from tests.unit.cli.scripted import Cluster, partition
from tests.unit.client.compacted import Partition, partition_of

Run = Callable[..., Result]


def served(log: Partition) -> Cluster:
    """One block for each fetch."""
    blocks = list(log.blocks())

    def fetch(request: pb.FetchRequest) -> pb.FetchReply:
        assert request.with_offsets
        assert request.with_units
        [asked] = request.partitions
        begin = bisect_right(log.edges, asked.offset)
        part = pb.FetchedPartition(partition=asked.partition, end_offset=log.end)
        for block in blocks[begin : begin + 1]:
            for told in block:
                payload = records.as_rows(told.encoding, told.payload) if told.payload else b""
                part.batches.add().MergeFrom(told)
                part.batches[-1].payload = payload
        return pb.FetchReply(partitions=[part])

    def list_offsets(request: pb.ListOffsetsRequest) -> pb.ListOffsetsReply:
        return pb.ListOffsetsReply(
            offsets=[
                pb.ListedOffset(partition=query.partition, offset=log.end if query.latest else 0)
                for query in request.queries
            ]
        )

    return Cluster(partition_leader__fetch=fetch, partition_leader__list_offsets=list_offsets)


@pytest.mark.parametrize("seed", range(30))
def test_i14_what_is_left_of_a_compacted_topic_is_printed_at_its_offsets(
    seed: int, run: Run
) -> None:
    dice = random.Random(seed)
    log = partition_of(dice, kept_share=dice.random())
    start = dice.randrange(log.end + 1)
    kept = [it for it in log.kept if it.offset >= start]
    line = f"consume payments --partition 0 --from {start} --json"
    found = [json.loads(one) for one in run(served(log), line).stdout.splitlines()]
    assert [(it["offset"], it["value"], it.get("tx_id")) for it in found] == [
        (
            it.offset,
            None if it.value is None else it.value.decode(),
            f"{it.tx_id:016x}" if it.tx_id else None,
        )
        for it in kept
    ]
    few = run(served(log), f"{line} --max 2").stdout.splitlines()
    assert [json.loads(one)["offset"] for one in few] == [it.offset for it in kept[:2]]


def test_each_record_of_a_merged_batch_says_whose_it_is_and_since_when_it_is_readable(
    run: Run,
) -> None:
    def fetch(request: Any) -> pb.FetchReply:
        units = pb.Units(
            record_counts=[2, 1],
            tx_ids=[5, 0],
            producer_ids=[7, 8],
            generations=[1],
            times_ms=[1_000, 2_000],
        )
        rows = [types_pb2.Row(value=b"%d" % n) for n in range(3)]
        batch = pb.FetchedBatch(
            kind=pb.FetchedBatch.KIND_DATA,
            record_count=3,
            payload=types_pb2.Rows(rows=rows).SerializeToString(),
            units=units,
        )
        part = pb.FetchedPartition(partition=partition(0), end_offset=3, batches=[batch])
        return pb.FetchReply(partitions=[part])

    cluster = Cluster(
        partition_leader__fetch=fetch,
        partition_leader__list_offsets=pb.ListOffsetsReply(
            offsets=[pb.ListedOffset(partition=partition(0), offset=3)]
        ),
    )
    line = "consume payments --partition 0 --from 0"
    shown = "{value}|{tx_id}|{producer_id}|{visible}|{visible:ms}"
    tx, seven, eight = f"{5:016x}", f"{7:016x}", f"{8:016x}"
    assert run(cluster, f"{line} --format {shown}").stdout.splitlines() == [
        f"0|{tx}|{seven}|1970-01-01T00:00:01.000000Z|1000",
        f"1|{tx}|{seven}|1970-01-01T00:00:01.000000Z|1000",
        f"2||{eight}|1970-01-01T00:00:02.000000Z|2000",
    ]
    told = [json.loads(one) for one in run(cluster, f"{line} --json").stdout.splitlines()]
    assert [(it.get("tx_id"), it["producer_id"], it["visible"]) for it in told] == [
        (tx, "7", "1970-01-01T00:00:01.000000Z"),
        (tx, "7", "1970-01-01T00:00:01.000000Z"),
        (None, "8", "1970-01-01T00:00:02.000000Z"),
    ]
