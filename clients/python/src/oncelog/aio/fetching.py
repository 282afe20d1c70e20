"""Reads ahead: one Subscribe stream per leader, into a queue that is bounded by bytes.

The conductor groups the fetchable partitions by leader and follows each leader until its stream
ends; what ended is located again. When the queue is full nobody reads from the streams, and the
transport holds the servers back. Every change of positions (seek, rewind, pause) drops what was
read ahead and starts over: rare, and simple to be right.

An error that repeating cannot heal goes into the queue and is raised to whoever polls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from oncelog._core import retries
from oncelog._core.positions import Positions
from oncelog._core.routing import Endpoint, PartitionKey
from oncelog.batch import Chunk, TopicPartition
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2

# Of each reply of a Subscribe stream (design: messages of 1-2 MiB).
REPLY_BYTES: Final = 2 * 1024 * 1024
# How long the location of leaders may take before it is tried again, milliseconds.
LOCATE_MS: Final = 10_000


class Prefetcher:
    """Belongs to one consumer and one loop."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        positions: Positions,
        names: Mapping[PartitionKey, TopicPartition],
        *,
        isolation: partition_leader_pb2.Isolation.ValueType,
        bytes_max: int,
    ) -> None:
        self._protocol = protocol
        self._positions = positions
        self._names = names
        self._isolation = isolation
        self._bytes_max = bytes_max
        self._queue: deque[tuple[PartitionKey, Chunk] | errors.OncelogError] = deque()
        self._queued_bytes = 0
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._edition = -1
        self._conductor: asyncio.Task[None] | None = None
        # Partitions whose error the user was told: not read again until positions change.
        self._stuck: set[PartitionKey] = set()
        # One past the last readable record, as leaders said last.
        self.ends: dict[PartitionKey, int] = {}

    async def follow_positions(self) -> None:
        """Starts over where positions have changed since the last call."""
        if self._edition == self._positions.edition:
            return
        await self.stop()
        self._positions.unfetch()
        self._edition = self._positions.edition
        self._stuck.clear()
        self._conductor = asyncio.get_running_loop().create_task(self._conduct())

    async def wait(self, seconds: float) -> bool:
        """True once something is queued; False after so many seconds, or where nothing can come."""
        if self._queue:
            return True
        self._arrived.clear()
        try:
            await asyncio.wait_for(self._arrived.wait(), seconds)
        except TimeoutError:
            return False
        return bool(self._queue)

    def take(self, records_max: int) -> list[tuple[PartitionKey, Chunk]]:
        """What is queued, up to so many records. Raises an error that was met, once all before it
        was taken."""
        taken: list[tuple[PartitionKey, Chunk]] = []
        room = records_max
        while self._queue and room:
            head = self._queue[0]
            if isinstance(head, errors.OncelogError):
                if not taken:
                    self._queue.popleft()
                    raise head
                break
            self._queue.popleft()
            partition, chunk = head
            if chunk.count > room:
                chunk, rest = chunk.split(room)
                self._queue.appendleft((partition, rest))
            else:
                self._queued_bytes -= len(chunk.payload)
            taken.append((partition, chunk))
            room -= chunk.count
        self._taken.set()
        return taken

    async def stop(self) -> None:
        """Ends the streams and drops the queue."""
        conductor, self._conductor = self._conductor, None
        if conductor is not None:
            conductor.cancel()
            await asyncio.gather(conductor, return_exceptions=True)
        self._queue.clear()
        self._queued_bytes = 0
        self._edition = -1

    def wake(self) -> None:
        """Ends a `wait` early."""
        self._arrived.set()

    # -------------------------------------------------------------------------------- conducting

    async def _conduct(self) -> None:
        """Until cancelled: every fetchable partition is followed by exactly one task."""
        following: dict[asyncio.Task[errors.OncelogError | None], list[PartitionKey]] = {}
        homeless = [partition for partition, _ in self._positions.fetchable()]
        attempt = 0
        try:
            while homeless or following:
                for leader, partitions in (await self._by_leader(homeless)).items():
                    task = asyncio.create_task(self._follow(leader, partitions))
                    following[task] = partitions
                    homeless = [place for place in homeless if place not in partitions]
                if following:
                    wait_s = None if not homeless else retries.BACKOFF_MS_MAX / 1000
                    done, _ = await asyncio.wait(
                        following, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
                    )
                else:
                    done = set()
                moved = [place for task in done for place in following.pop(task)]
                attempt = attempt + 1 if moved or not following else 0
                homeless = [place for place in (*homeless, *moved) if place not in self._stuck]
                if moved or not following:
                    await self._protocol.back_off(min(attempt, 4))
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    async def _by_leader(
        self, partitions: list[PartitionKey]
    ) -> dict[Endpoint, list[PartitionKey]]:
        """Those whose leader can be found; the others are tried again."""
        groups: dict[Endpoint, list[PartitionKey]] = {}
        deadline_ms = self._protocol.deadline(LOCATE_MS)
        found = await asyncio.gather(
            *(self._protocol.locate(partition, deadline_ms) for partition in partitions),
            return_exceptions=True,
        )
        for partition, leader in zip(partitions, found, strict=True):
            if isinstance(leader, BaseException):
                self._refused(partition, leader)
            else:
                groups.setdefault(leader, []).append(partition)
        return groups

    async def _follow(
        self, leader: Endpoint, partitions: list[PartitionKey]
    ) -> errors.OncelogError | None:
        """One stream, to its end."""
        request = partition_leader_pb2.SubscribeRequest(
            isolation=self._isolation, max_bytes=min(REPLY_BYTES, self._bytes_max)
        )
        for partition in partitions:
            offset = self._positions.fetch_position(partition)
            request.partitions.add(partition=partition.wire(), offset=offset or 0)
        try:
            replies = self._protocol.transport.stream(leader, "partition_leader.subscribe", request)
            async with contextlib.aclosing(replies):
                async for reply in replies:
                    failure = self._receive(reply)
                    if failure is not None:
                        return failure
                    await self._room()
        except errors.OncelogError as error:
            for partition in partitions:
                self._refused(partition, error)
            return error
        for partition in partitions:
            self._protocol.directory.forget(partition)
        return None

    async def _room(self) -> None:
        while self._queued_bytes > self._bytes_max:
            self._taken.clear()
            await self._taken.wait()

    def _receive(self, reply: Any) -> errors.OncelogError | None:
        """Queues what came. An error of one partition ends the stream: all are asked anew."""
        for part in reply.partitions:
            partition = PartitionKey.of(part.partition)
            if part.HasField("error"):
                error = errors.from_status(part.error)
                self._refused(partition, error)
                return error
            self.ends[partition] = part.end_offset
            try:
                for batch in part.batches:
                    self._queue_batch(partition, batch)
            except errors.OncelogError as error:
                self._refused(partition, error)
                return error
        return None

    def _queue_batch(self, partition: PartitionKey, batch: Any) -> None:
        if batch.kind != partition_leader_pb2.FetchedBatch.KIND_DATA:
            return
        wanted = self._positions.fetch_position(partition)
        following = batch.first_offset + batch.record_count
        if wanted is None or following <= wanted:
            return
        if records.checksum(batch.payload) != batch.crc32c:
            raise errors.CorruptBatch(
                f"the batch at offset {batch.first_offset} does not match its checksum"
            )
        skip = max(0, wanted - batch.first_offset)
        name = self._names[partition]
        chunk = Chunk(
            name.topic,
            name.partition,
            first_offset=batch.first_offset + skip,
            encoding=batch.encoding,
            payload=batch.payload,
            skip=skip,
            count=batch.record_count - skip,
        )
        self._positions.fetched(partition, following)
        self._queue.append((partition, chunk))
        self._queued_bytes += len(batch.payload)
        self._arrived.set()

    def _refused(self, partition: PartitionKey, error: BaseException) -> None:
        """Corrects the directory, or tells the user where repeating cannot help."""
        if not isinstance(error, errors.OncelogError):
            raise error
        self._protocol.learn_failure(partition, error)
        if retries.is_repeatable(retries.action_for(error), idempotent=True):
            return
        self._stuck.add(partition)
        # One error of many partitions is one error.
        if not self._queue or self._queue[-1] is not error:
            self._queue.append(error)
        self._arrived.set()
