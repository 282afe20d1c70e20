"""From `send` to sealed batches: buffers that any thread may fill, sealed on the loop.

`put` is the hot path (perf_facts "The client's send path"): it extends a list and counts bytes, for
any number of threads without a lock. Sealing takes the lock, hands the chunk to the loop, and the
loop encodes it once it knows the topic. Chunks of one topic are sealed in the order in which they
were taken, because they are taken and handed over under one lock.

What becomes of sealed batches is the owner's business: `deliver` gets them.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from oncelog._core.batching import (
    RECORD_BYTES_MAX,
    RECORD_OVERHEAD_BYTES,
    HeadersLike,
    Layout,
    Sealed,
    TopicBuffer,
    check_bytes,
    make_extra,
    refuse_size,
    seal_arrow,
    seal_records,
)
from oncelog._core.partitioners import PARTITIONERS
from oncelog._core.routing import PartitionKey
from oncelog.errors import INSTEAD_OF_FORK, Forked
from oncelog.options import ProducerOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2

# Turns of the loop from a sealed chunk to its message in the transport: arrive, pump, write. Who
# sends without end gives the loop these turns at each batch. Else it keeps the interpreter: the
# loop gets it once in 5 ms (sys.getswitchinterval), for one of the turns, and most batches wait
# until the sending is over (1.2 to 2 times the records/s, measured).
TURNS_TO_SEND: Final = 4

# What a chunk is made of: the flat list of `send`, or a user's Arrow data.
Chunk: TypeAlias = list[Any] | pa.RecordBatch


class Deliver(Protocol):
    """Takes sealed batches of one chunk. `size` is what `outstanding` counted for the chunk."""

    def __call__(self, batches: list[tuple[PartitionKey, Sealed]], size: int) -> None: ...


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
    """See the module. Everything but `put` and `put_arrow` belongs to the loop."""

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
        on_failed: Callable[[errors.OncelogError], None],
    ) -> None:
        """`linger_ms` None: what is buffered waits for `seal_all`."""
        self._protocol = protocol
        self._options = options
        self._sticky = sticky
        self._chunk_bytes = chunk_bytes
        self._linger_ms = linger_ms
        self._deliver = deliver
        self._on_failed = on_failed
        self._loop = loop
        self._lock = threading.Lock()
        self._buffers: dict[str, TopicBuffer] = {}
        # Chunks of topics whose metadata are asked for, in order.
        self._pending: dict[str, deque[tuple[Chunk, int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        # Bytes handed over and not settled yet. Changed under the lock.
        self.outstanding = 0
        # Chunks on their way to the loop. Changed under the lock.
        self._travelling = 0
        self.stopped = False
        # Raises why nothing may be put any more; None: go on.
        self.halt: Callable[[], None] | None = None
        _ALIVE.add(self)

    # -------------------------------------------------------------------------- from any thread

    def put(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
    ) -> bool:
        """Takes in a record. True: a batch was sealed, so the caller should wait for `room`.
        Raises InvalidArgument, TooLarge."""
        if self.halt is not None:
            self.halt()
        buffer = self._buffers.get(topic)
        if buffer is None:
            buffer = self._open(topic)
        if type(value) is not bytes:
            value = check_bytes("value", value)
        size = RECORD_OVERHEAD_BYTES if value is None else len(value) + RECORD_OVERHEAD_BYTES
        if key is not None:
            if type(key) is not bytes:
                key = check_bytes("key", key)
            size += 0 if key is None else len(key)
        if size > RECORD_BYTES_MAX:
            refuse_size(size)
        extra = None
        if headers or timestamp_us is not None:
            extra = make_extra(headers, timestamp_us)
        if partition is not None:
            _check_partition(partition)
        buffer.items.extend((value, key, extra, partition))
        # Several threads may lose an update here: a hint, not an account.
        buffer.room -= size
        if buffer.room < 0:
            self._seal(buffer)
            return True
        # After extend: whoever finds it armed is sure that the timer sees his record.
        if not buffer.armed:
            buffer.armed = True
            self._loop.call_soon_threadsafe(self._linger, buffer)
        return False

    def put_arrow(self, topic: str, data: pa.Table | pa.RecordBatch) -> bool:
        """Takes in Arrow data, behind what was sent to the topic before. As `put`."""
        if self.halt is not None:
            self.halt()
        batches = [data] if isinstance(data, pa.RecordBatch) else data.to_batches()
        buffer = self._buffers.get(topic) or self._open(topic)
        self._seal(buffer)
        for batch in batches:
            if batch.num_rows:
                with self._lock:
                    self._hand_over(buffer, batch, batch.nbytes)
        return True

    def _open(self, topic: str) -> TopicBuffer:
        if not isinstance(topic, str) or not topic:
            raise errors.InvalidArgument("topic is the name of a topic", field="topic")
        with self._lock:
            made = self._buffers.setdefault(topic, TopicBuffer(topic, self._chunk_bytes))
            # Without linger nobody is called: as if somebody had been already.
            made.armed = self._linger_ms is None
            return made

    def _seal(self, buffer: TopicBuffer) -> None:
        with self._lock:
            items, size = buffer.take()
            if items:
                self._hand_over(buffer, items, size)

    def _hand_over(self, buffer: TopicBuffer, chunk: Chunk, size: int) -> None:
        """Under the lock, so that chunks reach the loop in the order in which they were taken."""
        self.outstanding += size
        self._travelling += 1
        self._loop.call_soon_threadsafe(self._arrive, buffer.topic, chunk, size)

    # ------------------------------------------------------------------------------ on the loop

    async def seal_all(self) -> None:
        """Seals everything that was sent before, and waits until it was delivered or has failed."""
        for buffer in list(self._buffers.values()):
            self._seal_here(buffer)
        if self._travelling:
            arrived: asyncio.Future[None] = self._loop.create_future()
            self._loop.call_soon_threadsafe(_done, arrived)
            await arrived
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def room(self) -> None:
        """Returns once what was sealed is on its way, and there is room for more. Bounded: what is
        outstanding settles or fails."""
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

    def stop(self) -> None:
        """Drops what is not delivered."""
        self.stopped = True
        for task in self._tasks:
            task.cancel()
        self._buffers.clear()
        self._pending.clear()
        self._release()

    @property
    def holds_records(self) -> bool:
        """True where something was put and is not sealed."""
        return any(buffer.items for buffer in self._buffers.values())

    def _release(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _seal_here(self, buffer: TopicBuffer) -> None:
        """As `_seal`, on the loop: where nothing is on its way that this could overtake, the chunk
        arrives at once, without a detour over the loop's queue."""
        with self._lock:
            items, size = buffer.take()
            at_once = bool(items) and not self._travelling
            if at_once:
                self.outstanding += size
            elif items:
                self._hand_over(buffer, items, size)
        if at_once:
            self._accept(buffer.topic, items, size)

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
            self._seal_here(buffer)

    def _arrive(self, topic: str, chunk: Chunk, size: int) -> None:
        with self._lock:
            self._travelling -= 1
        self._accept(topic, chunk, size)

    def _accept(self, topic: str, chunk: Chunk, size: int) -> None:
        """A chunk arrives at the loop. It waits behind those of its topic that wait."""
        if self.stopped:
            self.settled(size)
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
                self.settled(size)
                self._on_failed(failure or errors.UnknownTopic(f"no topic {topic!r}", topic=topic))

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
        layout = Layout(
            topic=topic.name,
            partitions=len(topic.partitions),
            sticky=self._sticky.take(topic.name, len(topic.partitions)),
            key_hash=PARTITIONERS[self._options.partitioner],
            now_us=self._protocol.wall_ns() // 1000,
            batch_bytes=self._options.batch_bytes,
            compression=records.Compression(self._options.compression),
        )
        try:
            sealed = (
                seal_records(chunk, layout)
                if isinstance(chunk, list)
                else seal_arrow(chunk, layout)
            )
        except errors.OncelogError as error:
            self.settled(size)
            self._on_failed(error)
            return
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            self.settled(size)
            self._on_failed(errors.InvalidArgument(f"records cannot be encoded: {error}"))
            return
        self._deliver(
            [(PartitionKey(topic.topic_id, batch.partition), batch) for batch in sealed], size
        )


def _check_partition(partition: object) -> None:
    if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
        raise errors.InvalidArgument(
            f"partition is {partition!r}, not a number from 0", field="partition"
        )


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# All recorders, for the child of a fork: what it puts would go nowhere, without a word.
_ALIVE: Final[weakref.WeakSet[Recorder]] = weakref.WeakSet()


def _halt_in_child() -> None:
    for recorder in _ALIVE:
        recorder.halt = _refuse_in_child


def _refuse_in_child() -> None:
    raise Forked(f"a connection does not survive fork: {INSTEAD_OF_FORK}")


os.register_at_fork(after_in_child=_halt_in_child)
