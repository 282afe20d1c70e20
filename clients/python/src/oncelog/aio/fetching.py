"""Reads ahead: one Subscribe stream per leader, into a queue that is bounded by bytes.

The conductor groups the fetchable partitions by leader and follows each leader until its stream
ends; what ended is located again. When the queue is full nobody reads from the streams, and the
transport holds the servers back. A change of positions (seek, rewind, pause, a partition that comes
or goes) drops what was read ahead of the partitions that it concerns, and opens the streams anew on
which they were; what was read ahead of others stays.

Invariant: a partition is followed by one stream, or is homeless, or is stuck and waits until the
user was told.

Where what should be read next was deleted, the user is told as of any error, once all before it was
taken; or, as his option `if_deleted` says, the position goes on behind it (`_core.deletions`), then
as well, so that nothing which was read before it was deleted is lost.

An error that repeating at once cannot heal goes into the queue and is raised to whoever polls. Its
partitions are read again as soon as somebody was told: each poll says what is the matter as long as
it is, and reading goes on by itself once all is well again. A topic that was deleted stays gone,
also where one of its name was made since: that is another topic, with offsets of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from oncelog._core import holes, retries
from oncelog._core.deletions import Deletions, Gap, gap_of
from oncelog._core.merged import Merged
from oncelog._core.positions import Positions
from oncelog._core.routing import Endpoint, PartitionKey
from oncelog._core.units import Written
from oncelog.batch import Chunk, TopicPartition
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors, in_place, records
from oncelogpb.bulk import Chunk as Payload
from oncelogpb.v1 import offset_manager_pb2, partition_leader_pb2

# Of each reply of a Subscribe stream (messages of 1 to 2 MiB are carried best).
REPLY_BYTES: Final = 2 * 1024 * 1024
# How long the location of leaders may take before it is tried again, milliseconds.
LOCATE_MS: Final = 10_000
# Streams that are open to one leader beside each other, at most.
STREAMS_PER_LEADER_MAX: Final = 4
# Who waits for a leader, or for the user to be told, is looked at again so often, seconds.
LOOK_AGAIN_S: Final = retries.BACKOFF_MS_MAX / 1000

log = logging.getLogger("oncelog.consumer")

# Follows one leader. Its result: what ended it, where that was an error.
_Stream = asyncio.Task[errors.OncelogError | None]


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
        deletions: Deletions,
    ) -> None:
        self._protocol = protocol
        self._positions = positions
        self._names = names
        self._isolation = isolation
        self._bytes_max = bytes_max
        self._deletions = deletions
        self._queue: deque[tuple[PartitionKey, Chunk] | _Trouble] = deque()
        # What was deleted behind records that somebody gathers still: told once those are given.
        self._set_aside: list[_Trouble] = []
        self._queued_bytes = 0
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        # What of the positions it has followed: all changes up to here, by partition.
        self._edition = -1
        self._wanted: dict[PartitionKey, int] = {}
        # Those that need a leader to follow, in order.
        self._homeless: dict[PartitionKey, None] = {}
        # Those that are followed, and what follows each of them.
        self._streams: dict[_Stream, list[PartitionKey]] = {}
        self._followed: dict[PartitionKey, _Stream] = {}
        self._leaders: dict[_Stream, Endpoint] = {}
        # Set by a change of what is wanted.
        self._changed = asyncio.Event()
        self._conductor: asyncio.Task[None] | None = None
        # Partitions whose error is in the queue: not read before the user was told.
        self._stuck: set[PartitionKey] = set()
        # Those of whose error the user was told: to be read again.
        self._freed: list[PartitionKey] = []
        # Of these nothing is fetched now; what was fetched stays.
        self._held_back: frozenset[PartitionKey] = frozenset()
        # Somebody else than a leader has something for whoever polls.
        self._has_news = False
        # Says of each chunk who wrote it, and whether its transaction ends there.
        self.tells_written = False
        # One past the last readable record, as leaders said last.
        self.ends: dict[PartitionKey, int] = {}

    def follow_positions(self) -> None:
        """Starts over with those whose positions have changed since the last call: nothing that was
        read ahead of them before is given any more."""
        self._require_conductor()
        if self._edition == self._positions.edition:
            return
        self._edition = self._positions.edition
        before, self._wanted = self._wanted, self._positions.editions()
        changed = {
            partition: None
            for partition in (*before, *self._wanted)
            if before.get(partition) != self._wanted.get(partition)
        }
        self._drop(changed)
        self._positions.unfetch(changed)
        self._leave_streams(changed)
        self._homeless.update((place, None) for place in changed if self._is_wanted(place))
        self._changed.set()
        if self._conductor is None:
            self._conductor = asyncio.get_running_loop().create_task(self._conduct())

    def hold_back(self, partitions: Collection[PartitionKey]) -> None:
        """Of these, and only these, nothing more is fetched; what was fetched stays."""
        before, self._held_back = self._held_back, frozenset(partitions)
        if before == self._held_back:
            return
        self._leave_streams(sorted(self._held_back - before))
        for place in self._held_back:
            self._homeless.pop(place, None)
        self._homeless.update(
            (place, None)
            for place in sorted(before - self._held_back)
            if self._is_wanted(place) and place not in self._stuck
        )
        self._changed.set()

    def _is_wanted(self, partition: PartitionKey) -> bool:
        return partition in self._wanted and partition not in self._held_back

    @property
    def is_ready(self) -> bool:
        """There is something to take, or to be told."""
        return bool(self._queue) or self._has_news

    def tell(self) -> None:
        """Ends a `wait`, as what a leader sends does."""
        self._has_news = True
        self._arrived.set()

    def heard(self) -> None:
        """Whoever polls has looked at what `tell` was about."""
        self._has_news = False

    async def wait(self, seconds: float) -> bool:
        """True once it is ready; False after so many seconds, or where nothing can come."""
        if self.is_ready:
            return True
        self._arrived.clear()
        arrival = asyncio.ensure_future(self._arrived.wait())
        try:
            # Not wait_for: it may swallow a cancellation that comes with what it waits for.
            done, _ = await asyncio.wait((arrival,), timeout=seconds)
        finally:
            arrival.cancel()
        return bool(done) and self.is_ready

    def take(self, records_max: int) -> list[tuple[PartitionKey, Chunk]]:
        """What is queued, up to so many records; some of it may hold none. Raises an error that
        was met, once all before it was taken. Nothing, though there was something: what should come
        next was deleted, and is passed over; `follow_positions` goes on behind it."""
        taken: list[tuple[PartitionKey, Chunk]] = []
        room = records_max
        while self._queue and room:
            head = self._queue[0]
            if isinstance(head, _Trouble):
                if not taken:
                    self._queue.popleft()
                    self._freed += head.partitions
                    self._stuck -= set(head.partitions)
                    if head.gap is None:
                        raise head.error
                    if self._positions.is_at_first(head.partitions[0], head.gap.position):
                        self._begin_later(head.partitions[0], head.gap)
                    elif not self._deletions.are_passed_over:
                        raise head.error
                    else:
                        self._pass_over(head.partitions[0], head.gap)
                break
            taken.append(self._take_of(head, room))
            room -= taken[-1][1].count
        self._taken.set()
        return taken

    def _take_of(self, head: tuple[PartitionKey, Chunk], room: int) -> tuple[PartitionKey, Chunk]:
        """Of what is queued first, up to so many records."""
        self._queue.popleft()
        partition, chunk = head
        if chunk.count > room:
            chunk, rest = chunk.split(room)
            self._queue.appendleft((partition, rest))
        else:
            self._queued_bytes -= len(chunk.payload)
        return partition, chunk

    def take_next(
        self, is_waited_for: Callable[[PartitionKey], bool]
    ) -> tuple[PartitionKey, Chunk] | None:
        """The next one that is queued, as it came. Raises an error that was met. None: there is
        none, as `take` says. `is_waited_for`: of that partition something was taken that is not
        given yet, so what was deleted behind it is set aside."""
        while self._queue and _is_set_aside(self._queue[0], is_waited_for):
            trouble = self._queue.popleft()
            assert isinstance(trouble, _Trouble)
            self._set_aside.append(trouble)
        if not self._queue:
            return None
        head = self._queue[0]
        if isinstance(head, _Trouble):
            self.take(1)
            return None
        self._taken.set()
        return self._take_of(head, head[1].count)

    def bring_back(self, is_waited_for: Callable[[PartitionKey], bool]) -> None:
        """What was set aside comes next, where nothing before it is waited for any more."""
        if not self._set_aside:
            return
        due = [one for one in self._set_aside if not _is_set_aside(one, is_waited_for)]
        self._set_aside = [one for one in self._set_aside if one not in due]
        self._queue.extendleft(reversed(due))

    async def stop(self) -> None:
        """Ends the streams and drops the queue."""
        conductor, self._conductor = self._conductor, None
        if conductor is not None:
            conductor.cancel()
            await asyncio.gather(conductor, return_exceptions=True)
        self._forget_all()

    async def close(self) -> None:
        """For good."""
        await self.stop()

    def learn(self, committed: offset_manager_pb2.CommittedOffset) -> None:
        """Where a group stands in a partition."""

    def annotate(self, offsets: Iterable[offset_manager_pb2.OffsetCommit]) -> None:
        """What shall stand beside each offset of a commit."""

    def wake(self) -> None:
        """Ends a `wait` early."""
        self._arrived.set()

    def _require_conductor(self) -> None:
        """Raises what ended it, a fault of this client: else nothing would come any more, without a
        word. The next call starts over."""
        ended = self._conductor
        if ended is not None and ended.done() and not ended.cancelled() and ended.exception():
            self._conductor = None
            self._forget_all()
            ended.result()

    def _forget_all(self) -> None:
        """The next `follow_positions` finds everything changed."""
        self._drop(dict(self._wanted))
        self._wanted = {}
        self._homeless.clear()
        self._edition = -1

    def _drop(self, partitions: Collection[PartitionKey]) -> None:
        """Of the queue, and of what is to be told."""
        for trouble in self._set_aside:
            trouble.partitions[:] = [key for key in trouble.partitions if key not in partitions]
        self._set_aside = [one for one in self._set_aside if one.partitions]
        kept: deque[tuple[PartitionKey, Chunk] | _Trouble] = deque()
        for item in self._queue:
            if isinstance(item, _Trouble):
                item.partitions[:] = [key for key in item.partitions if key not in partitions]
                if item.partitions:
                    kept.append(item)
            elif item[0] in partitions:
                self._queued_bytes -= len(item[1].payload)
            else:
                kept.append(item)
        self._queue = kept
        self._stuck.difference_update(partitions)
        self._freed = [key for key in self._freed if key not in partitions]
        for partition in partitions:
            self._homeless.pop(partition, None)
            self.ends.pop(partition, None)
        self._taken.set()

    def _leave_streams(self, partitions: Iterable[PartitionKey]) -> None:
        """Ends the streams on which these are. The others on them are asked for again from where
        they stand."""
        for stream in dict.fromkeys(
            self._followed[place] for place in partitions if place in self._followed
        ):
            stream.cancel()
            self._rehouse(stream)

    # -------------------------------------------------------------------------------- conducting

    async def _conduct(self) -> None:
        """Until cancelled."""
        attempt = 0
        try:
            while True:
                self._changed.clear()
                await self._find_leaders()
                has_ended = await self._until_one_ends()
                if self._changed.is_set():
                    attempt = 0
                    continue
                freed, self._freed = self._freed, []
                self._homeless.update(dict.fromkeys(filter(self._is_wanted, freed)))
                is_idle = not self._streams
                attempt = attempt + 1 if has_ended or is_idle else 0
                if has_ended or is_idle:
                    await self._protocol.back_off(min(attempt, 4))
        finally:
            streams = list(self._streams)
            for stream in streams:
                stream.cancel()
            self._streams.clear()
            self._leaders.clear()
            self._followed.clear()
            await asyncio.gather(*streams, return_exceptions=True)

    async def _find_leaders(self) -> None:
        """Follows those that are homeless, where their leaders can be found."""
        for leader, located in (await self._by_leader(list(self._homeless))).items():
            # Some may have changed meanwhile.
            partitions = [place for place in located if place in self._homeless]
            if not partitions:
                continue
            partitions += self._join_streams(leader)
            stream = asyncio.create_task(self._follow(leader, partitions))
            self._streams[stream] = partitions
            self._leaders[stream] = leader
            for place in partitions:
                del self._homeless[place]
                self._followed[place] = stream

    def _join_streams(self, leader: Endpoint) -> list[PartitionKey]:
        """What comes to a leader gets a stream of its own beside the others: these go on. Where
        they are many, they become one, with what was on them."""
        streams = [stream for stream, at in self._leaders.items() if at == leader]
        if len(streams) < STREAMS_PER_LEADER_MAX:
            return []
        joined = [place for stream in streams for place in self._streams[stream]]
        self._leave_streams(joined)
        return [place for place in joined if place in self._homeless]

    async def _until_one_ends(self) -> bool:
        """Waits for the end of a stream (True), a change of what is wanted, or a while where
        something else may be over."""
        is_restless = bool(self._homeless or self._stuck or self._freed)
        if not self._streams:
            if not is_restless:
                await self._changed.wait()
            return False
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait(
                (*self._streams, changed),
                timeout=LOOK_AGAIN_S if is_restless else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            changed.cancel()
        ended = [stream for stream in self._streams if stream.done()]
        for stream in ended:
            self._rehouse(stream)
            # A fault of this client ends the conductor, and is raised by the next poll.
            stream.result()
        return bool(ended)

    def _rehouse(self, stream: _Stream) -> None:
        """Those on it need a leader again."""
        del self._leaders[stream]
        for place in self._streams.pop(stream):
            del self._followed[place]
            if self._is_wanted(place) and place not in self._stuck:
                self._homeless[place] = None

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
            if isinstance(leader, errors.UnknownTopic) and partition in self._homeless:
                leader = await why_gone(self._protocol, self._names[partition])
            if partition not in self._homeless:
                # It has changed meanwhile.
                continue
            if isinstance(leader, BaseException):
                self._refused(partition, leader)
            else:
                groups.setdefault(leader, []).append(partition)
        return groups

    async def _follow(
        self, leader: Endpoint, partitions: list[PartitionKey]
    ) -> errors.OncelogError | None:
        """One stream, to its end."""
        return await self._read(leader, partitions, self._isolation)

    async def _read(
        self,
        leader: Endpoint,
        partitions: list[PartitionKey],
        isolation: partition_leader_pb2.Isolation.ValueType,
    ) -> errors.OncelogError | None:
        request = partition_leader_pb2.SubscribeRequest(
            isolation=isolation,
            max_bytes=min(REPLY_BYTES, self._bytes_max),
            with_units=self.tells_written,
            with_offsets=True,
        )
        for partition in partitions:
            request.partitions.add(partition=partition.wire(), offset=self._next(partition))
        try:
            replies = self._protocol.transport.stream(leader, "partition_leader.subscribe", request)
            async with contextlib.aclosing(replies):
                async for reply in replies:
                    failure = self._receive(reply)
                    if failure is not None:
                        return failure
                    await self._room()
                    if self._is_over(partitions):
                        return None
        except errors.OncelogError as error:
            self._protocol.suspect(leader, error)
            for partition in partitions:
                self._refused(partition, error)
            return error
        for partition in partitions:
            self._protocol.directory.forget(partition)
        return None

    def _is_over(self, partitions: list[PartitionKey]) -> bool:
        """These are not read on by this stream."""
        return False

    def _next(self, partition: PartitionKey) -> int:
        """What to ask its leader for."""
        return self._positions.fetch_position(partition) or 0

    async def _room(self) -> None:
        while self._queued_bytes > self._bytes_max:
            self._taken.clear()
            await self._taken.wait()

    def _receive(self, reply: Any) -> errors.OncelogError | None:
        """Queues what came. An error of one partition ends the stream: all are asked anew."""
        for part, batches in in_place.fetched(reply):
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
                for batch, payload in batches:
                    self._queue_batch(partition, batch, payload)
            except errors.OncelogError as error:
                self._refused(partition, error)
                return error
        return None

    def _queue_batch(self, partition: PartitionKey, batch: Any, payload: Payload) -> None:
        if batch.kind != partition_leader_pb2.FetchedBatch.KIND_DATA:
            return
        wanted = self._positions.fetch_position(partition)
        offsets = holes.offsets_of(batch)
        following = holes.next_offset(batch.first_offset, batch.record_count, offsets)
        if wanted is None or following <= wanted:
            return
        if records.checksum(payload) != batch.crc32c:
            raise errors.CorruptBatch(
                f"the batch at offset {batch.first_offset} does not match its checksum"
            )
        skip = holes.skipped(wanted, batch.first_offset, offsets)
        name = self._names[partition]
        chunk = Chunk(
            name.topic,
            name.partition,
            first_offset=batch.first_offset + skip if offsets is None else int(offsets[skip]),
            encoding=batch.encoding,
            # Users keep it, and hand its columns on: it keeps no message, and is aligned.
            payload=bytes(payload),
            skip=skip,
            count=batch.record_count - skip,
            offsets=None if offsets is None else offsets[skip:],
        )
        if self.tells_written:
            chunk.written = written_of(batch)
            if batch.HasField("units"):
                chunk.merged = Merged(batch.units, batch.record_count)
            # What can be read ends with a whole transaction.
            chunk.is_last = following >= self.ends[partition]
        self._put(partition, chunk)

    def _put(self, partition: PartitionKey, chunk: Chunk) -> None:
        self._positions.fetched(partition, chunk.next_offset)
        self._queue.append((partition, chunk))
        self._queued_bytes += len(chunk.payload)
        self._arrived.set()

    def _refused(self, partition: PartitionKey, error: BaseException) -> None:
        """Corrects the directory, or tells the user where repeating cannot help."""
        if not isinstance(error, errors.OncelogError):
            raise error
        self._protocol.learn_failure(partition, error)
        if retries.is_repeatable(retries.action_for(error), idempotent=True):
            return
        position = self._positions.fetch_position(partition)
        gap = None if position is None else gap_of(error, position)
        if gap is not None:
            error = self._deletions.told(self._names[partition], gap)
        self._stuck.add(partition)
        self._homeless.pop(partition, None)
        last = self._queue[-1] if self._queue else None
        if isinstance(last, _Trouble) and str(last.error) == str(error):
            # One error of many partitions is one error.
            last.partitions.append(partition)
        else:
            self._queue.append(_Trouble(error, [partition], gap))
        self._arrived.set()

    def _begin_later(self, partition: PartitionKey, gap: Gap) -> None:
        """Between the answer where it begins and the first fetch. Nobody stood before it."""
        self._positions.begin_later(partition, gap.start)
        self._deletions.begin_later(self._names[partition], gap)

    def _pass_over(self, partition: PartitionKey, gap: Gap) -> None:
        """What was gathered of it and is not whole is not given: its end was deleted."""
        position = self._positions.position(partition)
        assert position is not None, "it was read"
        gap = gap._replace(position=position)
        self._positions.skip(partition, self._deletions.goes_on_at(gap))
        log.warning("%s", self._deletions.pass_over(partition, self._names[partition], gap))


def written_of(batch: Any) -> Written:
    """Who wrote a batch of the committed log."""
    producer = batch.producer
    return Written(batch.tx_id, producer.producer_id, producer.generation, batch.time_ms)


class _Trouble(NamedTuple):
    """An error to be told, and the partitions that met it."""

    error: errors.OncelogError
    partitions: list[PartitionKey]
    # What should be read next was deleted; of one partition.
    gap: Gap | None = None


def _is_set_aside(
    item: tuple[PartitionKey, Chunk] | _Trouble, is_waited_for: Callable[[PartitionKey], bool]
) -> bool:
    if not isinstance(item, _Trouble) or not isinstance(item.error, errors.OffsetOutOfRange):
        return False
    return any(map(is_waited_for, item.partitions))


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
