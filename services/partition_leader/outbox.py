"""What a partition owes the outside: questions about transactions that stay open here
(`participant.asking`). Shows gauges as often as it looks.
"""

from __future__ import annotations

from services.participant.asking import QuestionOutbox


class PartitionOutbox(QuestionOutbox):
    """See the module. One per led partition."""

    def gauge(self) -> None:
        machine, reporter = self.replica.machine, self.env.reporter
        label = str(self.replica.partition)
        oldest = next(iter(machine.pending.open.values()), None)
        age_ms = self.env.clock.now().wall_ms - oldest.began_ms if oldest is not None else 0
        first = machine.first_open_position()
        position = first if first is not None else self.replica.log_end
        reporter.gauge("open_transactions", len(machine.pending.open), partition=label)
        reporter.gauge("oldest_open_transaction_age_ms", max(age_ms, 0), partition=label)
        reporter.gauge("first_open_position", position, partition=label)
        reporter.gauge("damaged", machine.damage.held, partition=label)
        # Each kind has the limit for itself.
        producers = max(len(machine.plain), len(machine.fences))
        reporter.gauge("producers", producers, partition=label)
        reporter.gauge("committed_end_offset", machine.committed.end_offset, partition=label)
