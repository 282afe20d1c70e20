"""The order of one-shots with offsets: which may be put to the offset manager now. PURE.

A producer's one-shots are decided in request order, and none is put to the offset manager before
all earlier ones have a durable PREPARE: else #6 is visible first, or chains on the pending position
of #5, which then aborts. So at most one per producer may be put: the head of its staged
ones, once the HW covers what made it the head.

Volatile, rebuilt by `apply` and at restore.
"""

from __future__ import annotations

from collections.abc import Iterator

from oncelog_server.coordinator.transactions import Transaction
from oncelog_server.core.ids import JournalOffset, ProducerId, TxId


class FirstStaged:
    """Heads that wait to be put, and the transactions that a `from` may chain on."""

    def __init__(self) -> None:
        # Head -> journal offset that must be durable before it is put. Not those under way.
        self._waiting: dict[TxId, JournalOffset] = {}
        self._under_way: set[TxId] = set()
        # (producer, consumer group) -> its latest one-shot with offsets that is decided COMMIT and
        # not over.
        self._chain: dict[tuple[ProducerId, str], TxId] = {}

    def due(self, below: JournalOffset) -> Iterator[TxId]:
        return (tx_id for tx_id, gate in self._waiting.items() if gate < below)

    def chains_on(self, transaction: Transaction) -> TxId:
        """0: nothing."""
        if transaction.offsets is None:
            return TxId(0)
        key = (transaction.producer_id, transaction.offsets.group)
        return self._chain.get(key, TxId(0))

    # ------------------------------------------------------------------------------ called by apply

    def became_head(self, tx_id: TxId, *, gate: JournalOffset) -> None:
        """`gate`: the record by which it became the head."""
        assert tx_id not in self._waiting
        assert tx_id not in self._under_way
        self._waiting[tx_id] = gate

    def decided(self, tx_id: TxId) -> None:
        self._waiting.pop(tx_id, None)
        self._under_way.discard(tx_id)

    def committed(self, transaction: Transaction) -> None:
        """It has its PREPARE_COMMIT: a later `from` of the group may chain on it."""
        if transaction.offsets is not None:
            key = (transaction.producer_id, transaction.offsets.group)
            self._chain[key] = transaction.tx_id

    def over(self, transaction: Transaction) -> None:
        if self.chains_on(transaction) == transaction.tx_id and transaction.offsets is not None:
            del self._chain[transaction.producer_id, transaction.offsets.group]

    # ------------------------------------------------------------------------------- called by seen

    def sent(self, tx_id: TxId) -> None:
        del self._waiting[tx_id]
        self._under_way.add(tx_id)

    def known(self) -> set[TxId]:
        return self._waiting.keys() | self._under_way
