"""What an offset manager owes the outside: questions about transactions that stay open here
(`participant.asking`). Shows gauges as often as it looks, and now and then how many records wait
for groups (`lag`).
"""

from __future__ import annotations

from collections.abc import Mapping

from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.lag import LagWatch
from oncelog_server.offset_manager.machine import OffsetManagerMachine
from oncelog_server.offset_manager.ports import OffsetManagerEnv, OffsetManagerReplica
from oncelog_server.participant.asking import QuestionOutbox


class OffsetManagerOutbox(QuestionOutbox[OffsetManagerMachine]):
    """See the module. One per led partition of `__consumer_offsets`."""

    def __init__(
        self, replica: OffsetManagerReplica, env: OffsetManagerEnv, config: OffsetManagerConfig
    ) -> None:
        super().__init__(replica, env)
        # As far as it was counted.
        self._changed = self.machine.memberships_changed
        self._lag = LagWatch(
            replica, env, every_ms=config.lag_every_ms, series_max=config.lag_series_max
        )

    async def stop(self) -> None:
        await self._lag.stop()
        await super().stop()

    def gauges(self) -> Mapping[str, float]:
        machine = self.machine
        self.env.reporter.count("memberships_changed", machine.memberships_changed - self._changed)
        self._changed = machine.memberships_changed
        return {
            "open_transactions": machine.open_transactions,
            "oldest_open_transaction_age_ms": self.age_ms(machine.oldest_began_ms),
            "groups": machine.groups,
            "producers": machine.producers,
            "members": machine.members,
            "partitions_left_out": machine.partitions_left_out,
        }
