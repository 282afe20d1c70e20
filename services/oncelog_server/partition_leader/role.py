"""What the composition plugs in: the partition leader as a Role."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.machine import Codec
from oncelog_server.core.needs import Tables
from oncelog_server.core.ports import Outbox, Slots
from oncelog_server.participant import access as participant_access
from oncelog_server.participant.handler import ParticipantHandler
from oncelog_server.partition_leader import access
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.machine import PartitionMachine
from oncelog_server.partition_leader.marker_metrics import tell_markers
from oncelog_server.partition_leader.outbox import PartitionOutbox
from oncelog_server.partition_leader.ports import PartitionEnv, PartitionReplica
from oncelog_server.partition_leader.records import PartitionCodec, Record
from oncelog_server.partition_leader.service import PartitionLeaderService
from oncelog_server.partition_leader.settling import PartitionSettler


class PartitionLeaderRole:
    """See core/role.py."""

    name = "partition_leader"
    # It leads the partitions of users' topics.
    control_topic: TopicId | None = None

    def __init__(self, config: PartitionLeaderConfig) -> None:
        config.validate()
        self._config = config
        self.codec: Codec[Record] = PartitionCodec()

    def machine(self, partition: PartitionId) -> PartitionMachine:
        return PartitionMachine(self._config)

    def projection(self, partition: PartitionId, slots: Callable[[str, int], Slots]) -> None:
        """Nothing beside the machine."""

    def settler(self) -> PartitionSettler:
        return PartitionSettler()

    def outbox(self, replica: PartitionReplica, env: PartitionEnv) -> Outbox:
        return PartitionOutbox(replica, env)

    def checkpoint(self, machine: object) -> None:
        """Nothing to tell."""

    def services(self, env: PartitionEnv) -> Mapping[str, object]:
        return {
            "PartitionLeader": PartitionLeaderService(env, self._config),
            "Participant": ParticipantHandler(
                env, told=tell_markers(env.reporter), is_watched=attrgetter("is_watched")
            ),
        }

    def access(self, env: PartitionEnv) -> Tables:
        return {
            "PartitionLeader": access.entries(env, self._config),
            "Participant": participant_access.ENTRIES,
        }
