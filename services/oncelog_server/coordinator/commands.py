"""What the coordinator can be asked, what it is told, and what it answers. PURE.

Commands are decided and may be journaled; signals only change volatile state. A command is checked
for its shape before it gets here (`wire`): sizes are in range, a manifest names each part once.

What the outside has against a command (a topic that is gone, a full disk) it carries along, as
`unfit`: `decide` raises it, but only where the request is new. One that is known gets its old
answer whatever has happened since (docs/protocol.md, "Known requests first").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple

import msgspec

from oncelog_server.coordinator.values import (
    AbortCause,
    CommitSeq,
    Manifest,
    OneShotBatch,
    OneShotOffsets,
    Refusal,
)
from oncelog_server.core.ids import Generation, JournalOffset, PartitionId, ProducerId, TxId
from oncelog_server.core.machine import Tick
from oncelogpb.errors import OncelogError

# ------------------------------------------------------------------------------------- commands


class ProducerIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Who asks: a producer and the generation it holds."""

    producer_id: ProducerId
    generation: Generation


class InitProducer(msgspec.Struct, frozen=True):
    """Reply: ProducerGranted."""

    group: str
    # "": unnamed.
    name: str
    instance_id: bytes
    # Identity of who asks, by his certificate; "" without TLS.
    owner: str = ""
    # What the caller held before, and may have lost to somebody meanwhile. 0: nothing.
    held: Generation = Generation(0)


class BeginTransaction(msgspec.Struct, frozen=True):
    """Reply: BeginAnswer."""

    producer: ProducerIdentity
    request_id: int
    # 0: the default.
    timeout_ms: int = 0
    commit_seq: CommitSeq | None = None
    parts: tuple[PartitionId, ...] = ()
    unfit: OncelogError | None = None


class CommitTransaction(msgspec.Struct, frozen=True):
    """Reply: CommitAnswer | Elsewhere. `begin_next`'s producer is the one of the commit."""

    tx_id: TxId
    producer: ProducerIdentity
    manifest: Manifest
    commit_seq: CommitSeq | None = None
    begin_next: BeginTransaction | None = None
    unfit: OncelogError | None = None


class AbortTransaction(msgspec.Struct, frozen=True):
    """Reply: AbortAnswer | Elsewhere."""

    tx_id: TxId
    # None: an operator's.
    producer: ProducerIdentity | None
    parts: tuple[PartitionId, ...] = ()
    unfit: OncelogError | None = None


class Transact(msgspec.Struct, frozen=True):
    """Reply: TransactAnswer."""

    producer: ProducerIdentity
    request_number: int
    batches: tuple[OneShotBatch, ...]
    offsets: OneShotOffsets | None = None
    commit_seq: CommitSeq | None = None
    unfit: OncelogError | None = None
    # The request number with which its chain begins; 0: of no chain.
    chain_first: int = 0


class FindOneShot(msgspec.Struct, frozen=True):
    """What became of a Transact whose answer was lost. Changes nothing. Reply: FoundOneShot."""

    producer: ProducerIdentity
    request_number: int


class AnswerOffsets(msgspec.Struct, frozen=True):
    """What the offset manager said about a staged one-shot. Reply: the TxIds that are decided."""

    tx_id: TxId
    # None: the offsets are pending.
    refusal: Refusal | None


class ProveLogEnd(msgspec.Struct, frozen=True):
    """Participants ask about TxIds above the log end. Reply: None."""


class FinishTransactions(msgspec.Struct, frozen=True):
    """Every participant of these has acknowledged. Reply: None."""

    tx_ids: tuple[TxId, ...]


Command = (
    InitProducer
    | BeginTransaction
    | CommitTransaction
    | AbortTransaction
    | Transact
    | FindOneShot
    | AnswerOffsets
    | ProveLogEnd
    | FinishTransactions
    | Tick
)

# -------------------------------------------------------------------------------------- signals


class MarkerStatus(IntEnum):
    """The numbers of oncelogpb.v1.MarkerResult.Status."""

    APPLIED = 1
    DAMAGED = 2
    GONE = 3


class Exposure(NamedTuple):
    """Where the records of one part became readable."""

    partition: PartitionId
    writer: int
    first_offset: int
    record_count: int
    damaged: bool = False
    # Came too late to belong to the transaction, and was dropped.
    surplus_records: int = 0


class MarkerAnswer(NamedTuple):
    """A participant's acknowledgement of one marker."""

    tx_id: TxId
    status: MarkerStatus
    exposed: Sequence[Exposure] = ()


class MarkersSent(NamedTuple):
    """A group of markers is under way: the participant is owed nothing until it is answered."""

    participant: PartitionId


class MarkersAnswered(NamedTuple):
    """The answer to the group that is under way; without results after a failure."""

    participant: PartitionId
    results: Sequence[MarkerAnswer] = ()
    # It answered DISK_FULL: one-shots to it are refused until it takes markers again.
    disk_full: bool = False


class OffsetsSent(NamedTuple):
    """A staged one-shot's offsets are under way to the offset manager, until it answers."""

    tx_id: TxId


class FinishPlanned(NamedTuple):
    """FinishTransactions will be asked for these, a little later: they are owed no more."""

    tx_ids: Sequence[TxId]


class PartitionAsked(NamedTuple):
    """A participant's question: it takes part, and so many bytes came since it last asked."""

    tx_id: TxId
    producer: ProducerIdentity
    partition: PartitionId
    bytes_received: int


class UnbornAsked(NamedTuple):
    """A participant's question about a TxId at or above the log end."""

    tx_id: TxId
    producer: ProducerIdentity
    partition: PartitionId


class UnbornTold(NamedTuple):
    """It was answered: NEVER."""

    tx_id: TxId
    producer: ProducerIdentity
    partition: PartitionId


class SessionOpened(NamedTuple):
    """A producer holds its session on this stream."""

    producer: ProducerIdentity
    stream_id: int


class SessionEnded(NamedTuple):
    """The stream of a session ended. Ignored where the producer has moved to another."""

    producer: ProducerIdentity
    stream_id: int


# -------------------------------------------------------------------------------------- answers


class ProducerGranted(NamedTuple):
    """INIT is durable, and all that was open of older generations is decided."""

    producer: ProducerIdentity
    # 0: none.
    last_committed: TxId
    last_committed_visible: bool
    last_commit_seq: CommitSeq | None


class BeginResult(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    ALREADY_COMMITTED = "already committed"


class BeginAnswer(NamedTuple):
    """What a request id leads to."""

    result: BeginResult
    # 0 with ALREADY_COMMITTED.
    tx_id: TxId = TxId(0)
    cause: AbortCause = AbortCause.NONE


class CommitAnswer(NamedTuple):
    """Decided to commit; or committed before under this commit_seq. With `begin_next`, either
    `next` or `next_refusal` is there."""

    already_committed: bool = False
    # Every participant has acknowledged.
    visible: bool = False
    next: BeginAnswer | None = None
    # Why nothing begins. It says nothing about the commit.
    next_refusal: OncelogError | None = None


class Elsewhere(Enum):
    """The machine does not keep the transaction: it ended, or there never was one. An outcome is
    read from the outcome file by the service, not by `decide`, which knows the state alone."""

    ELSEWHERE = "elsewhere"


ELSEWHERE: Final = Elsewhere.ELSEWHERE


class AbortAnswer(NamedTuple):
    """Decided to abort."""

    cause: AbortCause


class TransactAnswer(NamedTuple):
    """Of a one-shot. STAGED is no answer for a client: wait for the decision, then ask again."""

    tx_id: TxId
    staged: bool = False
    already_committed: bool = False
    visible: bool = False
    # Its request number was known: this is the old answer.
    duplicate: bool = False


class FoundOneShot(NamedTuple):
    """Of a request number that was accepted."""

    # 0: it has none, or nobody knows it any more.
    tx_id: TxId
    already_committed: bool = False
    forgotten: bool = False


# ----------------------------------------------------------------------------------------- owed


class OwedMarker(NamedTuple):
    """One outcome for one participant."""

    tx_id: TxId
    prepare_offset: JournalOffset
    committed: bool
    producer: ProducerIdentity
    # (writer, record count)
    parts: Iterable[tuple[int, int]]
    batch: OneShotBatch | None


class OweMarkers(NamedTuple):
    """All markers that are due at one participant, in PREPARE order."""

    participant: PartitionId
    markers: Sequence[OwedMarker]


class OweOffsets(NamedTuple):
    """Offsets of a staged one-shot, to be made pending at the offset manager."""

    tx_id: TxId
    producer: ProducerIdentity
    offsets: OneShotOffsets
    # Of each partition of these offsets: the producer's latest one-shot with an offset of it that
    # is decided COMMIT and not known to be visible. `from` may chain on it. Not named: none.
    after: Mapping[PartitionId, TxId]


class OweDecision(NamedTuple):
    """A staged one-shot that needs no word of the offset manager, and whose turn has come. It is
    decided together with the one before it, but a crash can lose the later of two records."""

    tx_id: TxId


class OweFinish(NamedTuple):
    """Transactions that every participant has acknowledged: journal that they are over."""

    tx_ids: Sequence[TxId]


Owed = OweMarkers | OweOffsets | OweDecision | OweFinish
