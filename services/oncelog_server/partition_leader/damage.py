"""Committed transactions of whose batches something is missing here. PURE.

Nothing of such a part is exposed; order moves on, and the batches wait for an operator: else a
part of a transaction is exposed, or a wrong manifest blocks the partition for every producer.
"""

from __future__ import annotations

from typing import Final

from oncelog_server.core.ids import JournalOffset
from oncelog_server.participant.commands import WriterPart
from oncelog_server.partition_leader.commands import Resolution
from oncelog_server.partition_leader.pending import DumpedTransaction, OpenTransaction, dump, load
from oncelogpb.errors import NotFound, OncelogError, TransactionEnded
from oncelogpb.ids import show_id

# Resolutions that are remembered, so that a repeat gets its old answer.
RESOLUTIONS_REMEMBERED: Final = 1_000
# Damaged parts without a batch here that are listed; the oldest go first. Nothing is lost with
# them, and any manifest can make one.
EMPTY_KEPT: Final = 10_000


class Damage:
    """The damaged parts of a partition, and the last ones that were resolved."""

    def __init__(self) -> None:
        # TxId -> what it holds here (None: nothing at all) and what its manifest wanted of that.
        self.parts: dict[int, tuple[OpenTransaction | None, tuple[WriterPart, ...]]] = {}
        # Those that hold nothing, oldest first. Derived.
        self._empty: dict[int, None] = {}
        # TxId -> what was done with how many records.
        self._resolved: dict[int, tuple[Resolution, int]] = {}

    @property
    def held(self) -> int:
        """How many hold batches: each takes memory and journal until an operator resolves it."""
        return len(self.parts) - len(self._empty)

    def add(self, tx_id: int, held: OpenTransaction | None, wanted: tuple[WriterPart, ...]) -> None:
        """Keeps of the manifest what could be exposed: it may name many that never wrote here."""
        if held is not None:
            known = tuple(part for part in wanted if part.writer in held.writers)
            self.parts[tx_id] = (held, known)
            return
        self.parts[tx_id] = (None, ())
        self._empty[tx_id] = None
        if len(self._empty) > EMPTY_KEPT:
            self._forget(next(iter(self._empty)))

    def _forget(self, tx_id: int) -> None:
        del self.parts[tx_id]
        self._empty.pop(tx_id, None)

    def resolvable(self, tx_id: int, resolution: Resolution) -> int | OncelogError | None:
        """None: yes. A number: it was done before, to so many records. An error: no."""
        if tx_id in self.parts:
            return None
        done = self._resolved.get(tx_id)
        if done is None:
            return NotFound(
                f"transaction {show_id(tx_id)} has no damaged part here; `oncelog tx describe` "
                "lists its damaged partitions"
            )
        if done[0] is resolution:
            return done[1]
        return TransactionEnded(
            f"the damaged part of {show_id(tx_id)} was resolved with `{done[0].value}`; that is "
            "final",
            tx_id=tx_id,
        )

    def records(self, tx_id: int, resolution: Resolution) -> int:
        """How many records a resolution drops or exposes."""
        held, parts = self.parts[tx_id]
        if held is None:
            return 0
        if resolution is Resolution.DROP:
            return held.records
        return sum(held.writers[part.writer].records for part in parts)

    def resolved(self, tx_id: int, resolution: Resolution, record_count: int) -> None:
        self._forget(tx_id)
        self._resolved[tx_id] = (resolution, record_count)
        if len(self._resolved) > RESOLUTIONS_REMEMBERED:
            del self._resolved[next(iter(self._resolved))]

    def first(self) -> OpenTransaction | None:
        """What holds the earliest batch that waits for an operator."""
        held = [held for held, _ in self.parts.values() if held is not None]
        return min(held, key=lambda one: one.first_position, default=None)

    def first_position(self) -> JournalOffset | None:
        """Journal offset of the earliest batch that waits for an operator."""
        first = self.first()
        return None if first is None else first.first_position

    def dump(self) -> DumpedDamage:
        parts = [
            (tx_id, dump(held) if held is not None else None, wanted)
            for tx_id, (held, wanted) in self.parts.items()
        ]
        return parts, [(tx_id, *done) for tx_id, done in self._resolved.items()]

    def load(self, dumped: DumpedDamage) -> None:
        parts, resolved = dumped
        self.parts = {
            tx_id: (load(held) if held is not None else None, wanted)
            for tx_id, held, wanted in parts
        }
        self._empty = {tx_id: None for tx_id, (held, _) in self.parts.items() if held is None}
        self._resolved = {tx_id: (resolution, count) for tx_id, resolution, count in resolved}


DumpedDamage = tuple[
    list[tuple[int, DumpedTransaction | None, tuple[WriterPart, ...]]],
    list[tuple[int, Resolution, int]],
]
