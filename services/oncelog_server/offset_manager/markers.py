"""What an offset manager makes of a marker that is new here (`participant.marker_walk` says which):
one record. Its offsets were checked and locked when they became pending, so none is refused. PURE.
"""

from __future__ import annotations

from collections.abc import Mapping

from oncelog_server.core.ids import TxId
from oncelog_server.offset_manager.records import TransactionMarked
from oncelog_server.offset_manager.state import OpenTransaction
from oncelog_server.participant.commands import Marker, MarkerResult, MarkerStatus, WriteMarkers


class MarkedOffsets:
    """The port of one walk, over the machine's state."""

    def __init__(self, command: WriteMarkers, *, open_: Mapping[int, OpenTransaction]) -> None:
        self._coordinator_epoch = command.coordinator_epoch
        self._open = open_

    def held(self, tx_id: TxId) -> OpenTransaction | None:
        return self._open.get(tx_id)

    def write(
        self, marker: Marker, held: OpenTransaction | None
    ) -> tuple[TransactionMarked, MarkerResult]:
        record = TransactionMarked(
            marker.tx_id,
            marker.producer_id,
            marker.generation,
            marker.outcome,
            marker.prepare_offset,
            self._coordinator_epoch,
        )
        return record, MarkerResult(marker.tx_id, MarkerStatus.APPLIED)

    def repeat(self, marker: Marker) -> MarkerResult:
        return MarkerResult(marker.tx_id, MarkerStatus.APPLIED, repeated=True)
