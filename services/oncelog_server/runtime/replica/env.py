"""What a replica is given of its node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from errno import ENOSPC
from typing import Any, Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Address, Clock, Reporter
from oncelog_server.runtime.replica.dialog import OpenDialog, SnapshotPart
from oncelog_server.runtime.replica.follower import Room
from oncelog_server.runtime.replica.in_sync import IsrChange
from oncelog_server.runtime.replica.pass_turn import PassTurn
from oncelog_server.runtime.replica.places import Places
from oncelog_server.runtime.storage.commit import GroupCommit
from oncelog_server.runtime.storage.snapshot_parts import PartOf
from oncelog_server.runtime.target import Isr
from oncelog_server.runtime.vital import Fatal
from oncelogpb.errors import Unavailable

# Asks etcd for a change of the ISR of a partition that is led in an epoch, comparing a revision.
# What etcd shows after it; None where nobody knows.
ChangeIsr = Callable[[PartitionId, int, IsrChange, int], Awaitable[Isr | None]]
# The same, of a change after which no replica is here: it is asked for once this process has
# stopped leading the epoch.
EndMove = Callable[[PartitionId, int, IsrChange, int], None]


# Of the replica of a partition in a process.
FetchPart = Callable[[Address, PartitionId, PartOf, int], Awaitable[SnapshotPart]]

# Replicas of one role whose committed logs are settled at once: each has a step in memory.
SETTLING_AT_ONCE: Final = 2
# A pass of compaction holds 32 bytes for each key that it looks at, as far as these go; where they
# are full, another one goes on.
COMPACTION_MAP_BYTES: Final = 64 << 20


# Replicas of one role that are healed at once: each has a step in memory.
HEALING_AT_ONCE: Final = 1


async def _from_nobody(to: Address, partition: PartitionId, wanted: PartOf, epoch: int) -> Any:
    raise Unavailable("there is nobody to ask")


@dataclass(slots=True)
class Scrubs:
    """What all replicas of one role that scrub share."""

    # A step is under way.
    is_busy: bool = False
    # The next one comes then.
    not_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class Replication:
    """What concerns the other replicas of a partition."""

    # This one.
    node_id: str
    # Of the cluster; a partition with fewer replicas needs all of its own.
    min_insync_replicas: int
    # Who did not catch up for so long is not in sync.
    replica_lag_ms: int
    change_isr: ChangeIsr
    # Opens a dialog with the process that leads.
    follow: OpenDialog
    # What all followers of this process that read from files share.
    catch_up: Room
    end_move: EndMove
    # Held while a follower replays its log for a snapshot: one of the process at a time, for each
    # has a machine in memory.
    replaying: asyncio.Semaphore
    # Nodes whose process is about to stop.
    leaving: Callable[[], Collection[str]] = tuple
    # Nodes that have a process; None where nobody says so.
    living: Callable[[], Collection[str] | None] = lambda: None
    # Processes of the other replicas of a partition, the leader of that epoch first.
    others: Callable[[PartitionId, int], Sequence[Address]] = lambda partition, epoch: ()
    # How many replicas of it there are, this one included, living or not.
    copies: Callable[[PartitionId], int] = lambda partition: 1
    # A part of what one of them has, in an epoch that both are in. Raises OncelogError.
    fetch: FetchPart = _from_nobody


@dataclass(frozen=True, slots=True)
class ReplicaEnv:
    """Of all replicas of one role."""

    clock: Clock
    commit: GroupCommit
    reporter: Reporter
    # Own lease deadline not reached yet.
    lease_valid: Callable[[], bool]
    # Free disk is above `disk_free_floor`, also once all that was appended is written.
    has_room: Callable[[], bool]
    # It is above half of that: what is settled may take the other half.
    may_settle: Callable[[], bool]
    # Runs a blocking function off the loop (in the simulator: at once).
    offload: Callable[[Callable[[], None]], Awaitable[None]]
    # Held while a log is opened or closed: so many of the node at once.
    places: asyncio.Semaphore
    # Journaled payload bytes between two snapshots.
    snapshot_every_bytes: int
    replication: Replication
    # It may stand in elections now.
    opened: Callable[[PartitionId], None]
    # It could not write, or is damaged: resign it.
    failed: Callable[[PartitionId, Exception], None]
    # What happened must end the process: a bug that leaves a state which nobody knows.
    fatal: Fatal
    # Of a journal that nothing needs and that is worth keeping (Machine.wanted_from).
    control_journal_bytes_max: int = 4 << 30
    # Held for a step of settling.
    settling: Places = field(default_factory=lambda: Places(SETTLING_AT_ONCE))
    # Held for a pass of compaction.
    compacting: PassTurn = field(default_factory=PassTurn)
    compaction_map_bytes: int = COMPACTION_MAP_BYTES
    # Held for a step of healing.
    healing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(HEALING_AT_ONCE))
    scrubs: Scrubs = field(default_factory=Scrubs)
    # Settings of the topic of a partition, as etcd shows them: a hint, for what may come sooner.
    configs_of: Callable[[PartitionId], Mapping[str, str]] = lambda _: {}

    def require_room_to_settle(self) -> None:
        """Raises OSError where what is settled, or copied from a leader's data log, has to wait."""
        if not self.may_settle():
            why = "free disk space is below half of disk_free_floor; free some space"
            raise OSError(ENOSPC, why)

    def report_unusable(self, partition: PartitionId, error: Exception) -> None:
        self.reporter.event(
            "replica cannot be opened",
            level="error",
            partition=str(partition),
            error=str(error),
        )
        self.reporter.gauge("replica_unusable", 1, partition=str(partition))
