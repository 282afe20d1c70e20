"""One consumer group: its committed offsets, the pending ones in line, and the rule that decides
who may step from where. PURE.

Per partition of a topic a group has at most one committed offset and a *line* of pending ones. The
first in line started at the committed offset; each next one starts where the one before it ends,
and belongs to a later transaction of the same producer (`after`). The check comes when an offset
becomes pending, never at the marker: else two jobs read from 0, both prepare and expose, and the
second compare fails after its data is visible.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncelog_server.core.ids import PartitionId, ProducerId, TxId
from oncelog_server.offset_manager.commands import (
    FROM_ANY,
    FROM_NONE,
    Claim,
    OffsetCommit,
    View,
)
from oncelog_server.offset_manager.membership import Membership
from oncelog_server.offset_manager.records import Member
from oncelogpb.errors import (
    GroupClaimed,
    InvalidArgument,
    PendingTransaction,
    ProducerMismatch,
    StalePosition,
)
from oncelogpb.ids import show_id

# So many resets of a group are remembered: a late copy of one of them changes nothing.
RESETS_KEPT: Final = 16


class Committed(msgspec.Struct, frozen=True, array_like=True):
    """The committed offset of one partition."""

    # The step that led here.
    step: OffsetCommit
    # 0: a plain commit.
    tx_id: TxId
    time_ms: int
    # Of a plain commit; "": standalone.
    member_id: str = ""
    # The last transaction that moved it, which plain commits behind it do not change: what they
    # follow may not be visible yet. 0: none, or a reset; snapshots from before it was kept.
    moved_by: TxId = TxId(0)

    @property
    def mover(self) -> TxId:
        """Who takes the position over begins when this one is visible everywhere (ADR 72). 0:
        none."""
        return self.tx_id or self.moved_by


class Pending(msgspec.Struct, frozen=True, array_like=True):
    """An offset that waits for the marker of its transaction."""

    tx_id: TxId
    producer_id: ProducerId
    # The transaction's last step here; `to` is what its commit makes the committed offset.
    step: OffsetCommit


class Group(msgspec.Struct):
    """One consumer group.

    Invariant: a line is never empty, and its TxIds ascend and are of one producer.
    Invariant: all offsets of one partition are of one view.
    Invariant: it has no members, or no claims.
    """

    committed: dict[PartitionId, Committed] = {}
    pending: dict[PartitionId, list[Pending]] = {}
    # The last committed transaction of each producer ("G-LAST-COMMIT").
    last_commits: dict[ProducerId, TxId] = {}
    # When it last changed, by the journal's age.
    changed_ms: int = 0
    # None: nobody ever joined it.
    membership: Membership | None = None
    # Resets that were done, in order; the last RESETS_KEPT.
    resets: dict[bytes, None] = {}
    # By id, in the order in which they were made.
    claims: dict[str, Claim] = {}

    @property
    def is_empty(self) -> bool:
        kept = (self.committed, self.pending, self.last_commits, self.membership, self.claims)
        return not any(kept)

    def members(self) -> list[Member]:
        """In the order in which they joined."""
        return [] if self.membership is None else self.membership.members()

    @property
    def has_members(self) -> bool:
        return self.membership is not None and bool(self.membership.member_states)

    @property
    def is_attended(self) -> bool:
        """Somebody is there who commits for it, or will."""
        return self.has_members or bool(self.claims)

    # ------------------------------------------------------------------------------------- rules

    def require_unclaimed(self, name: str) -> None:
        """Raises GroupClaimed."""
        if self.claims:
            holder = next(iter(self.claims.values())).holder
            raise GroupClaimed(
                f"{holder} commits for group {name!r} alone, and keeps members out of it: stop it "
                "first (where it died, its claim is over within seconds), or use another group",
                group=name,
                holder=holder,
            )

    # `beside`: the metadata that must stand beside the offset where the step begins; None: it does
    # not matter.

    def needs_plain(self, step: OffsetCommit, member_id: str, beside: str | None = None) -> bool:
        """False: this member took it already in a plain commit, there is nothing to remember."""
        pending = step.partition in self.pending
        taken = self.has_taken(step, member_id)
        return not (taken and _is_over_with(step, beside, pending=pending))

    def require_plain(self, step: OffsetCommit, beside: str | None = None) -> None:
        """That a plain commit may take this step.

        Raises InvalidArgument (another view), PendingTransaction, StalePosition.
        """
        self._require_view(step.partition, step.view)
        line = self.pending.get(step.partition)
        if line:
            raise _held(step.partition, line[-1])
        self._require_from(step, self.committed.get(step.partition), beside)

    def needs_pending(
        self, step: OffsetCommit, tx_id: TxId, producer_id: ProducerId, beside: str | None = None
    ) -> bool:
        """May this transaction take this step? False: it holds it already.

        Raises InvalidArgument (another view), PendingTransaction, ProducerMismatch, StalePosition.
        """
        self._require_view(step.partition, step.view)
        line = self.pending.get(step.partition)
        if not line:
            self._require_from(step, self.committed.get(step.partition), beside)
            return True
        last = line[-1]
        if last.tx_id == tx_id:
            return self._extends_own(step, last, beside)
        if self.holds(step, tx_id):
            return False
        self._require_chain(step, last, tx_id=tx_id, producer_id=producer_id)
        self._require_beside(step, last.step.metadata, beside)
        return True

    def _extends_own(self, step: OffsetCommit, own: Pending, beside: str | None) -> bool:
        """A second step of the same transaction begins where its first one ended. ANY would let a
        late duplicate of an earlier step move the position back, so it does not do here."""
        if step == own.step:
            return False
        if step.from_ != own.step.to:
            raise _stale(
                step,
                self.committed.get(step.partition),
                f"transaction {show_id(own.tx_id)} already moves it to {own.step.to}; continue "
                "from there",
                pending_to=own.step.to,
            )
        self._require_beside(step, own.step.metadata, beside)
        return True

    def _require_chain(
        self, step: OffsetCommit, last: Pending, *, tx_id: TxId, producer_id: ProducerId
    ) -> None:
        """`after` names the last in line, which the caller knows to be at PREPARE_COMMIT: with
        an open one, the position would jump over the input of a transaction that aborts."""
        if step.after != last.tx_id:
            raise _held(step.partition, last)
        if last.producer_id != producer_id:
            raise ProducerMismatch(
                f"after_tx_id {show_id(last.tx_id)} is a transaction of another producer; chain "
                "only on your own, or wait until it has ended",
                tx_id=last.tx_id,
            )
        if last.tx_id >= tx_id:
            raise InvalidArgument(
                f"after_tx_id {show_id(last.tx_id)} must be an earlier transaction than "
                f"{show_id(tx_id)}",
                field="after_tx_id",
            )
        if step.from_ not in (FROM_ANY, last.step.to):
            raise _stale(
                step,
                self.committed.get(step.partition),
                f"transaction {show_id(last.tx_id)} moves it to {last.step.to}; continue from "
                "there",
                pending_to=last.step.to,
            )

    def _require_from(
        self, step: OffsetCommit, committed: Committed | None, beside: str | None
    ) -> None:
        if step.from_ == FROM_ANY:
            return
        position = FROM_NONE if committed is None else committed.step.to
        if step.from_ != position:
            raise _stale(step, committed, "rewind to the committed offset, or commit from_any")
        self._require_beside(step, "" if committed is None else committed.step.metadata, beside)

    def _require_beside(self, step: OffsetCommit, stands: str, beside: str | None) -> None:
        """Two that start from one offset and leave it where it is may have processed the same, and
        say so in the metadata: the second one did not start from what the first one left (ADR 63).
        """
        if beside is not None and beside != stands:
            raise _stale(
                step,
                self.committed.get(step.partition),
                "with other metadata than the caller started from, so somebody has committed it "
                "since: fetch it, and drop what you have made of what is processed already",
            )

    def _require_view(self, partition: PartitionId, view: View) -> None:
        stored = self.view_of(partition)
        if stored is not None and stored is not view:
            raise InvalidArgument(
                f"the group's offset of partition {partition} is of the {stored.name} view, this "
                f"one of the {view.name} view; use another group, or delete this one first",
                field="view",
                stored=stored.name,
            )

    # --------------------------------------------------------------------------------- questions

    def has_taken(self, step: OffsetCommit, member_id: str) -> bool:
        """It is what a plain commit of this member did last: one whose answer was lost comes again.
        The same step by a transaction, or by another member, is somebody else's, who processed the
        same input."""
        committed = self.committed.get(step.partition)
        return (
            committed is not None
            and not committed.tx_id
            and committed.step == step
            and committed.member_id == member_id
        )

    def holds(self, step: OffsetCommit, tx_id: TxId) -> bool:
        """This transaction has taken this step, and its marker has not come yet."""
        line = self.pending.get(step.partition, ())
        return any(pending.tx_id == tx_id and pending.step == step for pending in line)

    def view_of(self, partition: PartitionId) -> View | None:
        """The view of what is stored for a partition."""
        committed = self.committed.get(partition)
        if committed is not None:
            return committed.step.view
        line = self.pending.get(partition)
        return line[-1].step.view if line else None

    def holder(self, partition: PartitionId) -> TxId:
        """The last transaction that holds a pending offset here; 0: none."""
        line = self.pending.get(partition)
        return line[-1].tx_id if line else TxId(0)

    def partitions(self) -> list[PartitionId]:
        """All that it has an offset of, committed or pending."""
        return sorted({*self.committed, *self.pending})

    # ----------------------------------------------------------------------------------- changes

    def commit(self, step: OffsetCommit, *, tx_id: TxId, time_ms: int, member_id: str = "") -> None:
        before = self.committed.get(step.partition)
        moved_by = tx_id or (TxId(0) if before is None else before.mover)
        self.committed[step.partition] = Committed(step, tx_id, time_ms, member_id, moved_by)

    def reset(self, step: OffsetCommit, *, time_ms: int) -> None:
        """An operator says where it begins: what was there before orders nothing any more."""
        self.committed[step.partition] = Committed(step, TxId(0), time_ms)

    def remember_reset(self, reset_id: bytes) -> None:
        self.resets[reset_id] = None
        if len(self.resets) > RESETS_KEPT:
            del self.resets[next(iter(self.resets))]

    def hold(self, step: OffsetCommit, tx_id: TxId, producer_id: ProducerId) -> None:
        """Puts a step at the end of its partition's line, or moves the transaction's own on."""
        line = self.pending.setdefault(step.partition, [])
        if line and line[-1].tx_id == tx_id:
            line.pop()
        line.append(Pending(tx_id, producer_id, step))

    def release(self, partition: PartitionId, tx_id: TxId) -> Pending:
        """Takes what a transaction holds out of its line."""
        line = self.pending[partition]
        index = next(i for i, pending in enumerate(line) if pending.tx_id == tx_id)
        pending = line.pop(index)
        if not line:
            del self.pending[partition]
        return pending

    def check(self, name: str) -> None:
        """Asserts the invariants of the class."""
        if self.membership is not None:
            self.membership.check(name)
        assert not (self.has_members and self.claims), f"group {name}: members beside a claim"
        for partition, line in self.pending.items():
            assert line, f"group {name}: empty line at {partition}"
            tx_ids = [pending.tx_id for pending in line]
            assert tx_ids == sorted(set(tx_ids)), f"group {name}: TxIds do not ascend: {tx_ids}"
            producers = {pending.producer_id for pending in line}
            assert len(producers) == 1, f"group {name}: two producers in line at {partition}"
            views = {pending.step.view for pending in line}
            views |= {self.committed[partition].step.view} if partition in self.committed else set()
            assert len(views) == 1, f"group {name}: two views at {partition}"


def _is_over_with(step: OffsetCommit, beside: str | None, *, pending: bool) -> bool:
    """What was taken and comes again has nothing left to do. Two that come again have: `from` equal
    to `to` is a sign of life of its group, unless it changed the metadata, and worth a record
    unless something pending keeps the group anyway; an unchecked one means "there, whatever
    stands", also behind what is pending."""
    if step.from_ == FROM_ANY:
        return False
    changed = step.from_ != step.to or beside not in (None, step.metadata)
    return pending or changed


def _held(partition: PartitionId, pending: Pending) -> PendingTransaction:
    return PendingTransaction(
        f"transaction {show_id(pending.tx_id)} holds a pending offset of partition {partition}; "
        "try again when it has ended",
        tx_id=pending.tx_id,
        topic_id=partition.topic_id.hex(),
        partition=partition.number,
    )


def _stale(
    step: OffsetCommit, committed: Committed | None, what_to_do: str, **metadata: object
) -> StalePosition:
    asked = "nothing committed" if step.from_ == FROM_NONE else f"offset {step.from_}"
    position = "none" if committed is None else str(committed.step.to)
    return StalePosition(
        f"partition {step.partition}: the caller started from {asked}, but the group's committed "
        f"offset is {position}: {what_to_do}",
        committed=position,
        topic_id=step.partition.topic_id.hex(),
        partition=step.partition.number,
        **metadata,
    )
