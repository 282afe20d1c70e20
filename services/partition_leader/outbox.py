"""What a partition owes the outside: questions about transactions that stay open here (`asking`).
Shows gauges as often as it looks.
"""

from __future__ import annotations

from services.core.ports import Replica
from services.core.role import RoleEnv
from services.participant.asking import Asking


class PartitionOutbox:
    """See the module. One per led partition."""

    def __init__(self, replica: Replica, env: RoleEnv) -> None:
        self._replica = replica
        self._env = env
        self._asking = Asking(replica, env)

    def wake(self) -> None:
        if self._asking.look():
            self._gauge()

    async def stop(self) -> None:
        await self._asking.stop()

    def _gauge(self) -> None:
        machine, reporter = self._replica.machine, self._env.reporter
        label = str(self._replica.partition)
        oldest = next(iter(machine.pending.open.values()), None)
        age_ms = self._env.clock.now().wall_ms - oldest.began_ms if oldest is not None else 0
        first = machine.first_open_position()
        position = first if first is not None else self._replica.log_end
        reporter.gauge("open_transactions", len(machine.pending.open), partition=label)
        reporter.gauge("oldest_open_transaction_age_ms", max(age_ms, 0), partition=label)
        reporter.gauge("first_open_position", position, partition=label)
        reporter.gauge("damaged", machine.damage.held, partition=label)
        # Each kind has the limit for itself.
        producers = max(len(machine.plain), len(machine.fences))
        reporter.gauge("producers", producers, partition=label)
        reporter.gauge("committed_end_offset", machine.committed.end_offset, partition=label)
