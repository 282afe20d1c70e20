"""What the outbox counts and measures. Metric names are those of `observe/catalogue`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oncelog_server.coordinator.commands import MarkerAnswer, MarkerStatus, OweMarkers
from oncelog_server.coordinator.ports import CoordinatorEnv, CoordinatorReplica
from oncelog_server.coordinator.values import AbortCause
from oncelog_server.core.ids import TxId
from oncelog_server.core.ports import led_machine
from oncelogpb.errors import OncelogError

# Gauges are looked at so often.
LOOK_EVERY_MS: Final = 1_000


class OutboxMetrics:
    """Of one led partition."""

    def __init__(self, replica: CoordinatorReplica, env: CoordinatorEnv) -> None:
        self._replica = replica
        self._env = env
        self._label = str(replica.partition)
        self._next_look_ms = 0
        # When the first marker of a transaction was sent.
        self._first_sent_ms: dict[TxId, int] = {}

    def sent(self, group: OweMarkers) -> None:
        now_ms = self._env.clock.now().monotonic_ms
        for marker in group.markers:
            self._first_sent_ms.setdefault(marker.tx_id, now_ms)

    def written(self, results: Sequence[MarkerAnswer]) -> None:
        for status in MarkerStatus:
            count = sum(result.status is status for result in results)
            if count:
                self._env.reporter.count("markers_written", count, status=status.name.lower())

    def refused(self, error: OncelogError) -> None:
        self._env.reporter.count("markers_refused", reason=error.reason)

    def delivered(self, tx_id: TxId) -> None:
        """Every participant has acknowledged it."""
        reporter = self._env.reporter
        sent_ms = self._first_sent_ms.pop(tx_id, None)
        if sent_ms is not None:
            reporter.observe("commit_marker", self._env.clock.now().monotonic_ms - sent_ms)
        state = led_machine(self._replica).state
        transaction = state.transactions[tx_id]
        if transaction.is_committed:
            reporter.count("transactions_committed")
            delivered = state.deliveries.delivered(tx_id)
            if delivered is not None and delivered.damaged:
                reporter.event(
                    "transaction damaged",
                    tx_id=tx_id,
                    partitions=[str(partition) for partition in delivered.damaged],
                )
            return
        cause = transaction.cause
        reporter.count("transactions_aborted", cause=cause.name.lower())
        if cause is AbortCause.TIMEOUT:
            reporter.count("transactions_timed_out")
        if cause is AbortCause.FENCED:
            reporter.count("transactions_fenced")
        reporter.event("transaction aborted", tx_id=tx_id, cause=cause.name)

    def look(self) -> None:
        now = self._env.clock.now()
        if now.monotonic_ms < self._next_look_ms:
            return
        self._next_look_ms = now.monotonic_ms + LOOK_EVERY_MS
        state = led_machine(self._replica).state
        oldest = state.transactions.oldest_undecided()
        age_ms = 0 if oldest is None else max(0, now.wall_ms - oldest.begin_ms)
        gauges = {
            "open_transactions": state.transactions.undecided,
            "oldest_open_transaction_age_ms": age_ms,
            "unacknowledged_markers": state.deliveries.waiting_markers,
            "participants": state.participants,
            "producers": len(state.producers),
            "undelivered_bytes": state.undelivered_bytes,
            "sessions": len(state.sessions),
            "outcomes_told_from": state.outcome_ages.told_from,
        }
        for name, value in gauges.items():
            self._env.reporter.gauge(name, value, partition=self._label)
