"""Who may still write here, and which marker is a repeat. PURE.

Per journal partition of `__transaction_control`: the highest coordinator epoch seen, and the
PREPARE offset of the last COMMITTED marker applied. ABORTED ones neither move nor obey it: else a
delayed COMMITTED of an earlier transaction would be taken for a repeat, and its offsets be lost.
Per producer: the highest generation seen and, per journal partition, the highest ended TxId (I20).
Both are part of the replicated state.
"""

from __future__ import annotations

import msgspec

from oncelogpb.errors import NotLeader, ProducerFenced, TransactionEnded
from services.core.ids import (
    Generation,
    LeaderEpoch,
    ProducerId,
    TxId,
    journal_partition_of,
    show_generation,
)


class JournalSeen(msgspec.Struct):
    """What markers of one journal partition have shown."""

    epoch: LeaderEpoch = LeaderEpoch(0)
    # PREPARE offset of the last COMMITTED marker applied; offset 0 is EPOCH_START.
    last_prepare: int = 0


class ProducerSeen(msgspec.Struct):
    """What is known of one producer."""

    generation: Generation = Generation(0)
    # Highest ended TxId by journal partition.
    ended: dict[int, TxId] = {}
    # When it last began or ended something here, by the journal's time.
    changed_ms: int = 0


class Fences(msgspec.Struct):
    """Invariant: `producers` stand in the order of `changed_ms`."""

    journals: dict[int, JournalSeen] = {}
    producers: dict[ProducerId, ProducerSeen] = {}

    # ------------------------------------------------------------------------------------- rules

    def admit(self, tx_id: TxId, producer_id: ProducerId, generation: Generation) -> None:
        """May this producer still write under this TxId? Raises ProducerFenced (fatal), then
        TransactionEnded (abort, rewind, begin again)."""
        seen = self.producers.get(producer_id)
        if seen is None:
            return
        if generation < seen.generation:
            raise ProducerFenced(
                f"generation {show_generation(generation)} of this producer was replaced by "
                f"{show_generation(seen.generation)}; a newer instance runs, stop this one",
                producer_id=producer_id,
            )
        if tx_id <= seen.ended.get(journal_partition_of(tx_id), 0):
            raise TransactionEnded(
                f"transaction {tx_id:x} has ended here; rewind the consumer and begin again",
                tx_id=tx_id,
            )

    def require_coordinator(self, journal_partition: int, epoch: LeaderEpoch) -> None:
        """Raises NotLeader for a coordinator that was replaced."""
        seen = self.journals.get(journal_partition)
        if seen is not None and epoch < seen.epoch:
            raise NotLeader(
                f"coordinator epoch {epoch} of journal partition {journal_partition} is over, "
                f"epoch {seen.epoch} has written here; step down",
                epoch=seen.epoch,
            )

    def last_prepare(self, journal_partition: int) -> int:
        seen = self.journals.get(journal_partition)
        return 0 if seen is None else seen.last_prepare

    def has_ended(self, tx_id: TxId, producer_id: ProducerId) -> bool:
        """For offsets; a marker goes by (TxId, partition): its offsets may still be pending."""
        seen = self.producers.get(producer_id)
        return seen is not None and tx_id <= seen.ended.get(journal_partition_of(tx_id), 0)

    # ----------------------------------------------------------------------------------- changes

    def note_coordinator(
        self, journal_partition: int, epoch: LeaderEpoch, committed_prepare: int
    ) -> None:
        """`committed_prepare` is 0 for an ABORTED marker."""
        seen = self.journals.setdefault(journal_partition, JournalSeen())
        seen.epoch = max(seen.epoch, epoch)
        seen.last_prepare = max(seen.last_prepare, committed_prepare)

    def note_producer(self, producer_id: ProducerId, generation: Generation, time_ms: int) -> None:
        seen = self.producers.pop(producer_id, None) or ProducerSeen()
        seen.generation = max(seen.generation, generation)
        seen.changed_ms = time_ms
        self.producers[producer_id] = seen

    def note_ended(self, tx_id: TxId, producer_id: ProducerId) -> None:
        """After note_producer."""
        ended = self.producers[producer_id].ended
        journal_partition = journal_partition_of(tx_id)
        ended[journal_partition] = max(ended.get(journal_partition, TxId(0)), tx_id)

    def check(self) -> None:
        times = [seen.changed_ms for seen in self.producers.values()]
        assert times == sorted(times), "producers do not stand in the order of their last change"
