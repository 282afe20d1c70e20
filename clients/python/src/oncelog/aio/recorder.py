"""From `send` to sealed batches: buffers that any thread may fill (`front`), sealed on the loop.

Sealing takes the lock, hands the chunk to the loop, and the loop encodes it once it knows the
topic. Chunks of one topic are sealed in the order in which they were taken, because they are taken
and handed over under one lock.

What becomes of sealed batches is the owner's business: `deliver` gets them, and tells each part how
it ended. What cannot be sealed ends here.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from oncelog._core.batching import (
    Layout,
    Pieces,
    Sealed,
    max_batch_bytes_of,
    seal_arrow,
    seal_cell,
)
from oncelog._core.buffers import RECORD_BYTES_MAX, Cell, Row, TopicBuffer, refuse_size
from oncelog._core.deliveries import Deliveries, Part, Verdict
from oncelog._core.partitioners import PARTITIONERS
from oncelog._core.routing import PartitionKey
from oncelog.aio.receipts import Receipt, TableReceipt
from oncelog.aio.unsent import warn_of_unsent
from oncelog.errors import INSTEAD_OF_FORK, Closed, Forked
from oncelog.options import ProducerOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2

# Turns of the loop from a sealed chunk to its message in the transport: arrive, pump, write. Who
# sends without end gives the loop these turns at each batch. Else it keeps the interpreter: the
# loop gets it once in 5 ms (sys.getswitchinterval), for one of the turns, and most batches wait
# until the sending is over (1.2 to 2 times the records/s, measured).
TURNS_TO_SEND: Final = 4


class Parcel(NamedTuple):
    """A sealed batch on its way: where it goes, and whom to tell how it ends."""

    partition: PartitionKey
    sealed: Sealed
    part: Part


class ArrowChunk:
    """A part of a user's table."""

    __slots__ = ("batch", "deliveries")

    def __init__(self, batch: pa.RecordBatch, first_row: int, deliveries: Deliveries) -> None:
        self.batch = batch
        self.deliveries = deliveries
        deliveries.first = first_row

    @property
    def record_count(self) -> int:
        return int(self.batch.num_rows)


# What is sealed at once.
Chunk: TypeAlias = Cell | ArrowChunk


class Deliver(Protocol):
    """Takes sealed batches of one chunk. `size` is what `outstanding` counted for the chunk."""

    def __call__(self, parcels: list[Parcel], size: int) -> None: ...


class Sticky:
    """Where records without a key go, by topic: another partition with each chunk (KIP-480)."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._next: dict[str, int] = {}

    def take(self, topic: str, partitions: int) -> int:
        following = self._next.get(topic)
        if following is None:
            following = int(self._chance() * partitions)
        self._next[topic] = following + 1
        return following % partitions


class Recorder:
    """See the module. What `front` calls may be called from any thread; all else belongs to the
    loop. `on_part` hears of every part that is settled."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        options: ProducerOptions,
        sticky: Sticky,
        *,
        chunk_bytes: int,
        linger_ms: float | None,
        loop: asyncio.AbstractEventLoop,
        deliver: Deliver,
        on_part: Callable[[Deliveries, Part], None],
        verdict: Verdict | None = None,
    ) -> None:
        """`linger_ms` None: what is buffered waits for `seal_all`. `verdict`: of the transaction
        that the records are of."""
        self._protocol = protocol
        self._options = options
        self._sticky = sticky
        self._chunk_bytes = chunk_bytes
        self._linger_ms = linger_ms
        self._key_hash = PARTITIONERS[options.partitioner]
        self._compression = records.Compression(options.compression)
        self._deliver = deliver
        self._on_part = on_part
        self._verdict = verdict
        self._loop = loop
        self._lock = threading.Lock()
        # By topic: those that take records. Nothing may be put any more once it is emptied.
        self.open_buffers: dict[str, TopicBuffer] = {}
        self._buffers: dict[str, TopicBuffer] = {}
        # Chunks of topics whose metadata are asked for, in order.
        self._pending: dict[str, deque[tuple[Chunk, int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        # Bytes handed over and not settled yet. Changed under the lock.
        self.outstanding = 0
        # Chunks on their way to the loop. Changed under the lock.
        self._travelling = 0
        # Records that were taken out of their buffers and are not settled.
        self._under_way = 0
        self.stopped = False
        # See `receipts.Origin`.
        self.is_asked = False
        self._halt: Callable[[], None] | None = None
        # A batch was sealed because it was full: whoever put its last record waits for `room`.
        self.is_pressed = False
        # Runs work on the loop for a thread that waits; None: there are no threads, and who puts
        # looks at `is_pressed`.
        self.run_here: Callable[[Coroutine[Any, Any, Any]], Any] | None = None
        # Raises why a receipt may not be waited for.
        self.require_ending: Callable[[], None] = _nothing
        _ALIVE.add(self)

    # ----------------------------------------------------------------- from any thread: the front

    def open(self, topic: str) -> TopicBuffer:
        """Where records of this topic are put. Raises InvalidArgument, and why nothing may be put
        any more."""
        self.require_open()
        if not isinstance(topic, str) or not topic:
            raise errors.InvalidArgument("topic is the name of a topic", field="topic")
        with self._lock:
            made = self._buffers.get(topic)
            if made is None:
                made = TopicBuffer(topic, self._chunk_bytes, self._deliveries)
                # Without linger nobody is called: as if somebody had been already.
                made.armed = self._linger_ms is None
                self._buffers[topic] = made
            self.open_buffers[topic] = made
            return made

    def put_last(self, buffer: TopicBuffer, row: Row, size: int) -> Receipt:
        """Puts the record for which there is no room in its batch: it is the last of it. Raises
        TooLarge."""
        if size > RECORD_BYTES_MAX:
            refuse_size(size)
        with self._lock:
            receipt = self._put(buffer, row, size)
            self._seal(buffer)
        if self.run_here is None:
            self.is_pressed = True
        else:
            self.run_here(self.room())
        return receipt

    def put_aside(self, buffer: TopicBuffer, row: Row, size: int) -> Receipt:
        """See `TopicBuffer.put_aside`."""
        with self._lock:
            receipt = self._put(buffer, row, size)
        if not buffer.armed:
            self.arm(buffer)
        return receipt

    def rehome(self, buffer: TopicBuffer, cell: Cell, place: int, row: Row) -> Receipt:
        """The receipt of a record that was put while its cell was taken: there, or where it is put
        now."""
        with self._lock:
            taken = buffer.was_taken(cell, place)
            receipt = _receipt(cell, place) if taken else self._put(buffer, row, 0)
        if not buffer.armed:
            self.arm(buffer)
        return receipt

    def arm(self, buffer: TopicBuffer) -> None:
        """Has it sealed after the linger time."""
        buffer.armed = True
        self._loop.call_soon_threadsafe(self._linger, buffer)

    def put_arrow(self, topic: str, data: pa.Table | pa.RecordBatch) -> TableReceipt:
        """Takes in Arrow data, behind what was sent to the topic before. The caller waits for
        `room`. Raises InvalidArgument."""
        buffer = self.open_buffers.get(topic) or self.open(topic)
        if not isinstance(data, pa.Table | pa.RecordBatch):
            raise errors.InvalidArgument(
                f"a table is a pyarrow.Table or RecordBatch, not {type(data).__name__}",
                field="table",
            )
        if isinstance(data, pa.Table) and data.nbytes <= self._chunk_bytes:
            # A poll spans chunks, and transforms keep them: one batch of each partition still fits
            # into one message, several do not.
            data = data.combine_chunks()
        batches = [data] if isinstance(data, pa.RecordBatch) else data.to_batches()
        chunks: list[tuple[Deliveries, range]] = []
        first = 0
        with self._lock:
            self._seal(buffer)
            for batch in batches:
                if batch.num_rows:
                    chunk = ArrowChunk(batch, first, self._deliveries(topic))
                    chunks.append((chunk.deliveries, range(first, first + batch.num_rows)))
                    self._hand_over(topic, chunk, batch.nbytes)
                first += batch.num_rows
        return TableReceipt(chunks, self)

    @property
    def is_crowded(self) -> bool:
        """More than a chunk is on its way: who puts a table waits for `room`. Less is taken in
        without a turn of the loop."""
        return self.outstanding > self._chunk_bytes

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """For receipts. Raises InvalidArgument."""
        if self.run_here is None:
            work.close()
            raise errors.InvalidArgument("await the receipt: this is the event loop's own face")
        return self.run_here(work)

    def require_open(self) -> None:
        """Raises why nothing may be put any more."""
        if self._halt is not None:
            self._halt()
        if self.stopped:
            raise Closed("this producer is closed")

    def _put(self, buffer: TopicBuffer, row: Row, size: int) -> Receipt:
        """Under the lock."""
        cell, place, before = buffer.put_aside(row)
        if before is not None:
            self._hand_over(buffer.topic, before, buffer.batch_bytes - buffer.room)
            buffer.room = buffer.batch_bytes
        buffer.room -= size
        return _receipt(cell, place)

    def _deliveries(self, topic: str) -> Deliveries:
        return Deliveries(topic, self, self._verdict)

    def _seal(self, buffer: TopicBuffer) -> None:
        """Under the lock."""
        taken = buffer.take()
        if taken is not None:
            self._hand_over(buffer.topic, *taken)

    def _hand_over(self, topic: str, chunk: Chunk, size: int) -> None:
        """Under the lock, so that chunks reach the loop in the order in which they were taken."""
        self.outstanding += size
        self._travelling += 1
        self._under_way += chunk.record_count
        self._loop.call_soon_threadsafe(self._arrive, topic, chunk, size)

    # ------------------------------------------------------------------------------ on the loop

    async def seal_all(self) -> None:
        """Seals everything that was sent before, and waits until it was delivered or has failed."""
        for buffer in list(self._buffers.values()):
            self._seal_here(buffer, buffer.take)
        await self._sealed()

    async def seal_last(self) -> None:
        """As `seal_all`, for good: what comes now is refused."""
        for buffer in list(self._buffers.values()):
            self._seal_here(buffer, buffer.close)
        await self._sealed()

    async def _sealed(self) -> None:
        if self._travelling:
            arrived: asyncio.Future[None] = self._loop.create_future()
            self._loop.call_soon_threadsafe(_done, arrived)
            await arrived
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def room(self) -> None:
        """Returns once what was sealed is on its way, and there is room for more. Bounded: what is
        outstanding settles or fails."""
        self.is_pressed = False
        for _ in range(TURNS_TO_SEND):
            await asyncio.sleep(0)
        while self.outstanding > self._options.buffer_bytes_max and not self.stopped:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def settled(self, size: int) -> None:
        """So many bytes have left memory."""
        with self._lock:
            self.outstanding -= size
        if self.outstanding <= self._options.buffer_bytes_max:
            self._release()

    def part_settled(self, deliveries: Deliveries, part: Part) -> None:
        """The records of this part have ended, in one way or another."""
        with self._lock:
            self._under_way -= part.count
        self._on_part(deliveries, part)

    def recount(self, was: int, now: int) -> None:
        """A chunk turned out to have another size."""
        with self._lock:
            self.outstanding += now - was

    def widen(self, chunk_bytes: int) -> None:
        """From now on chunks are of another size."""
        with self._lock:
            self._chunk_bytes = chunk_bytes
            for buffer in self._buffers.values():
                buffer.room += chunk_bytes - buffer.batch_bytes
                buffer.batch_bytes = chunk_bytes

    def halt(self, why: Callable[[], None]) -> None:
        """Nothing may be put any more: `why` raises the reason."""
        self._halt = why
        self.open_buffers.clear()

    def stop(self) -> None:
        """Drops what is not delivered."""
        self.stopped = True
        for task in self._tasks:
            task.cancel()
        with self._lock:
            self.open_buffers.clear()
            left = [buffer.close() for buffer in self._buffers.values()]
            self._buffers.clear()
        dropped: list[Chunk] = [taken[0] for taken in left if taken is not None]
        self._under_way += sum(chunk.record_count for chunk in dropped)
        for waiting in self._pending.values():
            dropped.extend(chunk for chunk, _ in waiting)
        self._pending.clear()
        for chunk in dropped:
            self._drop(chunk)
        self._release()

    def let_go(self) -> None:
        """It has ended, and tells nobody any more: what it was made with can go with it."""
        self._deliver = _deliver_nowhere
        self._on_part = _tell_nobody

    @property
    def unsent(self) -> int:
        """Records that were put and are not settled. Those that come meanwhile may be missed."""
        buffered = sum(buffer.cell.record_count for buffer in self._buffers.values())
        return buffered + self._under_way

    def warn_of_unsent(self) -> None:
        """Where records are lost that nobody will ever be told of: not of a transaction, which has
        no end then either. Once."""
        if self._verdict is None and not self.stopped:
            self.stopped = True
            warn_of_unsent(self.unsent)

    def _release(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _drop(self, chunk: Chunk) -> None:
        why = Closed("it was closed before this record was sent")
        chunk.deliveries.fail(chunk.record_count, why)

    def _seal_here(self, buffer: TopicBuffer, take: Callable[[], tuple[Cell, int] | None]) -> None:
        """As `_seal`, on the loop: where nothing is on its way that this could overtake, the chunk
        arrives at once, without a detour over the loop's queue."""
        with self._lock:
            taken = take()
            if taken is None:
                return
            if self._travelling:
                self._hand_over(buffer.topic, *taken)
                return
            self.outstanding += taken[1]
            self._under_way += taken[0].record_count
        self._accept(buffer.topic, *taken)

    def _linger(self, buffer: TopicBuffer) -> None:
        assert self._linger_ms is not None
        if self._linger_ms:
            self._loop.call_later(self._linger_ms / 1000, self._lingered, buffer)
        else:
            self._lingered(buffer)

    def _lingered(self, buffer: TopicBuffer) -> None:
        # Before taking: a record that comes after this arms the timer again.
        buffer.armed = False
        if not self.stopped:
            self._seal_here(buffer, buffer.take)

    def _arrive(self, topic: str, chunk: Chunk, size: int) -> None:
        with self._lock:
            self._travelling -= 1
        self._accept(topic, chunk, size)

    def _accept(self, topic: str, chunk: Chunk, size: int) -> None:
        """A chunk arrives at the loop. It waits behind those of its topic that wait."""
        if self.stopped:
            self.settled(size)
            self._drop(chunk)
            return
        waiting = self._pending.get(topic)
        if waiting is not None:
            waiting.append((chunk, size))
            return
        self._protocol.look_again()
        description = self._protocol.directory.topic(topic)
        if description is not None:
            self._encode(description, chunk, size)
            return
        self._pending[topic] = deque([(chunk, size)])
        task = self._loop.create_task(self._ask(topic))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, topic: str) -> None:
        """Encodes what waits once the topic is known."""
        failure: errors.OncelogError | None = None
        try:
            await asyncio.wait_for(self._describe(topic), self._options.delivery_timeout_ms / 1000)
        except errors.OncelogError as error:
            failure = error
        except TimeoutError:
            failure = errors.Unavailable(f"no process describes topic {topic!r}")
        waiting = self._pending.pop(topic, None)
        description = self._protocol.directory.topic(topic)
        while waiting:
            chunk, size = waiting.popleft()
            if failure is None and description is not None:
                self._encode(description, chunk, size)
            else:
                why = failure or errors.UnknownTopic(f"no topic {topic!r}", topic=topic)
                self._refuse(chunk, size, why)

    async def _describe(self, topic: str) -> None:
        attempt = 0
        while True:
            try:
                await self._protocol.topic(topic)
                return
            except errors.TryAgain as error:
                await self._protocol.back_off(attempt, error)
                attempt += 1

    def _encode(
        self, topic: partition_leader_pb2.TopicDescription, chunk: Chunk, size: int
    ) -> None:
        layout = self._layout(topic)
        try:
            sealed = (
                seal_cell(chunk, layout)
                if isinstance(chunk, Cell)
                else seal_arrow(chunk.batch, layout)
            )
        except errors.OncelogError as error:
            self._refuse(chunk, size, error)
            return
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            why = errors.InvalidArgument(f"records cannot be encoded: {error}")
            self._refuse(chunk, size, why)
            return
        self._deliver(_parcels(topic.topic_id, chunk, sealed), size)

    def _layout(self, topic: partition_leader_pb2.TopicDescription) -> Layout:
        most = max_batch_bytes_of(topic.configs)
        partitions = len(topic.partitions)
        # Positional: by name it takes twice as long, and a small transaction is short.
        return Layout(
            topic.name,
            partitions,
            self._sticky.take(topic.name, partitions),
            self._key_hash,
            self._protocol.wall_ns() // 1000,
            min(self._options.batch_bytes, most),
            self._compression,
            most,
        )

    def _refuse(self, chunk: Chunk, size: int, why: errors.OncelogError) -> None:
        self.settled(size)
        chunk.deliveries.fail(chunk.record_count, why, self._protocol.wall_ns() // 1000)


def _parcels(topic_id: bytes, chunk: Chunk, sealed: Pieces) -> list[Parcel]:
    """The batches of a chunk, with their parts; what was refused is told."""
    parts: list[Part] = []
    parcels: list[Parcel] = []
    start = 0
    for piece in sealed.pieces:
        if isinstance(piece, Sealed):
            partition = PartitionKey(topic_id, piece.partition)
            part = Part(chunk.deliveries, start, piece.record_count, partition, None)
            parcels.append(Parcel(partition, piece, part))
        else:
            part = Part(chunk.deliveries, start, 1, None, piece.error)
        parts.append(part)
        start += part.count
    chunk.deliveries.seal(parts, sealed.order, sealed.times)
    return parcels


def _receipt(cell: Cell, place: int) -> Receipt:
    receipt = Receipt()
    receipt.deliveries, receipt.place = cell.deliveries, place
    return receipt


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _nothing() -> None:
    return None


def _deliver_nowhere(parcels: list[Parcel], size: int) -> None:
    return None


def _tell_nobody(deliveries: Deliveries, part: Part) -> None:
    return None


# All recorders, for the child of a fork: what it puts would go nowhere, without a word.
_ALIVE: Final[weakref.WeakSet[Recorder]] = weakref.WeakSet()


def _halt_in_child() -> None:
    for recorder in _ALIVE:
        recorder.halt(_refuse_in_child)
        # What it holds is the parent's.
        recorder.stopped = True


def _refuse_in_child() -> None:
    raise Forked(f"a connection does not survive fork: {INSTEAD_OF_FORK}")


os.register_at_fork(after_in_child=_halt_in_child)


@atexit.register
def _warn_at_exit() -> None:
    """What the plain face could flush it has flushed by now: it was registered later."""
    for recorder in list(_ALIVE):
        recorder.warn_of_unsent()
