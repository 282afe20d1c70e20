"""What an offset manager owes the outside: questions about transactions that stay open here
(`asking`). Shows gauges as often as it looks.
"""

from __future__ import annotations

from services.core.ports import Replica
from services.core.role import RoleEnv
from services.participant.asking import Asking


class OffsetManagerOutbox:
    """See the module. One per led partition of `__consumer_offsets`."""

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
        label = str(self._replica.partition.number)
        now_ms = self._env.clock.now().wall_ms
        began_ms: int | None = machine.oldest_began_ms
        age_ms = max(now_ms - began_ms, 0) if began_ms is not None else 0
        reporter.gauge("open_transactions", machine.open_transactions, partition=label)
        reporter.gauge("oldest_open_transaction_age_ms", age_ms, partition=label)
        reporter.gauge("groups", machine.groups, partition=label)
        reporter.gauge("producers", machine.producers, partition=label)
