"""What a partition makes of the markers that a coordinator brings. PURE.

Rules, in order of precedence (docs/protocol.md, "Markers", has a reason for each):
  1. an older coordinator epoch is refused, with all of its markers;
  2. a marker out of PREPARE order, or of another journal partition, is refused, and stops the rest;
  3. ABORTED drops what stands here of its TxId; where nothing does, it is remembered all the same
     if it is news, for it keeps out batches that come late (I20); it neither moves nor obeys the
     PREPARE offset;
  4. COMMITTED at or below the last PREPARE offset is a repeat: OK, nothing happens;
  5. a one-shot becomes one frame, data and marker;
  6. COMMITTED exposes exactly what the manifest counts, its writers in its order. What a writer has
     behind that came too late to belong to the transaction: it is dropped, and said as surplus.
     Where something is missing, or the count ends inside of a batch, it is DAMAGED: journaled,
     counted as applied, nothing exposed.
No rule looks at the fences, neither generations nor the highest ended TxId: markers are facts. What
somebody else wrote under the TxId is no part of what a marker is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from oncelog_server.core.frame import ControlCode, Frame
from oncelog_server.core.machine import Decision
from oncelog_server.participant.commands import (
    Exposed,
    Marker,
    MarkerResult,
    MarkerStatus,
    MarkersWritten,
    Outcome,
    WriteMarkers,
    WriterPart,
)
from oncelog_server.participant.fences import Fences
from oncelog_server.participant.marker_order import MarkerOrder, misplaced
from oncelog_server.partition_leader.damage import Damage
from oncelog_server.partition_leader.exposures import Exposures
from oncelog_server.partition_leader.pending import OpenTransaction
from oncelog_server.partition_leader.records import MarkerWritten, Record, one_shot


def decide(
    command: WriteMarkers,
    *,
    open_: Mapping[int, OpenTransaction],
    fences: Fences,
    order: MarkerOrder,
    exposures: Exposures,
    damage: Damage,
    end_offset: int,
) -> Decision[Record]:
    """The records of a whole group. `end_offset` is the end of the committed log."""
    refusal = order.refusal(command.journal_partition, command.coordinator_epoch)
    last_prepare = order.prepare_offset(command.journal_partition)
    records: list[Record] = []
    results: list[MarkerResult] = []
    ended: set[int] = set()
    previous = -1
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
        held = open_.get(marker.tx_id) if marker.tx_id not in ended else None
        is_news = marker.tx_id not in ended and marker.tx_id > fences.highest_ended(
            marker.producer_id, command.journal_partition
        )
        record: Record | None = None
        if marker.outcome is Outcome.ABORTED:
            if held is not None or is_news:
                record = _marker(marker, ControlCode.ABORTED, command)
        elif marker.prepare_offset > last_prepare:
            record = _commit(marker, held, command)
        if record is None:
            results.append(_repeat(marker, exposures, damage))
            continue
        result = _result_of(marker, record, held, end_offset)
        end_offset += sum(exposed.record_count for exposed in result.exposed)
        ended.add(marker.tx_id)
        records.append(record)
        results.append(result)
    return Decision(records, MarkersWritten(tuple(results), refusal))


def _commit(marker: Marker, held: OpenTransaction | None, command: WriteMarkers) -> Record:
    if marker.batch is not None:
        return one_shot(
            marker.batch,
            prepare_offset=marker.prepare_offset,
            coordinator_epoch=command.coordinator_epoch,
        )
    control = ControlCode.COMMITTED if _holds(held, marker) else ControlCode.DAMAGED
    return _marker(marker, control, command)


def _holds(held: OpenTransaction | None, marker: Marker) -> bool:
    """Do the batches here make up what the manifest says, and were they its producer's?"""
    if held is None or not held.is_of(marker.producer_id, marker.generation):
        return not any(part.record_count for part in marker.parts)
    return held.holds(marker.parts)


def _marker(marker: Marker, control: ControlCode, command: WriteMarkers) -> MarkerWritten:
    return MarkerWritten(
        marker.tx_id,
        marker.producer_id,
        marker.generation,
        control,
        marker.prepare_offset,
        command.coordinator_epoch,
        marker.parts if control is not ControlCode.ABORTED else (),
    )


def _repeat(marker: Marker, exposures: Exposures, damage: Damage) -> MarkerResult:
    if marker.outcome is Outcome.ABORTED:
        return MarkerResult(marker.tx_id, MarkerStatus.APPLIED, repeated=True)
    if marker.tx_id in damage.parts:
        return MarkerResult(marker.tx_id, MarkerStatus.DAMAGED, repeated=True)
    exposed = exposures.of(marker.tx_id)
    return MarkerResult(marker.tx_id, MarkerStatus.APPLIED, exposed, repeated=True)


def _result_of(
    marker: Marker, record: Record, held: OpenTransaction | None, end_offset: int
) -> MarkerResult:
    """What `apply` will make of it."""
    if isinstance(record, Frame):
        whole = Exposed(0, end_offset, record.record_count)
        return MarkerResult(marker.tx_id, MarkerStatus.APPLIED, (whole,))
    assert isinstance(record, MarkerWritten)
    if record.control is ControlCode.DAMAGED:
        return MarkerResult(marker.tx_id, MarkerStatus.DAMAGED)
    exposed: tuple[Exposed, ...] = ()
    if record.control is ControlCode.COMMITTED and held is not None:
        exposed = tuple(exposures_of(held, record.parts, end_offset=end_offset))
    return MarkerResult(marker.tx_id, MarkerStatus.APPLIED, exposed)


def exposures_of(
    held: OpenTransaction, parts: Iterable[WriterPart], *, end_offset: int
) -> Iterator[Exposed]:
    """What a COMMITTED marker exposes, part by part, from `end_offset` on."""
    for writer, count in parts:
        if writer in held.writers:
            yield Exposed(writer, end_offset, count, held.surplus(writer, count))
            end_offset += count
