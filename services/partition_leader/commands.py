"""What a partition can be asked, what it answers, and the signals that touch only its memory. PURE.

A command is checked for its shape before it gets here (`wire`): payloads match their CRC and
counts, one command holds batches of one producer. The machine decides what depends on state.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from oncelogpb.errors import OncelogError
from services.core.frame import Frame
from services.core.ids import Generation, LeaderEpoch, ProducerId, TxId, Writer
from services.core.machine import Tick


class Outcome(Enum):
    """What a marker says."""

    COMMITTED = "committed"
    ABORTED = "aborted"


class Resolution(Enum):
    """What an operator wants done with a damaged part."""

    DROP = "drop"
    EXPOSE = "expose"


class Verdict(Enum):
    """What the coordinator answered about a TxId that is open here (design §6)."""

    LATER = "later"
    ONGOING = "ongoing"
    COMMITTED_WITH_YOU = "committed with you"
    COMMITTED_WITHOUT_YOU = "committed without you"
    ABORTED = "aborted"
    EXPIRED = "expired"
    NEVER = "never"


# Only these end a transaction here. LATER and silence never do (why.md: "an answer 'unknown /
# ended' only below the HW"), and COMMITTED_WITH_YOU means that a marker is on its way.
FINAL_VERDICTS = frozenset(
    {Verdict.COMMITTED_WITHOUT_YOU, Verdict.ABORTED, Verdict.EXPIRED, Verdict.NEVER}
)


class WriterPart(NamedTuple):
    """What one writer must have written here, says the manifest."""

    writer: Writer
    record_count: int


# ------------------------------------------------------------------------------------- commands


class Produce(msgspec.Struct, frozen=True):
    """DATA frames of one producer (and TxId, and writer), in sequence order.

    Reply: tuple[Placed | OncelogError, ...], one per batch.
    """

    batches: tuple[Frame, ...]


class Marker(msgspec.Struct, frozen=True):
    """The outcome of one transaction."""

    tx_id: TxId
    # Journal offset of its PREPARE record in the coordinator's partition.
    prepare_offset: int
    outcome: Outcome
    producer_id: ProducerId
    generation: Generation
    # COMMITTED: what must stand here, in the order in which it is exposed.
    parts: tuple[WriterPart, ...] = ()
    # A one-shot transaction: its records. `records.one_shot` makes the frame of it.
    batch: Frame | None = None


class WriteMarkers(msgspec.Struct, frozen=True):
    """Markers of one journal partition, ascending by PREPARE offset. Reply: MarkersWritten."""

    journal_partition: int
    coordinator_epoch: LeaderEpoch
    markers: tuple[Marker, ...]


class HearVerdicts(msgspec.Struct, frozen=True):
    """What the coordinator answered to questions. Reply: how many were aborted here."""

    verdicts: tuple[tuple[TxId, Verdict], ...]


class Resolve(msgspec.Struct, frozen=True):
    """An operator ends a damaged part. Reply: number of records dropped or exposed."""

    tx_id: TxId
    resolution: Resolution


Command = Produce | WriteMarkers | HearVerdicts | Resolve | Tick


# -------------------------------------------------------------------------------------- replies


class Placed(NamedTuple):
    """Where a batch stands."""

    # Of its first record.
    journal_offset: int
    # Plain: of its first record in the committed log. None: the marker will decide.
    offset: int | None
    # A repeat: nothing was appended, the positions are the original ones.
    duplicate: bool = False


class Exposed(NamedTuple):
    """Where one part became readable."""

    writer: int
    first_offset: int
    record_count: int


class MarkerStatus(Enum):
    """What became of a marker."""

    APPLIED = "applied"
    DAMAGED = "damaged"


class MarkerResult(NamedTuple):
    """One marker, applied now or before. `exposed` of a repeat may be forgotten."""

    tx_id: TxId
    status: MarkerStatus
    exposed: tuple[Exposed, ...] = ()


class MarkersWritten(NamedTuple):
    """The markers up to the first refusal; those behind it were not looked at (why.md: "a batch of
    markers stops at its first refusal")."""

    results: tuple[MarkerResult, ...]
    refusal: OncelogError | None = None


# -------------------------------------------------------------------------------------- signals


class Look(msgspec.Struct, frozen=True):
    """Time passed: questions may have become due."""


class Asked(msgspec.Struct, frozen=True):
    """These questions were sent, answered or not: due again later."""

    tx_ids: tuple[TxId, ...]


class LeaderMoved(msgspec.Struct, frozen=True):
    """Another coordinator leads these journal partitions: ask it at once."""

    journal_partitions: frozenset[int]


class Question(NamedTuple):
    """Owed: ask the coordinator what became of a transaction that is open here."""

    tx_id: TxId
    producer_id: ProducerId
    generation: Generation
    # Since it was last asked about: a sign of life.
    bytes_received: int
