"""What `oncelog cluster` says of nodes and partitions: who leads what, and why one is offline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from click.testing import Result

from oncelog_server.cli import cluster as cluster_command
from oncelogpb.v1 import cluster_pb2, types_pb2
from oncelogpb.v1 import partition_leader_pb2 as leader_pb
from oncelogpb.v1 import replication_pb2 as replication
from tests.unit.cli.scripted import Cluster, Silence, json_of

Run = Callable[..., Result]
LEADS, NOW = "n1", 1_767_225_600_000


def node(name: str, *roles: str, rack: str = "", started_ms: int = 0) -> cluster_pb2.Node:
    return cluster_pb2.Node(
        node_id=name,
        boot_id=b"b" * 16,
        endpoint=types_pb2.Endpoint(host=name, port=7400),
        roles=roles or ["partition_leader"],
        version="0.1",
        rack=rack,
        started_ms=started_ms,
    )


def partition(
    number: int, *replicas: str, leader: str = "", epoch: int = 3, **more: Any
) -> leader_pb.PartitionDescription:
    given: dict[str, Any] = {"isr": ["a" * 32] * len(replicas)} | more
    return leader_pb.PartitionDescription(
        number=number,
        leader=types_pb2.Leader(node_id=leader) if leader else None,
        epoch=epoch,
        replicas=replicas,
        **given,
    )


def seen(*partitions: leader_pb.PartitionDescription) -> Cluster:
    """n1 and n2 run, n3 does not. What is led takes writes."""
    cluster = Cluster(
        cluster__get_metadata=cluster_pb2.GetMetadataReply(
            etcd_reachable=True,
            time_ms=NOW,
            nodes=[node("n2", rack="south"), node("n1", rack="north", started_ms=NOW - 61_000)],
        ),
        partition_leader__list_topics=leader_pb.ListTopicsReply(
            topics=[leader_pb.TopicDescription(name="t", partitions=partitions)]
        ),
    )
    for name in ("n1", "n2"):
        cluster.nodes[name] = described(
            *(replica(one) for one in partitions if one.leader.node_id == name)
        )
    return cluster


def described(*replicas: replication.ReplicaDescription) -> replication.DescribeReplicasReply:
    return replication.DescribeReplicasReply(replicas=replicas)


def replica(of: leader_pb.PartitionDescription, **more: Any) -> replication.ReplicaDescription:
    """Its leader's own."""
    told: dict[str, Any] = {
        "stage": replication.REPLICA_STAGE_READY,
        "incarnation": b"\xaa" * 16,
        "epoch": of.epoch,
        "log_end": 9,
        "synced_end": 9,
        "high_watermark": 9,
        "min_insync_replicas": 2,
        "takes_writes": True,
    }
    return replication.ReplicaDescription(
        partition=types_pb2.Partition(number=of.number), **(told | more)
    )


MIXED = (
    partition(0, "n1", "n2", "n3", leader="n1", isr=["a" * 32, "b" * 32]),
    partition(1, "n2", leader="n2", unclean_epoch=3),
    partition(2, "n3", epoch=7),
    partition(3, "n1", leader="n1"),
)
# It is led, and two must be in sync: n3 does not run.
HALTED = partition(4, "n1", "n2", "n3", leader="n1")


def test_nodes_are_shown_with_what_they_lead_and_where_they_stand(run: Run) -> None:
    shown = json_of(run(seen(*MIXED), "cluster status --json"))
    assert [(n["node_id"], n["rack"], n["leads"], n["replicas"]) for n in shown["nodes"]] == [
        ("n1", "north", 2, 2),
        ("n2", "south", 1, 2),
    ]
    assert [n["started"] for n in shown["nodes"]] == ["2025-12-31T23:58:59.000Z", None]
    assert shown["nodes_away"] == [{"node_id": "n3", "replicas": 2}]
    assert shown["partitions_under_replicated"] == ["t/0", "t/2"]
    assert shown["partitions_unwritable"] == shown["partitions_not_known"] == []
    for_people = run(seen(*MIXED), "cluster status").stdout
    assert "1m1s" in for_people
    assert "not running" in for_people


def test_what_is_offline_names_the_node_that_has_it(run: Run) -> None:
    shown = json_of(run(seen(*MIXED), "cluster status --json"))
    assert shown["partitions_without_leader"] == ["t/2"]
    (offline,) = shown["offline"]
    assert (offline["partition"], offline["epoch"], offline["replicas"]) == ("t/2", 7, ["n3"])
    assert "start the process of node n3" in offline["why_offline"]
    assert "start the process of node n3" in run(seen(*MIXED), "cluster status").stdout


def test_a_node_with_thousands_of_partitions_does_not_fill_the_screen(run: Run) -> None:
    many = seen(*(partition(number, "n3") for number in range(3_000)))
    for_people = run(many, "cluster status").stdout
    shown = cluster_command.SHOWN_MAX
    assert f"and {3_000 - shown} more: `oncelog cluster partitions --offline`" in for_people
    assert "t/19 " in for_people
    assert "t/20 " not in for_people
    assert len(json_of(run(many, "cluster partitions --offline --json"))) == 3_000


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("t", [0, 1, 2, 3, 4]),
        ("--offline", [2]),
        ("--unwritable", [4]),
        ("--under-replicated", [0, 2, 4]),
        ("--node n2", [0, 1, 4]),
        ("--node n2 --under-replicated", [0, 4]),
        ("--moving", []),
    ],
)
def test_partitions_are_chosen_by_what_is_wrong_with_them(
    words: str, numbers: list[int], run: Run
) -> None:
    cluster = seen(*MIXED, HALTED)
    cluster.nodes["n1"].replicas.append(replica(HALTED, takes_writes=False))
    del cluster.nodes["n1"].replicas[2]
    shown = json_of(run(cluster, f"cluster partitions {words} --json"))
    assert [one["partition"] for one in shown] == [f"t/{number}" for number in numbers]
    assert ("WRITABLE" if numbers else "no") in run(cluster, f"cluster partitions {words}").stdout


def test_partitions_show_epochs_and_who_is_in_sync(run: Run) -> None:
    for_people = run(seen(*MIXED), "cluster partitions").stdout
    assert "2 of 3" in for_people
    (_, unclean, *_) = json_of(run(seen(*MIXED), "cluster partitions --json"))
    assert (unclean["epoch"], unclean["unclean_epoch"]) == (3, 3)


def test_a_topic_that_is_not_there_is_said(run: Run) -> None:
    done = run(seen(*MIXED), "cluster partitions nowhere")
    assert done.exit_code == 2
    assert "There is no topic nowhere" in done.stderr


def test_a_topic_shows_leader_epoch_and_replicas_of_each_partition(run: Run) -> None:
    topics = leader_pb.DescribeTopicsReply(
        topics=[leader_pb.TopicDescription(name="t", partitions=MIXED)]
    )
    cluster = Cluster(
        partition_leader__describe_topics=topics,
        cluster__get_metadata=seen(*MIXED).answers["cluster.get_metadata"],
    )
    cluster.nodes |= seen(*MIXED).nodes
    for_people = run(cluster, "topic describe t").stdout
    assert "2 of 3" in for_people
    assert "n1 n2 n3" in for_people
    (topic,) = json_of(run(cluster, "topic describe t --json"))
    assert sorted(topic["partitions"][0]) == [
        "adding", "epoch", "high_watermark", "isr", "leader", "leader_node", "number",
        "preferred_node", "replica_states", "replicas", "target", "unclean_epoch",
        "under_replicated", "why_offline", "why_unwritable", "writable",
    ]  # fmt: skip
    assert [(p["epoch"], p["unclean_epoch"]) for p in topic["partitions"]] == [
        (3, None), (3, 3), (7, None), (3, None)
    ]  # fmt: skip
    assert [(p["writable"], p["high_watermark"]) for p in topic["partitions"]] == [
        (True, 9), (True, 9), (False, None), (True, 9)
    ]  # fmt: skip
    assert [one["state"] for one in topic["partitions"][0]["replica_states"]] == [
        "leads", "loading", "not running"
    ]  # fmt: skip
    assert "not running" not in for_people
    with_replicas = run(cluster, "topic describe t --replicas").stdout
    assert "not running" in with_replicas


def test_what_is_led_and_refuses_writes_is_named_with_the_reason(run: Run) -> None:
    cluster = seen(*MIXED, HALTED)
    cluster.nodes["n1"] = described(replica(MIXED[0]), replica(HALTED, takes_writes=False))
    shown = json_of(run(cluster, "cluster status --json"))
    assert shown["partitions_unwritable"] == ["t/4"]
    # n1 leads that, and says nothing of it.
    assert shown["partitions_not_known"] == ["t/3"]
    (unwritable,) = shown["unwritable"]
    assert "fewer than 2 replicas in sync" in unwritable["why_unwritable"]
    for_people = run(cluster, "cluster status").stdout
    assert "1: t/4 (1 not known: t/3)" in for_people
    assert "min_insync_replicas" in for_people


def test_a_process_that_does_not_answer_is_unreachable_and_the_rest_is_shown(run: Run) -> None:
    cluster = seen(*MIXED)
    cluster.nodes["n1"] = Silence()
    shown = json_of(run(cluster, "cluster status --json"))
    assert [node["unreachable"] for node in shown["nodes"]] == ["no answer within 3 s", None]
    assert shown["partitions_not_known"] == ["t/0", "t/3"]
    done = run(cluster, "cluster partitions --replicas")
    assert done.exit_code == 0
    assert "node n1 is unreachable: no answer within 3 s" in done.stderr
    assert "unreachable" in done.stdout
    assert "leads" in done.stdout, "n2 answers"


def test_a_topic_is_described_though_its_leader_does_not_answer(run: Run) -> None:
    cluster = Cluster(partition_leader__describe_journals=lambda request: Silence())
    cluster.nodes["h"] = Silence()
    done = run(cluster, "topic describe payments --replicas")
    assert done.exit_code == 0
    assert "node n1 is unreachable: no answer within 3 s" in done.stderr
    assert "unreachable" in done.stdout
    (topic,) = json_of(run(cluster, "topic describe payments --json"))
    assert topic["journals"] == []
    assert [one["writable"] for one in topic["partitions"]] == [None, False]


def test_who_is_no_operator_is_told_what_etcd_shows(run: Run) -> None:
    cluster = seen(*MIXED)
    for name in ("n1", "n2"):
        cluster.nodes[name] = Silence(grpc.StatusCode.PERMISSION_DENIED)
    done = run(cluster, "cluster partitions")
    assert done.exit_code == 0
    assert "operators only" in done.stderr
    assert "unreachable" not in done.stdout + done.stderr
    shown = json_of(run(cluster, "cluster partitions --json"))
    assert [one["writable"] for one in shown] == [None, None, False, None]


def test_a_node_that_is_not_there_is_said(run: Run) -> None:
    done = run(seen(*MIXED), "cluster partitions --node n9")
    assert done.exit_code == 2
    assert "There is no node n9" in done.stderr


def test_what_scripts_read_of_a_partition_stays_as_it_is(run: Run) -> None:
    (first, *_) = json_of(run(seen(*MIXED), "cluster partitions --json"))
    assert sorted(first) == [
        "adding", "epoch", "high_watermark", "isr", "leader_node", "partition", "preferred_node",
        "replica_states", "replicas", "target", "unclean_epoch", "under_replicated",
        "why_offline", "why_unwritable", "writable",
    ]  # fmt: skip
    assert sorted(first["replica_states"][0]) == [
        "damaged", "in_sync", "lag", "last_epoch", "log_end", "node_id", "rack", "settling_waits",
        "state", "synced_end", "why",
    ]  # fmt: skip
    status = json_of(run(seen(*MIXED), "cluster status --json"))
    assert sorted(status) == [
        "cluster_id", "etcd", "nodes", "nodes_away", "offline", "partitions",
        "partitions_moving", "partitions_not_known", "partitions_under_replicated",
        "partitions_unwritable", "partitions_without_leader", "topics", "unwritable",
    ]  # fmt: skip
