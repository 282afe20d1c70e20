"""What `oncelog doctor` says of replicas that are missing."""

from __future__ import annotations

import pytest

from oncelog_server.cli.doctor.findings import Status
from oncelog_server.cli.doctor.replicas import look
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2

THREE = ("n1", "n2", "n3")


def topic(*partitions: pb.PartitionDescription) -> pb.TopicDescription:
    return pb.TopicDescription(name="t", partitions=partitions)


def partition(in_sync: int, *replicas: str, leader: str = "n1") -> pb.PartitionDescription:
    return pb.PartitionDescription(
        number=0,
        leader=types_pb2.Leader(node_id=leader) if leader else None,
        replicas=replicas,
        isr=[f"{number:032x}" for number in range(in_sync)],
    )


@pytest.mark.parametrize(
    ("what", "of", "living", "statuses"),
    [
        ("all is well", partition(3, *THREE), THREE, [Status.OK]),
        ("one is behind", partition(2, *THREE), THREE, [Status.WARN]),
        ("one is away", partition(2, *THREE), ("n1", "n2"), [Status.WARN]),
        ("two are away; in sync are never fewer", partition(2, *THREE), ("n1",),
         [Status.FAIL, Status.WARN]),
        ("only the first leader is in sync", partition(1, *THREE), THREE,
         [Status.FAIL, Status.WARN]),
        ("of two one is away", partition(2, "n1", "n2"), ("n1",), [Status.FAIL]),
        ("a lone replica needs nobody", partition(1, "n1"), ("n1",), []),
        ("without a leader it is told elsewhere", partition(2, *THREE, leader=""), (), []),
    ],
)  # fmt: skip
def test_missing_replicas_are_told_and_what_cannot_be_written_fails(
    what: str, of: pb.PartitionDescription, living: tuple[str, ...], statuses: list[Status]
) -> None:
    found = list(look([topic(of)], living=living, min_insync_replicas=2))
    assert [one.status for one in found] == statuses, what


def test_partitions_are_named_a_few_at_a_time() -> None:
    many = [partition(2, *THREE) for _ in range(9)]
    [warned] = look([topic(*many)], living=THREE, min_insync_replicas=2)
    assert "9 of 9" in warned.what
    assert "and 4 more" in warned.what
