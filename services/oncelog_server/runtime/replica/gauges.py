"""What the metrics show of the replicas of a partition that is led here, where it should have
several."""

from __future__ import annotations

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.ports import Reporter
from oncelog_server.runtime.replica.in_sync import InSync


def show_replicas(
    reporter: Reporter,
    partition: PartitionId,
    book: InSync,
    *,
    replication_factor: int,
    has_enough: bool,
    now_ms: int,
) -> None:
    """`has_enough`: as many keep up as a write needs."""
    if replication_factor == 1:
        return
    in_sync, lag = book.nodes_in_sync, book.lag(now_ms)
    for name, value in (
        ("in_sync_replicas", in_sync),
        ("missing_replicas", max(0, replication_factor - in_sync)),
        ("writes_refused", 0 if has_enough else 1),
        ("replica_lag", lag.offsets),
        ("replica_lag_ms", lag.time_ms),
    ):
        reporter.gauge(name, value, partition=str(partition))
