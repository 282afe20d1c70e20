"""What an offset manager owes the outside: questions about transactions that stay open here
(`participant.asking`). Shows gauges as often as it looks.
"""

from __future__ import annotations

from services.participant.asking import QuestionOutbox


class OffsetManagerOutbox(QuestionOutbox):
    """See the module. One per led partition of `__consumer_offsets`."""

    def gauge(self) -> None:
        machine, reporter = self.replica.machine, self.env.reporter
        label = str(self.replica.partition.number)
        now_ms = self.env.clock.now().wall_ms
        began_ms: int | None = machine.oldest_began_ms
        age_ms = max(now_ms - began_ms, 0) if began_ms is not None else 0
        reporter.gauge("open_transactions", machine.open_transactions, partition=label)
        reporter.gauge("oldest_open_transaction_age_ms", age_ms, partition=label)
        reporter.gauge("groups", machine.groups, partition=label)
        reporter.gauge("producers", machine.producers, partition=label)
