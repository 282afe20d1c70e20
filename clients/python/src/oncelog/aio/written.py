"""What a transaction has written: its records, from `send` to the batches that its commit names.

Until it is open, sealed batches are *held*: they may still go as one message at its end. Once it is
open they go out by a sender, in the name of its TxId.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from oncelog._core import transaction as core
from oncelog._core.batching import Sealed
from oncelog._core.messages import Identity, batch_head
from oncelog._core.routing import PartitionKey
from oncelog._core.transaction import WriterPart
from oncelog.aio.recorder import Recorder, Sticky
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
        takes: Callable[[], bool],
        on_held: Callable[[], None],
        on_failed: Callable[[errors.OncelogError], None],
    ) -> None:
        self._protocol = protocol
        self._options = options
        self._takes = takes
        self._on_held = on_held
        self._on_failed = on_failed
        # Sealed before it was open: for the one-shot, or for the sender once there is one.
        self._held: list[tuple[PartitionKey, Sealed]] = []
        self._sender: Sender | None = None
        self.recorder = Recorder(
            protocol,
            options,
            sticky,
            chunk_bytes=min(options.batch_bytes, core.ONE_SHOT_BYTES_MAX),
            linger_ms=None,
            loop=asyncio.get_running_loop(),
            deliver=self._deliver,
            on_failed=on_failed,
        )

    # ----------------------------------------------------------------------------- while it fills

    @property
    def is_empty(self) -> bool:
        """Nothing is held, and nothing went out."""
        return not self._held and self._sender is None

    @property
    def fits_one_shot(self) -> bool:
        """What is held may go as one message."""
        return core.fits_one_shot(self._held)

    @property
    def overflows(self) -> bool:
        """What is held cannot wait for the end: it is too much for one message, or for the memory
        that the producer may use, whose room nothing else would ever make."""
        return not self.fits_one_shot or self.recorder.outstanding > self._options.buffer_bytes_max

    def whole_batches(self) -> list[types_pb2.Batch]:
        """All that is held, for one message."""
        return [_whole_batch(partition, sealed) for partition, sealed in self._held]

    def held_partitions(self) -> list[PartitionKey]:
        return [partition for partition, _ in self._held]

    def _deliver(self, batches: Sequence[tuple[PartitionKey, Sealed]], size: int) -> None:
        self.recorder.recount(size, sum(len(sealed.payload) for _, sealed in batches))
        if self._sender is not None:
            for partition, sealed in batches:
                self._sender.add(partition, sealed)
            return
        self._held.extend(batches)
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
            on_failed=self._on_failed,
        )
        self.recorder.widen(self._options.batch_bytes)
        held, self._held = self._held, []
        for partition, sealed in held:
            self._sender.add(partition, sealed)

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
        held, self._held = self._held, []
        self.recorder.settled(sum(len(sealed.payload) for _, sealed in held))

    def stop(self) -> None:
        """Nothing more goes out."""
        self.recorder.stop()
        if self._sender is not None:
            self._sender.stop()


def _whole_batch(partition: PartitionKey, sealed: Sealed) -> types_pb2.Batch:
    batch = batch_head(partition, sealed, 0)
    batch.payload = sealed.payload
    return batch
