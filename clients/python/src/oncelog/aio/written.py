"""What a transaction has written: its records, from `send` to the batches that its commit names.

Until it is open, sealed batches are *held*: they may still go as one message at its end. Once it is
open they go out by a sender, in the name of its TxId.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from oncelog._core import transaction as core
from oncelog._core.batching import Sealed
from oncelog._core.deliveries import Deliveries, Part, Verdict
from oncelog._core.messages import Identity, batch_head
from oncelog._core.routing import PartitionKey
from oncelog._core.transaction import WriterPart
from oncelog.aio.producer import OnDelivery, tell
from oncelog.aio.recorder import Parcel, Recorder, Sticky
from oncelog.aio.sender import Sender
from oncelog.options import ProducerOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import types_pb2


class Written:
    """Of one transaction. `takes` says whether it still wants records, `on_held` is told when there
    are more of them than before, `on_failed` what a record met."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        options: ProducerOptions,
        sticky: Sticky,
        *,
        one_shot_bytes_max: int,
        loop: asyncio.AbstractEventLoop,
        takes: Callable[[], bool],
        on_held: Callable[[], None],
        on_failed: Callable[[errors.OncelogError], None],
        on_delivery: OnDelivery | None,
    ) -> None:
        self._protocol = protocol
        self._options = options
        self._one_shot_bytes_max = one_shot_bytes_max
        self._takes = takes
        self._on_held = on_held
        self._on_failed = on_failed
        self._on_delivery = on_delivery
        # What became of it, for receipts.
        self._verdict = Verdict()
        # To be told to `on_delivery` with the verdict; empty where there is none.
        self._settled: list[tuple[Deliveries, Part]] = []
        # Sealed before it was open: for the one-shot, or for the sender once there is one.
        self._held: list[Parcel] = []
        self._sender: Sender | None = None
        self.recorder = Recorder(
            protocol,
            options,
            sticky,
            chunk_bytes=min(options.batch_bytes, one_shot_bytes_max),
            linger_ms=None,
            loop=loop,
            deliver=self._deliver,
            on_part=self._part_settled,
            verdict=self._verdict,
        )
        self.recorder.require_ending = self._require_ending

    # ----------------------------------------------------------------------------- while it fills

    @property
    def is_empty(self) -> bool:
        """Nothing is held, and nothing went out."""
        return not self._held and self._sender is None

    @property
    def fits_one_shot(self) -> bool:
        """What is held may go as one message."""
        held = [(parcel.partition, parcel.sealed) for parcel in self._held]
        return core.fits_one_shot(held, self._one_shot_bytes_max)

    @property
    def overflows(self) -> bool:
        """What is held cannot wait for the end: it is too much for one message, or for the memory
        that the producer may use, whose room nothing else would ever make."""
        return not self.fits_one_shot or self.recorder.outstanding > self._options.buffer_bytes_max

    def whole_batches(self) -> list[types_pb2.Batch]:
        """All that is held, for one message."""
        return [_whole_batch(parcel.partition, parcel.sealed) for parcel in self._held]

    def held_partitions(self) -> list[PartitionKey]:
        return [parcel.partition for parcel in self._held]

    def _deliver(self, parcels: list[Parcel], size: int) -> None:
        self.recorder.recount(size, sum(len(parcel.sealed.payload) for parcel in parcels))
        if self._sender is not None:
            for parcel in parcels:
                self._sender.add(parcel)
            return
        self._held.extend(parcels)
        if self._takes():
            self._on_held()
        else:
            self.drop_held()

    # -------------------------------------------------------------------------- once it is open

    def open(self, identity: Identity) -> None:
        """What is held goes out, and what comes."""
        self._sender = Sender(
            self._protocol,
            identity,
            delivery_timeout_ms=self._options.delivery_timeout_ms,
            on_settled=self.recorder.settled,
        )
        self.recorder.widen(self._options.batch_bytes)
        held, self._held = self._held, []
        for parcel in held:
            self._sender.add(parcel)

    async def drain(self) -> None:
        """Returns when all that went out was acknowledged or has failed."""
        if self._sender is not None:
            await self._sender.drain()

    def parts(self) -> list[WriterPart]:
        """What was acknowledged, for the manifest."""
        return [] if self._sender is None else self._sender.parts()

    def partitions(self) -> list[PartitionKey]:
        """All that may hold something of it."""
        return [] if self._sender is None else self._sender.partitions()

    # ------------------------------------------------------------------------------------ the end

    def drop_held(self) -> None:
        """It went as one message, or will not go."""
        held, self._held = self._held, []
        self.recorder.settled(sum(len(parcel.sealed.payload) for parcel in held))
        for parcel in held:
            parcel.part.succeed(None)

    def halt(self, why: Callable[[], None]) -> None:
        """Nothing may be put any more; receipts may be waited for."""
        self.recorder.halt(why)
        self.recorder.require_ending = _nothing

    def committed(self, exposed: Iterable[types_pb2.ExposedPart]) -> None:
        """`exposed` says where its records stand, where that is known."""
        firsts = {
            PartitionKey.of(part.partition): part.first_offset
            for part in exposed
            if part.writer == 0 and not part.damaged
        }
        self._verdict.commit(firsts)
        self._tell_all()

    def failed(self, error: errors.OncelogError) -> None:
        """Nothing of it is there, or nobody can say."""
        self._verdict.fail(error)
        self._tell_all()

    def stop(self) -> None:
        """Nothing more goes out."""
        self.recorder.stop()
        if self._sender is not None:
            self._sender.stop()
        self.drop_held()

    def let_go(self) -> None:
        """The transaction has ended: nobody is told of anything any more, and what held each other
        is freed at once, not by the garbage collector."""
        self.recorder.let_go()
        self._takes, self._on_held, self._on_failed = _never, _nothing, _ignore

    def _part_settled(self, deliveries: Deliveries, part: Part) -> None:
        if self._on_delivery is not None:
            self._settled.append((deliveries, part))
            if self._verdict.done:
                self._tell_all()
        if part.error is not None:
            self._on_failed(part.error)

    def _tell_all(self) -> None:
        settled, self._settled = self._settled, []
        if self._on_delivery is not None:
            for deliveries, part in settled:
                tell(self._on_delivery, deliveries, part)

    def _require_ending(self) -> None:
        raise errors.InvalidArgument(
            "what becomes of a record is known when its transaction has ended: ask its receipt "
            "after the `with` block"
        )


def _nothing() -> None:
    return None


def _never() -> bool:
    return False


def _ignore(error: errors.OncelogError) -> None:
    return None


def _whole_batch(partition: PartitionKey, sealed: Sealed) -> types_pb2.Batch:
    batch = batch_head(partition, sealed, 0)
    batch.payload = sealed.payload
    return batch
