"""Reads ahead like its base class, but the journal: for `delivery="buffered"`.

A leader gives each partition's journal as it arrived, and does nothing else for this reader. Each
partition has a PendingTransactions that puts it in commit order; what that exposes is queued while
there is room, piece by piece, so that a transaction may be larger than memory. Offsets are those of
the committed log: from here on nobody sees a difference.

Positions (`Positions`) are the truth: where what is exposed does not go on exactly there any more,
after a seek, a rewind, a pause, the partition is begun anew, from the latest point of its journal
that leads there. So a change of positions needs no word to this class.

Each time its leader is asked first where in the journal that is: the front of a journal goes, and a
reader that counted from there without it would give records at wrong offsets. So a position whose
records were deleted is refused, as one of the committed log is, also while the journal has them.

Where the leader has settled a topic (`materialization=copy`), the front of its journal goes though
the records are kept. There it says so, and from where on it still has the journal of all records:
what lies before is read in commit order, as by any other consumer, then the journal again.

Left out: threads. Files are written and read on the event loop, a batch or some MiB at a time, into
the system's cache: that takes no longer than the copies that the transport makes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from oncelog._core.deletions import Deletions
from oncelog._core.pending import Arrived, Exposure, HeldBatch, Holder, Kind, PendingTransactions
from oncelog._core.positions import Positions
from oncelog._core.resume_points import ResumePoint, ResumePoints, decode
from oncelog._core.routing import Endpoint, PartitionKey
from oncelog._core.units import Written
from oncelog._held import BATCH_OVERHEAD_BYTES, HeldBatches
from oncelog.aio.fetching import LOCATE_MS, Prefetcher
from oncelog.batch import Chunk, TopicPartition
from oncelog.errors import BufferFailed
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors, records
from oncelogpb.bulk import Chunk as Payload
from oncelogpb.v1 import offset_manager_pb2, partition_leader_pb2

# So often in a row a journal may lose its front between its leader's word and the first fetch; then
# the user is told.
BEGIN_ATTEMPTS_MAX: Final = 10


class _Reading:
    """One partition."""

    def __init__(self) -> None:
        self.points = ResumePoints()
        self.pending: PendingTransactions | None = None
        # What was exposed and is not queued yet, in order; of the first one, its batches.
        self.due: deque[Exposure] = deque()
        # What all of it took, in memory or on disk, since nothing was due.
        self.due_bytes = 0
        self.batches: Iterator[HeldBatch] | None = None
        # Offset of its next batch.
        self.passed = 0
        # Offset of the next record to be queued.
        self.next_offset = -1
        # What its leader said last: of which offset, and the point that leads there (None: it does
        # not know). It serves one beginning.
        self.told: tuple[int, ResumePoint | None] | None = None
        # How often in a row its journal did not go back to where it was to begin.
        self.refused = 0
        # Its leader has no journal of the records before this offset: they are read in commit
        # order. None: it goes on with the journal.
        self.settled_to: int | None = None

    def settle(self) -> None:
        """What was seen so far may be the best place to resume at."""
        point = self.pending.point() if self.pending is not None else None
        if self.pending is not None and point is not None:
            self.points.add(self.pending.end, point)


class BufferedPrefetcher(Prefetcher):
    """Belongs to one consumer and one loop."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        positions: Positions,
        names: Mapping[PartitionKey, TopicPartition],
        *,
        bytes_max: int,
        memory_bytes_max: int,
        directory: str | Path | None,
        deletions: Deletions,
    ) -> None:
        super().__init__(
            protocol,
            positions,
            names,
            isolation=partition_leader_pb2.ISOLATION_RAW,
            bytes_max=bytes_max,
            deletions=deletions,
        )
        self.held = HeldBatches(memory_bytes_max, directory)
        self._holder = Holder(self.held.hold, self.held.release)
        self._readings: dict[PartitionKey, _Reading] = {}

    # ------------------------------------------------------------------------ positions of a group

    def learn(self, committed: offset_manager_pb2.CommittedOffset) -> None:
        """Where a group stands."""
        point = decode(committed.metadata)
        if point is not None:
            partition = PartitionKey.of(committed.partition)
            self._reading_of(partition).points.learn(committed.offset, point)

    def annotate(self, offsets: Iterable[offset_manager_pb2.OffsetCommit]) -> None:
        """Says, beside each offset that is about to be committed, from where on the journal must be
        read to go on there."""
        for commit in offsets:
            reading = self._readings.get(PartitionKey.of(commit.partition))
            if reading is None:
                continue
            reading.settle()
            commit.metadata = reading.points.at(commit.to_offset).encode()
            if commit.HasField("from_offset"):
                reading.points.forget_below(min(commit.from_offset, commit.to_offset))

    def follow_positions(self) -> None:
        """What will not be given is let go of, also where nothing is read any more."""
        has_changed = self._edition != self._positions.edition
        super().follow_positions()
        if not has_changed:
            return
        self._let_go()
        for partition, reading in self._readings.items():
            # Of what is paused, the open transactions stay: reading goes on there.
            has_moved = self._positions.fetch_position(partition) != reading.next_offset
            if has_moved or (reading.due and self._positions.is_paused(partition)):
                reading.settle()
                self._clear(reading)

    async def close(self) -> None:
        """Removes what is held."""
        await super().close()
        for reading in self._readings.values():
            self._clear(reading)
        self._readings.clear()
        self.held.close()

    # ----------------------------------------------------------------------------- what is fetched

    async def _follow(
        self, leader: Endpoint, partitions: list[PartitionKey]
    ) -> errors.OncelogError | None:
        """What the last stream has exposed comes first."""
        await self._room()
        for partition in partitions:
            # By another stream, perhaps long ago.
            self._reading_of(partition).told = None
        beginning = [partition for partition in partitions if self._begins(partition)]
        error = await self._ask_where(leader, beginning) if beginning else None
        if error is not None:
            return error
        settled = [one for one in partitions if self._reading_of(one).settled_to is not None]
        if not settled:
            return await super()._follow(leader, partitions)
        committed = partition_leader_pb2.ISOLATION_COMMITTED
        streams = [asyncio.create_task(self._read(leader, settled, committed))]
        journals = [one for one in partitions if one not in settled]
        if journals:
            streams.append(asyncio.create_task(super()._follow(leader, journals)))
        # Both end with the first: then each goes on where it stands.
        try:
            await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
        # An error that was met is what a stream returns, and somebody was told of it.
        met = [stream.result() for stream in streams if not stream.cancelled()]
        return next((error for error in met if error is not None), None)

    def _is_over(self, partitions: list[PartitionKey]) -> bool:
        """One that was read in commit order has come to where its journal begins."""
        for partition in partitions:
            reading = self._readings.get(partition)
            position = self._positions.fetch_position(partition)
            if reading is None or reading.settled_to is None or position is None:
                continue
            if position >= reading.settled_to:
                return True
        return False

    def _begins(self, partition: PartitionKey) -> bool:
        """It does not go on where it is."""
        reading = self._reading_of(partition)
        wanted = self._positions.fetch_position(partition) or 0
        return reading.pending is None or reading.next_offset != wanted

    async def _ask_where(
        self, leader: Endpoint, partitions: list[PartitionKey]
    ) -> errors.OncelogError | None:
        """Where in their journals these begin. Returns an error that was met: then all on the
        stream are asked anew, as where a leader refuses one of them."""
        wanted = {one: self._positions.fetch_position(one) or 0 for one in partitions}
        request = partition_leader_pb2.ListOffsetsRequest(
            isolation=partition_leader_pb2.ISOLATION_COMMITTED, with_journal_points=True
        )
        for partition, offset in wanted.items():
            request.queries.add(partition=partition.wire(), offset=offset)
        try:
            reply = await self._protocol.transport.call(
                leader, "partition_leader.list_offsets", request, LOCATE_MS
            )
        except errors.OncelogError as error:
            self._protocol.suspect(leader, error)
            for partition in partitions:
                super()._refused(partition, error)
            return error
        failure = None
        for partition, listed in zip(partitions, reply.offsets, strict=True):
            met = self._is_told(partition, wanted[partition], listed)
            failure = failure or met
        return failure

    def _is_told(
        self, partition: PartitionKey, wanted: int, listed: partition_leader_pb2.ListedOffset
    ) -> errors.OncelogError | None:
        """What its leader says of one partition."""
        point = None
        if listed.HasField("error"):
            error = errors.from_status(listed.error)
            if isinstance(error, errors.UnknownTopic):
                # Whoever locates it next learns why.
                self._protocol.learn_failure(partition, error)
            else:
                super()._refused(partition, error)
            return error
        reading = self._reading_of(partition)
        has_from = listed.journal_has_from if listed.HasField("journal_has_from") else None
        reading.settled_to = has_from
        if has_from is not None:
            self._clear(reading)
            return None
        if listed.HasField("journal_point"):
            told = listed.journal_point
            point = ResumePoint(told.earliest, told.iterator, told.given)
        reading.told = (wanted, point)
        return None

    def _refused(self, partition: PartitionKey, error: BaseException) -> None:
        """A journal whose front went between its leader's word and the first fetch: it is asked
        again. Where that never ends, the user is told, and not as if records were deleted: journal
        offsets are none of his."""
        reading = self._readings.get(partition)
        is_of_journal = reading is not None and reading.settled_to is None
        if not isinstance(error, errors.OffsetOutOfRange) or reading is None or not is_of_journal:
            super()._refused(partition, error)
            return
        self._clear(reading)
        reading.refused += 1
        if reading.refused > BEGIN_ATTEMPTS_MAX:
            reading.refused = 0
            super()._refused(partition, errors.OffsetOutOfRange(error.message))

    def _next(self, partition: PartitionKey) -> int:
        reading = self._reading_of(partition)
        if reading.settled_to is not None:
            return super()._next(partition)
        if reading.told is not None:
            # A seek that came behind its leader's word makes another stream, which asks anew: what
            # it seeks may be deleted.
            self._begin(reading, reading.told[0])
        elif reading.pending is None:
            self._begin(reading, self._positions.fetch_position(partition) or 0)
        assert reading.pending is not None
        return reading.pending.next

    def _queue_batch(self, partition: PartitionKey, batch: Any, payload: Payload) -> None:
        reading = self._readings.get(partition)
        if reading is not None and reading.settled_to is not None:
            super()._queue_batch(partition, batch, payload)
            return
        if reading is None or reading.pending is None:
            # It was let go of: its stream is about to end.
            return
        arrived = arrived_of(batch, bytes(payload))
        if arrived.batch is not None:
            if records.checksum(arrived.batch.payload) != batch.crc32c:
                raise errors.CorruptBatch(
                    f"the batch at journal offset {batch.first_offset} does not match its checksum"
                )
            if arrived.tx_id and arrived.kind == Kind.KIND_DATA:
                self.held.make_room(len(arrived.batch.payload))
        reading.refused = 0
        exposure = reading.pending.see(arrived)
        if exposure is not None:
            reading.due.append(exposure)
            reading.due_bytes += _size(exposure)

    async def _room(self) -> None:
        """Until what was exposed is queued. What is not wanted now counts as what is queued does:
        who stops without polling is not read ahead for without a bound."""
        await self._queue_due()
        while self._unwanted_bytes() > self._bytes_max:
            self._taken.clear()
            await self._taken.wait()
            await self._queue_due()

    def _unwanted_bytes(self) -> int:
        return sum(
            reading.due_bytes
            for partition, reading in self._readings.items()
            if not self._goes_on(partition, reading)
        )

    def _goes_on(self, partition: PartitionKey, reading: _Reading) -> bool:
        """What is due is what its position wants next."""
        if self._positions.is_paused(partition):
            return False
        return self._positions.fetch_position(partition) == reading.next_offset

    async def _queue_due(self) -> None:
        self._let_go()
        for partition in list(self._readings):
            await super()._room()
            try:
                while self._put_next(partition):
                    await super()._room()
            except BufferFailed as error:
                self._begin_again(partition, error)
                # Where it is this stream that was left, it ends here.
                await asyncio.sleep(0)
        await super()._room()

    def _begin_again(self, partition: PartitionKey, error: BufferFailed) -> None:
        """What is held of it is lost: it is read again once the user was told. Whichever stream
        found that goes on with the others."""
        self._clear(self._readings[partition])
        self._refused(partition, error)
        self._leave_streams([partition])

    def _put_next(self, partition: PartitionKey) -> bool:
        """The next batch that was exposed in this partition; False where there is none, or where
        its position has changed: then it begins anew. Raises BufferFailed."""
        reading = self._readings.get(partition)
        if reading is None or not reading.due or not self._goes_on(partition, reading):
            return False
        exposure = reading.due[0]
        if reading.batches is None:
            reading.batches = self._batches(exposure)
            reading.passed = exposure.first_offset
        batch = next(reading.batches, None)
        if batch is None:
            reading.due.popleft()
            reading.due_bytes *= bool(reading.due)
            reading.batches = None
            for part, _ in exposure.parts:
                self.held.release(part)
            return True
        self._put_batch(partition, reading, batch, exposure)
        return True

    def _put_batch(
        self, partition: PartitionKey, reading: _Reading, batch: HeldBatch, exposure: Exposure
    ) -> None:
        first = reading.passed
        reading.passed += batch.record_count
        skip = max(0, reading.next_offset - first)
        if skip >= batch.record_count:
            return
        name = self._names[partition]
        chunk = Chunk(
            name.topic,
            name.partition,
            first_offset=first + skip,
            encoding=batch.encoding,
            payload=batch.payload,
            skip=skip,
            count=batch.record_count - skip,
        )
        if self.tells_written:
            chunk.written = Written(
                exposure.tx_id, exposure.producer_id, exposure.generation, exposure.time_ms
            )
            chunk.is_last = chunk.next_offset == exposure.first_offset + exposure.record_count
        reading.next_offset = chunk.next_offset
        self._put(partition, chunk)

    def _batches(self, exposure: Exposure) -> Iterator[HeldBatch]:
        if exposure.batch is not None:
            yield exposure.batch
        for part, record_count in exposure.parts:
            yield from self.held.take(part, record_count)

    # ------------------------------------------------------------------------------------- inside

    def _reading_of(self, partition: PartitionKey) -> _Reading:
        return self._readings.setdefault(partition, _Reading())

    def _begin(self, reading: _Reading, wanted: int) -> None:
        """Reads the journal so that the record at `wanted` is the next to be queued."""
        reading.settle()
        self._clear(reading)
        told, reading.told = reading.told, None
        point = None if told is None else told[1]
        if point is None:
            point = reading.points.at(wanted)
        reading.pending = PendingTransactions(
            self._holder, reading.points, resume=point, offset=wanted
        )
        reading.next_offset = wanted

    def _clear(self, reading: _Reading) -> None:
        """Lets go of what is held. It begins anew when it is asked for."""
        if reading.pending is not None:
            reading.pending.clear()
        for exposure in reading.due:
            for part, _ in exposure.parts:
                self.held.release(part)
        reading.due.clear()
        reading.due_bytes = 0
        reading.batches = None
        reading.pending = None
        reading.next_offset = -1

    def _let_go(self) -> None:
        """Of partitions that are not this consumer's any more."""
        for partition in list(self._readings):
            if self._positions.fetch_position(partition) is not None:
                continue
            if partition not in self._positions.assigned:
                self._clear(self._readings.pop(partition))


def _size(exposure: Exposure) -> int:
    """What it takes, in memory or on disk."""
    size = BATCH_OVERHEAD_BYTES
    if exposure.batch is not None:
        size += len(exposure.batch.payload)
    return size + sum(part.held_bytes + part.spilled_bytes for part, _ in exposure.parts)


def arrived_of(batch: Any, payload: bytes) -> Arrived:
    """A batch of the journal as it came, with a payload that keeps no message."""
    kind = batch.kind
    is_data = kind in (Kind.KIND_DATA, Kind.KIND_ONE_SHOT)
    held = None
    if is_data:
        held = HeldBatch(batch.record_count, batch.encoding, batch.crc32c, payload)
    return Arrived(
        kind,
        batch.first_offset,
        batch.record_count,
        batch.tx_id,
        batch.producer.producer_id,
        batch.producer.generation,
        batch.writer,
        batch.time_ms,
        held,
        tuple(zip(batch.marker_writers, batch.marker_counts, strict=True)),
    )
