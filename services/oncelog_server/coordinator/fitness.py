"""What the outside has against a request: partitions that do not exist, batches that their leaders
would refuse, no room. After PREPARE nobody says no, so whatever a participant could refuse is found
here, before the append.

A finding is a verdict on something new. It travels with the command (`unfit`), and `decide` raises
it where the request is not known: one that was accepted once gets its old answer, whatever has
happened to its topics since (docs/protocol.md, "Known requests first").

Left out: rights, which come before; what depends on the state of the machine.
"""

from __future__ import annotations

from collections.abc import Iterable

from oncelog_server.coordinator.commands import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
)
from oncelog_server.core.ids import CONSUMER_OFFSETS_ID, CONTROL_PARTITIONS, PartitionId, TopicId
from oncelog_server.core.role import RoleEnv
from oncelogpb.errors import OncelogError, UnknownPartition


class Fitness:
    """See the module. One per process."""

    def __init__(self, env: RoleEnv) -> None:
        self._env = env

    def of_begin(self, command: BeginTransaction) -> OncelogError | None:
        return command.unfit or self._of_partitions(command.parts)

    def of_commit(self, command: CommitTransaction) -> OncelogError | None:
        return self._of_partitions(command.manifest.participants())

    def of_abort(self, command: AbortTransaction) -> OncelogError | None:
        return self._of_partitions(command.parts)

    def _of_partitions(self, participants: Iterable[PartitionId]) -> OncelogError | None:
        """A marker for a partition that never was would be sent for ever. A topic that is unknown
        here may have been deleted, which etcd says when its markers are due."""
        counts: dict[TopicId, int | None] = {CONSUMER_OFFSETS_ID: CONTROL_PARTITIONS}
        for participant in participants:
            if participant.topic_id not in counts:
                topic = self._env.directory.topic_by_id(participant.topic_id)
                counts[participant.topic_id] = None if topic is None else topic.partitions
            count = counts[participant.topic_id]
            if count is not None and participant.number >= count:
                return UnknownPartition(
                    f"the topic of {participant} has {count} partitions",
                    partition=participant.number,
                )
        return None
