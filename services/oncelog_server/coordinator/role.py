"""What the composition plugs in: the coordinator as a Role."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oncelog_server.coordinator import access
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.ended_transactions import EndedTransactions
from oncelog_server.coordinator.machine import CoordinatorMachine
from oncelog_server.coordinator.outbox import CoordinatorOutbox
from oncelog_server.coordinator.outcomes import SLOT_BYTES, SLOT_FILE, Outcomes
from oncelog_server.coordinator.ports import CoordinatorEnv, CoordinatorReplica
from oncelog_server.coordinator.records import CODEC, Record
from oncelog_server.coordinator.service import CoordinatorService
from oncelog_server.coordinator.waiting import Waiting
from oncelog_server.core.ids import TRANSACTION_CONTROL_ID, PartitionId, TopicId
from oncelog_server.core.machine import Codec
from oncelog_server.core.needs import Tables
from oncelog_server.core.ports import Outbox, Slots


class CoordinatorRole:
    """See core/role.py."""

    name = "coordinator"
    control_topic: TopicId | None = TRANSACTION_CONTROL_ID

    def __init__(self, config: CoordinatorConfig) -> None:
        config.validate()
        self._config = config
        self.codec: Codec[Record] = CODEC
        self._waiting = Waiting()
        # The driver writes through them, the service reads.
        self._outcomes: dict[PartitionId, Outcomes] = {}

    def machine(self, partition: PartitionId) -> CoordinatorMachine:
        return CoordinatorMachine(partition, self._config)

    def projection(
        self, partition: PartitionId, slots: Callable[[str, int], Slots]
    ) -> Outcomes | None:
        opened = Outcomes(slots(SLOT_FILE, SLOT_BYTES))
        self._outcomes[partition] = opened
        return opened

    def settler(self) -> None:
        """No committed log."""

    def outbox(self, replica: CoordinatorReplica, env: CoordinatorEnv) -> Outbox:
        return CoordinatorOutbox(replica, env, self._waiting, self._config)

    def checkpoint(self, machine: CoordinatorMachine) -> int:
        return machine.checkpoint_offset()

    def services(self, env: CoordinatorEnv) -> Mapping[str, object]:
        return {
            "Coordinator": CoordinatorService(
                self._config, env, self._waiting, self._ended_transactions
            )
        }

    def access(self, env: CoordinatorEnv) -> Tables:
        return {"Coordinator": access.entries(env, self._config, self._ended_transactions)}

    def _ended_transactions(self, replica: CoordinatorReplica) -> EndedTransactions:
        return EndedTransactions(replica, self._outcomes[replica.partition])
