"""What a partition makes of a marker that is new here (`participant.marker_walk` says which). PURE.

  * a one-shot becomes one frame, data and marker;
  * COMMITTED exposes exactly what the manifest counts, its writers in its order. What a writer has
    behind that came too late to belong to the transaction: it is dropped, and said as surplus.
    Where something is missing, or the count ends inside of a batch, it is DAMAGED: journaled,
    counted as applied, nothing exposed;
  * ABORTED drops what stands here of its TxId.
What somebody else wrote under the TxId is no part of what a marker is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from oncelog_server.core.frame import ControlCode, Frame
from oncelog_server.core.ids import Offset, TxId
from oncelog_server.participant.commands import (
    Exposed,
    Marker,
    MarkerResult,
    MarkerStatus,
    Outcome,
    WriteMarkers,
    WriterPart,
)
from oncelog_server.partition_leader.damage import Damage
from oncelog_server.partition_leader.exposures import Exposures
from oncelog_server.partition_leader.pending import OpenTransaction
from oncelog_server.partition_leader.records import MarkerWritten, Record, one_shot


class MarkedPartition:
    """The port of one walk, over the machine's state."""

    def __init__(
        self,
        command: WriteMarkers,
        *,
        open_: Mapping[int, OpenTransaction],
        exposures: Exposures,
        damage: Damage,
        end_offset: Offset,
    ) -> None:
        self._coordinator_epoch = command.coordinator_epoch
        self._open = open_
        self._exposures = exposures
        self._damage = damage
        # Of the committed log, behind what the markers so far expose.
        self._end_offset = end_offset

    def held(self, tx_id: TxId) -> OpenTransaction | None:
        return self._open.get(tx_id)

    def write(self, marker: Marker, held: OpenTransaction | None) -> tuple[Record, MarkerResult]:
        record = self._record(marker, held)
        result = self._result(record, held)
        exposed = sum(part.record_count for part in result.exposed)
        self._end_offset = Offset(self._end_offset + exposed)
        return record, result

    def repeat(self, marker: Marker) -> MarkerResult:
        if marker.outcome is Outcome.ABORTED:
            return MarkerResult(marker.tx_id, MarkerStatus.APPLIED, repeated=True)
        if marker.tx_id in self._damage.parts:
            return MarkerResult(marker.tx_id, MarkerStatus.DAMAGED, repeated=True)
        exposed = self._exposures.of(marker.tx_id)
        return MarkerResult(marker.tx_id, MarkerStatus.APPLIED, exposed, repeated=True)

    def _record(self, marker: Marker, held: OpenTransaction | None) -> Record:
        if marker.outcome is Outcome.ABORTED:
            return self._marker(marker, ControlCode.ABORTED)
        if marker.batch is not None:
            return one_shot(
                marker.batch,
                prepare_offset=marker.prepare_offset,
                coordinator_epoch=self._coordinator_epoch,
            )
        control = ControlCode.COMMITTED if _holds(held, marker) else ControlCode.DAMAGED
        return self._marker(marker, control)

    def _marker(self, marker: Marker, control: ControlCode) -> MarkerWritten:
        return MarkerWritten(
            marker.tx_id,
            marker.producer_id,
            marker.generation,
            control,
            marker.prepare_offset,
            self._coordinator_epoch,
            marker.parts if control is not ControlCode.ABORTED else (),
        )

    def _result(self, record: Record, held: OpenTransaction | None) -> MarkerResult:
        """What `apply` will make of it."""
        if isinstance(record, Frame):
            whole = Exposed(0, self._end_offset, record.record_count)
            return MarkerResult(TxId(record.tx_id), MarkerStatus.APPLIED, (whole,))
        assert isinstance(record, MarkerWritten)
        if record.control is ControlCode.DAMAGED:
            return MarkerResult(record.tx_id, MarkerStatus.DAMAGED)
        exposed: tuple[Exposed, ...] = ()
        if record.control is ControlCode.COMMITTED and held is not None:
            exposed = tuple(exposures_of(held, record.parts, end_offset=self._end_offset))
        return MarkerResult(record.tx_id, MarkerStatus.APPLIED, exposed)


def _holds(held: OpenTransaction | None, marker: Marker) -> bool:
    """Do the batches here make up what the manifest says, and were they its producer's?"""
    if held is None or not held.is_of(marker.producer_id, marker.generation):
        return not any(part.record_count for part in marker.parts)
    return held.holds(marker.parts)


def exposures_of(
    held: OpenTransaction, parts: Iterable[WriterPart], *, end_offset: Offset
) -> Iterator[Exposed]:
    """What a COMMITTED marker exposes, part by part, from `end_offset` on."""
    for writer, count in parts:
        if writer in held.writers:
            yield Exposed(writer, end_offset, count, held.surplus(writer, count))
            end_offset = Offset(end_offset + count)
