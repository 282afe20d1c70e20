"""Whole transactions over all partitions that a consumer reads: what
`Consumer.transactions(across=True)` gives.

A transaction is given when each part that it has in these partitions is there; parts elsewhere (of
other topics, of partitions that another member has) are nobody's here and not waited for. Positions
are behind what is given, or say what of it lies beyond them (`oncelog._core.beyond`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from oncelog._core.across import Across, Gathered, Move, Standing
from oncelog._core.positions import Positions
from oncelog._core.routing import PartitionKey
from oncelog.aio.gathering import Gathering, Source
from oncelog.aio.inquiry import Ends, Inquiry
from oncelog.aio.units import CommittedTransaction, Transactions
from oncelog.batch import Batch
from oncelog.options import ConsumerOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.ids import show_id

if TYPE_CHECKING:
    from oncelog.aio.fetching import Prefetcher


class WholeTransaction:
    """All that one transaction has in the partitions that are read, or, with a `tx_id` of 0, a
    batch of plain records. Its records can be read until the next one is asked for."""

    def __init__(self, parts: tuple[CommittedTransaction, ...]) -> None:
        # Of each partition, by topic and number. Not empty.
        self.parts = parts
        self.tx_id = parts[0].tx_id
        self.producer_id = parts[0].producer_id
        self.generation = parts[0].generation
        # When the last part became readable, milliseconds since 1970.
        self.committed_ms = max(part.committed_ms for part in parts)
        self.record_count = sum(part.record_count for part in parts)

    def __iter__(self) -> Iterator[Batch]:
        """Its records, part by part, in batches as they were sent, each once. Raises as iterating
        one of its parts does."""
        for part in self.parts:
            yield from part

    def read(self) -> Batch:
        """All its records, in memory. Raises as iterating does."""
        return Batch([chunk for batch in self for chunk in batch.chunks])

    def __repr__(self) -> str:
        places = ", ".join(f"{part.topic}/{part.partition}" for part in self.parts)
        return f"<WholeTransaction {show_id(self.tx_id)} {places}: {self.record_count} records>"


class TransactionsAcross(Gathering[WholeTransaction]):
    """Made by `Consumer.transactions`. Used by one task at a time."""

    def __init__(
        self,
        consumer: Source,
        options: ConsumerOptions,
        prefetcher: Prefetcher,
        positions: Positions,
        now_ms: Callable[[], float],
        *,
        protocol: AsyncProtocol,
        ends: Ends,
    ) -> None:
        super().__init__(consumer, options, prefetcher, positions, now_ms)
        self._across = Across(self._held.release)
        self._inquiry = Inquiry(protocol, self._across, ends=ends, wake=self._prefetcher.tell)
        self._patience_ms = options.pending_timeout_ms
        self._memory_bytes = options.buffer_memory_bytes
        # What of the positions it has followed.
        self._followed = (-1, -1)
        self._held_back: set[PartitionKey] = set()

    async def close(self) -> None:
        """Lets go of everything."""
        await self._inquiry.stop()
        self._across.clear()
        await super().close()

    def require_named(self) -> None:
        """Raises InvalidArgument: an offset does not say what was given beyond it."""
        raise errors.InvalidArgument(
            "offsets that you name do not say all that was given of whole transactions: use "
            "producer.transaction(consumer), or commit",
            field="offsets",
        )

    def _follow(self, editions: Mapping[PartitionKey, int]) -> None:
        super()._follow(editions)
        positions = self._positions
        standing = (positions.edition, len(positions.assigned))
        if standing == self._followed:
            return
        self._followed = standing
        self._across.follow(
            {
                partition: Standing(
                    editions.get(partition),
                    positions.position(partition),
                    positions.beyond(partition),
                )
                for partition in positions.assigned
            }
        )

    def _settle(self) -> bool:
        self._prefetcher.heard()
        while (unit := self._units.take()) is not None:
            move = self._across.add(unit)
            if move is not None:
                self._move(move)
        self._inquiry.go_on()
        self._hold_back()
        return self._across.has_one

    def _waits(self, partition: PartitionKey) -> bool:
        """Not for ever: partitions that have lost their fronts may wait for each other."""
        if not self._across.has_waiting(partition):
            return False
        return not any(
            partition in missing and self._inquiry.held_up_ms(gathered) > self._patience_ms
            for gathered, missing in self._across.held_up()
        )

    def _hold_back(self) -> None:
        """Partitions that have gathered more than their share of the memory: what waits there would
        go to disk, in files of one unit each."""
        share = self._memory_bytes // max(1, len(self._positions.assigned))
        self._held_back = self._across.far_ahead(share, self._held_back)
        self._prefetcher.hold_back(self._held_back)

    def _give(self) -> WholeTransaction | None:
        self._settle()
        taken = self._across.take()
        if taken is None:
            self._raise_trouble()
            return None
        gathered, moves = taken
        for move in moves:
            self._move(move)
        self._given += gathered.units.values()
        parts = [
            CommittedTransaction(self._consumer.place(partition), unit, self._held)
            for partition, unit in gathered.units.items()
        ]
        return WholeTransaction(tuple(sorted(parts, key=lambda part: (part.topic, part.partition))))

    def _pass_over(self, partition: PartitionKey, to: int) -> None:
        move = self._across.pass_over(partition, to)
        if move is not None:
            self._move(move)

    def _move(self, move: Move) -> None:
        self._positions.given_across(move.partition, move.position, move.beyond)

    def _require_progress(self) -> None:
        """Raises PendingTransaction where a part does not come for longer than
        `pending_timeout_ms`, or the error of a coordinator that does not answer; both are waited
        for all the same."""
        self._inquiry.require_answers(self._patience_ms)
        for gathered, missing in self._across.held_up():
            read = [place for place in missing if not self._positions.is_paused(place)]
            if read and self._inquiry.held_up_ms(gathered) > self._patience_ms:
                raise self._pending(gathered, read[0])

    def _raise_trouble(self) -> None:
        trouble = self._inquiry.take_trouble()
        if trouble is None:
            return
        gathered, error = trouble
        if isinstance(error, errors.UnknownTransaction):
            raise self._forgotten(gathered, error) from None
        raise error

    def _forgotten(
        self, gathered: Gathered, error: errors.UnknownTransaction
    ) -> errors.UnknownTransaction:
        """With what to do."""
        places = sorted(
            (self._consumer.place(partition), unit.first_offset, unit.next_offset)
            for partition, unit in self._across.foremost(gathered)
        )
        where = ", ".join(
            f"{place.topic!r} partition {place.partition} from offset {first}"
            for place, first, _ in places
        )
        seeks = ", ".join(
            f"seek({place.topic!r}, {place.partition}, {to})" for place, _, to in places
        )
        place, _, to = places[0]
        return errors.UnknownTransaction(
            f"{error.message}. What is here of it lies in {where}: leave it out by {seeks}, after "
            "reading it with transactions() of another consumer where you need it; what was given "
            "behind it is not given again",
            tx_id=gathered.tx_id,
            topic=place.topic,
            partition=place.partition,
            seek_to=to,
        )

    def _pending(self, gathered: Gathered, missing: PartitionKey) -> errors.PendingTransaction:
        place = self._consumer.place(missing)
        return errors.PendingTransaction(
            f"transaction {show_id(gathered.tx_id)} is committed, and its part in {place.topic!r} "
            f"partition {place.partition} cannot be read since "
            f"{self._inquiry.held_up_ms(gathered):.0f} ms: look whether that partition has a "
            "leader; later transactions of its group wait for it",
            tx_id=gathered.tx_id,
            topic_id=missing.topic_id.hex(),
            partition=missing.number,
        )


def gathering(
    consumer: Source,
    options: ConsumerOptions,
    prefetcher: Prefetcher,
    positions: Positions,
    *,
    across: bool,
    before: Transactions | TransactionsAcross | None,
    protocol: AsyncProtocol,
    ends: Ends,
) -> Transactions | TransactionsAcross:
    """What `Consumer.transactions` returns, and raises. `before`: what it has returned before."""
    if before is not None:
        if isinstance(before, TransactionsAcross) is not across:
            raise errors.InvalidArgument(
                "this consumer gives transactions the other way already", field="across"
            )
        return before
    given = consumer, options, prefetcher, positions, protocol.now_ms
    if not across:
        return Transactions(*given)
    return TransactionsAcross(*given, protocol=protocol, ends=ends)
