"""What operators are told of the markers that were written here: counters, and an event for each
damaged part and for each that came with a surplus.
"""

from __future__ import annotations

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Reporter
from oncelog_server.participant.commands import MarkerStatus, MarkersWritten, Outcome, WriteMarkers
from oncelog_server.participant.handler import MarkersReport


def tell_markers(reporter: Reporter) -> MarkersReport:
    def report(partition: PartitionId, command: WriteMarkers, written: MarkersWritten) -> None:
        for marker, result in zip(command.markers, written.results, strict=False):
            if result.repeated:
                continue
            if result.status is MarkerStatus.DAMAGED:
                reporter.count("transactions_damaged")
                reporter.event(
                    "damaged part", level="error", tx_id=result.tx_id, partition=str(partition)
                )
                continue
            committed = marker.outcome is Outcome.COMMITTED
            reporter.count("transactions_exposed" if committed else "transactions_dropped")
            surplus = sum(part.surplus_records for part in result.exposed)
            if surplus:
                reporter.count("surplus_records", surplus)
                reporter.event(
                    "surplus dropped",
                    level="warning",
                    tx_id=result.tx_id,
                    partition=str(partition),
                    records=surplus,
                )

    return report
