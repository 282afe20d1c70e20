"""In which order markers of each transaction-journal partition were applied here. PURE.

Kept per journal partition: the highest coordinator epoch, and the PREPARE offset of the last
COMMITTED marker. Only COMMITTED markers move and obey that offset (why.md: T1's COMMITTED @2 is
delayed, T2 of the same producer is aborted @4 first; were @2 "a repeat", T1 would lose a part).

Left out: that a coordinator has one unacknowledged call per participant. Without it a later PREPARE
could overtake an earlier one on the way, and nobody here could tell.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelogpb.errors import NotLeader, OncelogError
from services.partition_leader.commands import Exposed

# Exposures per journal partition that are remembered for repeats of their markers.
EXPOSURES_REMEMBERED: Final = 256


class Line(msgspec.Struct):
    """One journal partition."""

    coordinator_epoch: int = 0
    prepare_offset: int = 0
    # TxId -> where its parts became readable, latest last.
    exposed: dict[int, tuple[Exposed, ...]] = {}


class MarkerOrder:
    """All journal partitions that wrote markers here."""

    def __init__(self) -> None:
        self._lines: dict[int, Line] = {}

    def refusal(self, journal_partition: int, coordinator_epoch: int) -> OncelogError | None:
        """An older coordinator is told that it leads no more; a newer one will repeat its
        markers."""
        line = self._lines.get(journal_partition)
        if line is None or coordinator_epoch >= line.coordinator_epoch:
            return None
        return NotLeader(
            f"journal partition {journal_partition} is led under epoch {line.coordinator_epoch}; "
            f"the coordinator of epoch {coordinator_epoch} leads no more",
            journal_partition=journal_partition,
            epoch=line.coordinator_epoch,
        )

    def prepare_offset(self, journal_partition: int) -> int:
        """Of the last COMMITTED marker applied; 0 where there is none."""
        line = self._lines.get(journal_partition)
        return line.prepare_offset if line is not None else 0

    def exposed(self, journal_partition: int, tx_id: int) -> tuple[Exposed, ...]:
        """Where its parts became readable; empty where that is forgotten."""
        line = self._lines.get(journal_partition)
        return line.exposed.get(tx_id, ()) if line is not None else ()

    def saw(self, journal_partition: int, coordinator_epoch: int) -> Line:
        """A marker of this coordinator stands in the journal."""
        line = self._lines.get(journal_partition)
        if line is None:
            line = self._lines[journal_partition] = Line()
        line.coordinator_epoch = max(line.coordinator_epoch, coordinator_epoch)
        return line

    def committed(
        self,
        journal_partition: int,
        coordinator_epoch: int,
        *,
        prepare_offset: int,
        tx_id: int,
        exposed: tuple[Exposed, ...],
    ) -> None:
        """A COMMITTED (or DAMAGED, which counts as applied) marker stands in the journal."""
        line = self.saw(journal_partition, coordinator_epoch)
        assert prepare_offset > line.prepare_offset, "decide lets no repeat through"
        line.prepare_offset = prepare_offset
        line.exposed[tx_id] = exposed
        if len(line.exposed) > EXPOSURES_REMEMBERED:
            del line.exposed[next(iter(line.exposed))]

    def dump(self) -> list[tuple[int, Line]]:
        return sorted(self._lines.items(), key=lambda item: item[0])

    def load(self, dumped: list[tuple[int, Line]]) -> None:
        self._lines = dict(dumped)
