"""What an offset manager owes the outside: questions about transactions that stay open here
(`participant.asking`). Shows gauges as often as it looks.
"""

from __future__ import annotations

from collections.abc import Mapping

from oncelog_server.participant.asking import QuestionOutbox


class OffsetManagerOutbox(QuestionOutbox):
    """See the module. One per led partition of `__consumer_offsets`."""

    def gauges(self) -> Mapping[str, float]:
        machine = self.replica.machine
        return {
            "open_transactions": machine.open_transactions,
            "oldest_open_transaction_age_ms": self.age_ms(machine.oldest_began_ms),
            "groups": machine.groups,
            "producers": machine.producers,
        }
