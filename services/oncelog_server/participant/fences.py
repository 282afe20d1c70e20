"""Who may still write: the highest generation seen per producer, and the highest ended TxId per
(producer, transaction-journal partition). PURE.

Both bind what is *written under* a TxId only: batches, offsets. Markers are facts and are fenced
by neither (docs/protocol.md, "Markers").

Invariant: generations and ended TxIds only grow, until a producer's entry goes some days after its
last frame; what comes even later is accepted, asked about, and aborted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

import msgspec

from oncelog_server.core.ids import journal_partition_of
from oncelogpb.errors import OncelogError, ProducerFenced, TransactionEnded
from oncelogpb.ids import show_generation, show_id


class ProducerSeen(msgspec.Struct):
    """What is known of one producer of transactions."""

    generation: int
    # Of its last frame here, by the journal's age.
    last_ms: int
    # Journal partition -> highest TxId that ended here (I20).
    ended: dict[int, int] = {}


class Fences(msgspec.Struct):
    """All producers of transactions that wrote here. Part of the replicated state.

    Invariant: they stand in the order of their last frames, so that forgetting looks at no others.
    """

    producers: dict[int, ProducerSeen] = {}

    def __len__(self) -> int:
        return len(self.producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self.producers

    # ------------------------------------------------------------------------------------- rules

    def refusal(self, *, tx_id: int, producer_id: int, generation: int) -> OncelogError | None:
        """Why this producer may not write under this TxId. The fatal reason goes first: a producer
        that was replaced must not be told to begin again."""
        seen = self.producers.get(producer_id)
        if seen is None:
            return None
        if generation < seen.generation:
            return ProducerFenced(
                f"generation {show_generation(generation)} of producer {show_id(producer_id)} "
                f"was replaced by {show_generation(seen.generation)}; stop this instance",
                generation=seen.generation,
            )
        if tx_id <= seen.ended.get(journal_partition_of(tx_id), 0):
            return TransactionEnded(
                f"transaction {show_id(tx_id)} has ended; abort, rewind and begin another one",
                tx_id=tx_id,
            )
        return None

    def highest_ended(self, producer_id: int, journal_partition: int) -> int:
        """0 where none has."""
        seen = self.producers.get(producer_id)
        return seen.ended.get(journal_partition, 0) if seen is not None else 0

    def silent_since(self, aged_ms: int) -> Iterator[int]:
        """Producers whose last frame is of then or older, oldest first."""
        old = takewhile(lambda item: item[1].last_ms <= aged_ms, self.producers.items())
        return (producer_id for producer_id, _ in old)

    # ----------------------------------------------------------------------------------- changes

    def saw(self, producer_id: int, generation: int, aged_ms: int) -> ProducerSeen:
        """A frame of this producer and generation stands in the journal."""
        seen = self.producers.pop(producer_id, None)
        if seen is None:
            seen = ProducerSeen(generation, aged_ms)
        elif generation > seen.generation:
            seen.generation = generation
        seen.last_ms = aged_ms
        self.producers[producer_id] = seen
        return seen

    def ended(self, producer_id: int, generation: int, tx_id: int, aged_ms: int) -> None:
        """An end of this transaction (a marker, a local abort) stands in the journal."""
        ended = self.saw(producer_id, generation, aged_ms).ended
        partition = journal_partition_of(tx_id)
        if tx_id > ended.get(partition, 0):
            ended[partition] = tx_id

    def forget(self, producer_ids: Iterable[int]) -> None:
        for producer_id in producer_ids:
            del self.producers[producer_id]

    def check(self) -> None:
        last = [seen.last_ms for seen in self.producers.values()]
        assert last == sorted(last), "producers do not stand in the order of their last frames"
