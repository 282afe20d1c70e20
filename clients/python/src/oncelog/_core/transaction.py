"""The states of one transaction as its client sees them, and what the commit must say.

    state        event     next         what the caller does on entering
    ─────────────────────────────────────────────────────────────────────────────────────────────
    BUFFERING    BEGIN     OPENING      BeginTransaction: it overflowed, or tx.flush() was called
    BUFFERING    ADOPT     OPEN         nothing: the previous commit began it (begin_next)
    BUFFERING    COMMIT    ONE_SHOT     Transact: everything in one message
    BUFFERING    DROP      ABORTED      nothing: no server has heard of it
    OPENING      OPENED    OPEN         sends what is buffered
    OPENING      KNOWN     COMMITTED    drops all: an earlier run committed this commit_seq
    OPEN         COMMIT    COMMITTING   drains, then CommitTransaction with the manifest
    OPENING, OPEN, COMMITTING, ONE_SHOT
                 SPOIL     SPOILED      AbortTransaction where a TxId is known; the error is kept
    SPOILED      OPENED    SPOILED      what was under way is open: its TxId is kept for the abort
    ONE_SHOT     OUTGROW   BUFFERING    nothing: it is too much for one message; it begins now
    ONE_SHOT, COMMITTING
                 DECIDE    COMMITTED    advances the consumer
    ONE_SHOT, COMMITTING
                 LOSE      IN_DOUBT     tells the user; positions are asked of the group again
    IN_DOUBT     DECIDE    COMMITTED    nothing: one thread gave it up, another got the answer
    OPENING, OPEN, SPOILED
                 DROP      ABORTED      rewinds the consumer

A small transaction opens lazily, i.e. never: it is buffered and goes as one `Transact` at its end:
one message instead of three. It needs Begin as soon as it holds more than the one-shot limits.

Left out: records (`batching`), sequences (`sequencing`), positions (`positions`), the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from oncelog._core.batching import Sealed
from oncelog._core.routing import PartitionKey
from oncelogpb import errors
from oncelogpb.v1 import types_pb2

# Limits of Transact, as a coordinator has them by default: all payloads together, as they are sent
# and once they are loaded (a compressed one grows), and partitions.
ONE_SHOT_BYTES_MAX: Final = 1024 * 1024
ONE_SHOT_LOADED_BYTES_MAX: Final = 4 * 1024 * 1024
ONE_SHOT_PARTITIONS_MAX: Final = 64
# Payloads of a Transact where one transaction is on its way at a time: what is larger goes to the
# leaders itself, which spares the coordinator, through which it would go besides.
ONE_SHOT_ALONE_BYTES_MAX: Final = 256 * 1024
# What a coordinator says that has lower ones. Nothing happened then: it may begin, and go in parts.
ONE_SHOT_LIMITS: Final = frozenset(
    {"one_shot_bytes_max", "one_shot_decompressed_bytes_max", "one_shot_partitions_max"}
)
# An adopted transaction (begin_next) that is older than this part of its timeout is not trusted.
ADOPT_WITHIN: Final = 0.5
# Idle timeout of a transaction where the coordinator does not say, milliseconds.
DEFAULT_TIMEOUT_MS: Final = 60_000
# Parts that a manifest may name: what a coordinator takes by default.
MANIFEST_PARTS_MAX: Final = 100_000


class State(Enum):
    BUFFERING = "buffering"
    OPENING = "opening"
    OPEN = "open"
    ONE_SHOT = "one shot"
    COMMITTING = "committing"
    SPOILED = "spoiled"
    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_DOUBT = "in doubt"


class Event(Enum):
    BEGIN = "begin"
    ADOPT = "adopt"
    OPENED = "opened"
    KNOWN = "know"
    COMMIT = "commit"
    DECIDE = "decide"
    SPOIL = "spoil"
    LOSE = "lose"
    OUTGROW = "outgrow"
    DROP = "drop"


TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.BUFFERING: {
        Event.BEGIN: State.OPENING,
        Event.ADOPT: State.OPEN,
        Event.COMMIT: State.ONE_SHOT,
        Event.SPOIL: State.SPOILED,
        Event.DROP: State.ABORTED,
    },
    State.OPENING: {
        Event.OPENED: State.OPEN,
        Event.KNOWN: State.COMMITTED,
        Event.SPOIL: State.SPOILED,
        Event.DROP: State.ABORTED,
    },
    State.OPEN: {
        Event.COMMIT: State.COMMITTING,
        Event.SPOIL: State.SPOILED,
        Event.DROP: State.ABORTED,
    },
    State.ONE_SHOT: {
        Event.OUTGROW: State.BUFFERING,
        Event.DECIDE: State.COMMITTED,
        Event.SPOIL: State.SPOILED,
        Event.LOSE: State.IN_DOUBT,
    },
    State.COMMITTING: {
        Event.DECIDE: State.COMMITTED,
        Event.SPOIL: State.SPOILED,
        Event.LOSE: State.IN_DOUBT,
    },
    State.SPOILED: {
        Event.SPOIL: State.SPOILED,
        Event.OPENED: State.SPOILED,
        Event.DROP: State.ABORTED,
    },
    State.COMMITTED: {},
    State.ABORTED: {},
    State.IN_DOUBT: {Event.DECIDE: State.COMMITTED},
}

ENDED: Final = frozenset({State.COMMITTED, State.ABORTED, State.IN_DOUBT})
# The decision was asked for.
DECIDING: Final = frozenset({State.ONE_SHOT, State.COMMITTING})
# States in which users may still send.
TAKES_RECORDS: Final = frozenset({State.BUFFERING, State.OPENING, State.OPEN})


class WriterPart(NamedTuple):
    """What one writer wrote to one partition."""

    partition: PartitionKey
    writer: int
    record_count: int


@dataclass(slots=True)
class TransactionCore:
    """One transaction. Invariant: `tx_id` is known from OPENED or ADOPT on, of a one-shot from its
    reply on; `spoiled_by` is set exactly in SPOILED and after it."""

    state: State = State.BUFFERING
    tx_id: int = 0
    spoiled_by: BaseException | None = None
    # Partitions of `__consumer_offsets` that got offsets under this TxId.
    offset_participants: set[PartitionKey] = field(default_factory=set)

    def on(self, event: Event) -> State:
        """Takes a step of the table; an impossible one raises AssertionError."""
        following = TRANSITIONS[self.state].get(event)
        assert following is not None, f"a {self.state.value} transaction cannot {event.value}"
        self.state = following
        return following

    def opened(self, tx_id: int, event: Event) -> None:
        """OPENED or ADOPT, with the TxId."""
        assert event in (Event.OPENED, Event.ADOPT)
        assert tx_id != 0, "TxId 0 means none"
        self.on(event)
        self.tx_id = tx_id

    def spoil(self, error: BaseException) -> None:
        """Keeps the first error: it is the cause of the others."""
        self.on(Event.SPOIL)
        if self.spoiled_by is None:
            self.spoiled_by = error

    def require_open(self) -> None:
        """Raises what spoiled it, or InvalidArgument where it has ended."""
        if self.state in TAKES_RECORDS:
            return
        if self.spoiled_by is not None:
            raise self.spoiled_by
        raise errors.InvalidArgument(
            f"this transaction is {self.state.value}: begin another", field="transaction"
        )

    def refuse_records(self) -> None:
        """Raises why nothing may be sent any more: what spoiled it, or that it ends."""
        self.require_open()
        raise errors.InvalidArgument("this transaction is ending: begin another")


def one_shot_bytes_max(in_flight: int) -> int:
    """Payloads that go as one Transact, bytes, where so many transactions of a producer may be on
    their way. Only such ones can be, so there more of them are worth their way through the
    coordinator."""
    return ONE_SHOT_BYTES_MAX if in_flight > 1 else ONE_SHOT_ALONE_BYTES_MAX


def fits_one_shot(batches: Sequence[tuple[PartitionKey, Sealed]], bytes_max: int) -> bool:
    """May these go as one Transact? One batch per partition, within the limits; `bytes_max` of
    payloads."""
    partitions = {partition for partition, _ in batches}
    return (
        len(partitions) == len(batches)
        and len(partitions) <= ONE_SHOT_PARTITIONS_MAX
        and sum(len(sealed.payload) for _, sealed in batches) <= bytes_max
        and sum(sealed.loaded_bytes for _, sealed in batches) <= ONE_SHOT_LOADED_BYTES_MAX
    )


def manifest_of(
    parts: Iterable[WriterPart], offset_participants: Iterable[PartitionKey] = ()
) -> types_pb2.Manifest:
    """All parts, packed by topic, in order of topic id, partition and writer; offset partitions
    without writer and count. Raises ManifestMismatch where a part is named twice, LimitExceeded."""
    rows = sorted([*parts, *(WriterPart(partition, 0, 0) for partition in offset_participants)])
    if len(rows) > MANIFEST_PARTS_MAX:
        raise errors.LimitExceeded(
            f"a manifest of {len(rows)} parts is above manifest_parts_max = {MANIFEST_PARTS_MAX}",
            limit="manifest_parts_max",
        )
    manifest = types_pb2.Manifest()
    topic: types_pb2.Manifest.Topic | None = None
    previous: WriterPart | None = None
    for row in rows:
        if previous is not None and row[:2] == previous[:2]:
            raise errors.ManifestMismatch(f"partition {row.partition.number} is named twice")
        if topic is None or topic.topic_id != row.partition.topic_id:
            topic = manifest.topics.add(topic_id=row.partition.topic_id)
        topic.partition.append(row.partition.number)
        topic.writer.append(row.writer)
        topic.record_count.append(row.record_count)
        previous = row
    return manifest


class Adopted(NamedTuple):
    """A transaction that a commit's begin_next opened, or may have: the TxId (0: no answer came,
    the request id tells), the moment (ms, monotonic) at which, the idle timeout that was asked for,
    and the one that the coordinator holds it to."""

    tx_id: int
    request_id: int
    since_ms: int
    asked_timeout_ms: int
    timeout_ms: int

    def serves(self, now_ms: int, wanted_ms: int) -> bool:
        """May one of this timeout use it? Not where it is stale, or was begun with another."""
        fresh = now_ms - self.since_ms < wanted_ms * ADOPT_WITHIN
        return fresh and wanted_ms == self.timeout_ms


@dataclass(slots=True)
class ProducerCore:
    """The numbers of one transactional producer within one generation.

    Request ids (Begin, begin_next) grow; request numbers (Transact) are consecutive from 1. A
    request that was refused before it was journaled did not use its number: the coordinator then
    says which one it expects, and that one is taken.
    """

    producer_id: int
    generation: int
    next_request_id: int = 1
    next_request_number: int = 1
    default_timeout_ms: int = DEFAULT_TIMEOUT_MS
    adopted: Adopted | None = None
    # Of several in flight: the request number with which their chain begins, once that one was
    # answered. 0: the next one begins a chain, and goes alone.
    chain_first: int = 0

    def wire(self) -> types_pb2.Producer:
        return types_pb2.Producer(producer_id=self.producer_id, generation=self.generation)

    def take_request_id(self) -> int:
        taken = self.next_request_id
        self.next_request_id += 1
        return taken

    def take_request_number(self) -> int:
        taken = self.next_request_number
        self.next_request_number += 1
        return taken

    def expect_request_number(self, error: errors.OutOfOrderSequence) -> bool:
        """The coordinator expects a number below ours: an earlier request never got its number.
        True: the same request may go under `take_request_number()`."""
        expected = error.metadata.get("expected", "")
        if not expected.isdigit() or int(expected) >= self.next_request_number - 1:
            return False
        self.next_request_number = int(expected)
        return True

    def keep_adopted(self, tx_id: int, request_id: int, now_ms: int, timeout_ms: int) -> None:
        """`tx_id` 0: nobody said whether it is open."""
        kept_ms = timeout_ms or self.default_timeout_ms
        self.adopted = Adopted(tx_id, request_id, now_ms, timeout_ms, kept_ms)

    def take_adopted(self) -> Adopted | None:
        """The transaction that may be open already, once: it is used or ended by whoever takes
        it."""
        adopted, self.adopted = self.adopted, None
        return adopted
