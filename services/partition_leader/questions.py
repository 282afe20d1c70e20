"""When to ask the coordinator about transactions that are open here. PURE, and volatile: changed
only by signals, dropped at step-down, never replicated.

A TxId is asked about when it has been open for `question_after_ms`, then every `question_again_ms`,
and at once after a change of leader on either side, until it has ended *here* (why.md: "leaders
repeat their question": asked once, told ONGOING, the coordinator fails over and forgets us: pending
for ever).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from services.core.ids import journal_partition_of
from services.partition_leader.pending import OpenTransaction


class Questions:
    """Timers of the open transactions of one partition. `open_` is the machine's own dict."""

    def __init__(self, open_: dict[int, OpenTransaction], *, after_ms: int, again_ms: int) -> None:
        self._open = open_
        self._after_ms = after_ms
        self._again_ms = again_ms
        # Opened since the last look; `apply` knows no monotonic time.
        self._fresh: list[int] = []
        # (due, TxId); skipped when it comes up, unless it is the transaction's last one.
        self._timers: list[tuple[int, int]] = []
        self._last_timer: dict[int, int] = {}
        self._due: dict[int, None] = {}
        # TxId -> bytes received when it was last asked about.
        self._told: dict[int, int] = {}

    def opened(self, tx_id: int) -> None:
        # It may have been open before, under another producer.
        self._told.pop(tx_id, None)
        self._fresh.append(tx_id)

    def inherited(self, tx_ids: Iterable[int]) -> None:
        """Open at a change of leader here: due at once."""
        self._fresh.clear()
        self._due.update(dict.fromkeys(tx_ids))

    def looked(self, now_ms: int) -> None:
        for tx_id in self._fresh:
            self._set_timer(tx_id, now_ms + self._after_ms)
        self._fresh.clear()
        while self._timers and self._timers[0][0] <= now_ms:
            due, tx_id = heapq.heappop(self._timers)
            if tx_id in self._open and self._last_timer.get(tx_id) == due:
                self._due[tx_id] = None
        self._forget_ended()

    def asked(self, tx_ids: Iterable[int], now_ms: int) -> None:
        for tx_id in tx_ids:
            self._due.pop(tx_id, None)
            transaction = self._open.get(tx_id)
            if transaction is not None:
                self._told[tx_id] = transaction.bytes_received
                self._set_timer(tx_id, now_ms + self._again_ms)

    def leader_moved(self, journal_partitions: frozenset[int]) -> None:
        for tx_id in self._open:
            if journal_partition_of(tx_id) in journal_partitions:
                self._due[tx_id] = None

    def due(self, below: int) -> list[tuple[OpenTransaction, int]]:
        """What to ask about and the bytes since it was last asked, as far as its first batch is
        below the HW. By TxId, hence by journal partition."""
        return [
            (transaction, transaction.bytes_received - self._told.get(tx_id, 0))
            for tx_id in sorted(self._due)
            if (transaction := self._open.get(tx_id)) is not None
            and transaction.first_position < below
        ]

    def _set_timer(self, tx_id: int, due_ms: int) -> None:
        self._last_timer[tx_id] = due_ms
        heapq.heappush(self._timers, (due_ms, tx_id))

    def _forget_ended(self) -> None:
        for known in (self._due, self._told, self._last_timer):
            for tx_id in [tx_id for tx_id in known if tx_id not in self._open]:
                del known[tx_id]
