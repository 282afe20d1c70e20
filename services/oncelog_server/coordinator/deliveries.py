"""Markers on their way: per participant in PREPARE order, at most one group unacknowledged. PURE.

Built from the decided transactions by `apply`, live and at recovery alike; acknowledgements are
volatile: a new leader sends again, and participants know a repeat by its PREPARE offset.

Invariants:
  * a participant's queue is ascending by PREPARE offset;
  * a participant whose group is under way is owed nothing more until that is answered: were
    T1 @2 and T2 @5 on their way at once, and 5 came first, 2 would be taken for a repeat;
  * asking what is due costs what is due: participants under way are not looked at.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from oncelog_server.coordinator.commands import (
    Exposure,
    MarkerAnswer,
    MarkersAnswered,
    MarkerStatus,
    OwedMarker,
    OweMarkers,
)
from oncelog_server.coordinator.transactions import State, Transaction
from oncelog_server.coordinator.values import OneShotBatch, WriterParts
from oncelog_server.core.ids import JournalOffset, PartitionId, ProducerId, TxId

# Of one group. A single larger marker goes alone.
MARKERS_PER_GROUP_MAX: Final = 1_000
GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
# So much payload of one-shots is worth a message of its own.
WORTH_A_MESSAGE_BYTES: Final = 1024 * 1024
# What a marker and a part take on the wire, about.
MARKER_BYTES: Final = 64
PART_BYTES: Final = 20
# Visible transactions whose exposures are remembered for a repeated wait=VISIBLE, and their parts
# in all: one transaction may have very many.
EXPOSURES_KEPT: Final = 10_000
EXPOSED_PARTS_KEPT: Final = 20_000


class Delivered(NamedTuple):
    """A transaction that all participants have acknowledged."""

    exposed: Sequence[Exposure]
    # Sorted.
    damaged: Sequence[PartitionId]


class _Entry(NamedTuple):
    prepare_offset: JournalOffset
    tx_id: TxId
    size_bytes: int


@dataclass(slots=True)
class _Queue:
    """Markers for one participant. Dead entries, of what is acknowledged, are skipped."""

    entries: deque[_Entry] = field(default_factory=deque)
    # Of the living entries.
    count: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class _Undelivered:
    """A decided transaction, and who has not acknowledged it."""

    transaction: Transaction
    parts: dict[PartitionId, WriterParts]
    batches: dict[PartitionId, OneShotBatch]
    waiting: set[PartitionId]
    exposed: list[Exposure] = field(default_factory=list)
    damaged: list[PartitionId] = field(default_factory=list)


class Deliveries:
    """All of one journal partition."""

    def __init__(self) -> None:
        self._queues: dict[PartitionId, _Queue] = {}
        self._undelivered: dict[TxId, _Undelivered] = {}
        # Participants with markers and nothing under way.
        self._ready: dict[PartitionId, None] = {}
        self._under_way: set[PartitionId] = set()
        # Acknowledged by all; and those of them that are still owed their end.
        self._delivered: dict[TxId, _Undelivered] = {}
        self._unplanned: dict[TxId, None] = {}
        self._disk_full: set[PartitionId] = set()
        self._recent: OrderedDict[TxId, Delivered] = OrderedDict()
        self._recent_parts = 0
        # One-shot payload of all that is undelivered.
        self.payload_bytes = 0
        # Markers that are not acknowledged, at all participants.
        self.waiting_markers = 0

    # --------------------------------------------------------------------------------- questions

    @property
    def has_ready(self) -> bool:
        """Somebody has markers and nothing under way."""
        return bool(self._ready)

    @property
    def are_many(self) -> bool:
        """A message would not hold much more than what waits."""
        enough = self.waiting_markers >= MARKERS_PER_GROUP_MAX
        return enough or self.payload_bytes >= WORTH_A_MESSAGE_BYTES

    def due(self, below: JournalOffset) -> Iterator[OweMarkers]:
        for participant in self._ready:
            markers = self._group(participant, below)
            if markers:
                yield OweMarkers(participant, markers)

    def finishable(self, below: JournalOffset) -> list[TxId]:
        """Acknowledged by all, decided below the HW, and nobody plans to journal it yet."""
        delivered = self._delivered
        return [
            tx_id
            for tx_id in self._unplanned
            if delivered[tx_id].transaction.prepare_offset < below
        ]

    def is_visible(self, tx_id: TxId) -> bool:
        """Of a transaction that is decided and not over."""
        return tx_id in self._delivered

    def delivered(self, tx_id: TxId) -> Delivered | None:
        """None where it is not, or was too long ago."""
        known = self._delivered.get(tx_id)
        if known is not None:
            return Delivered(tuple(known.exposed), tuple(sorted(known.damaged)))
        return self._recent.get(tx_id)

    def unacknowledged(self, tx_id: TxId) -> list[PartitionId]:
        known = self._undelivered.get(tx_id)
        return [] if known is None else sorted(known.waiting)

    def first_invisible(
        self, producer_id: ProducerId, upto: JournalOffset
    ) -> tuple[TxId, list[PartitionId]] | None:
        """The earliest that this producer committed, of those with a PREPARE up to there, that
        somebody has not acknowledged; and who. Participants are brought each their own line, so a
        later one may be visible everywhere before it."""
        for tx_id, known in self._undelivered.items():
            transaction = known.transaction
            if transaction.prepare_offset > upto:
                return None
            if transaction.producer_id == producer_id and transaction.is_committed:
                return tx_id, sorted(known.waiting)
        return None

    def backlog(self, participant: PartitionId) -> tuple[int, int]:
        """Markers that wait for a participant, and their bytes."""
        queue = self._queues.get(participant)
        return (0, 0) if queue is None else (queue.count, queue.size_bytes)

    def is_disk_full(self, participant: PartitionId) -> bool:
        return participant in self._disk_full

    def _group(self, participant: PartitionId, below: JournalOffset) -> list[OwedMarker]:
        markers: list[OwedMarker] = []
        size_bytes = 0
        for entry in self._queues[participant].entries:
            if entry.prepare_offset >= below or len(markers) == MARKERS_PER_GROUP_MAX:
                break
            undelivered = self._undelivered.get(entry.tx_id)
            if undelivered is None or participant not in undelivered.waiting:
                continue
            size_bytes += entry.size_bytes
            if markers and size_bytes > GROUP_BYTES_MAX:
                break
            markers.append(_marker(undelivered, participant))
        return markers

    # ------------------------------------------------------------------------------ called by apply

    def add(self, transaction: Transaction) -> None:
        """A PREPARE."""
        parts = transaction.participants()
        batches = {}
        if transaction.state is State.PREPARE_COMMIT:
            batches = {batch.partition: batch for batch in transaction.batches}
        undelivered = _Undelivered(transaction, parts, batches, set(parts))
        if not parts:
            self._became_delivered(transaction.tx_id, undelivered)
            return
        self._undelivered[transaction.tx_id] = undelivered
        for participant in parts:
            self._enqueue(participant, undelivered)

    def remove(self, transaction: Transaction) -> None:
        """It is over: at recovery the acknowledgements themselves are not known."""
        known = self._undelivered.get(transaction.tx_id)
        for participant in sorted(known.waiting) if known is not None else ():
            self._settle(participant, transaction.tx_id)
        delivered = self.delivered(transaction.tx_id)
        del self._delivered[transaction.tx_id]
        self._unplanned.pop(transaction.tx_id, None)
        if delivered is not None and 0 < len(delivered.exposed) <= EXPOSED_PARTS_KEPT:
            self._recent[transaction.tx_id] = delivered
            self._recent_parts += len(delivered.exposed)
            while len(self._recent) > EXPOSURES_KEPT or self._recent_parts > EXPOSED_PARTS_KEPT:
                _, oldest = self._recent.popitem(last=False)
                self._recent_parts -= len(oldest.exposed)

    def _enqueue(self, participant: PartitionId, undelivered: _Undelivered) -> None:
        queue = self._queues.get(participant)
        if queue is None:
            queue = self._queues[participant] = _Queue()
            if participant not in self._under_way:
                self._ready[participant] = None
        transaction = undelivered.transaction
        batch = undelivered.batches.get(participant)
        size_bytes = MARKER_BYTES + PART_BYTES * len(undelivered.parts[participant])
        if batch is not None:
            size_bytes += len(batch.payload)
            self.payload_bytes += len(batch.payload)
        entry = _Entry(transaction.prepare_offset, transaction.tx_id, size_bytes)
        assert not queue.entries or queue.entries[-1].prepare_offset < entry.prepare_offset
        queue.entries.append(entry)
        queue.count += 1
        queue.size_bytes += size_bytes
        self.waiting_markers += 1

    # ------------------------------------------------------------------------------- called by seen

    def sent(self, participant: PartitionId) -> None:
        assert participant not in self._under_way, "one unacknowledged group per participant"
        self._under_way.add(participant)
        self._ready.pop(participant, None)

    def finish_planned(self, tx_ids: Sequence[TxId]) -> None:
        for tx_id in tx_ids:
            self._unplanned.pop(tx_id, None)

    def answered(self, answer: MarkersAnswered) -> None:
        participant = answer.participant
        self._under_way.discard(participant)
        if answer.disk_full:
            self._disk_full.add(participant)
        elif answer.results:
            self._disk_full.discard(participant)
        for result in answer.results:
            self._acknowledge(participant, result)
        if participant in self._queues:
            self._ready[participant] = None

    def _acknowledge(self, participant: PartitionId, result: MarkerAnswer) -> None:
        known = self._undelivered.get(result.tx_id)
        if known is None or participant not in known.waiting:
            return
        known.exposed.extend(result.exposed)
        if result.status is MarkerStatus.DAMAGED:
            known.damaged.append(participant)
        self._settle(participant, result.tx_id)

    def _settle(self, participant: PartitionId, tx_id: TxId) -> None:
        """This participant is done with this transaction."""
        known = self._undelivered[tx_id]
        known.waiting.remove(participant)
        batch = known.batches.get(participant)
        queue = self._queues[participant]
        queue.count -= 1
        self.waiting_markers -= 1
        queue.size_bytes -= MARKER_BYTES + PART_BYTES * len(known.parts[participant])
        if batch is not None:
            queue.size_bytes -= len(batch.payload)
            self.payload_bytes -= len(batch.payload)
        if not known.waiting:
            del self._undelivered[tx_id]
            self._became_delivered(tx_id, known)
        self._prune(participant, queue)

    def _became_delivered(self, tx_id: TxId, known: _Undelivered) -> None:
        self._delivered[tx_id] = known
        self._unplanned[tx_id] = None

    def _prune(self, participant: PartitionId, queue: _Queue) -> None:
        while queue.entries:
            known = self._undelivered.get(queue.entries[0].tx_id)
            if known is not None and participant in known.waiting:
                return
            queue.entries.popleft()
        del self._queues[participant]
        self._ready.pop(participant, None)

    # -------------------------------------------------------------------------------------- checks

    def check(self) -> None:
        for participant, queue in self._queues.items():
            living = [e for e in queue.entries if self._is_living(participant, e)]
            assert living, "an empty queue is dropped"
            assert living[0] is queue.entries[0], "the first entry lives"
            offsets = [entry.prepare_offset for entry in queue.entries]
            assert offsets == sorted(set(offsets)), "markers in PREPARE order (I10, I11)"
            assert queue.count == len(living)
            assert queue.size_bytes == sum(entry.size_bytes for entry in living)
            assert (participant in self._ready) != (participant in self._under_way)
        assert all(participant in self._queues for participant in self._ready)
        assert self._unplanned.keys() <= self._delivered.keys()
        assert self.waiting_markers == sum(queue.count for queue in self._queues.values())
        assert self._recent_parts == sum(len(kept.exposed) for kept in self._recent.values())
        assert self.payload_bytes == sum(
            len(batch.payload)
            for known in self._undelivered.values()
            for participant, batch in known.batches.items()
            if participant in known.waiting
        )

    def _is_living(self, participant: PartitionId, entry: _Entry) -> bool:
        known = self._undelivered.get(entry.tx_id)
        return known is not None and participant in known.waiting


def _marker(undelivered: _Undelivered, participant: PartitionId) -> OwedMarker:
    transaction = undelivered.transaction
    return OwedMarker(
        transaction.tx_id,
        transaction.prepare_offset,
        transaction.state is State.PREPARE_COMMIT,
        transaction.identity,
        undelivered.parts[participant],
        undelivered.batches.get(participant),
    )
