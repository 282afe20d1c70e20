"""Reads ahead: one Subscribe stream per leader, into a queue that is bounded by bytes.

The conductor groups the fetchable partitions by leader and follows each leader until its stream
ends; what ended is located again. When the queue is full nobody reads from the streams, and the
transport holds the servers back. Every change of positions (seek, rewind, pause) drops what was
read ahead and starts over: rare, and simple to be right.

An error that repeating at once cannot heal goes into the queue and is raised to whoever polls. Its
partitions are read again as soon as somebody was told: each poll says what is the matter as long as
it is, and reading goes on by itself once all is well again. A topic that was deleted stays gone,
also where one of its name was made since: that is another topic, with offsets of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from oncelog._core import retries
from oncelog._core.positions import Positions
from oncelog._core.routing import Endpoint, PartitionKey
from oncelog.batch import Chunk, TopicPartition
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2

# Of each reply of a Subscribe stream (messages of 1 to 2 MiB are carried best).
REPLY_BYTES: Final = 2 * 1024 * 1024
# How long the location of leaders may take before it is tried again, milliseconds.
LOCATE_MS: Final = 10_000
# Who waits for a leader, or for the user to be told, is looked at again so often, seconds.
LOOK_AGAIN_S: Final = retries.BACKOFF_MS_MAX / 1000


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
        self._queue: deque[tuple[PartitionKey, Chunk] | _Trouble] = deque()
        self._queued_bytes = 0
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._edition = -1
        self._conductor: asyncio.Task[None] | None = None
        # Partitions whose error is in the queue: not read before the user was told.
        self._stuck: set[PartitionKey] = set()
        # Those of whose error the user was told: to be read again.
        self._freed: list[PartitionKey] = []
        # One past the last readable record, as leaders said last.
        self.ends: dict[PartitionKey, int] = {}

    async def follow_positions(self) -> None:
        """Starts over where positions have changed since the last call."""
        self._require_conductor()
        if self._edition == self._positions.edition:
            return
        await self.stop()
        self._positions.unfetch()
        self._edition = self._positions.edition
        self._stuck.clear()
        self._freed.clear()
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
            if isinstance(head, _Trouble):
                if not taken:
                    self._queue.popleft()
                    self._freed += head.partitions
                    self._stuck -= set(head.partitions)
                    raise head.error
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

    def _require_conductor(self) -> None:
        """Raises what ended it, a fault of this client: else nothing would come any more, without a
        word. The next call starts over."""
        ended = self._conductor
        if ended is not None and ended.done() and not ended.cancelled() and ended.exception():
            self._conductor, self._edition = None, -1
            ended.result()

    # -------------------------------------------------------------------------------- conducting

    async def _conduct(self) -> None:
        """Until cancelled: every fetchable partition is followed by exactly one task."""
        following: dict[asyncio.Task[errors.OncelogError | None], list[PartitionKey]] = {}
        homeless = [partition for partition, _ in self._positions.fetchable()]
        attempt = 0
        try:
            while homeless or following or self._stuck or self._freed:
                for leader, partitions in (await self._by_leader(homeless)).items():
                    task = asyncio.create_task(self._follow(leader, partitions))
                    following[task] = partitions
                    homeless = [place for place in homeless if place not in partitions]
                done: set[asyncio.Task[errors.OncelogError | None]] = set()
                if following:
                    wait_s = LOOK_AGAIN_S if homeless or self._stuck or self._freed else None
                    done, _ = await asyncio.wait(
                        following, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
                    )
                moved = [place for task in done for place in following.pop(task)]
                freed, self._freed = self._freed, []
                attempt = attempt + 1 if moved or not following else 0
                homeless = [
                    place for place in (*homeless, *moved, *freed) if place not in self._stuck
                ]
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
            if isinstance(leader, errors.UnknownTopic):
                self._refused(partition, await why_gone(self._protocol, self._names[partition]))
            elif isinstance(leader, BaseException):
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
            self._protocol.suspect(leader, error)
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
                if isinstance(error, errors.UnknownTopic):
                    # Whoever locates it next learns why.
                    self._protocol.learn_failure(partition, error)
                else:
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
        last = self._queue[-1] if self._queue else None
        if isinstance(last, _Trouble) and str(last.error) == str(error):
            # One error of many partitions is one error.
            last.partitions.append(partition)
        else:
            self._queue.append(_Trouble(error, [partition]))
        self._arrived.set()


class _Trouble(NamedTuple):
    """An error to be told, and the partitions that met it."""

    error: errors.OncelogError
    partitions: list[PartitionKey]


async def why_gone(protocol: AsyncProtocol, place: TopicPartition) -> errors.OncelogError:
    """Of a partition whose topic id nobody knows: deleted, or deleted and made again."""
    try:
        await protocol.refresh(topics=[place.topic], deadline=protocol.deadline(LOCATE_MS))
    except errors.OncelogError as error:
        return error
    if protocol.directory.topic(place.topic) is None:
        return errors.UnknownTopic(f"topic {place.topic!r} was deleted", topic=place.topic)
    return errors.UnknownTopic(
        f"topic {place.topic!r} was deleted and made again: it is another topic, whose offsets "
        "begin anew; open a new consumer to read it",
        topic=place.topic,
    )
