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
from typing import NoReturn

from oncelog_server.coordinator.commands import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    Transact,
)
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.ports import CoordinatorEnv, CoordinatorReplica
from oncelog_server.coordinator.values import OneShotBatch, one_shot_bytes
from oncelog_server.core.ids import CONSUMER_OFFSETS_ID, CONTROL_PARTITIONS, PartitionId, TopicId
from oncelog_server.core.ports import TopicInfo
from oncelog_server.core.topic_limits import MAX_BATCH_BYTES, is_compacted, max_batch_bytes
from oncelogpb import records
from oncelogpb.errors import (
    OncelogError,
    TooLarge,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)


class UnheardOf(Unavailable):
    """A partition that this process does not know: it never was, it is gone, or it is so new that
    the client heard of it first. Only etcd can tell, and it is asked only where the request is new
    (`Fitness.explain`)."""

    def __init__(self, partition: PartitionId) -> None:
        super().__init__(f"this process has not heard of partition {partition} yet; try again")
        self.partition = partition


class Fitness:
    """See the module. One per process."""

    def __init__(self, config: CoordinatorConfig, env: CoordinatorEnv) -> None:
        self._config = config
        self._env = env

    def of_begin(self, command: BeginTransaction) -> OncelogError | None:
        return command.unfit or self._of_partitions(command.parts)

    def of_commit(self, command: CommitTransaction) -> OncelogError | None:
        return self._of_partitions(command.manifest.participants())

    def of_abort(self, command: AbortTransaction) -> OncelogError | None:
        return self._of_partitions(command.parts)

    def of_one_shot(self, command: Transact, replica: CoordinatorReplica) -> OncelogError | None:
        """In order: its size, each batch and its topic, room on the disk."""
        config = self._config
        try:
            _require_at_most(
                "one_shot_partitions_max", len(command.batches), config.one_shot_partitions_max
            )
            size_bytes = one_shot_bytes(command.batches, command.offsets)
            _require_at_most("one_shot_bytes_max", size_bytes, config.one_shot_bytes_max)
            for batch in command.batches:
                self._require_sound(batch)
            replica.require_room()
        except OncelogError as unfit:
            return unfit
        return None

    async def explain(self, unheard: UnheardOf) -> NoReturn:
        """Raises UnknownTopic or UnknownPartition where etcd says so, else Unavailable."""
        topic_id, number = unheard.partition
        if await self._env.metadata.is_gone(topic_id):
            name = topic_id.hex()
            raise UnknownTopic(f"no topic with id {name}", topic_id=name)
        if not await self._env.metadata.exists(unheard.partition):
            raise UnknownPartition(
                f"there is no partition {number} of this topic", partition=number
            )
        raise unheard

    def _require_sound(self, batch: OneShotBatch) -> None:
        """As its leader would judge it."""
        topic = self._env.metadata.topic_by_id(batch.partition.topic_id)
        if topic is None or batch.partition.number >= topic.partitions:
            raise UnheardOf(batch.partition)
        records.validate(
            batch.encoding,
            batch.payload,
            batch.record_count,
            batch.crc32c,
            self._batch_limits(topic),
            max_timestamp_us=batch.max_timestamp_us,
        )

    def _batch_limits(self, topic: TopicInfo) -> records.BatchLimits:
        config = self._config
        return records.BatchLimits(
            max_batch_bytes(topic.configs),
            config.one_shot_decompressed_bytes_max,
            MAX_BATCH_BYTES,
            "one_shot_decompressed_bytes_max",
            topic.name if is_compacted(topic.configs) else "",
        )

    def _of_partitions(self, participants: Iterable[PartitionId]) -> OncelogError | None:
        """A marker for a partition that never was has nowhere to go. A topic that is unknown here
        may have been deleted, which etcd says when its markers are due."""
        counts: dict[TopicId, int | None] = {CONSUMER_OFFSETS_ID: CONTROL_PARTITIONS}
        for participant in participants:
            if participant.topic_id not in counts:
                topic = self._env.metadata.topic_by_id(participant.topic_id)
                counts[participant.topic_id] = None if topic is None else topic.partitions
            count = counts[participant.topic_id]
            if count is not None and participant.number >= count:
                return UnheardOf(participant)
        return None


def _require_at_most(limit: str, size: int, maximum: int) -> None:
    if size > maximum:
        raise TooLarge(f"{size} is above {limit} ({maximum}); send less at once", limit=limit)
