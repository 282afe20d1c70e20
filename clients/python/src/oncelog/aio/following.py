"""Reads all partitions of one topic, from their first records on: for who keeps what is read, and
has no group. Partitions that are added later are read, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from oncelog._core.deletions import Deletions
from oncelog._core.pace import tombstones_kept_ms
from oncelog._core.positions import Positions
from oncelog._core.routing import PartitionKey
from oncelog.aio.assigned import Assigned
from oncelog.aio.fetching import Prefetcher, why_gone
from oncelog.aio.offsets import Offsets
from oncelog.batch import Chunk, TopicPartition
from oncelog.options import ConsumerOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2

# Records that are taken at one time: what is done with them holds up the loop.
RECORDS_MAX: Final = 10_000


class Following:
    """Of one topic. Used by one task; `ends` by any."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        topic: partition_leader_pb2.TopicDescription,
        *,
        if_deleted: str,
        prefetch_bytes_max: int,
        on_begun: Callable[[], object],
        on_passed_over: Callable[[int], object],
    ) -> None:
        """`on_begun`: partitions have their positions. `on_passed_over` is told the number of a
        partition of which records were deleted before they were read, when all before them was
        taken."""
        self._on_begun = on_begun
        self.topic = topic.name
        self._topic_id = topic.topic_id
        self._protocol = protocol
        names = {
            PartitionKey(topic.topic_id, one.number): TopicPartition(topic.name, one.number)
            for one in topic.partitions
        }
        self._assigned = Assigned(protocol, names, [topic.name])
        self._positions = Positions(names)
        self._deletions = Deletions(if_deleted)
        self._deletions.on_passed_over = lambda place, *_: on_passed_over(place.partition)
        self._prefetcher = Prefetcher(
            protocol,
            self._positions,
            self._assigned.names,
            isolation=partition_leader_pb2.ISOLATION_COMMITTED,
            bytes_max=prefetch_bytes_max,
            deletions=self._deletions,
        )
        self._prefetcher.tells_written = True
        self._offsets = Offsets(
            protocol,
            ConsumerOptions(),
            self._positions,
            self._assigned.names,
            self._prefetcher,
            None,
            lambda: None,
        )

    @property
    def partition_count(self) -> int:
        """Of those that it knows."""
        return len(self._positions.assigned)

    @property
    def skipped(self) -> dict[TopicPartition, int]:
        """Offsets that were deleted before they were read, of those partitions where some were."""
        return self._deletions.counts(self._assigned.names)

    @property
    def tombstones_kept_ms(self) -> int | None:
        """By the settings of the topic, as this client knows them; None: for ever."""
        topic = self._protocol.directory.topic(self.topic)
        return None if topic is None else tombstones_kept_ms(topic.configs)

    def begin_anew(self) -> list[int]:
        """Reads all partitions, these, from their first records on again."""
        self._positions.forget()
        return [key.number for key in self._positions.assigned]

    def position(self, partition: int) -> int | None:
        """All below it was taken; None: it has not begun."""
        key = PartitionKey(self._topic_id, partition)
        return self._positions.position(key) if key in self._assigned.names else None

    def positions(self) -> dict[TopicPartition, int]:
        """Of all that have begun."""
        found = {name: self._positions.position(key) for key, name in self._assigned.names.items()}
        return {name: at for name, at in sorted(found.items()) if at is not None}

    async def poll(self, timeout_s: float) -> list[Chunk]:
        """What comes next, each with who wrote it; nothing where nothing came in time. Raises as
        `Consumer.poll` of who stands alone."""
        self._positions.assign_added(self._assigned.take_added())
        unknown = self._positions.unknown()
        if unknown:
            await self._offsets.start(unknown)
            self._on_begun()
        self._prefetcher.follow_positions()
        if not await self._prefetcher.wait(timeout_s):
            return []
        taken = self._prefetcher.take(RECORDS_MAX)
        for partition, chunk in taken:
            self._positions.given(partition, chunk.next_offset)
        return [chunk for _, chunk in taken]

    async def ends(self, timeout_ms: int) -> dict[int, int]:
        """One past the last record that can be read now, of every partition that there is now.
        Raises UnknownTopic, Unavailable and what else a leader says."""
        deadline = self._protocol.deadline(timeout_ms)
        await self._protocol.refresh(topics=[self.topic], deadline=deadline)
        self._positions.assign_added(self._assigned.take_added())
        # So that it begins those that were added.
        self._prefetcher.wake()
        keys = list(self._positions.assigned)
        request = partition_leader_pb2.ListOffsetsRequest(
            isolation=partition_leader_pb2.ISOLATION_COMMITTED
        )
        for key in keys:
            request.queries.add(partition=key.wire(), latest=True)
        reply = await self._protocol.call(
            "partition_leader.list_offsets", request, self._protocol.remaining_ms(deadline)
        )
        for key, listed in zip(keys, reply.offsets, strict=True):
            if listed.HasField("error"):
                error = errors.from_status(listed.error)
                if isinstance(error, errors.UnknownTopic):
                    raise await why_gone(self._protocol, self._assigned.names[key])
                raise error
        return {key.number: listed.offset for key, listed in zip(keys, reply.offsets, strict=True)}

    async def close(self) -> None:
        """Ends reading. Safe to repeat."""
        await self._prefetcher.stop()
        await self._prefetcher.close()
