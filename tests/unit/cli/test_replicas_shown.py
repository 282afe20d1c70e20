"""What is said of each replica: by etcd, by its own process, and by its leader."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog_server.cli.asking import Told, Unanswered
from oncelog_server.cli.partitions import ListedPartition, list_partitions
from oncelog_server.cli.replicas import State
from oncelogpb.v1 import cluster_pb2, types_pb2
from oncelogpb.v1 import partition_leader_pb2 as leader_pb
from oncelogpb.v1 import replication_pb2 as pb

KEY = (b"t" * 16, 0)
A, B, C = b"\xaa" * 16, b"\xbb" * 16, b"\xcc" * 16
READY, LOADING, CLOSED = (
    pb.REPLICA_STAGE_READY,
    pb.REPLICA_STAGE_LOADING,
    pb.REPLICA_STAGE_CLOSED,
)
STANDBY, FOLLOWING = pb.REPLICA_STAGE_STANDBY, pb.REPLICA_STAGE_FOLLOWING


def own(incarnation: bytes, stage: pb.ReplicaStage.ValueType, **more: Any) -> pb.ReplicaDescription:
    """What a process says of its own replica."""
    told = {"last_epoch": 3, "log_end": 100, "synced_end": 100} | more
    return pb.ReplicaDescription(incarnation=incarnation, stage=stage, **told)


def leads(*followers: pb.FollowerDescription, **more: Any) -> pb.ReplicaDescription:
    told = {"epoch": 3, "high_watermark": 90, "min_insync_replicas": 2, "takes_writes": True}
    return own(A, READY, followers=followers, **(told | more))


def follower(node: str, incarnation: bytes, **more: Any) -> pb.FollowerDescription:
    told = {"in_sync": True, "synced_end": 100, "has_dialog": True, "keeps_up": True} | more
    return pb.FollowerDescription(node_id=node, incarnation=incarnation, **told)


B_FOLLOWS, C_FOLLOWS = follower("b", B), follower("c", C)


def seen(
    *,
    leader: str = "a",
    isr: tuple[bytes, ...] = (A, B, C),
    running: str = "abc",
    unanswered: dict[str, Unanswered] | None = None,
    epoch: int = 3,
    adding: tuple[str, ...] = (),
    **told: pb.ReplicaDescription,
) -> ListedPartition:
    """Replicas on a, b and c; `told`: what they say, by node."""
    partition = leader_pb.PartitionDescription(
        number=0,
        epoch=epoch,
        replicas=["a", "b", "c"],
        isr=[one.hex() for one in isr],
        adding=adding,
        leader=types_pb2.Leader(node_id=leader) if leader else None,
    )
    nodes = [
        cluster_pb2.Node(
            node_id=node, rack="north", endpoint=types_pb2.Endpoint(host="h", port=ord(node))
        )
        for node in running
    ]
    topic = leader_pb.TopicDescription(name="t", topic_id=KEY[0], partitions=[partition])
    answers = Told({node: {KEY: said} for node, said in told.items()}, unanswered or {})
    (listed,) = list_partitions([topic], nodes, answers)
    return listed


@pytest.mark.parametrize(
    ("what", "b", "by_a", "isr", "state", "why", "is_in_sync"),
    [
        ("all is well", own(B, FOLLOWING), B_FOLLOWS, (A, B, C), State.IN_SYNC, "", True),
        (
            "it copies what it lacks",
            own(B, FOLLOWING, synced_end=40),
            follower("b", B, in_sync=False),
            (A, C),
            State.LAGGING,
            "joins",
            False,
        ),
        (
            "it fell behind, and cannot be dropped",
            own(B, FOLLOWING),
            follower("b", B, keeps_up=False, caught_up_ms_ago=12_000),
            (A, B),
            State.LAGGING,
            "had everything 12s ago",
            True,
        ),
        (
            "it was cut off from its leader",
            own(B, FOLLOWING),
            follower("b", B, has_dialog=False, keeps_up=False, heard_ms_ago=900),
            (A, B),
            State.SILENT,
            "for 900 ms",
            True,
        ),
        ("it never said anything", own(B, STANDBY), None, (A, C), State.SILENT, "epoch", False),
        (
            "its log is damaged",
            own(b"", CLOSED, unfit="segment 7: bad frame"),
            None,
            (A, C),
            State.UNFIT,
            "segment 7: bad frame",
            False,
        ),
        ("its log is opened", own(b"", CLOSED), None, (A, C), State.LOADING, "opened", False),
        (
            "it came back with an empty directory, under another name",
            own(B, FOLLOWING),
            follower("b", b"old" + b"0" * 13, in_sync=True),
            (A, b"old" + b"0" * 13),
            State.NOT_IN_SYNC,
            "may lack records",
            False,
        ),
    ],
)
def test_what_a_replica_is(
    what: str,
    b: pb.ReplicaDescription,
    by_a: pb.FollowerDescription | None,
    isr: tuple[bytes, ...],
    state: State,
    why: str,
    is_in_sync: bool,
) -> None:
    followers = [C_FOLLOWS] if by_a is None else [C_FOLLOWS, by_a]
    listed = seen(isr=isr, a=leads(*followers), b=b, c=own(C, FOLLOWING))
    shown = listed.replicas[1]
    assert (shown.state, shown.is_in_sync) == (state, is_in_sync), what
    assert why in shown.why


def test_who_does_not_run_or_not_answer_is_told_and_what_others_know_of_it() -> None:
    answers: dict[str, Any] = {"a": leads(follower("b", B, synced_end=70)), "isr": (A, B)}
    (_, away, never) = seen(running="a", **answers).replicas
    assert (away.state, away.is_in_sync, away.rack) == (State.NOT_RUNNING, True, "")
    assert (away.synced_end, away.lag, away.log_end) == (70, 30, None)
    assert (never.state, never.is_in_sync) == (State.NOT_RUNNING, False)
    (_, frozen, _) = seen(unanswered={"b": Unanswered("no answer")}, **answers).replicas
    assert (frozen.state, frozen.why) == (State.UNREACHABLE, "no answer")
    (_, secret, _) = seen(unanswered={"b": Unanswered("", is_refused=True)}, **answers).replicas
    assert (secret.state, secret.why) == (State.NOT_TOLD, "")


def test_on_which_node_a_member_is_that_never_spoke_nobody_knows() -> None:
    listed = seen(isr=(A, C), running="a", a=leads())
    assert [one.is_in_sync for one in listed.replicas] == [True, None, None]


def test_a_lag_is_what_the_leader_has_and_is_not_synced_there() -> None:
    listed = seen(a=leads(B_FOLLOWS), b=own(B, FOLLOWING, log_end=99, synced_end=60))
    (leader, behind, unknown) = listed.replicas
    assert (leader.lag, behind.lag, unknown.lag) == (None, 40, None)
    assert (behind.last_epoch, behind.log_end) == (3, 99)
    assert listed.high_watermark == 90


@pytest.mark.parametrize(
    ("a", "why"),
    [
        (leads(), ""),
        (leads(takes_writes=False), "fewer than 2 replicas in sync keep up (min_insync_replicas)"),
        (own(A, LOADING), "loading: it loads its log"),
        (own(A, LOADING, min_insync_replicas=2), "loading: it waits until 2 replicas"),
        # It leads no more, or not yet: who knows.
        (own(A, FOLLOWING), None),
    ],
)
def test_whether_it_takes_writes_its_leader_says(a: pb.ReplicaDescription, why: str | None) -> None:
    said = seen(a=a).why_unwritable
    assert said is None if why is None else (said or "").startswith(why)
    assert bool(said) == bool(why)


@pytest.mark.parametrize(
    ("what", "of", "is_under_replicated"),
    [
        ("all is well", {}, False),
        ("one left those in sync", {"isr": (A, B)}, True),
        # Those in sync are never fewer than min_insync_replicas.
        ("two are counted, and one of them runs", {"isr": (A, B), "running": "a"}, True),
        ("three are counted, and two run", {"running": "ab"}, True),
        ("a copy is being added", {"isr": (A, B), "adding": ("c",)}, False),
    ],
)
def test_what_is_under_replicated(what: str, of: dict[str, Any], is_under_replicated: bool) -> None:
    assert seen(**of).is_under_replicated == is_under_replicated, what


@pytest.mark.parametrize(
    ("what", "of", "said"),
    [
        ("it is led", {"leader": "a"}, ""),
        ("nobody runs", {"running": ""}, "no living replica: start the process of node a, b, c,"),
        ("new", {"epoch": 0, "isr": (), "running": "a"}, "never led so far: its first election"),
        ("none is told", {"running": "a", "isr": (B,)}, "a (h:97) runs and does not lead it"),
        (
            "damaged",
            {"running": "a", "isr": (A,), "a": own(b"", CLOSED, unfit="segment 7: bad frame")},
            "a (h:97) is unfit: segment 7: bad frame",
        ),
        (
            "only one that lacks records",
            {"running": "ac", "isr": (B,), "a": own(A, STANDBY), "c": own(C, STANDBY)},
            "a (h:97) is not in sync: it may lack records; c (h:99) is not in sync: it may lack "
            "records; start the process of node b",
        ),
        ("now", {"running": "a", "a": own(A, STANDBY)}, "a (h:97) is in sync: its election is due"),
        (
            "frozen",
            {"running": "a", "unanswered": {"a": Unanswered("no answer")}},
            "a (h:97) is unreachable: no answer",
        ),
    ],
)
def test_why_a_partition_is_offline(what: str, of: dict[str, Any], said: str) -> None:
    listed = seen(**({"leader": ""} | of))
    assert listed.why_offline.startswith(said), what
    assert bool(listed.why_offline) == bool(said)
