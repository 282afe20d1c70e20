"""What the offset manager can be asked beside what every participant can (`participant.commands`),
and what it answers. PURE.

A command is checked for its shape before it gets here (`wire`): names and counts are in range, each
partition stands once, `from_` is present. The machine decides what depends on state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple

import msgspec

from oncelog_server.core.ids import Generation, PartitionId, ProducerId, TopicId, TxId
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


class MemberIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Who asks on behalf of a group, and what of the group it has heard."""

    # The generation of the group that it heard of last; 0: of none.
    generation: int
    member_id: str
    # Of a static member; "": it has none.
    instance_id: str = ""


class GroupTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic that members of a group subscribe to, as far as somebody has seen it."""

    name: str
    topic_id: TopicId
    partitions: int


class Heartbeat(msgspec.Struct, frozen=True):
    """Reply: Assigned."""

    group: str
    member: MemberIdentity
    # Names of topics, in order, each once.
    subscribed: tuple[str, ...]
    # All that it may still process or commit.
    owned: frozenset[PartitionId]
    # Those of the subscribed that this process sees.
    topics: tuple[GroupTopic, ...]
    # Topics of the group that were deleted, as etcd says: that a process does not see one proves
    # nothing.
    gone: frozenset[TopicId] = frozenset()
    # "": it does not mind.
    assignor: str = ""
    session_timeout_ms: int = 10_000
    client_id: str = ""
    # Where it calls from.
    host: str = ""
    # As of CommitOffsets.
    unfit: OncelogError | None = None
    # Of who joins: the member that holds its instance id, as it was told; "": it was told of none.
    replaces: str = ""


class LeaveGroup(msgspec.Struct, frozen=True):
    """Reply: Assigned, of nothing. A member that is gone has left."""

    group: str
    member: MemberIdentity


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """Somebody who is no member and commits for a group, while nobody may join it."""

    claim_id: str
    # Who that is, in words.
    holder: str
    # Not renewed for so long, it is over.
    timeout_ms: int


class ClaimGroup(msgspec.Struct, frozen=True):
    """Reply: the Claim as it stands."""

    group: str
    claim: Claim
    # As of CommitOffsets.
    unfit: OncelogError | None = None


class ReleaseGroup(msgspec.Struct, frozen=True):
    """Reply: None. A claim that is over is released."""

    group: str
    claim_id: str


class RemoveMember(msgspec.Struct, frozen=True):
    """By an operator. Reply: the member id of who was removed."""

    group: str
    # One of the two.
    member_id: str = ""
    instance_id: str = ""


class DescribeGroup(msgspec.Struct, frozen=True):
    """Reply: GroupDescription."""

    group: str


class CommitOffsets(msgspec.Struct, frozen=True):
    """Reply: None."""

    group: str
    offsets: tuple[OffsetCommit, ...]
    # What the outside has against it (no room on the disk). It is refused with that where it is
    # new; what was taken is told again whatever has happened since.
    unfit: OncelogError | None = None
    # None: standalone.
    member: MemberIdentity | None = None
    # By partition, what must stand beside the offset that the step begins from. Absent: not
    # checked. It is no part of the step: a repeat of what was taken is known without it.
    from_metadata: Mapping[PartitionId, str] = {}


class CommitTransactionOffsets(msgspec.Struct, frozen=True):
    """Reply: None."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    group: str
    offsets: tuple[OffsetCommit, ...]
    # As of CommitOffsets.
    unfit: OncelogError | None = None
    member: MemberIdentity | None = None
    # Idle timeout of the transaction; 0: not told, or it has none (a one-shot).
    timeout_ms: int = 0
    # As of CommitOffsets.
    from_metadata: Mapping[PartitionId, str] = {}


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


class ResetOffsets(msgspec.Struct, frozen=True):
    """By an operator. Reply: Reset."""

    group: str
    # Drawn at random by the caller: the same again was done already.
    reset_id: bytes
    offsets: tuple[OffsetCommit, ...]
    # Says only whether it would be refused.
    dry_run: bool = False
    # As of CommitOffsets.
    unfit: OncelogError | None = None
    # As of CommitOffsets.
    from_metadata: Mapping[PartitionId, str] = {}


class Reset(NamedTuple):
    """A group goes on from elsewhere; or would."""

    # It was done before.
    duplicate: bool


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
    | ResetOffsets
    | DeleteGroup
    | Heartbeat
    | LeaveGroup
    | ClaimGroup
    | ReleaseGroup
    | RemoveMember
    | DescribeGroup
    | Tick
)


class OutgrownTopic(NamedTuple):
    """A topic of which its group may not have all (partitions_per_group_max)."""

    name: str
    partitions: int
    # From the first on.
    shared_out: int


class TopicsSeen(NamedTuple):
    """Signal: of the topics that a member of this group subscribes to, these are there, and as
    large, in the view of this process."""

    group: str
    subscribed: tuple[str, ...]
    topics: tuple[GroupTopic, ...]


class MemberHeard(NamedTuple):
    """A signal: a heartbeat of this member came."""

    group: str
    member_id: str


class ClaimHeard(NamedTuple):
    """A signal: this claim was made, or renewed."""

    group: str
    claim_id: str


class Assigned(NamedTuple):
    """What a member may process, and until when."""

    # With the generation of now.
    member: MemberIdentity
    # By topic id and number. What it holds beside these it must let go.
    partitions: tuple[PartitionId, ...]
    # Of these, by topic id.
    topic_names: tuple[tuple[TopicId, str], ...]
    session_timeout_ms: int
    # When its next heartbeat is due.
    heartbeat_interval_ms: int


class GroupState(Enum):
    """Of its membership."""

    # It has no members.
    EMPTY = "empty"
    # Partitions are on their way from one member to another.
    MOVING = "moving"
    # Every member has what it shall have.
    STABLE = "stable"


class MemberDescription(NamedTuple):
    """One member, for operators."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    subscribed: tuple[str, ...]
    assignor: str
    # What it holds, and what it shall hold.
    owned: tuple[PartitionId, ...]
    target: tuple[PartitionId, ...]
    session_timeout_ms: int
    # Since its last heartbeat; None: this leader has heard of it by the journal only.
    silent_ms: int | None


class ClaimDescription(NamedTuple):
    """A claim, for operators."""

    claim: Claim
    # Since it was renewed; None: this leader has heard of it by the journal only.
    silent_ms: int | None


class GroupDescription(NamedTuple):
    """A group's membership, for operators. Members in the order in which they joined."""

    group: str
    # 0: it never had members.
    generation: int
    state: GroupState
    assignor: str
    members: tuple[MemberDescription, ...]
    outgrown: tuple[OutgrownTopic, ...] = ()
    claims: tuple[ClaimDescription, ...] = ()


class FetchedOffset(NamedTuple):
    """One partition's offset. `offset` is None where nothing is committed."""

    partition: PartitionId
    offset: int | None
    view: View
    metadata: str
    commit_time_ms: int
    pending_tx_id: TxId
    # The last transaction that moved it; 0: none.
    moved_by: TxId = TxId(0)


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
    members: int
    state: GroupState
