"""The blocking face of whole transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from oncelog._loop import LoopThread
from oncelog._serving import Serving
from oncelog.aio.across import WholeTransaction
from oncelog.aio.gathering import IDLE_S, Gathering
from oncelog.aio.units import CommittedTransaction

T = TypeVar("T")


class _Gathering(Generic[T]):
    def __init__(self, loop: LoopThread, twin: Gathering[T], serving: Serving) -> None:
        """`serving`: of its consumer, whose callbacks a poll may bring."""
        self._loop = loop
        self._twin = twin
        self._serving = serving

    def poll(self, timeout_s: float = 1.0) -> T | None:
        """The next one; None where none came whole in time. See `aio.Transactions.poll`."""
        given = self._serving.call(self._loop, lambda: self._twin.poll(timeout_s))
        self._twin.polled_here()
        return given

    def __iter__(self) -> Iterator[T]:
        """Waits as long as it takes; ends when the consumer is closed."""
        while not self._twin.closed:
            transaction = self.poll(IDLE_S)
            if transaction is not None:
                yield transaction


class Transactions(_Gathering[CommittedTransaction]):
    """Whole transactions, partition by partition. See `aio.Consumer.transactions`."""


class TransactionsAcross(_Gathering[WholeTransaction]):
    """Whole transactions over all partitions that are read. See `aio.Consumer.transactions`."""
