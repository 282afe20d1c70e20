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
from oncelog_server.coordinator.values import OneShotOffsets
from oncelog_server.core.ids import JournalOffset, PartitionId, ProducerId, TopicId, TxId
from oncelogpb.v1 import offset_manager_pb2


class FirstStaged:
    """Heads that wait to be put, and the transactions that a `from` may chain on."""

    def __init__(self) -> None:
        # Head -> journal offset that must be durable before it is put. Not those under way.
        self._waiting: dict[TxId, JournalOffset] = {}
        self._under_way: set[TxId] = set()
        # (producer, consumer group) -> of each partition, the latest one-shot with an offset of it
        # that is decided COMMIT and not over. One may move other partitions than the one before
        # it, and stands in the line of no other.
        self._chains: dict[tuple[ProducerId, str], dict[PartitionId, TxId]] = {}

    def due(self, below: JournalOffset) -> Iterator[TxId]:
        return (tx_id for tx_id, gate in self._waiting.items() if gate < below)

    def chains_on(self, transaction: Transaction) -> dict[PartitionId, TxId]:
        """Of each of its partitions where it chains on something."""
        if transaction.offsets is None:
            return {}
        chain = self._chains.get((transaction.producer_id, transaction.offsets.group), {})
        if not chain:
            return {}
        return {
            partition: chain[partition]
            for partition in partitions_of(transaction.offsets)
            if partition in chain
        }

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
            chain = self._chains.setdefault(key, {})
            chain.update(dict.fromkeys(partitions_of(transaction.offsets), transaction.tx_id))

    def over(self, transaction: Transaction) -> None:
        if transaction.offsets is None:
            return
        key = (transaction.producer_id, transaction.offsets.group)
        chain = self._chains.get(key, {})
        for partition in [p for p, tx_id in chain.items() if tx_id == transaction.tx_id]:
            del chain[partition]
        if not chain:
            self._chains.pop(key, None)

    # ------------------------------------------------------------------------------- called by seen

    def sent(self, tx_id: TxId) -> None:
        del self._waiting[tx_id]
        self._under_way.add(tx_id)

    def known(self) -> set[TxId]:
        return self._waiting.keys() | self._under_way


def partitions_of(offsets: OneShotOffsets) -> list[PartitionId]:
    """Those of which it has an offset, as the client sent them: nobody has judged them yet."""
    message = offset_manager_pb2.GroupOffsets.FromString(offsets.request)
    return [PartitionId(TopicId(o.partition.topic_id), o.partition.number) for o in message.offsets]
