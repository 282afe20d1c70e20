"""What coordinators bring to every participant, how it answers, and what it asks them back. PURE.

    coordinator ── WriteMarkers ─────► MarkersWritten ──► coordinator
    coordinator ◄── Question ──────── Questions ◄──────── Look, Asked, Answered, LeaderMoved
    coordinator ── HearVerdicts ─────► local aborts

A command is checked for its shape before it gets here (`wire`); a participant's machine decides
what depends on state.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

import msgspec

from oncelog_server.core.frame import Frame
from oncelog_server.core.ids import (
    Generation,
    JournalOffset,
    LeaderEpoch,
    Offset,
    ProducerId,
    TxId,
    Writer,
)
from oncelogpb.errors import OncelogError

# --------------------------------------------------------------------------------------- markers


class Outcome(Enum):
    """What a marker says."""

    COMMITTED = "committed"
    ABORTED = "aborted"


class WriterPart(NamedTuple):
    """What one writer must have written here, says the manifest."""

    writer: Writer
    record_count: int


class Marker(msgspec.Struct, frozen=True):
    """The outcome of one transaction."""

    tx_id: TxId
    # Journal offset of its PREPARE record in the coordinator's partition.
    prepare_offset: JournalOffset
    outcome: Outcome
    producer_id: ProducerId
    generation: Generation
    # COMMITTED: what must stand here, in the order in which it is exposed.
    parts: tuple[WriterPart, ...] = ()
    # A one-shot transaction: its records, as an ONE_SHOT frame without its marker's place.
    batch: Frame | None = None


class WriteMarkers(msgspec.Struct, frozen=True):
    """Markers of one journal partition, ascending by PREPARE offset. Reply: MarkersWritten."""

    journal_partition: int
    coordinator_epoch: LeaderEpoch
    markers: tuple[Marker, ...]


class Exposed(NamedTuple):
    """Where one part became readable."""

    writer: int
    first_offset: Offset
    record_count: int
    # Of the writer, behind what the manifest counts: dropped.
    surplus_records: int = 0


class MarkerStatus(Enum):
    """What became of a marker."""

    APPLIED = "applied"
    DAMAGED = "damaged"


class MarkerResult(NamedTuple):
    """One marker, applied now or before. `exposed` of a repeat may be forgotten."""

    tx_id: TxId
    status: MarkerStatus
    exposed: tuple[Exposed, ...] = ()
    # It was applied before: nothing was written.
    repeated: bool = False


class MarkersWritten(NamedTuple):
    """The markers up to the first refusal; those behind it were not looked at: applied, they would
    make the refused one look like a repeat."""

    results: tuple[MarkerResult, ...]
    refusal: OncelogError | None = None


# ------------------------------------------------------------------------------------- questions


class Verdict(Enum):
    """What the coordinator answered about a TxId that is open here (docs/protocol.md,
    "Questions"). The words stand in journals and logs."""

    LATER = "later"
    ONGOING = "ongoing"
    COMMITTED_WITH_YOU = "committed with this partition"
    COMMITTED_WITHOUT_YOU = "committed without this partition"
    ABORTED = "aborted"
    EXPIRED = "expired"
    NEVER = "never began"


# Only these end a transaction here. LATER and silence never do: the coordinator may be a paused one
# that does not know what its successor began. COMMITTED_WITH_YOU means that a marker is on its way.
FINAL_VERDICTS: Final = frozenset(
    {Verdict.COMMITTED_WITHOUT_YOU, Verdict.ABORTED, Verdict.EXPIRED, Verdict.NEVER}
)


class Heard(NamedTuple):
    """A verdict, and whom the question named: it says nothing about anybody else who may have
    opened the TxId here meanwhile."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    verdict: Verdict


class HearVerdicts(msgspec.Struct, frozen=True):
    """What the coordinator answered to questions. Reply: how many were aborted here."""

    verdicts: tuple[Heard, ...]


class Question(NamedTuple):
    """Owed: ask the coordinator what became of a transaction that is open here."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    # Since the last question that was answered: a sign of life.
    bytes_received: int


class Look(msgspec.Struct, frozen=True):
    """Signal: time passed, questions may have become due."""


class Asked(msgspec.Struct, frozen=True):
    """Signal: these questions were sent, answered or not. They are due again later."""

    questions: tuple[Question, ...]


class Answered(msgspec.Struct, frozen=True):
    """Signal: the coordinator has heard what these questions said."""

    questions: tuple[Question, ...]


class LeaderMoved(msgspec.Struct, frozen=True):
    """Signal: another coordinator leads these journal partitions. Ask it at once."""

    journal_partitions: frozenset[int]


Signal = Look | Asked | Answered | LeaderMoved
