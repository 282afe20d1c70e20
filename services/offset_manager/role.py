"""What the composition plugs in: the offset manager as a Role."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.core.ids import CONSUMER_OFFSETS_ID, PartitionId, TopicId
from services.core.machine import Codec
from services.core.ports import Outbox, Replica, Slots
from services.core.role import RoleEnv
from services.offset_manager import wire
from services.offset_manager.config import OffsetManagerConfig
from services.offset_manager.machine import OffsetManagerMachine
from services.offset_manager.outbox import OffsetManagerOutbox
from services.offset_manager.records import CODEC, Record
from services.offset_manager.service import OffsetManagerService
from services.participant.handler import ParticipantHandler


class OffsetManagerRole:
    """See services/core/role.py."""

    name = "offset_manager"
    control_topic: TopicId | None = CONSUMER_OFFSETS_ID

    def __init__(self, config: OffsetManagerConfig) -> None:
        config.validate()
        self._config = config
        self.codec: Codec[Record] = CODEC

    def machine(self, partition: PartitionId) -> OffsetManagerMachine:
        return OffsetManagerMachine(self._config)

    def projection(self, partition: PartitionId, slots: Callable[[str, int], Slots]) -> None:
        """Nothing beside the machine."""

    def outbox(self, replica: Replica, env: RoleEnv) -> Outbox:
        return OffsetManagerOutbox(replica, env)

    def checkpoint(self, machine: object) -> None:
        """Nothing to tell."""

    def services(self, env: RoleEnv) -> Mapping[str, object]:
        return {
            "OffsetManager": OffsetManagerService(env),
            "Participant": ParticipantHandler(env, decode=wire.write_markers),
        }
