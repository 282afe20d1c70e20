"""How a participant goes through the markers that a coordinator brings in one call. PURE.

The same for topic partitions and for offsets. Rules, in order of precedence (docs/protocol.md,
"Markers", has a reason for each):
  1. an older coordinator epoch is refused, with all of its markers;
  2. a marker out of PREPARE order, or of another journal partition, is refused, and stops the walk:
     were later ones applied, the refused one would look like a repeat when it comes again;
  3. ABORTED ends what is open here of its TxId; where nothing is, it is remembered all the same if
     it is news, for it keeps out what comes late (I20); it neither moves nor obeys the PREPARE
     offset;
  4. COMMITTED at or below the last PREPARE offset is a repeat: OK, nothing happens.
No rule looks at generations, and COMMITTED not at the highest ended TxId: markers are facts.

What one marker of a call has ended, the next one of it finds ended, as if each came in a call of
its own.

Left out: what a marker does to what is open, and what it answers (`Marked`).
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from oncelog_server.core.ids import JournalOffset, TxId
from oncelog_server.core.machine import Decision
from oncelog_server.participant.commands import (
    Marker,
    MarkerResult,
    MarkersWritten,
    Outcome,
    WriteMarkers,
)
from oncelog_server.participant.fences import Fences
from oncelog_server.participant.marker_order import MarkerOrder, misplaced

H = TypeVar("H")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Marked(Protocol[H, R_co]):
    """What a participant makes of single markers, in the order of the walk."""

    def held(self, tx_id: TxId) -> H | None:
        """What is open here of a transaction."""
        ...

    def write(self, marker: Marker, held: H | None) -> tuple[R_co, MarkerResult]:
        """A marker that is new here. `held`: what the markers before it have left of it."""
        ...

    def repeat(self, marker: Marker) -> MarkerResult:
        """A marker that does nothing here. The answer is the one of the first time, as far as it
        is remembered."""
        ...


def walk(
    command: WriteMarkers, *, order: MarkerOrder, fences: Fences, marked: Marked[H, R]
) -> Decision[R]:
    """The records of a whole call, and what became of its markers up to the first refusal."""
    refusal = order.refusal(command.journal_partition, command.coordinator_epoch)
    last_committed = order.prepare_offset(command.journal_partition)
    records: list[R] = []
    results: list[MarkerResult] = []
    ended: set[TxId] = set()
    # Offset 0 is EPOCH_START, never a PREPARE.
    previous = JournalOffset(0)
    for marker in command.markers:
        refusal = refusal or misplaced(
            tx_id=marker.tx_id,
            prepare_offset=marker.prepare_offset,
            journal_partition=command.journal_partition,
            previous=previous,
        )
        if refusal is not None:
            break
        previous = marker.prepare_offset
        held = marked.held(marker.tx_id) if marker.tx_id not in ended else None
        if marker.outcome is Outcome.COMMITTED:
            is_new = marker.prepare_offset > last_committed
        else:
            is_new = held is not None or (
                marker.tx_id not in ended
                and marker.tx_id
                > fences.highest_ended(marker.producer_id, command.journal_partition)
            )
        if not is_new:
            results.append(marked.repeat(marker))
            continue
        record, result = marked.write(marker, held)
        ended.add(marker.tx_id)
        records.append(record)
        results.append(result)
    return Decision(records, MarkersWritten(tuple(results), refusal))
