"""What the offset manager can be asked beside what every participant can (`participant.commands`),
and what it answers. PURE.

A command is checked for its shape before it gets here (`wire`): names and counts are in range, each
partition stands once, `from_` is present. The machine decides what depends on state.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple

import msgspec

from oncelog_server.core.ids import Generation, PartitionId, ProducerId, TxId
from oncelog_server.core.machine import Tick
from oncelog_server.participant.commands import HearVerdicts, WriteMarkers
from oncelogpb.errors import OncelogError

# Values of `OffsetCommit.from_` that are not offsets.
# No offset must be committed.
FROM_NONE: Final = -1
# Not checked: after a seek.
FROM_ANY: Final = -2


class View(IntEnum):
    """Which numbering an offset belongs to. The numbers of oncelogpb.v1.View."""

    COMMITTED = 1
    JOURNAL = 2


class Read(Enum):
    """What a fetch does about pending offsets (KIP-447)."""

    # Refuse: PENDING_TRANSACTION.
    STABLE = "stable"
    # Give the last committed one.
    LAST_COMMITTED = "last committed"


class OffsetCommit(msgspec.Struct, frozen=True, array_like=True):
    """The step of a group from one position of a partition to another."""

    partition: PartitionId
    # Where the caller started, or FROM_NONE, FROM_ANY.
    from_: int
    # Next offset to read.
    to: int
    view: View = View.COMMITTED
    # Opaque, at most METADATA_BYTES_MAX of UTF-8.
    metadata: str = ""
    # Earlier transaction of this producer whose pending `to` this chains on. 0: none.
    after: TxId = TxId(0)


class CommitOffsets(msgspec.Struct, frozen=True):
    """Reply: None."""

    group: str
    offsets: tuple[OffsetCommit, ...]
    # What the outside has against it (no room on the disk). It is refused with that where it is
    # new; what was taken is told again whatever has happened since.
    unfit: OncelogError | None = None


class CommitTransactionOffsets(msgspec.Struct, frozen=True):
    """Reply: None."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    group: str
    offsets: tuple[OffsetCommit, ...]
    # As of CommitOffsets.
    unfit: OncelogError | None = None


class FetchOffsets(msgspec.Struct, frozen=True):
    """Reply: FetchedOffsets."""

    group: str
    # Empty: all that the group has.
    partitions: tuple[PartitionId, ...]
    read: Read
    view: View
    # Also the last commit of every producer of the group: there may be very many.
    with_last_commits: bool = False


class ListGroups(msgspec.Struct, frozen=True):
    """Reply: tuple[GroupSummary, ...], of those of them that there are, by name."""

    # As many as one turn of the loop has time for: `listing`.
    names: tuple[str, ...]


class DeleteGroup(msgspec.Struct, frozen=True):
    """Reply: None."""

    group: str


Command = (
    CommitOffsets
    | CommitTransactionOffsets
    | FetchOffsets
    | WriteMarkers
    | HearVerdicts
    | ListGroups
    | DeleteGroup
    | Tick
)


class FetchedOffset(NamedTuple):
    """One partition's offset. `offset` is None where nothing is committed."""

    partition: PartitionId
    offset: int | None
    view: View
    metadata: str
    commit_time_ms: int
    pending_tx_id: TxId


class FetchedOffsets(NamedTuple):
    """In the order asked; all: by topic id and number."""

    offsets: Sequence[FetchedOffset]
    # Last committed transaction by producer; empty where they were not asked for.
    last_commits: Sequence[tuple[ProducerId, TxId]]


class GroupSummary(NamedTuple):
    """One group, for operators."""

    group: str
    committed_partitions: int
    pending_partitions: int
    last_commit_time_ms: int
