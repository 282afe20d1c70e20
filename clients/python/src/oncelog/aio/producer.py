"""The plain producer: records go out by themselves, durable and once each, without a transaction.

Idempotent by default: it draws a producer id (64 bits, the top one set; generation 0) and numbers
what it sends, so that a retry is never a second record (I6). `send` returns at once; what failed is
raised by the next `flush`, `send` or `close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from oncelog._core.batching import HeadersLike, Sealed
from oncelog._core.messages import Identity
from oncelog._core.routing import PartitionKey
from oncelog.aio.recorder import Recorder, Sticky
from oncelog.aio.sender import Sender
from oncelog.errors import Closed
from oncelog.options import ProducerOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors

PLAIN_PRODUCER_BIT: Final = 1 << 63


class Producer:
    """Made by `Log.producer`."""

    def __init__(self, protocol: AsyncProtocol, options: ProducerOptions) -> None:
        self._options = options
        self._failure: errors.OncelogError | None = None
        self._closed = False
        # Called once it is: for who keeps it.
        self.on_closed: Callable[[], object] = lambda: None
        self._recorder = Recorder(
            protocol,
            options,
            Sticky(protocol.chance),
            chunk_bytes=options.batch_bytes,
            linger_ms=options.linger_ms,
            loop=asyncio.get_running_loop(),
            deliver=self._deliver,
            on_failed=self._failed,
        )
        # `send` and `send_arrow` without waiting, from any thread: what the plain face calls.
        self.put = self._recorder.put
        self.put_arrow = self._recorder.put_arrow
        self._sender = Sender(
            protocol,
            draw_identity(protocol.entropy),
            delivery_timeout_ms=options.delivery_timeout_ms,
            on_settled=self._recorder.settled,
            on_failed=self._failed,
            renew=lambda: draw_identity(protocol.entropy),
        )

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
    ) -> None:
        """Takes in a record; it is durable after `flush`. Waits only where `buffer_bytes_max` are
        outstanding. Raises InvalidArgument, TooLarge, Closed, or what an earlier record met."""
        if self.put(topic, value, key, headers, partition, timestamp_us):
            await self.room()

    async def send_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> None:
        """Takes in a table with the columns value and any of key, timestamp, headers, partition.
        Its records go behind those sent to the topic before. As `send`."""
        if self.put_arrow(topic, table):
            await self.room()

    async def flush(self) -> None:
        """Returns when all that was sent is durable. Raises the first error since the last flush;
        what it does not concern was acknowledged. Bounded by `delivery_timeout_ms`."""
        await self._recorder.seal_all()
        await self._sender.drain()
        if self._failure is not None and not self._closed:
            self._recorder.halt = None
        self._raise_failure()

    async def close(self) -> None:
        """Flushes, then ends. Safe to repeat. Raises as `flush`."""
        if self._closed:
            return
        self._closed = True
        self._recorder.halt = self._refuse
        try:
            await self.flush()
        finally:
            self._recorder.stop()
            self._sender.stop()
            self.on_closed()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # ------------------------------------------------------- what the plain face shares with this

    async def room(self) -> None:
        """Waits until less than `buffer_bytes_max` is outstanding."""
        await self._recorder.room()

    def _deliver(self, batches: list[tuple[PartitionKey, Sealed]], size: int) -> None:
        self._recorder.recount(size, sum(len(sealed.payload) for _, sealed in batches))
        for partition, sealed in batches:
            self._sender.add(partition, sealed)

    def _failed(self, error: errors.OncelogError) -> None:
        """Keeps the first: it is the cause of the others."""
        if self._failure is None:
            self._failure = error
            self._recorder.halt = self._refuse

    def _refuse(self) -> None:
        """Before a record is taken in: what an earlier one met, once, or that all is over."""
        if not self._closed:
            self._recorder.halt = None
        self._raise_failure()
        if self._closed:
            raise Closed("this producer is closed")

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def draw_identity(entropy: Callable[[int], bytes]) -> Identity:
    """A name that nobody else has: 63 random bits below the top bit."""
    drawn = int.from_bytes(entropy(8), "big")
    return Identity(tx_id=0, producer_id=drawn | PLAIN_PRODUCER_BIT, generation=0)
