"""The plain producer: records go out by themselves, durable and once each, without a transaction.

Idempotent by default: it draws a producer id (64 bits, the top one set; generation 0) and numbers
what it sends, so that a retry is never a second record (I6). `send` returns at once, with a receipt
of which the record's fate can be asked. What failed is also told by the next `flush` or `close`,
record by record: a record that fails takes no other along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from oncelog._core.buffers import HeadersLike
from oncelog._core.deliveries import Deliveries, Delivery, Failures, Part
from oncelog._core.messages import Identity
from oncelog.aio.front import Front
from oncelog.aio.receipts import Receipt, TableReceipt
from oncelog.aio.recorder import Parcel, Recorder, Sticky
from oncelog.aio.sender import Sender
from oncelog.aio.unsent import warn_of_failed
from oncelog.errors import Closed, delivery_failed
from oncelog.options import ProducerOptions
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors

PLAIN_PRODUCER_BIT: Final = 1 << 63
# Failed records that nobody was told of, above which `send` refuses: call `flush`, or give the
# producer an `on_delivery`.
UNTOLD_FAILURES_MAX: Final = 10_000

# Told what became of each record.
OnDelivery = Callable[[Delivery], object]


class Producer:
    """Made by `Log.producer`."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        options: ProducerOptions,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        self._options = options
        self._on_delivery = on_delivery
        self._failures = Failures()
        self._closed = False
        # Called once it is: for who keeps it.
        self.on_closed: Callable[[], object] = lambda: None
        self.recorder = Recorder(
            protocol,
            options,
            Sticky(protocol.chance),
            chunk_bytes=options.batch_bytes,
            linger_ms=options.linger_ms,
            loop=asyncio.get_running_loop(),
            deliver=self._deliver,
            on_part=self._part_settled,
        )
        # `send` without waiting, from any thread.
        self._put = Front(self.recorder).send
        self._sender = Sender(
            protocol,
            draw_identity(protocol.entropy),
            delivery_timeout_ms=options.delivery_timeout_ms,
            on_settled=self.recorder.settled,
            renew=lambda: draw_identity(protocol.entropy),
        )

    def __del__(self) -> None:
        """Nobody holds it any more."""
        recorder = getattr(self, "recorder", None)
        if recorder is not None:
            recorder.warn_of_unsent()
            failed = self.unheard()
            if failed is not None:
                warn_of_failed(failed)

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        timestamp_us: int | None = None,
    ) -> Receipt:
        """Takes in a record, and returns its receipt: `await` that to learn its offset, or drop it.
        It is durable after `flush`, too. Waits only where `buffer_bytes_max` are outstanding.
        Raises InvalidArgument, TooLarge, Closed; never what another record met, but LimitExceeded
        where more than 10,000 have failed and nobody has asked."""
        receipt = self._put(topic, value, key, headers, partition, timestamp_us)
        if self.recorder.is_pressed:
            await self.room()
        return receipt

    async def send_arrow(self, topic: str, table: pa.Table | pa.RecordBatch) -> TableReceipt:
        """Takes in a table with the columns value and any of key, timestamp, headers, partition.
        Its records go behind those sent to the topic before. As `send`; the receipt is of all rows,
        and `receipt[row]` of one."""
        receipt = self.recorder.put_arrow(topic, table)
        await self.room()
        return receipt

    async def flush(self) -> None:
        """Returns when all that was sent is durable. Raises DeliveryFailed where some of what was
        sent since the last flush is not, or may not be: it lists them, all others are. Bounded by
        `delivery_timeout_ms`."""
        await self.settle()
        self._raise_failures()

    async def close(self) -> None:
        """Flushes, then ends. Safe to repeat. Raises as `flush`."""
        if self._closed:
            return
        self._closed = True
        self.recorder.halt(self._refuse)
        try:
            await self.flush()
        finally:
            self.recorder.stop()
            self._sender.stop()
            self.on_closed()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # ------------------------------------------------------- what the plain face shares with this

    async def room(self) -> None:
        """Waits until less than `buffer_bytes_max` is outstanding."""
        await self.recorder.room()

    async def settle(self) -> None:
        """Returns when of all that was sent it is known what became of it."""
        await (self.recorder.seal_last() if self._closed else self.recorder.seal_all())
        await self._sender.drain()

    def unheard(self) -> errors.OncelogError | None:
        """What `flush` would raise now, where nobody was told in another way. Told by this."""
        if self._on_delivery is not None or self.recorder.is_asked:
            return None
        found = self._failures.take()
        return None if found is None else delivery_failed(*found)

    def _deliver(self, parcels: list[Parcel], size: int) -> None:
        self.recorder.recount(size, sum(len(parcel.sealed.payload) for parcel in parcels))
        for parcel in parcels:
            self._sender.add(parcel)

    def _part_settled(self, deliveries: Deliveries, part: Part) -> None:
        if part.error is not None:
            self._failures.add(deliveries, part)
            if self._failures.count > UNTOLD_FAILURES_MAX and self._on_delivery is None:
                self.recorder.halt(self._refuse)
        if self._on_delivery is not None:
            tell(self._on_delivery, deliveries, part)

    def _refuse(self) -> None:
        """Why nothing may be put."""
        if self._closed:
            raise Closed("this producer is closed")
        if self._failures.count > UNTOLD_FAILURES_MAX:
            raise errors.LimitExceeded(
                f"{self._failures.count} records have failed, and nobody has asked: above "
                f"untold_failures_max = {UNTOLD_FAILURES_MAX}; call flush, which tells them",
                limit="untold_failures_max",
                maximum=UNTOLD_FAILURES_MAX,
            )

    def _raise_failures(self) -> None:
        found = self._failures.take()
        if found is not None:
            kept, count, may_have_applied = found
            raise delivery_failed(kept, count, may_have_applied)


def tell(on_delivery: OnDelivery, deliveries: Deliveries, part: Part) -> None:
    """Of each record of the part. What the user's function raises is his: it is shown, and stops
    nothing here."""
    for delivery in deliveries.of_part(part):
        try:
            on_delivery(delivery)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"on_delivery failed for {delivery}", "exception": error}
            )


def draw_identity(entropy: Callable[[int], bytes]) -> Identity:
    """A name that nobody else has: 63 random bits below the top bit."""
    drawn = int.from_bytes(entropy(8), "big")
    return Identity(tx_id=0, producer_id=drawn | PLAIN_PRODUCER_BIT, generation=0)
