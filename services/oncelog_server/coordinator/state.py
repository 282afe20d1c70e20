"""All that one coordinator partition knows: the replicated state, and beside it what is volatile or
derived. PURE.

`Machine.apply` changes the replicated part and `Machine.seen` the volatile one; the `decide_...`
modules read both. A snapshot holds the replicated part alone.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog_server.coordinator.commands import PartitionAsked
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.deliveries import Deliveries
from oncelog_server.coordinator.one_shots import FirstStaged
from oncelog_server.coordinator.outcome_ages import OutcomeAges
from oncelog_server.coordinator.producers import Producer, Producers
from oncelog_server.coordinator.sessions import Sessions
from oncelog_server.coordinator.transactions import DECIDED, State, Transaction, Transactions
from oncelog_server.coordinator.unborn import Unborn
from oncelog_server.core.age import AgeWatch, JournalAge
from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    JournalOffset,
    LeaderEpoch,
    PartitionId,
    TxId,
    journal_offset_of,
)
from oncelog_server.core.timers import Timers

# Transactions with damaged parts that are remembered per journal partition, and their partitions in
# all; the oldest go first.
DAMAGED_KEPT: Final = 10_000
DAMAGED_PARTITIONS_KEPT: Final = 200_000


class Stored(msgspec.Struct, array_like=True):
    """The replicated state, as a snapshot holds it. Lists are sorted: equal state, equal bytes."""

    epoch: LeaderEpoch
    epoch_start: JournalOffset
    next_offset: JournalOffset
    # By id.
    producers: list[Producer]
    transactions: list[Transaction]
    # By TxId.
    damaged: list[tuple[TxId, tuple[PartitionId, ...]]]
    age: JournalAge = msgspec.field(default_factory=JournalAge)
    outcome_ages: OutcomeAges = msgspec.field(default_factory=OutcomeAges)


_DECODER: Final = msgspec.msgpack.Decoder(Stored)
_ENCODER: Final = msgspec.msgpack.Encoder()


class CoordinatorState:
    """See the module."""

    def __init__(self, journal_partition: int, config: CoordinatorConfig) -> None:
        self.journal_partition: Final = journal_partition
        self.config: Final = config
        # Replicated.
        self.epoch = LeaderEpoch(0)
        self.epoch_start = JournalOffset(0)
        self.next_offset = JournalOffset(0)
        self.age = JournalAge()
        self.outcome_ages = OutcomeAges()
        self.producers = Producers()
        self.transactions = Transactions()
        self.damaged: dict[TxId, tuple[PartitionId, ...]] = {}
        # Derived from it.
        self._damaged_partitions = 0
        # Partitions that Begins of open transactions named, once for each transaction.
        self.named_parts = 0
        self.deliveries = Deliveries()
        self.first_staged = FirstStaged()
        # Volatile.
        self.forget_volatile()

    def forget_volatile(self) -> None:
        """At the start of an epoch: every open transaction's timer starts again."""
        self.idle: Timers[TxId] = Timers()
        self.lifetime: Timers[TxId] = Timers()
        self.sessions = Sessions(self.config.session_grace_ms)
        # Partitions that asked about an open transaction: they take part.
        self.asked: dict[TxId, set[PartitionId]] = {}
        self.asked_parts = 0
        # What participants hold of TxIds that nobody has given out.
        self.unborn = Unborn()
        self.watch = AgeWatch()
        # Open transactions whose timers start at the next turn.
        self.unarmed: dict[TxId, None] = {
            t.tx_id: None for t in self.transactions if t.state is State.ONGOING
        }

    @property
    def has_timers(self) -> bool:
        """Something may be due at the next Tick."""
        runs = len(self.transactions) or len(self.idle) or len(self.lifetime)
        wants_more = self.sessions.are_ending or self.unborn.is_waiting
        return bool(runs or self.unarmed or wants_more)

    def turn_timers(self, now_ms: int) -> None:
        for tx_id in self.unarmed:
            self.idle.set(tx_id, now_ms + self.transactions[tx_id].timeout_ms)
            self.lifetime.set(tx_id, now_ms + self.config.transaction_lifetime_ms_max)
        self.unarmed.clear()
        self.idle.turn(now_ms)
        self.lifetime.turn(now_ms)
        self.sessions.turn(now_ms)
        self.unborn.turn(now_ms)
        # A session whose grace has passed is kept while there is a transaction to abort for it.
        for producer_id, _ in list(self.sessions.over(len(self.producers))):
            producer = self.producers.get(producer_id)
            if producer is None or not producer.open_tx:
                self.sessions.forget(producer_id)

    def grow_older(self, offset: JournalOffset) -> None:
        """By the record at `offset`, which is not applied yet."""
        ages, aged_ms = self.outcome_ages, self.age.aged_ms
        retention_ms = self.config.outcome_retention_ms
        if ages.is_due(aged_ms, retention_ms=retention_ms):
            oldest = self.transactions.oldest_undecided()
            undecided_from = offset if oldest is None else journal_offset_of(oldest.tx_id)
            ages.saw(offset, aged_ms, retention_ms=retention_ms, undecided_from=undecided_from)

    def partition_asked(self, signal: PartitionAsked, now_ms: int) -> None:
        """A participant of an open transaction makes itself known; its bytes are a sign of life."""
        transaction = self.transactions.get(signal.tx_id)
        if transaction is None or transaction.state is not State.ONGOING:
            return
        if transaction.identity != signal.producer:
            return
        self._remember_asked(signal)
        if signal.bytes_received and signal.tx_id in self.idle:
            self.idle.set(signal.tx_id, now_ms + transaction.timeout_ms)

    def _remember_asked(self, signal: PartitionAsked) -> None:
        """So that an abort is told to it. Where there is no room to remember it, it learns of the
        abort when it asks again. Partitions of offsets are always remembered: a commit that does
        not name them is refused, and there are few."""
        asked = self.asked.setdefault(signal.tx_id, set())
        # Above parts_max it is no participant that anybody could name in a manifest either.
        has_room = len(asked) < self.config.parts_max
        has_room = has_room and self.participants < self.config.participants_max
        if has_room or signal.partition.topic_id == CONSUMER_OFFSETS_ID:
            self.asked_parts += signal.partition not in asked
            asked.add(signal.partition)

    @property
    def participants(self) -> int:
        """What `participants_max` limits."""
        return self.deliveries.waiting_markers + self.named_parts + self.asked_parts

    @property
    def undelivered_bytes(self) -> int:
        """What `one_shot_undelivered_bytes_max` limits."""
        return self.deliveries.payload_bytes + self.transactions.staged_bytes

    def forget_open(self, tx_id: TxId) -> None:
        """It is no longer open: nothing waits for it."""
        self.idle.cancel(tx_id)
        self.lifetime.cancel(tx_id)
        self.unarmed.pop(tx_id, None)
        self.asked_parts -= len(self.asked.pop(tx_id, ()))

    def remember_damaged(self, tx_id: TxId, damaged: tuple[PartitionId, ...]) -> None:
        self.damaged[tx_id] = damaged
        self._damaged_partitions += len(damaged)
        while len(self.damaged) > DAMAGED_KEPT or (
            self._damaged_partitions > DAMAGED_PARTITIONS_KEPT and len(self.damaged) > 1
        ):
            self._damaged_partitions -= len(self.damaged.pop(min(self.damaged)))

    # ---------------------------------------------------------------------------------- snapshots

    def encode(self) -> bytes:
        return _ENCODER.encode(
            Stored(
                self.epoch,
                self.epoch_start,
                self.next_offset,
                sorted(self.producers, key=lambda p: p.producer_id),
                sorted(self.transactions, key=lambda t: t.tx_id),
                sorted(self.damaged.items()),
                self.age,
                self.outcome_ages,
            )
        )

    def decode(self, state: bytes) -> None:
        """Into an empty state."""
        stored = _DECODER.decode(state)
        self.epoch = stored.epoch
        self.epoch_start = stored.epoch_start
        self.next_offset = stored.next_offset
        self.age = stored.age
        self.outcome_ages = stored.outcome_ages
        self.producers.restore(stored.producers)
        for transaction in stored.transactions:
            self.transactions.add(transaction)
            if transaction.state is State.ONGOING:
                self.named_parts += len(transaction.parts)
        self.damaged = dict(stored.damaged)
        self._damaged_partitions = sum(map(len, self.damaged.values()))
        for transaction in self.transactions.in_prepare_order():
            self.deliveries.add(transaction)
            if transaction.is_committed:
                self.first_staged.committed(transaction)
        for producer in self.producers:
            if producer.staged:
                # What made it the head is below the snapshot, so the HW covers it.
                self.first_staged.became_head(producer.staged[0], gate=self.epoch_start)
        self.forget_volatile()

    # -------------------------------------------------------------------------------------- checks

    def check(self) -> None:
        self.producers.check()
        self.transactions.check(self.next_offset)
        self.deliveries.check()
        self.idle.check()
        self.lifetime.check()
        self.sessions.check()
        self.unborn.check()
        self.outcome_ages.check(self.next_offset)
        assert self._damaged_partitions == sum(map(len, self.damaged.values()))
        ongoing = [t for t in self.transactions if t.state is State.ONGOING]
        assert self.named_parts == sum(len(t.parts) for t in ongoing)
        assert self.asked_parts == sum(map(len, self.asked.values()))
        heads = set()
        for producer in self.producers:
            if producer.staged:
                heads.add(producer.staged[0])
            if producer.open_tx:
                opened = self.transactions[producer.open_tx]
                assert opened.state is State.ONGOING
                assert opened.identity == producer.identity, "older generations are decided (I16)"
            for tx_id in producer.staged:
                assert self.transactions[tx_id].state is State.STAGED
        assert heads == self.first_staged.known(), "one staged one-shot per producer may be put"
        for transaction in self.transactions:
            self._check_transaction(transaction)

    def _check_transaction(self, transaction: Transaction) -> None:
        producer = self.producers[transaction.producer_id]
        assert transaction.generation <= producer.generation, "no generation from the future (I17)"
        match transaction.state:
            case State.ONGOING:
                assert producer.open_tx == transaction.tx_id
                timed = transaction.tx_id in self.unarmed or transaction.tx_id in self.idle
                assert timed, "an open transaction without a timer would never end (I30)"
            case State.STAGED:
                assert transaction.tx_id in producer.staged
        if transaction.state in DECIDED:
            waits = self.deliveries.unacknowledged(transaction.tx_id)
            assert waits or self.deliveries.is_visible(transaction.tx_id), "markers are owed"
        assert (transaction.tx_id in self.asked) <= (transaction.state is State.ONGOING)
