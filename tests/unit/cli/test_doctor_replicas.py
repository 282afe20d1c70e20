"""What `oncelog doctor` says of partitions that cannot be used, or lack replicas."""

from __future__ import annotations

from typing import Any

import pytest

from oncelog_server.cli.doctor.findings import Status
from oncelog_server.cli.doctor.replicas import look
from oncelog_server.cli.partitions import ListedPartition
from oncelogpb.v1.replication_pb2 import DamagedRecords, SettledDescription
from tests.unit.cli.test_replicas_shown import A, B, leads, seen

WELL: dict[str, Any] = {"a": leads()}
HALTED: dict[str, Any] = {"a": leads(takes_writes=False)}


@pytest.mark.parametrize(
    ("what", "of", "statuses"),
    [
        ("all is well", WELL, [Status.OK]),
        ("one is behind", WELL | {"isr": (A, B)}, [Status.WARN]),
        ("one is away", WELL | {"isr": (A, B), "running": "ab"}, [Status.WARN]),
        ("two are away", HALTED | {"isr": (A, B), "running": "a"}, [Status.FAIL, Status.WARN]),
        ("cut off from the others, which run", HALTED, [Status.FAIL]),
        ("nobody leads", {"leader": ""}, [Status.FAIL]),
        ("its leader is frozen", {}, [Status.WARN]),
    ],
)
def test_what_cannot_be_used_fails_and_missing_replicas_are_told(
    what: str, of: dict[str, Any], statuses: list[Status]
) -> None:
    found = list(look([seen(**of)]))
    assert [one.status for one in found] == statuses, what


def test_what_keeps_a_topic_from_being_settled_is_told() -> None:
    stuck = SettledDescription(wanted=True, waits="free disk space is below disk_free_floor")
    well, told = reversed(list(look([seen(a=leads(settled=stuck)), seen(**WELL)])))
    assert (well.status, told.status) == (Status.OK, Status.WARN)
    assert "nothing can be settled" in told.what
    assert "node a: free disk space is below disk_free_floor" in told.what


def test_what_is_damaged_is_told() -> None:
    damaged = DamagedRecords(first_offset=24, end_offset=32, file="data/0.data", position=99)
    rotten = SettledDescription(wanted=True, damaged=[damaged])
    well, told = reversed(list(look([seen(a=leads(settled=rotten)), seen(**WELL)])))
    assert (well.status, told.status) == (Status.OK, Status.WARN)
    assert "node a: offsets 24 to 32 (data/0.data, byte 99): its turn comes" in told.what


def test_partitions_are_named_a_few_at_a_time() -> None:
    many: list[ListedPartition] = [seen(isr=(A, B), **WELL)] * 9
    [warned] = look(many)
    assert "9 of 9 are under-replicated" in warned.what
    assert "and 4 more" in warned.what
