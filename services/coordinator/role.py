"""What the composition plugs in: the coordinator as a Role."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.coordinator.config import CoordinatorConfig
from services.coordinator.endings import Endings
from services.coordinator.machine import CoordinatorMachine
from services.coordinator.outbox import CoordinatorOutbox
from services.coordinator.outcomes import SLOT_BYTES, SLOT_FILE, Outcomes
from services.coordinator.records import CODEC, Record
from services.coordinator.service import CoordinatorService
from services.coordinator.waiting import Waiting
from services.core.ids import TRANSACTION_CONTROL_ID, PartitionId, TopicId
from services.core.machine import Codec
from services.core.ports import Outbox, Replica, Slots
from services.core.role import RoleEnv


class CoordinatorRole:
    """See services/core/role.py."""

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
        opened = Outcomes(slots(SLOT_FILE, SLOT_BYTES), self._config.outcome_retention_ms)
        self._outcomes[partition] = opened
        return opened

    def outbox(self, replica: Replica, env: RoleEnv) -> Outbox:
        return CoordinatorOutbox(replica, env, self._waiting, self._config)

    def checkpoint(self, machine: CoordinatorMachine) -> int:
        return machine.checkpoint_offset()

    def services(self, env: RoleEnv) -> Mapping[str, object]:
        return {"Coordinator": CoordinatorService(self._config, env, self._waiting, self._endings)}

    def _endings(self, replica: Replica, env: RoleEnv) -> Endings:
        return Endings(replica, self._outcomes[replica.partition], env)
