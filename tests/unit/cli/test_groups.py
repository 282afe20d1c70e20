"""`oncelog group`: who its members are, what each of them owns, and taking one out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from oncelogpb.errors import NotFound
from oncelogpb.v1 import offset_manager_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2, types_pb2
from tests.unit.cli.scripted import TOPIC_ID, Cluster, json_of, partition

Run = Callable[..., Result]

# payments/1 is on its way from m1 to m2.
MOVING = pb.DescribeGroupReply(
    group="g",
    generation=17,
    state=pb.GROUP_STATE_MOVING,
    assignor="uniform",
    topics=[pb.TopicName(topic_id=TOPIC_ID, name="payments")],
    members=[
        pb.DescribedMember(
            member_id="m1",
            host="10.0.0.7",
            subscribed_topics=["payments"],
            owned=[partition(0), partition(1)],
            target=[partition(0)],
            session_timeout_ms=10_000,
            silent_ms=2_500,
        ),
        pb.DescribedMember(
            member_id="m2",
            instance_id="worker-2",
            client_id="enricher",
            host="10.0.0.8",
            subscribed_topics=["payments"],
            target=[partition(1)],
            session_timeout_ms=45_000,
        ),
    ],
)


def _listed(request: Any) -> Any:
    return partition_leader_pb2.ListOffsetsReply(
        offsets=[
            partition_leader_pb2.ListedOffset(
                partition=query.partition, offset=0 if query.earliest else 100
            )
            for query in request.queries
        ]
    )


def _cluster(*offsets: pb.CommittedOffset, **answers: Any) -> Cluster:
    return Cluster(
        **{
            "offset_manager__describe_group": MOVING,
            "offset_manager__fetch_offsets": pb.FetchOffsetsReply(offsets=offsets),
            "partition_leader__list_offsets": _listed,
        }
        | answers
    )


def test_members_are_described_with_what_they_own_and_shall_own(run: Run) -> None:
    at_60 = pb.CommittedOffset(partition=partition(0), offset=60, view=types_pb2.VIEW_COMMITTED)
    cluster = _cluster(at_60)
    told = json_of(run(cluster, "group describe g --json"))
    assert (told["state"], told["generation"], told["assignor"]) == ("moving", "17", "uniform")
    first, second = told["members"]
    assert (first["owned"], first["target"]) == (["payments/0", "payments/1"], ["payments/0"])
    assert (second["owned"], second["target"]) == ([], ["payments/1"])
    assert (first["silent_ms"], second["silent_ms"]) == (2_500, None)
    assert (first["instance_id"], second["instance_id"]) == (None, "worker-2")
    assert [(row["partition"], row["lag"], row["owner"]) for row in told["offsets"]] == [
        ("payments/0", 40, "m1"),
        ("payments/1", 100, "m1"),
    ]
    shown = run(cluster, "group describe g").stdout
    lines = [line.split() for line in shown.splitlines()]
    assert ["m1", "-", "-", "10.0.0.7", "2", "-", "1", "2s", "ago", "10s"] in lines
    assert ["m2", "worker-2", "enricher", "10.0.0.8", "0", "1", "-", "-", "45s"] in lines


def test_what_waits_for_members_that_have_committed_nothing_is_shown(run: Run) -> None:
    told = json_of(run(_cluster(), "group describe g --json"))
    assert [(row["partition"], row["offset"], row["lag"]) for row in told["offsets"]] == [
        ("payments/0", None, 100),
        ("payments/1", None, 100),
    ]


def test_a_group_without_members_looks_as_it_always_did(run: Run) -> None:
    at_60 = pb.CommittedOffset(partition=partition(0), offset=60, view=types_pb2.VIEW_COMMITTED)
    empty = pb.DescribeGroupReply(group="g", state=pb.GROUP_STATE_EMPTY)
    cluster = _cluster(at_60, offset_manager__describe_group=empty)
    shown = run(cluster, "group describe g").stdout
    assert "MEMBER" not in shown
    assert "OWNER" not in shown


@pytest.mark.parametrize("producers", [1, 11])
def test_the_last_transaction_of_each_producer_is_shown(run: Run, producers: int) -> None:
    last = [pb.LastCommit(producer_id=n, tx_id=(3 << 48) + n) for n in range(1, producers + 1)]
    at_60 = pb.CommittedOffset(partition=partition(0), offset=60, view=types_pb2.VIEW_COMMITTED)
    fetched = pb.FetchOffsetsReply(offsets=[at_60], last_commits=last)
    result = run(_cluster(offset_manager__fetch_offsets=fetched), "group describe g")
    shown = [line.split() for line in result.stdout.splitlines()]
    assert ["0000000000000001", "0003000000000001"] in shown
    assert ("11 producers" in result.stderr) == (producers == 11)


def test_groups_are_listed_with_their_members(run: Run) -> None:
    groups = [
        pb.GroupListing(group="a", members=3, state=pb.GROUP_STATE_STABLE),
        pb.GroupListing(group="b", state=pb.GROUP_STATE_EMPTY, committed_partitions=2),
    ]
    cluster = _cluster(offset_manager__list_groups=pb.ListGroupsReply(groups=groups))
    told = json_of(run(cluster, "group list --json"))
    assert [(row["group"], row["state"], row["members"]) for row in told] == [
        ("a", "stable", 3),
        ("b", "empty", 0),
    ]
    assert "stable" in run(cluster, "group list").stdout


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("m1", pb.RemoveMemberRequest(group="g", member_id="m1")),
        ("worker-2 --instance", pb.RemoveMemberRequest(group="g", instance_id="worker-2")),
    ],
)
def test_a_member_is_taken_out(run: Run, line: str, asked: pb.RemoveMemberRequest) -> None:
    reply = pb.RemoveMemberReply(member_id="m1")
    cluster = _cluster(offset_manager__remove_member=reply)
    assert "took m1 out of group g" in run(cluster, f"group remove-member g {line} --yes").stdout
    assert cluster.requests("offset_manager.remove_member") == [asked]


def test_nobody_is_taken_out_unasked(run: Run) -> None:
    cluster = _cluster()
    assert run(cluster, "group remove-member g m1", stdin=b"n\n").exit_code == 1
    assert not cluster.requests("offset_manager.remove_member")
    unknown = _cluster(offset_manager__remove_member=NotFound("no such member"))
    assert "NOT_FOUND" in run(unknown, "group remove-member g m9 --yes").stderr
