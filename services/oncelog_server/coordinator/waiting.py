"""Calls that wait for a transaction: until a staged one-shot is decided, or until all is visible.

The outbox tells, the service waits. A step-down ends every wait of its journal partition with
UNKNOWN_OUTCOME; repeating the call is safe.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oncelog_server.core.ids import TxId, journal_partition_of
from oncelogpb.errors import UnknownOutcome


class Waiting:
    """One per process: TxIds say whose journal partition they are of."""

    def __init__(self) -> None:
        self._futures: dict[TxId, list[asyncio.Future[None]]] = defaultdict(list)
        # By journal partition: calls that wait until something is visible, and who brings that.
        self._hurried: Counter[int] = Counter()
        self._hurry: dict[int, Callable[[], None]] = {}
        self._asked: dict[int, Callable[[], None]] = {}

    @contextmanager
    def hurrying(self, journal_partition: int) -> Iterator[None]:
        """Meanwhile a call waits until a transaction is visible: no marker is held back."""
        self._hurried[journal_partition] += 1
        try:
            hurry = self._hurry.get(journal_partition)
            if hurry is not None:
                hurry()
            yield
        finally:
            self._hurried[journal_partition] -= 1

    def asked(self, journal_partition: int) -> None:
        """Somebody has asked whether something is visible that is not, and will ask again."""
        asked = self._asked.get(journal_partition)
        if asked is not None:
            asked()

    def is_hurried(self, journal_partition: int) -> bool:
        return self._hurried[journal_partition] > 0

    def hurry_with(
        self, journal_partition: int, hurry: Callable[[], None], asked: Callable[[], None]
    ) -> None:
        """Called when somebody begins to wait, or has asked, until `step_down`."""
        self._hurry[journal_partition] = hurry
        self._asked[journal_partition] = asked

    async def wait(self, tx_id: TxId, timeout_ms: int) -> None:
        """Until `happened(tx_id)` or `look_again`: the caller must look for itself first, with no
        await between, and again afterwards. Raises UnknownOutcome."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures[tx_id].append(future)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await future
        except TimeoutError:
            raise UnknownOutcome(
                "the time is over before the transaction is as far as you asked for; its outcome "
                "stands, repeat the call to wait on",
                tx_id=tx_id,
            ) from None
        finally:
            self._drop(tx_id, future)

    def happened(self, tx_id: TxId) -> None:
        for future in self._futures.pop(tx_id, ()):
            if not future.done():
                future.set_result(None)

    def look_again(self, journal_partition: int) -> None:
        """Something may have happened: whoever waits looks for itself, and waits on."""
        for tx_id in [t for t in self._futures if journal_partition_of(t) == journal_partition]:
            self.happened(tx_id)

    def step_down(self, journal_partition: int) -> None:
        self._hurry.pop(journal_partition, None)
        self._asked.pop(journal_partition, None)
        for tx_id in [t for t in self._futures if journal_partition_of(t) == journal_partition]:
            for future in self._futures.pop(tx_id):
                if not future.done():
                    future.set_exception(
                        UnknownOutcome("the coordinator changed; repeat the call to wait on")
                    )

    def _drop(self, tx_id: TxId, future: asyncio.Future[None]) -> None:
        futures = self._futures.get(tx_id)
        if futures is not None and future in futures:
            futures.remove(future)
            if not futures:
                del self._futures[tx_id]
