"""What the offset manager remembers, and its codec to frames. PURE.

Every record is a RECORD frame whose payload is tagged msgpack. A field is only ever added at the
end, with a default; a change of what `apply` makes of a record is a new record.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from services.core.frame import Frame, Kind
from services.core.ids import Generation, LeaderEpoch, ProducerId, TxId
from services.offset_manager.commands import OffsetCommit
from services.participant.commands import Outcome


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
    prepare_offset: int
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
)

_DECODER: Final[msgspec.msgpack.Decoder[Record]] = msgspec.msgpack.Decoder(Record)
_ENCODER: Final = msgspec.msgpack.Encoder()


class OffsetManagerCodec:
    """Records as RECORD frames. `decode(encode(record)) == record`."""

    def encode(self, record: Record) -> Frame:
        return Frame(Kind.RECORD, _ENCODER.encode(record))

    def decode(self, frame: Frame) -> Record:
        """Raises ValueError for a frame of another kind or a payload of another format."""
        if frame.kind is not Kind.RECORD:
            raise ValueError(f"a journal of {frame.kind.name} frames is not an offset manager's")
        return _DECODER.decode(frame.payload)
