"""What the offset manager remembers; frames by `core.records`. PURE."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from oncelog_server.core.age import TimePassed
from oncelog_server.core.ids import Generation, JournalOffset, LeaderEpoch, ProducerId, TxId
from oncelog_server.core.records import RecordCodec
from oncelog_server.offset_manager.commands import OffsetCommit
from oncelog_server.participant.commands import Outcome


class Why(Enum):
    """Why a group is forgotten."""

    DELETED = "deleted"
    EXPIRED = "expired"


class OffsetsCommitted(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """A plain commit."""

    group: str
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


Record = (
    OffsetsCommitted
    | OffsetsPending
    | TransactionMarked
    | TransactionDropped
    | GroupsForgotten
    | ProducersForgotten
    | TimePassed
)

_DECODER: Final[msgspec.msgpack.Decoder[Record]] = msgspec.msgpack.Decoder(Record)
CODEC: Final = RecordCodec(_DECODER, whose="an offset manager's")
