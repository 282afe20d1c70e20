"""What a partition owes the outside: questions about transactions that stay open here
(`participant.asking`). Shows gauges as often as it looks.
"""

from __future__ import annotations

from collections.abc import Mapping

from oncelog_server.participant.asking import QuestionOutbox
from oncelog_server.partition_leader.machine import PartitionMachine


class PartitionOutbox(QuestionOutbox[PartitionMachine]):
    """See the module. One per led partition."""

    def gauges(self) -> Mapping[str, float]:
        machine = self.machine
        oldest = next(iter(machine.pending.open.values()), None)
        first = machine.first_open_position()
        return {
            "open_transactions": len(machine.pending.open),
            "oldest_open_transaction_age_ms": self.age_ms(
                None if oldest is None else oldest.began_ms
            ),
            "first_open_position": first if first is not None else self.replica.log_end,
            "damaged": machine.damage.held,
            # Each kind has the limit for itself.
            "producers": max(len(machine.plain), len(machine.fences)),
            "committed_end_offset": machine.committed.end_offset,
            "index_bytes": machine.committed.memory_bytes,
        }
