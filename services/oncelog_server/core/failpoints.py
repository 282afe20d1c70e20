"""Failpoints: named places where a test may make a process die, stop, lose a reply, or be asked
twice. One table, from which the kill matrix of `tests/faults` is generated: a failpoint that is
added here is covered by that, and one that is never reached fails the run.

Unset, a place costs one empty call in the driver and nothing elsewhere: the others stand in
wrappers around the ports (`runtime/failpoint_ports`), composed only while failpoints are armed.

    arm(hook)            hook(name) is called at each passing, in the very turn and thread
    disarm()

Left out: what happens at a failpoint. `runtime/failpoint_actions` kills and stops real processes,
by the environment variable ONCELOG_FAILPOINTS; the simulator has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from oncelog_server.core.roles import COORDINATOR, OFFSET_MANAGER, PARTITION_LEADER, ROLES


class Repeat(Enum):
    """What a hook may answer at a `serve...before`: the request has come more than once."""

    # Both are handled at the same time; the caller gets the second's answer.
    AT_ONCE = "at once"
    # A copy that the network held back comes once more, seconds later, when nobody waits for it.
    LATE = "late"


Hook = Callable[[str], Repeat | None]


class FailpointKind(Enum):
    """Where a failpoint stands, hence what may happen there."""

    CODE = "code"
    DISK = "disk"
    ETCD = "etcd"
    # Around a call to another process: markers, offsets, questions.
    CALL = "call"
    # Around the handling of a call: `before` is the request, `after` the reply.
    SERVE = "serve"


class Failpoint(NamedTuple):
    """`roles`: whose processes pass it in a transaction or around one (start, recovery, reads)."""

    name: str
    kind: FailpointKind
    roles: tuple[str, ...]


def _around(
    prefix: str, kind: FailpointKind, steps: Mapping[str, tuple[str, ...]]
) -> list[Failpoint]:
    return [
        Failpoint(f"{prefix}.{step}.{side}", kind, roles)
        for step, roles in steps.items()
        for side in ("before", "after")
    ]


_CODE: Final = ("append", "replay", "epoch_start", "release", "snapshot")
# The steps by which a log begins later.
_TRIM: Final = ("trim_index", "trim_note", "trim_remove")
# The steps by which what is readable of a topic is settled, and goes when it was deleted.
_SETTLE: Final = ("settle_write", "settle_note", "data_remove")
# The steps of a pass that takes out what is superseded.
_COMPACT: Final = ("compact_holes", "compact_write", "compact_join", "compact_note")
_DISK: Final = {
    "commit": ROLES,
    # Tables and slots, before a snapshot; an index, before a log begins later.
    "sync": ROLES,
    "write_and_sync": ROLES,
    "replace_file": ROLES,
    # Of snapshots that are replaced.
    "remove": ROLES,
}
_ETCD: Final = ("get", "range", "txn", "grant_lease", "keep_alive")
_CALLS: Final = {
    "participant.write_markers": (COORDINATOR,),
    "offset_manager.commit_transaction_offsets": (COORDINATOR,),
    "coordinator.ask_transactions": (PARTITION_LEADER, OFFSET_MANAGER),
}
_SERVED: Final = {
    "coordinator.init_producer": (COORDINATOR,),
    "coordinator.begin_transaction": (COORDINATOR,),
    "coordinator.commit_transaction": (COORDINATOR,),
    "coordinator.abort_transaction": (COORDINATOR,),
    "coordinator.transact": (COORDINATOR,),
    "coordinator.ask_transactions": (COORDINATOR,),
    "partition_leader.create_topic": (PARTITION_LEADER,),
    "partition_leader.produce": (PARTITION_LEADER,),
    "partition_leader.list_offsets": (PARTITION_LEADER,),
    "offset_manager.commit_transaction_offsets": (OFFSET_MANAGER,),
    "offset_manager.fetch_offsets": (OFFSET_MANAGER,),
    "participant.write_markers": (PARTITION_LEADER, OFFSET_MANAGER),
}

TABLE: Final[tuple[Failpoint, ...]] = (
    *_around("driver", FailpointKind.CODE, dict.fromkeys(_CODE, ROLES)),
    *_around("disk", FailpointKind.DISK, _DISK),
    *_around("etcd", FailpointKind.ETCD, dict.fromkeys(_ETCD, ROLES)),
    *_around("call", FailpointKind.CALL, _CALLS),
    *_around("serve", FailpointKind.SERVE, _SERVED),
    *_around("driver", FailpointKind.CODE, dict.fromkeys(_TRIM, ROLES)),
    *_around("driver", FailpointKind.CODE, dict.fromkeys(_SETTLE, (PARTITION_LEADER,))),
    *_around("driver", FailpointKind.CODE, dict.fromkeys(_COMPACT, (PARTITION_LEADER,))),
)
NAMES: Final = frozenset(point.name for point in TABLE)
assert len(NAMES) == len(TABLE), "one place, one name"


def _nothing(name: str) -> Repeat | None:
    return None


# Call it as `failpoints.reach(...)`: it is replaced when failpoints are armed.
reach: Hook = _nothing


def arm(hook: Hook) -> None:
    """From here on `hook` is called at every passing. Arm before a node is composed."""
    global reach
    reach = hook


def disarm() -> None:
    global reach
    reach = _nothing


def armed() -> bool:
    return reach is not _nothing
