"""Gathers what is read into whole units: what `Transactions` and `TransactionsAcross` are made of.

Invariant: what is taken from the prefetcher is held (`oncelog._held`) or waits here, one chunk, for
room; the rest stays in the queue, whose bytes are bounded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Generic, Protocol, Self, TypeVar

from oncelog._core import holes
from oncelog._core.pending import HeldBatch, Holder
from oncelog._core.positions import Positions
from oncelog._core.routing import PartitionKey
from oncelog._core.units import Piece, Unit, Units
from oncelog.aio.auto_commit import AutoCommit
from oncelog.aio.feeding import Feeding
from oncelog.batch import Batch, Chunk, TopicPartition
from oncelog.options import ConsumerOptions
from oncelogpb import errors, records

if TYPE_CHECKING:
    from oncelog.aio.fetching import Prefetcher

# How long `async for` waits at a time; it goes on waiting until the consumer is closed.
IDLE_S: Final = 1.0
# What is given.
T = TypeVar("T")


class Source(Protocol):
    """The consumer whose transactions these are."""

    @property
    def closed(self) -> bool:
        """It gives nothing any more."""
        ...

    @property
    def auto_commit(self) -> AutoCommit:
        """Who polls it, and what it commits by itself."""
        ...

    @property
    def feeding(self) -> Feeding:
        """Told when something is given."""
        ...

    def place(self, partition: PartitionKey) -> TopicPartition:
        """By its topic's name."""
        ...

    async def poll(self, timeout_s: float) -> Batch | None:
        """Goes on; what is queued is handed to `Transactions.take`."""
        ...


class Gathering(ABC, Generic[T]):
    """Of one consumer. Used by one task at a time."""

    def __init__(
        self,
        consumer: Source,
        options: ConsumerOptions,
        prefetcher: Prefetcher,
        positions: Positions,
        now_ms: Callable[[], float],
    ) -> None:
        """Raises InvalidArgument with isolation="uncommitted"."""
        if options.isolation != "committed":
            raise errors.InvalidArgument(
                "whole transactions are for isolation='committed'", field="isolation"
            )
        # Late: it needs files and locks of an operating system that has them.
        from oncelog._held import HeldBatches

        self._consumer = consumer
        self._prefetcher = prefetcher
        self._positions = positions
        self._now_ms = now_ms
        self._held = held = HeldBatches(options.buffer_memory_bytes, options.buffer_dir)
        self._units = Units(Holder(held.hold, held.release))
        # Taken from the queue, with the edition of its partition, and not held yet: there was no
        # room, or something was whole first.
        self._waiting: tuple[int, PartitionKey, Chunk] | None = None
        # Of a batch that was merged from several: those that follow, with the edition of its
        # partition.
        self._following: tuple[int, PartitionKey, Iterator[Chunk]] | None = None
        # What was given last: it is let go when the next one is asked for.
        self._given: list[Unit] = []
        self.is_gathering = False
        # What was read ahead does not say who wrote it.
        prefetcher.tells_written = True
        for partition in positions.assigned:
            if not positions.is_paused(partition):
                positions.resume(partition)

    async def poll(self, timeout_s: float = 1.0) -> T | None:
        """The next one; None where none came whole in time. Raises as `Consumer.poll`, and
        BufferFailed."""
        self._let_go()
        deadline_ms = self._now_ms() + timeout_s * 1000
        wait_s = 0.0
        while True:
            self._prefetcher.bring_back(self._waits)
            self.is_gathering = True
            try:
                await self._consumer.poll(wait_s)
            finally:
                self.is_gathering = False
            editions = self._positions.editions()
            self._follow(editions)
            self._gather(editions)
            self._take_following(editions)
            given = self._give()
            if given is not None:
                self._consumer.feeding.gave()
                return given
            wait_s = (deadline_ms - self._now_ms()) / 1000
            if self._consumer.closed:
                return None
            if wait_s <= 0:
                self._require_progress()
                return None

    def polled_here(self) -> None:
        """See AutoCommit."""
        self._consumer.auto_commit.polled_here()

    @property
    def closed(self) -> bool:
        """True after its consumer was closed."""
        return self._consumer.closed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Waits as long as it takes; ends when the consumer is closed."""
        while not self._consumer.closed:
            transaction = await self.poll(IDLE_S)
            if transaction is not None:
                return transaction
        raise StopAsyncIteration

    def require_gathering(self) -> None:
        """Who asks the consumer itself for batches is told that there are none."""
        if not self.is_gathering:
            raise errors.InvalidArgument(
                "this consumer gives whole transactions since `transactions` was called: go on "
                "with those, or read batches with another consumer",
                field="transactions",
            )

    def take(self) -> None:
        """What is queued, until there is something to give: the rest stays in the queue, whose
        bytes are bounded. Raises an error that was met, and BufferFailed."""
        editions = self._positions.editions()
        self._follow(editions)
        self._gather(editions)
        while not self._settle() and not self._take_following(editions):
            self._prefetcher.bring_back(self._waits)
            taken = self._prefetcher.take_next(self._waits)
            if taken is None:
                return
            partition, chunk = taken
            edition = editions.get(partition, -1)
            if not chunk.count:
                to = chunk.next_offset
                if partition in editions and not self._units.pass_over(
                    partition, to, is_last=chunk.is_last
                ):
                    self._pass_over(partition, to)
            elif chunk.merged is None:
                self._waiting = edition, partition, chunk
                self._gather(editions)
            else:
                self._following = edition, partition, chunk.by_run()

    async def close(self) -> None:
        """Lets go of everything."""
        self._let_go()
        self._units.clear()
        self._held.close()

    def require_named(self) -> None:
        """Offsets that a user names are what was given. Raises InvalidArgument where they are not
        all of it."""

    # ------------------------------------------------------------------------------------- inside

    def _take_following(self, editions: Mapping[PartitionKey, int]) -> bool:
        """What follows in a batch that was merged, until there is something to give: True."""
        while self._following is not None and not self._settle():
            edition, partition, chunks = self._following
            chunk = next(chunks, None) if editions.get(partition) == edition else None
            if chunk is None:
                self._following = None
                break
            self._waiting = edition, partition, chunk
            self._gather(editions)
        return self._settle()

    def _gather(self, editions: Mapping[PartitionKey, int]) -> None:
        """Puts what waits to the others. Where one of them is whole, that one is given first: it
        may be what takes the room. Raises BufferFailed: it goes on waiting."""
        if self._waiting is None:
            return
        edition, partition, chunk = self._waiting
        if editions.get(partition) == edition:
            piece = _piece(partition, chunk)
            self._units.end_before(partition, piece.written)
            if self._settle():
                return
            self._held.make_room(len(chunk.payload))
            self._units.add(piece, edition)
        self._waiting = None

    def _follow(self, editions: Mapping[PartitionKey, int]) -> None:
        """What was gathered for positions that are not any more goes."""
        self._units.drop_changed(editions)

    def _let_go(self) -> None:
        """Of what was given last."""
        for unit in self._given:
            unit.is_over = True
            self._held.release(unit.part)
        self._given.clear()

    def _pass_over(self, partition: PartitionKey, to: int) -> None:
        """No record stands there before `to`, behind what was gathered and taken of it."""
        self._positions.given(partition, to)

    def _waits(self, partition: PartitionKey) -> bool:
        """What is whole of it is not given yet."""
        return False

    def _require_progress(self) -> None:
        """Nothing came in time. Raises where it has waited too long for something that it names."""

    @abstractmethod
    def _settle(self) -> bool:
        """Looks at what is whole. True: `_give` gives one."""

    @abstractmethod
    def _give(self) -> T | None:
        """The next one. Raises why there is none."""


def _piece(partition: PartitionKey, chunk: Chunk) -> Piece:
    # What lies in front was given before, by another batch maybe that this one overlaps.
    chunk = chunk.cut()
    assert chunk.written is not None, "the prefetcher was told to say who wrote it"
    assert not chunk.skip, "it was cut"
    batch = HeldBatch(
        chunk.count,
        chunk.encoding,
        records.checksum(chunk.payload),
        chunk.payload,
        holes.packed(chunk.offsets),
    )
    return Piece(partition, chunk.written, chunk.first_offset, batch, chunk.skip, chunk.is_last)
