"""What the composition plugs in: the offset manager as a Role."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oncelog_server.core.ids import CONSUMER_OFFSETS_ID, PartitionId, TopicId
from oncelog_server.core.machine import Codec
from oncelog_server.core.needs import Tables
from oncelog_server.core.ports import Outbox, Slots
from oncelog_server.offset_manager import access, wire
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.machine import OffsetManagerMachine
from oncelog_server.offset_manager.outbox import OffsetManagerOutbox
from oncelog_server.offset_manager.ports import OffsetManagerEnv, OffsetManagerReplica
from oncelog_server.offset_manager.records import CODEC, Record
from oncelog_server.offset_manager.service import OffsetManagerService
from oncelog_server.participant import access as participant_access
from oncelog_server.participant.handler import ParticipantHandler


class OffsetManagerRole:
    """See core/role.py."""

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

    def settler(self) -> None:
        """No committed log."""

    def outbox(self, replica: OffsetManagerReplica, env: OffsetManagerEnv) -> Outbox:
        return OffsetManagerOutbox(replica, env, self._config)

    def checkpoint(self, machine: object) -> None:
        """Nothing to tell."""

    def services(self, env: OffsetManagerEnv) -> Mapping[str, object]:
        return {
            "OffsetManager": OffsetManagerService(env, self._config),
            "Participant": ParticipantHandler(env, decode=wire.write_markers),
        }

    def access(self, env: OffsetManagerEnv) -> Tables:
        return {"OffsetManager": access.entries(env), "Participant": participant_access.ENTRIES}
