"""What one task of a connector writes into a transaction that somebody else begins and ends: Arrow
rows, delivered in order with several batches in flight. Blocking, for one thread; users want
`oncelog.connect`.

    with Writer(protocol, tx_id=tx_id, producer=producer, writer=secrets.randbits(64)) as writer:
        writer.send("clicks", 3, rows)
        parts = writer.finish()

Invariants: what `finish` returns is durable, and is all that was sent; sequences count records from
0 per partition of this writer; nothing of it is visible before a manifest names the writer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from oncelog._core.batching import BATCH_BYTES, Layout, Refused, max_batch_bytes_of, seal_slices
from oncelog._core.deliveries import Deliveries, Part
from oncelog._core.messages import Identity
from oncelog._core.partitioners import crc32_hashes
from oncelog._core.routing import PartitionKey
from oncelog._core.transaction import WriterPart
from oncelog.aio.recorder import Parcel
from oncelog.aio.sender import Sender
from oncelog.errors import Closed
from oncelog.protocol import AsyncProtocol, Protocol
from oncelogpb import errors, records
from oncelogpb.v1 import partition_leader_pb2, types_pb2

# Payloads that are not acknowledged yet: `send` waits before there are more.
OUTSTANDING_BYTES_MAX: Final = 8 * 1024 * 1024
# What is not acknowledged after so long fails.
DELIVERY_TIMEOUT_MS: Final = 120_000
# How often who waits asks whether the connection was closed meanwhile.
LOOK_UP_SECONDS: Final = 0.5


class Writer:
    """Use as a context manager; `finish` at the end, once."""

    def __init__(
        self, protocol: Protocol, *, tx_id: int, producer: types_pb2.Producer, writer: int
    ) -> None:
        """`writer`: nobody else's in this transaction. Raises Closed."""
        identity = Identity(tx_id, producer.producer_id, producer.generation, writer)
        self._protocol = protocol
        self._topics: dict[str, partition_leader_pb2.TopicDescription] = {}
        # Bytes of batches of which nobody knows yet how they end.
        self._outstanding = 0
        self._sent = 0
        self._error: errors.OncelogError | None = None
        # Guards all of these.
        self._changed = threading.Condition()

        async def made(on_loop: AsyncProtocol) -> Sender:
            return Sender(
                on_loop,
                identity,
                delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
                on_settled=self._settled,
            )

        self._sender = protocol.run(made)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Drops what is not acknowledged. Safe to repeat."""
        with contextlib.suppress(Closed):
            self._protocol.post(self._sender.stop)

    def topic(self, name: str) -> partition_leader_pb2.TopicDescription:
        """As it was when it was asked for first. Raises UnknownTopic."""
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = self._protocol.topic(name)
        return found

    def send(self, topic: str, partition: int, rows: pa.RecordBatch) -> None:
        """Rows of one partition, with any of the columns of a record. Waits while too much is under
        way. Raises what went wrong so far; InvalidArgument, TooLarge."""
        if not rows.num_rows:
            return
        described = self.topic(topic)
        key = PartitionKey(described.topic_id, partition)
        layout = Layout(
            topic=topic,
            partitions=len(described.partitions),
            sticky=partition,
            key_hash=crc32_hashes,
            now_us=time.time_ns() // 1000,
            batch_bytes=BATCH_BYTES,
            compression=records.Compression.NONE,
            max_batch_bytes=max_batch_bytes_of(described.configs),
        )
        latest_us = None if "timestamp" in rows.schema.names else layout.now_us
        rows = records.conform(rows, default_timestamp_us=layout.now_us)
        for piece in seal_slices(rows, partition, layout, latest_us):
            if isinstance(piece, Refused):
                raise piece.error
            part = Part(Deliveries(topic, self), 0, piece.record_count, key, None)
            room = max(OUTSTANDING_BYTES_MAX - len(piece.payload), 0)
            self._wait(lambda: self._outstanding <= room)  # noqa: B023
            with self._changed:
                self._outstanding += len(piece.payload)
                self._sent += piece.record_count
            self._protocol.post(self._sender.add, Parcel(key, piece, part))

    def finish(self) -> list[WriterPart]:
        """Waits until all of it is durable, and says what stands where. Raises what went wrong."""
        self._wait(lambda: not self._outstanding)

        async def told(_: AsyncProtocol) -> list[WriterPart]:
            return self._sender.parts()

        parts = self._protocol.run(told)
        written = sum(part.record_count for part in parts)
        if written != self._sent:
            raise errors.Internal(f"{written} of {self._sent} records are said to be written")
        return parts

    # ------------------------------------------------------------------------------- on the loop

    def part_settled(self, _deliveries: Deliveries, part: Part) -> None:
        """How a batch ended."""
        with self._changed:
            self._error = self._error or part.error
            self._changed.notify_all()

    def _settled(self, size: int) -> None:
        """Batches of so many bytes have ended, and how was told before."""
        with self._changed:
            self._outstanding -= size
            self._changed.notify_all()

    # ------------------------------------------------------------------------------------- inside

    def _wait(self, holds: Callable[[], bool]) -> None:
        """Each batch ends at its deadline at the latest. Raises what went wrong."""
        with self._changed:
            while self._error is None and not holds():
                if not self._changed.wait(LOOK_UP_SECONDS):
                    self._protocol.post(_nothing)
            if self._error is not None:
                raise self._error


def _nothing() -> None:
    """What a loop is asked that may have ended."""
