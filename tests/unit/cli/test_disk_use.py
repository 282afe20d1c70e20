"""`--disk`: what replicas take, and in words what keeps their journals from beginning later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from oncelog_server.cli.disk_use import what_holds
from oncelog_server.cli.output import show_bytes
from oncelogpb.v1 import cluster_pb2, coordinator_pb2, replication_pb2, types_pb2
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.cli.scripted import N1, Cluster, json_of, partition, payments

Run = Callable[..., Result]
TX, TX_SHOWN = 3 << 48 | 5, "0003000000000005"
MINUTE = 60_000
Kind = pb.NeededBy
Settled = replication_pb2.SettledDescription
DamagedRecords = replication_pb2.DamagedRecords


def needed_by(kind: Any, **more: Any) -> pb.JournalDescription:
    needed = pb.NeededBy(
        kind=kind, tx_id=TX, producer=types_pb2.Producer(producer_id=9), began_ms=2 * MINUTE
    )
    limits: dict[str, Any] = {"retention_ms": -1, "retention_bytes": -1} | more
    return pb.JournalDescription(needed_by=needed, **limits)


@pytest.mark.parametrize(
    ("journal", "replica", "words"),
    [
        (needed_by(Kind.KIND_RECORDS), {}, "records: kept for ever, no retention is set"),
        (
            needed_by(Kind.KIND_RECORDS, retention_ms=5_000, retention_bytes=70),
            {},
            "records: retention.ms=5000 retention.bytes=70",
        ),
        (
            needed_by(Kind.KIND_OPEN_TRANSACTION),
            {},
            f"transaction {TX_SHOWN} of producer 'enricher', open for 3m0s",
        ),
        (
            needed_by(Kind.KIND_DAMAGED),
            {},
            f"a damaged part: `oncelog tx resolve {TX_SHOWN} t/0 --drop|--expose`",
        ),
        (needed_by(Kind.KIND_NOTHING), {}, "nothing: it goes by segments"),
        (
            needed_by(Kind.KIND_RECORDS),
            {"settled": Settled(end=30, readable_end=90, wanted=True)},
            "60 records that are not settled yet",
        ),
        (
            needed_by(Kind.KIND_RECORDS),
            {"settled": Settled(begin=40, end=30, readable_end=90, wanted=True, waits="no room")},
            "50 records that cannot be settled: no room",
        ),
        (
            needed_by(Kind.KIND_RECORDS),
            {"settled": Settled(end=90, readable_end=90, wanted=True)},
            "nothing: it goes by segments",
        ),
        # It was settled once; what came since is kept as of any topic.
        (
            needed_by(Kind.KIND_RECORDS, retention_ms=5_000),
            {"settled": Settled(end=30, readable_end=90)},
            "records: retention.ms=5000",
        ),
        # A follower comes first: nothing else could go before it has it.
        (needed_by(Kind.KIND_RECORDS), {"held_by": "n2"}, "node n2 is still sent it"),
        (
            None,
            {"needed_from": 90, "wanted_from": 10},
            "outcomes of ended transactions (coordinator.outcome_retention_ms)",
        ),
        (None, {"needed_from": 90, "wanted_from": 90}, "nothing: it goes by segments"),
    ],
)
def test_what_holds_a_journal_is_said_in_words(
    journal: pb.JournalDescription | None, replica: dict[str, Any], words: str
) -> None:
    described = replication_pb2.ReplicaDescription(**replica)
    assert what_holds("t/0", described, journal, 5 * MINUTE, lambda _: "enricher") == words


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_500_000, "1.4 MiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 50, "3072.0 TiB"),
    ],
)
def test_sizes_are_shown_in_the_largest_unit(count: int, shown: str) -> None:
    assert show_bytes(count) == shown


def replica(number: int, segments: int) -> replication_pb2.ReplicaDescription:
    return replication_pb2.ReplicaDescription(
        partition=partition(number),
        incarnation=b"\xaa" * 16,
        stage=replication_pb2.REPLICA_STAGE_READY,
        log_start=40,
        needed_from=70,
        disk=replication_pb2.ReplicaDisk(segment_bytes=segments, snapshot_bytes=24),
    )


def cluster() -> Cluster:
    """Partition 0 is led and held by an open transaction; 1 takes more, and nobody leads it."""
    described = replication_pb2.DescribeReplicasReply(
        replicas=[replica(0, 1_000), replica(1, 4_000)]
    )
    journal = needed_by(Kind.KIND_OPEN_TRANSACTION)
    journal.partition.CopyFrom(partition(0))
    told = coordinator_pb2.TransactionDescription(tx_id=TX, name="enricher")
    return Cluster(
        cluster__get_metadata=cluster_pb2.GetMetadataReply(
            topics=[payments()], etcd_reachable=True, nodes=[N1], time_ms=5 * MINUTE
        ),
        replication__describe_replicas=described,
        partition_leader__describe_journals=pb.DescribeJournalsReply(journals=[journal]),
        coordinator__get_transaction=coordinator_pb2.GetTransactionReply(transaction=told),
    )


def test_what_takes_most_comes_first(run: Run) -> None:
    asked = cluster()
    rows = json_of(run(asked, "cluster partitions --disk --json"))
    assert [(row["partition"], row["total_bytes"]) for row in rows] == [
        ("payments/1", 4_024),
        ("payments/0", 1_024),
    ]
    assert rows[1]["held"] == f"transaction {TX_SHOWN} of producer 'enricher', open for 3m0s"
    assert rows[0]["held"] is None
    assert (rows[1]["log_start"], rows[1]["needed_from"]) == (40, 70)
    assert all(request.with_disk for request in asked.requests("replication.describe_replicas"))
    shown = run(cluster(), "cluster partitions --disk")
    assert "4.9 KiB in 2 replicas" in shown.stdout
    assert "open for 3m0s" in shown.stdout


def test_what_is_settled_is_shown_where_something_is(run: Run) -> None:
    plain = run(cluster(), "cluster partitions --disk")
    assert "DATA" not in plain.stdout
    assert "SETTLED" not in plain.stdout
    rows = json_of(run(cluster(), "cluster partitions --disk --json"))
    assert [row["settled_end"] for row in rows] == [None, None]
    settled = cluster()
    (described, _) = settled.answers["replication.describe_replicas"].replicas
    described.disk.data_bytes = 2_000
    described.settled.CopyFrom(Settled(end=30, readable_end=90, wanted=True))
    shown = run(settled, "cluster partitions --disk")
    assert "2.0 KiB" in shown.stdout
    assert "30 of 90" in shown.stdout
    rows = json_of(run(settled, "cluster partitions --disk --json"))
    assert [(row["total_bytes"], row["data_bytes"], row["settled_end"]) for row in rows] == [
        (4_024, 0, None),
        (3_024, 2_000, 30),
    ]


def test_what_auto_does_is_shown_and_why(run: Run) -> None:
    asked = cluster()
    (one, other) = asked.answers["replication.describe_replicas"].replicas
    one.settled.CopyFrom(Settled(end=30, readable_end=90, wanted=True, auto=True, why="small"))
    other.settled.CopyFrom(Settled(readable_end=90, auto=True, why="large"))
    shown = run(asked, "cluster partitions --disk")
    assert "copy: small" in shown.stdout
    assert "reference: large" in shown.stdout
    rows = {
        row["partition"]: row for row in json_of(run(asked, "cluster partitions --disk --json"))
    }
    assert rows["payments/0"]["auto"] == "copy: small"
    assert (rows["payments/1"]["auto"], rows["payments/1"]["settled_end"]) == (
        "reference: large",
        None,
    )
    assert "AUTO" not in run(cluster(), "cluster partitions --disk").stdout


def test_what_is_damaged_is_shown_and_what_is_done_about_it(run: Run) -> None:
    assert "DAMAGED" not in run(cluster(), "cluster partitions --disk").stdout
    rotten = cluster()
    (described, _) = rotten.answers["replication.describe_replicas"].replicas
    damaged = DamagedRecords(first_offset=24, end_offset=32, file="data/0.data", position=99)
    described.settled.CopyFrom(
        Settled(end=90, wanted=True, damaged=[damaged] * 2, healing="asks node n2")
    )
    told = "offsets 24 to 32 (data/0.data, byte 99) and 1 more: asks node n2"
    assert told in run(rotten, "cluster partitions --disk").stdout
    rows = json_of(run(rotten, "cluster partitions --disk --json"))
    assert [row["damaged"] for row in rows] == [None, told]


def test_a_topic_shows_its_own(run: Run) -> None:
    [told] = json_of(run(cluster(), "topic describe payments --disk --json"))
    assert [(row["partition"], row["segment_bytes"]) for row in told["disk"]] == [
        ("payments/0", 1_000),
        ("payments/1", 4_000),
    ]
    shown = run(cluster(), "topic describe payments --disk")
    assert "1.0 KiB" in shown.stdout


def test_nobody_looks_at_directories_unasked(run: Run) -> None:
    asked = cluster()
    run(asked, "topic describe payments --json")
    run(asked, "cluster partitions --json")
    assert not any(r.with_disk for r in asked.requests("replication.describe_replicas"))


def test_who_does_not_tell_is_counted(run: Run) -> None:
    silent = cluster()
    silent.answers["replication.describe_replicas"] = replication_pb2.DescribeReplicasReply(
        replicas=[replica(0, 1_000)]
    )
    shown = run(silent, "cluster partitions --disk")
    assert "1.0 KiB in 2 replicas; 1 replicas do not tell" in shown.stdout
