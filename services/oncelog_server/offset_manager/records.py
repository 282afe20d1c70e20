"""What the offset manager remembers; frames by `core.records`. PURE."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from oncelog_server.core.age import TimePassed
from oncelog_server.core.ids import (
    Generation,
    JournalOffset,
    LeaderEpoch,
    ProducerId,
    TopicId,
    TxId,
)
from oncelog_server.core.records import RecordCodec
from oncelog_server.offset_manager.commands import Claim, GroupTopic, OffsetCommit
from oncelog_server.participant.commands import Outcome


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A member of a group, as it described itself."""

    member_id: str
    # Of a static member; "": it has none.
    instance_id: str
    # Names of topics, in order.
    subscribed: tuple[str, ...]
    # "": it does not mind.
    assignor: str
    session_timeout_ms: int
    # For operators.
    client_id: str = ""
    host: str = ""


class Parting(Enum):
    """How a member ended."""

    LEFT = "left"
    EXPIRED = "expired"
    REMOVED = "removed"
    # Another process came with its instance id.
    REPLACED = "replaced"


class MemberGone(msgspec.Struct, frozen=True, array_like=True):
    """A member is none any more."""

    member_id: str
    how: Parting
    # Of REPLACED: who holds from now on what it held.
    successor: str = ""


class Share(msgspec.Struct, frozen=True, array_like=True):
    """Partitions of one topic, for one member; "": for nobody."""

    member_id: str
    topic_id: TopicId
    numbers: tuple[int, ...]


class Why(Enum):
    """Why a group is forgotten."""

    DELETED = "deleted"
    EXPIRED = "expired"


class OffsetsCommitted(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """A plain commit."""

    group: str
    offsets: tuple[OffsetCommit, ...]
    # "": standalone.
    member_id: str = ""


class OffsetsReset(msgspec.Struct, frozen=True, array_like=True, tag="reset"):
    """An operator has a group go on from elsewhere."""

    group: str
    reset_id: bytes
    offsets: tuple[OffsetCommit, ...]


class OffsetsPending(msgspec.Struct, frozen=True, array_like=True, tag="pending"):
    """Offsets under a transaction: checked, locked, decided by its marker."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    group: str
    offsets: tuple[OffsetCommit, ...]


class TransactionMarked(msgspec.Struct, frozen=True, array_like=True, tag="marker"):
    """The coordinator's outcome of a transaction."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    outcome: Outcome
    prepare_offset: JournalOffset
    coordinator_epoch: LeaderEpoch


class TransactionDropped(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """A local abort, after the coordinator's verdict about an unanswered TxId."""

    tx_id: TxId
    verdict: str


class GroupsForgotten(msgspec.Struct, frozen=True, array_like=True, tag="forget-groups"):
    """Committed offsets of these groups are gone."""

    groups: tuple[str, ...]
    why: Why


class ProducersForgotten(msgspec.Struct, frozen=True, array_like=True, tag="forget-producers"):
    """Fences and last commits of producers whose last transaction here ended long ago."""

    producer_ids: tuple[ProducerId, ...]


class MembershipChanged(msgspec.Struct, frozen=True, array_like=True, tag="members"):
    """Who is a member of a group, and who shall own what: the outcome, whatever assignor found it.

    The generation of the group is from now on the place of this record.
    """

    group: str
    # Who joined, or described itself anew.
    members: tuple[Member, ...] = ()
    gone: tuple[MemberGone, ...] = ()
    # New or changed; by name, without partitions: gone.
    topics: tuple[GroupTopic, ...] = ()
    # Only what is the target of somebody else than before, beside what those who are gone had.
    targets: tuple[Share, ...] = ()


class PartitionsReleased(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """A member let go of these. The generation of the group is the place of this record."""

    group: str
    shares: tuple[Share, ...]


class GroupClaimed(msgspec.Struct, frozen=True, array_like=True, tag="claim"):
    """From now on nobody may join the group. A claim of the same id is replaced."""

    group: str
    claim: Claim


class ClaimsEnded(msgspec.Struct, frozen=True, array_like=True, tag="unclaim"):
    """Released, or not renewed."""

    group: str
    claim_ids: tuple[str, ...]


class GroupsAlive(msgspec.Struct, frozen=True, array_like=True, tag="groups-alive"):
    """These groups have members, or claims, and count as changed now."""

    groups: tuple[str, ...]


Record = (
    OffsetsCommitted
    | OffsetsReset
    | OffsetsPending
    | TransactionMarked
    | TransactionDropped
    | GroupsForgotten
    | ProducersForgotten
    | MembershipChanged
    | PartitionsReleased
    | GroupClaimed
    | ClaimsEnded
    | GroupsAlive
    | TimePassed
)

_DECODER: Final[msgspec.msgpack.Decoder[Record]] = msgspec.msgpack.Decoder(Record)
CODEC: Final = RecordCodec(_DECODER, whose="an offset manager's")
