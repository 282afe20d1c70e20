"""What `oncelog cluster` says of nodes and partitions: who leads what, and why one is offline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from oncelog_server.cli import cluster as cluster_command
from oncelog_server.cli.partitions import why_offline
from oncelogpb.v1 import cluster_pb2, types_pb2
from oncelogpb.v1 import partition_leader_pb2 as leader_pb
from tests.unit.cli.scripted import Cluster, json_of

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
    """n1 and n2 run, n3 does not."""
    return Cluster(
        cluster__get_metadata=cluster_pb2.GetMetadataReply(
            etcd_reachable=True,
            time_ms=NOW,
            nodes=[node("n2", rack="south"), node("n1", rack="north", started_ms=NOW - 61_000)],
        ),
        partition_leader__list_topics=leader_pb.ListTopicsReply(
            topics=[leader_pb.TopicDescription(name="t", partitions=partitions)]
        ),
    )


MIXED = (
    partition(0, "n1", "n2", "n3", leader="n1", isr=["a" * 32, "b" * 32]),
    partition(1, "n2", leader="n2", unclean_epoch=3),
    partition(2, "n3", epoch=7),
    partition(3, "n1", leader="n1"),
)


def test_nodes_are_shown_with_what_they_lead_and_where_they_stand(run: Run) -> None:
    shown = json_of(run(seen(*MIXED), "cluster status --json"))
    assert [(n["node_id"], n["rack"], n["leads"], n["replicas"]) for n in shown["nodes"]] == [
        ("n1", "north", 2, 2),
        ("n2", "south", 1, 2),
    ]
    assert [n["started"] for n in shown["nodes"]] == ["2025-12-31T23:58:59.000Z", None]
    assert shown["nodes_away"] == [{"node_id": "n3", "replicas": 2}]
    assert shown["partitions_lacking_replicas"] == ["t/0"]
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


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (partition(0, "n1", leader="n1"), ""),
        (partition(0, "n3", "n4"), "no living replica: start the process of node n3, n4"),
        (partition(0, "n1", epoch=0, isr=[]), "never led so far: its first election is due on n1"),
        (partition(0, "n1", "n3"), "n1 (h:1) runs and does not lead it"),
        (leader_pb.PartitionDescription(number=0), "nothing is known of it yet"),
    ],
)
def test_why_a_partition_is_offline(of: leader_pb.PartitionDescription, said: str) -> None:
    why = why_offline(of, {"n1": "h:1", "n2": "h:2"})
    assert why.startswith(said)
    assert bool(why) == bool(said)


def test_a_node_with_thousands_of_partitions_does_not_fill_the_screen(run: Run) -> None:
    many = seen(*(partition(number, "n3") for number in range(3_000)))
    for_people = run(many, "cluster status").stdout
    shown = cluster_command.OFFLINE_SHOWN_MAX
    assert f"and {3_000 - shown} more: `oncelog cluster partitions --offline`" in for_people
    assert "t/19 " in for_people
    assert "t/20 " not in for_people
    assert len(json_of(run(many, "cluster partitions --offline --json"))) == 3_000


@pytest.mark.parametrize(
    ("words", "numbers"),
    [("", [0, 1, 2, 3]), ("t", [0, 1, 2, 3]), ("--offline", [2]), ("--lacking", [0])],
)
def test_partitions_are_chosen_by_what_is_wrong_with_them(
    words: str, numbers: list[int], run: Run
) -> None:
    shown = json_of(run(seen(*MIXED), f"cluster partitions {words} --json"))
    assert [one["partition"] for one in shown] == [f"t/{number}" for number in numbers]
    assert "WHY OFFLINE" in run(seen(*MIXED), f"cluster partitions {words}").stdout


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
    described = leader_pb.DescribeTopicsReply(
        topics=[leader_pb.TopicDescription(name="t", partitions=MIXED)]
    )
    cluster = Cluster(
        partition_leader__describe_topics=described,
        partition_leader__describe_journals=leader_pb.DescribeJournalsReply(),
    )
    for_people = run(cluster, "topic describe t").stdout
    assert "2 of 3" in for_people
    assert "n1 n2 n3" in for_people
    (topic,) = json_of(run(cluster, "topic describe t --json"))
    assert [(p["epoch"], p["unclean_epoch"]) for p in topic["partitions"]] == [
        (3, None), (3, 3), (7, None), (3, None)
    ]  # fmt: skip
