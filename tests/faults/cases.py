"""The kill matrix's cases: role x failpoint x what happens there, from the table of failpoints."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from oncelog_server.core.failpoints import TABLE, Failpoint, FailpointKind


class Fault(Enum):
    POWER_LOSS = "power"
    KILL = "kill"
    # SIGSTOP, longer than the lease.
    PAUSE = "pause"
    REPLY_LOST = "lost"
    REQUEST_TWICE = "twice"
    REQUEST_LATE = "late"
    # A write of etcd's is applied and its answer lost, or it is applied later.
    ETCD_REPLY_LOST = "etcd-lost"
    ETCD_WRITE_LATE = "etcd-late"
    # etcd cannot be reached from this process for a while.
    ETCD_AWAY = "etcd-away"
    DISK_ERROR = "eio"


class Case(NamedTuple):
    role: str
    point: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.role}-{self.point}-{self.fault.value}"

    @property
    def seed(self) -> int:
        return zlib.crc32(str(self).encode())


def faults_at(point: Failpoint) -> Iterator[Fault]:
    """All that may happen there."""
    yield from (Fault.POWER_LOSS, Fault.KILL, Fault.PAUSE)
    before = point.name.endswith(".before")
    if point.kind in (FailpointKind.SERVE, FailpointKind.CALL) and not before:
        yield Fault.REPLY_LOST
    if point.kind is FailpointKind.SERVE and before:
        yield from (Fault.REQUEST_TWICE, Fault.REQUEST_LATE)
    if point.kind is FailpointKind.ETCD:
        yield Fault.ETCD_AWAY
        if point.name == "etcd.txn.before":
            yield from (Fault.ETCD_REPLY_LOST, Fault.ETCD_WRITE_LATE)
    if point.kind is FailpointKind.DISK:
        yield Fault.DISK_ERROR


CASES: Final = tuple(
    Case(role, point.name, fault)
    for point in TABLE
    for role in point.roles
    for fault in faults_at(point)
)
