"""All that the offset manager replicates, and the changes that its records make to it. PURE.

Changes only: whether a record may be made is decided before, in `machine`. What a record changes
depends on nothing but the record, its place and the state, so replay gives the same state (I35).
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog_server.core.age import JournalAge
from oncelog_server.core.frame import At
from oncelog_server.core.ids import (
    Generation,
    JournalOffset,
    PartitionId,
    ProducerId,
    TxId,
    journal_partition_of,
)
from oncelog_server.offset_manager.group import Group
from oncelog_server.offset_manager.membership import Membership
from oncelog_server.offset_manager.records import (
    ClaimsEnded,
    GroupClaimed,
    GroupsAlive,
    GroupsForgotten,
    MembershipChanged,
    OffsetsCommitted,
    OffsetsPending,
    OffsetsReset,
    PartitionsReleased,
    ProducersForgotten,
    TransactionDropped,
    TransactionMarked,
)
from oncelog_server.participant.commands import Outcome
from oncelog_server.participant.fences import Fences
from oncelog_server.participant.marker_order import MarkerOrder
from oncelogpb.ids import show_id

# What a pending offset counts as in the sign of life that a question carries.
OFFSET_BYTES: Final = 64


class OpenTransaction(msgspec.Struct):
    """A transaction that has pending offsets here."""

    producer_id: ProducerId
    generation: Generation
    # Journal offset of its first offsets here. Snapshots keep the name that it had first.
    first_position: JournalOffset = msgspec.field(name="first_offset")
    # Time of its first offsets here; 0 in snapshots from before it was kept.
    began_ms: int = 0
    # Bytes of offsets that came, for the question's sign of life. Only grows.
    bytes_received: int = 0
    # What it holds: partitions by group.
    held: dict[str, dict[PartitionId, None]] = {}

    def is_of(self, producer_id: int, generation: int) -> bool:
        return self.producer_id == producer_id and self.generation == generation


class State(msgspec.Struct):
    """See the module.

    Invariant: `groups` stand in the order of `changed_ms`; none is empty.
    Invariant: `open` stand in the order of `first_position`, and hold exactly what stands in the
    groups' lines.
    """

    groups: dict[str, Group] = {}
    open: dict[int, OpenTransaction] = {}
    fences: Fences = msgspec.field(default_factory=Fences)
    order: MarkerOrder = msgspec.field(default_factory=MarkerOrder)
    next_offset: JournalOffset = JournalOffset(0)
    age: JournalAge = msgspec.field(default_factory=JournalAge)

    def commit(self, record: OffsetsCommitted, time_ms: int) -> None:
        group = self._touch(record.group)
        for step in record.offsets:
            group.commit(step, tx_id=TxId(0), time_ms=time_ms, member_id=record.member_id)

    def reset(self, record: OffsetsReset, time_ms: int) -> None:
        group = self._touch(record.group)
        for step in record.offsets:
            group.reset(step, time_ms=time_ms)
        group.remember_reset(record.reset_id)

    def hold(self, record: OffsetsPending, at: At) -> None:
        self.fences.saw(record.producer_id, record.generation, self.age.aged_ms)
        opened = self.open.get(record.tx_id)
        if opened is None:
            opened = self.open[record.tx_id] = OpenTransaction(
                record.producer_id, record.generation, at.offset, at.time_ms
            )
        group = self._touch(record.group)
        held = opened.held.setdefault(record.group, {})
        for step in record.offsets:
            group.hold(step, record.tx_id, record.producer_id)
            held[step.partition] = None
            opened.bytes_received += OFFSET_BYTES + len(step.metadata)

    def mark(self, record: TransactionMarked, time_ms: int) -> None:
        """The coordinator's marker: moves the order (COMMITTED only), fences, and ends."""
        journal, epoch = journal_partition_of(record.tx_id), record.coordinator_epoch
        if record.outcome is Outcome.COMMITTED:
            self.order.committed(journal, epoch, prepare_offset=record.prepare_offset)
        else:
            self.order.saw(journal, epoch)
        aged_ms = self.age.aged_ms
        self.fences.ended(record.producer_id, record.generation, record.tx_id, aged_ms)
        outcome = record.outcome
        opened = self.open.get(record.tx_id)
        if opened is not None and not opened.is_of(record.producer_id, record.generation):
            # Somebody else's, who had used this TxId: no part of what the marker is about.
            self.fences.ended(opened.producer_id, opened.generation, record.tx_id, aged_ms)
            outcome = Outcome.ABORTED
        self._end(record.tx_id, outcome, time_ms)

    def drop(self, record: TransactionDropped, time_ms: int) -> None:
        """A local abort: fences and ends, but does not move the order of markers."""
        opened = self.open[record.tx_id]
        aged_ms = self.age.aged_ms
        self.fences.ended(opened.producer_id, opened.generation, record.tx_id, aged_ms)
        self._end(record.tx_id, Outcome.ABORTED, time_ms)

    def _end(self, tx_id: TxId, outcome: Outcome, time_ms: int) -> None:
        """Takes everything of a transaction out of the lines; a commit makes it the position."""
        opened = self.open.pop(tx_id, None)
        if opened is None:
            return
        for name, partitions in opened.held.items():
            group = self._touch(name)
            for partition in partitions:
                pending = group.release(partition, tx_id)
                if outcome is Outcome.COMMITTED:
                    group.commit(pending.step, tx_id=tx_id, time_ms=time_ms)
            if outcome is Outcome.COMMITTED:
                group.last_commits[opened.producer_id] = tx_id
            if group.is_empty:
                del self.groups[name]

    def change_members(self, record: MembershipChanged, at: At) -> None:
        self._membership(record.group).change(
            record, generation=at.offset, aged_ms=self.age.aged_ms
        )

    def release(self, record: PartitionsReleased, at: At) -> None:
        self._membership(record.group).release(record, generation=at.offset)

    def claim(self, record: GroupClaimed) -> None:
        self._touch(record.group).claims[record.claim.claim_id] = record.claim

    def end_claims(self, record: ClaimsEnded) -> None:
        group = self._touch(record.group)
        for claim_id in record.claim_ids:
            del group.claims[claim_id]
        if group.is_empty:
            del self.groups[record.group]

    def keep_alive(self, record: GroupsAlive) -> None:
        for name in record.groups:
            self._touch(name)

    def _membership(self, name: str) -> Membership:
        group = self._touch(name)
        if group.membership is None:
            group.membership = Membership()
        return group.membership

    def forget_groups(self, record: GroupsForgotten) -> None:
        for name in record.groups:
            del self.groups[name]

    def forget_producers(self, record: ProducersForgotten) -> None:
        self.fences.forget(record.producer_ids)
        for name, group in list(self.groups.items()):
            for producer_id in record.producer_ids:
                group.last_commits.pop(producer_id, None)
            if group.is_empty:
                del self.groups[name]

    def _touch(self, name: str) -> Group:
        """The group, moved to the end of the order of last changes."""
        group = self.groups.pop(name, None) or Group()
        group.changed_ms = self.age.aged_ms
        self.groups[name] = group
        return group

    def check(self) -> None:
        """Asserts the invariants of this class, of Group and of Fences."""
        self.fences.check()
        times = [group.changed_ms for group in self.groups.values()]
        assert times == sorted(times), "groups do not stand in the order of their last change"
        for name, group in self.groups.items():
            assert not group.is_empty, f"group {name} is empty"
            group.check(name)
        firsts = [opened.first_position for opened in self.open.values()]
        assert firsts == sorted(firsts), "open transactions do not stand in order"
        held = {
            (tx_id, name, partition)
            for tx_id, opened in self.open.items()
            for name, partitions in opened.held.items()
            for partition in partitions
        }
        in_line = {
            (pending.tx_id, name, partition)
            for name, group in self.groups.items()
            for partition, line in group.pending.items()
            for pending in line
        }
        assert held == in_line, f"held by transactions or in line, not both: {held ^ in_line}"
        for tx_id, opened in self.open.items():
            assert opened.producer_id in self.fences.producers, (
                f"{show_id(tx_id)}: unknown producer"
            )
