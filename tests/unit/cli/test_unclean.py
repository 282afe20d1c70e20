"""`oncelog cluster unclean-elect`: what it asks, what it proposes, what it wants to hear before it
elects anybody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
import pytest
from click.testing import Result

from oncelogpb import errors
from oncelogpb.v1 import cluster_pb2, replication_pb2, types_pb2
from oncelogpb.v1 import partition_leader_pb2 as leader_pb
from tests.unit.cli.scripted import TOPIC_ID, Cluster, Silence, json_of

Run = Callable[..., Result]
WRONG_USAGE = 2
CLUSTER_ID = b"c" * 16
# By node: last epoch, synced end, high watermark.
Held = Mapping[str, tuple[int, int, int]]
TWO: Held = {"n2": (6, 120, 80), "n3": (7, 90, 100)}


def incarnation(node: str) -> bytes:
    return node.encode().ljust(16, b"i")


def cluster(
    held: Held = TWO,
    *,
    silent: str = "",
    isr: str = "n1",
    leader: str = "",
    partitions: int = 1,
    fails: Callable[[Any], Any] | None = None,
) -> Cluster:
    """Partitions on n1, n2 and n3, led up to epoch 7; who is not in `held` does not run."""
    living = [*held, *([silent] if silent else [])]
    nodes = [
        cluster_pb2.Node(
            node_id=name,
            boot_id=name.encode().ljust(16, b"b"),
            endpoint=types_pb2.Endpoint(host=name, port=7401),
            roles=["partition_leader"],
        )
        for name in living
    ]
    described = [
        leader_pb.PartitionDescription(
            number=number,
            epoch=7,
            replicas=["n1", "n2", "n3"],
            isr=[incarnation(isr).hex()],
            leader=types_pb2.Leader(node_id=leader) if leader else None,
        )
        for number in range(partitions)
    ]

    def describe(request: Any) -> Any:
        (name,) = [node.node_id for node in nodes if node.boot_id == request.boot_id]
        assert request.cluster_id == CLUSTER_ID
        last_epoch, synced_end, durable = held[name]
        return replication_pb2.DescribeReplicasReply(
            replicas=[
                replication_pb2.ReplicaDescription(
                    partition=partition,
                    incarnation=incarnation(name),
                    last_epoch=last_epoch,
                    synced_end=synced_end,
                    high_watermark=durable,
                )
                for partition in request.partitions
            ]
        )

    def elect(request: Any) -> Any:
        if fails is not None and (error := fails(request)) is not None:
            return error
        return cluster_pb2.UncleanElectReply(epoch=8, kept_end=request.seen.synced_end)

    topic = leader_pb.TopicDescription(name="payments", topic_id=TOPIC_ID, partitions=described)
    made = Cluster(
        cluster__get_metadata=cluster_pb2.GetMetadataReply(
            cluster_id=CLUSTER_ID, nodes=nodes, etcd_reachable=True
        ),
        partition_leader__list_topics=leader_pb.ListTopicsReply(topics=[topic]),
        replication__describe_replicas=describe,
        cluster__unclean_elect=elect,
    )
    made.nodes[silent] = Silence()
    return made


def elections(cluster: Cluster) -> list[Any]:
    return cluster.requests("cluster.unclean_elect")


def test_i5_all_are_asked_and_who_has_most_is_elected_as_it_was_seen(run: Run) -> None:
    asked = cluster()
    shown = json_of(run(asked, "cluster unclean-elect payments/0 --accept-loss --json"))
    assert len(asked.requests("replication.describe_replicas")) == 2
    (request,) = elections(asked)
    assert (request.topic, request.number, request.node_id) == ("payments", 0, "n3"), (
        "acknowledged records are lost that somebody has"
    )
    assert request.accept_loss
    assert request.seen == cluster_pb2.SeenReplica(
        epoch=7,
        incarnation=incarnation("n3").hex(),
        last_epoch=7,
        synced_end=90,
        isr=[incarnation("n1").hex()],
    )
    assert "for certain 10 journal offsets, 90 to 99" in request.told, (
        "what is said is written down"
    )
    (elected,) = shown["elected"]
    assert elected == {"partition": "payments/0", "node_id": "n3", "epoch": 8, "kept_end": 90}
    (proposal,) = shown["proposals"]
    assert [one["node_id"] for one in proposal["replicas"]] == ["n3", "n2"]
    assert proposal["unheard"] == [{"node_id": "n1", "runs": False, "why": "it does not run"}]


def test_it_is_said_before_anything_is_asked(run: Run) -> None:
    asked = cluster()
    result = run(asked, "cluster unclean-elect payments/0", stdin=b"n\n")
    assert result.exit_code == 1
    assert elections(asked) == []
    for said in ("has most, would lead", "journal offset 90 and above", "n1 (it does not run)"):
        assert said in result.stdout
    assert "Give up what may be lost of payments/0?" in result.stderr
    result = run(asked, "cluster unclean-elect payments/0", stdin=b"y\n")
    assert "n3 leads payments/0 in epoch 8; kept: journal offsets below 90" in result.stdout
    assert len(elections(asked)) == 1


@pytest.mark.parametrize("more", ["--dry-run", "--dry-run --accept-loss --json"])
def test_a_dry_run_elects_nobody(more: str, run: Run) -> None:
    asked = cluster()
    assert run(asked, f"cluster unclean-elect payments/0 {more}").exit_code == 0
    assert elections(asked) == []


def test_i5_a_worse_one_is_elected_only_by_who_says_so(run: Run) -> None:
    """Accepting that something is lost does not accept that more is lost than has to be."""
    asked = cluster()
    worse = "cluster unclean-elect payments/0 --node n2"
    result = run(asked, f"{worse} --accept-loss")
    assert elections(asked) == [], "more is lost than has to be"
    assert result.exit_code == WRONG_USAGE
    assert "node n3 has more than node n2" in result.stderr
    assert "it was synced to 90 in epoch 7, later than epoch 6" in result.stdout
    # Two questions.
    assert run(asked, worse, stdin=b"n\n").exit_code == 1
    assert run(asked, worse, stdin=b"y\nn\n").exit_code == 1
    assert elections(asked) == [], "more is lost than has to be"
    assert run(asked, f"{worse} --accept-loss --not-the-best").exit_code == 0
    assert [one.node_id for one in elections(asked)] == ["n2"]


def test_i5_a_process_that_runs_and_does_not_answer_is_a_doubt(run: Run) -> None:
    asked = cluster(silent="n1")
    result = run(asked, "cluster unclean-elect payments/0 --accept-loss")
    assert elections(asked) == [], "what n1 has is lost"
    assert result.exit_code == WRONG_USAGE
    assert "node n1 runs, and it is not known what it has" in result.stderr


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (cluster(leader="n2"), "has a living leader: n2"),
        (cluster(isr="n2"), "node n2 is in sync"),
        (cluster({}), "nothing is known of payments/0"),
        (cluster({}, silent="n2"), "no answer within 3 s"),
    ],
)
def test_i5_nobody_is_elected_where_nothing_has_to_be_lost(
    asked: Cluster, why: str, run: Run
) -> None:
    line = "cluster unclean-elect payments/0 --accept-loss --not-the-best"
    result = run(asked, line)
    assert result.exit_code == 1
    assert why in result.stderr
    assert elections(asked) == []


def test_who_is_no_operator_is_told_so(run: Run) -> None:
    asked = cluster()
    asked.nodes["n2"] = Silence(grpc.StatusCode.PERMISSION_DENIED)
    result = run(asked, "cluster unclean-elect payments/0 --accept-loss --not-the-best")
    assert result.exit_code == 1
    assert "PERMISSION_DENIED" in result.stderr
    assert elections(asked) == []


def test_a_topic_stands_for_its_partitions_without_a_leader(run: Run) -> None:
    asked = cluster(partitions=3)
    listed = asked.answers["partition_leader.list_topics"]
    listed.topics[0].partitions[1].leader.node_id = "n3"
    lost = errors.Unavailable("its lease ended")
    failing = cluster(partitions=3, fails=lambda request: lost if request.number == 0 else None)
    failing.answers["partition_leader.list_topics"] = listed
    assert run(asked, "cluster unclean-elect payments --accept-loss").exit_code == 0
    assert [one.number for one in elections(asked)] == [0, 2]
    # One that fails holds up no other, and is told.
    result = run(failing, "cluster unclean-elect payments --accept-loss")
    assert [one.number for one in elections(failing)] == [0, 2]
    assert result.exit_code == 1
    assert "payments/0: UNAVAILABLE its lease ended" in result.stderr
    assert "n3 leads payments/2" in result.stdout


@pytest.mark.parametrize("named", ["nothing", "payments/7", "payments/x", "payments/0 --node n9"])
def test_what_is_not_there_is_wrong_usage(named: str, run: Run) -> None:
    asked = cluster()
    result = run(asked, f"cluster unclean-elect {named} --accept-loss")
    assert result.exit_code == WRONG_USAGE
    assert elections(asked) == []
