"""What `send` returns: a way to ask what became of a record. Costs next to nothing to drop.

    receipt = producer.send("payments", b"...")          plain
    print(receipt.result().offset)

    receipt = await producer.send("payments", b"...")    asyncio
    print((await receipt).offset)

A plain record is known when its leader acknowledged it. A record of a transaction is known when
that has ended: with its offset where the commit waited until it was visible (`wait="visible"`),
without where it did not; an aborted one raises TransactionEnded.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, Protocol

from oncelog._core.deliveries import Deliveries, Delivery
from oncelog.errors import delivery_failed


class Origin(Protocol):
    """Where records were put: how their receipts wait."""

    # Somebody asked a receipt, and was told of a failure: the end of the program need not say it.
    is_asked: bool

    def require_ending(self) -> None:
        """Raises InvalidArgument where nothing will be known before its transaction ends."""
        ...

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs `work` on the loop, waited for in this thread. Raises InvalidArgument."""
        ...


class Receipt:
    """Of one record. Await it on the event loop (`oncelog.aio`); ask `result` elsewhere."""

    # Filled in by who makes it (`aio.front`): an __init__ would cost more than all the rest.
    __slots__ = ("deliveries", "place")

    deliveries: Deliveries
    # Where it was put into its chunk: entries before it.
    place: int

    def done(self) -> bool:
        """True where `result` does not wait."""
        return self._find() is not None

    def result(self, timeout_s: float | None = None) -> Delivery:
        """What became of it, waited for in this thread. Raises why it was not delivered (or may not
        be: UnknownOutcome); TimeoutError after `timeout_s`; InvalidArgument on the event loop, and
        inside of its own transaction, where it would wait for ever."""
        found = self._find()
        if found is None:
            origin: Origin = self.deliveries.origin
            origin.require_ending()
            found = origin.run(asyncio.wait_for(self._found(), timeout_s))
        assert isinstance(found, Delivery)
        return self._told(found)

    def __await__(self) -> Generator[Any, None, Delivery]:
        return self._awaited().__await__()

    async def _awaited(self) -> Delivery:
        return self._told(await self._found())

    def _told(self, delivery: Delivery) -> Delivery:
        if delivery.error is not None:
            self.deliveries.origin.is_asked = True
            # Others may raise the same one, in other threads: each its own, with its own traceback.
            raise copy.copy(delivery.error) from delivery.error.__cause__
        return delivery

    async def _found(self) -> Delivery:
        while (found := self._find()) is None:
            self.deliveries.origin.require_ending()
            await change(self.deliveries.hub.waiters)
        return found

    def _find(self) -> Delivery | None:
        return self.deliveries.find(self.place // self.deliveries.width)

    def __repr__(self) -> str:
        found = self._find()
        return f"<Receipt of a record of {self.deliveries.topic!r}: {found or 'not known yet'}>"


class TableReceipt:
    """Of a table: one receipt for each row, and all of them at once."""

    __slots__ = ("_chunks", "_origin")

    def __init__(self, chunks: Sequence[tuple[Deliveries, range]], origin: Origin) -> None:
        """`chunks`: which rows of the table went into which."""
        self._chunks = chunks
        self._origin = origin

    def __len__(self) -> int:
        return sum(len(rows) for _, rows in self._chunks)

    def __getitem__(self, row: int) -> Receipt:
        for deliveries, rows in self._chunks:
            if row in rows:
                receipt = Receipt()
                receipt.deliveries, receipt.place = deliveries, row - rows.start
                return receipt
        raise IndexError(f"the table has {len(self)} rows, no {row}")

    def __iter__(self) -> Iterator[Receipt]:
        return (self[row] for _, rows in self._chunks for row in rows)

    def done(self) -> bool:
        """True where `result` does not wait."""
        return all(receipt.done() for receipt in self)

    def result(self, timeout_s: float | None = None) -> list[Delivery]:
        """What became of each row, in order. Raises DeliveryFailed where some were not delivered,
        else as `Receipt.result`. Makes an object for each row."""
        if not self.done():
            self._origin.require_ending()
            self._origin.run(asyncio.wait_for(self._found(), timeout_s))
        return self._told()

    def __await__(self) -> Generator[Any, None, list[Delivery]]:
        return self._awaited().__await__()

    async def _awaited(self) -> list[Delivery]:
        await self._found()
        return self._told()

    async def _found(self) -> None:
        for deliveries, rows in self._chunks:
            for row in range(len(rows)):
                while deliveries.find(row) is None:
                    self._origin.require_ending()
                    await change(deliveries.hub.waiters)

    def _told(self) -> list[Delivery]:
        found = [
            delivery
            for deliveries, rows in self._chunks
            for row in range(len(rows))
            if (delivery := deliveries.find(row)) is not None
        ]
        failed = [delivery for delivery in found if delivery.error is not None]
        if failed:
            self._origin.is_asked = True
            raise delivery_failed(failed, len(failed))
        return found


async def change(waiters: list[Callable[[], None]]) -> None:
    """Returns when they are told something."""
    happened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def happen() -> None:
        if not happened.done():
            happened.set_result(None)

    waiters.append(happen)
    await happened
