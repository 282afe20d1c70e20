"""Who may still write: the highest generation seen per producer, and the highest ended TxId per
(producer, transaction-journal partition). PURE.

Both bind *batches* only. Markers are facts and are fenced by neither (why.md: "markers are never
fenced by generation"; "'ended' for a marker is decided by (TxId, partition)").

Invariant: generations and ended TxIds only grow, until a producer's entry goes some days after its
last frame; a batch that comes even later is accepted, asked about, and aborted.
"""

from __future__ import annotations

from itertools import takewhile

import msgspec

from oncelogpb.errors import OncelogError, ProducerFenced, TransactionEnded
from services.core.frame import Frame
from services.core.ids import journal_partition_of, show_generation


class Fence(msgspec.Struct):
    """What is known of one producer of transactions."""

    generation: int
    # Time of its last frame here.
    last_ms: int
    # Journal partition -> highest TxId that ended here (I20).
    ended: dict[int, int]


class Fencing:
    """All producers of transactions that wrote to a partition.

    Invariant: they stand in the order of their last frames, so that forgetting looks at no others.
    """

    def __init__(self) -> None:
        self._fences: dict[int, Fence] = {}

    def __len__(self) -> int:
        return len(self._fences)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._fences

    def refusal(self, batch: Frame) -> OncelogError | None:
        """Why this batch of a transaction may not be appended. The fatal reason goes first: a
        producer that was replaced must not be told to begin again."""
        fence = self._fences.get(batch.producer_id)
        if fence is None:
            return None
        if batch.generation < fence.generation:
            return ProducerFenced(
                f"generation {show_generation(batch.generation)} of producer {batch.producer_id:x} "
                f"was replaced by {show_generation(fence.generation)}; stop this instance",
                generation=show_generation(fence.generation),
            )
        if batch.tx_id <= fence.ended.get(journal_partition_of(batch.tx_id), 0):
            return TransactionEnded(
                f"transaction {batch.tx_id:x} has ended; abort, rewind and begin another one",
                tx_id=batch.tx_id,
            )
        return None

    def saw(self, producer_id: int, generation: int, time_ms: int) -> Fence:
        """A frame of this producer and generation stands in the journal."""
        fence = self._fences.pop(producer_id, None)
        if fence is None:
            fence = Fence(generation, time_ms, {})
        elif generation > fence.generation:
            fence.generation = generation
        fence.last_ms = time_ms
        self._fences[producer_id] = fence
        return fence

    def ended(self, producer_id: int, generation: int, tx_id: int, time_ms: int) -> None:
        """A marker of this transaction stands in the journal."""
        ended = self.saw(producer_id, generation, time_ms).ended
        partition = journal_partition_of(tx_id)
        if tx_id > ended.get(partition, 0):
            ended[partition] = tx_id

    def highest_ended(self, producer_id: int, journal_partition: int) -> int:
        """0 where none has."""
        fence = self._fences.get(producer_id)
        return fence.ended.get(journal_partition, 0) if fence is not None else 0

    def forget_before(self, time_ms: int) -> None:
        """Producers whose last frame is older."""
        old = takewhile(lambda item: item[1].last_ms < time_ms, self._fences.items())
        for producer_id, _ in list(old):
            del self._fences[producer_id]

    def check(self) -> None:
        last = [fence.last_ms for fence in self._fences.values()]
        assert last == sorted(last), "in the order of their last frames"

    def dump(self) -> list[tuple[int, Fence]]:
        return list(self._fences.items())

    def load(self, dumped: list[tuple[int, Fence]]) -> None:
        self._fences = dict(dumped)
