"""In which order markers of each transaction-journal partition were applied here. PURE.

Kept per journal partition: the highest coordinator epoch, and the PREPARE offset of the last
COMMITTED marker. Only COMMITTED markers move and obey that offset: T1's COMMITTED @2 is delayed, T2
of the same producer is aborted @4 first; were @2 "a repeat" then, T1 would lose a part.

Left out: that a coordinator has one unacknowledged call per participant. Without it a later PREPARE
could overtake an earlier one on the way, and nobody here could tell.
"""

from __future__ import annotations

import msgspec

from oncelog_server.core.ids import JournalOffset, LeaderEpoch, TxId, journal_partition_of
from oncelogpb.errors import InvalidArgument, NotLeader, OncelogError
from oncelogpb.ids import show_id


class JournalSeen(msgspec.Struct):
    """What markers of one journal partition have shown."""

    coordinator_epoch: LeaderEpoch = LeaderEpoch(0)
    # PREPARE offset of the last COMMITTED marker applied; offset 0 is EPOCH_START.
    prepare_offset: JournalOffset = JournalOffset(0)


class MarkerOrder(msgspec.Struct):
    """All journal partitions that wrote markers here. Part of the replicated state."""

    journals: dict[int, JournalSeen] = {}

    # ------------------------------------------------------------------------------------- rules

    def refusal(
        self, journal_partition: int, coordinator_epoch: LeaderEpoch
    ) -> OncelogError | None:
        """An older coordinator is told that it leads no more; a newer one will repeat its
        markers."""
        seen = self.journals.get(journal_partition)
        if seen is None or coordinator_epoch >= seen.coordinator_epoch:
            return None
        return NotLeader(
            f"journal partition {journal_partition} is led under epoch {seen.coordinator_epoch}; "
            f"the coordinator of epoch {coordinator_epoch} leads no more",
            journal_partition=journal_partition,
            epoch=seen.coordinator_epoch,
        )

    def prepare_offset(self, journal_partition: int) -> JournalOffset:
        """Of the last COMMITTED marker applied; 0 where there is none."""
        seen = self.journals.get(journal_partition)
        return seen.prepare_offset if seen is not None else JournalOffset(0)

    # ----------------------------------------------------------------------------------- changes

    def saw(self, journal_partition: int, coordinator_epoch: LeaderEpoch) -> JournalSeen:
        """A marker of this coordinator stands in the journal."""
        seen = self.journals.setdefault(journal_partition, JournalSeen())
        seen.coordinator_epoch = max(seen.coordinator_epoch, coordinator_epoch)
        return seen

    def committed(
        self,
        journal_partition: int,
        coordinator_epoch: LeaderEpoch,
        *,
        prepare_offset: JournalOffset,
    ) -> None:
        """A COMMITTED (or DAMAGED, which counts as applied) marker stands in the journal."""
        seen = self.saw(journal_partition, coordinator_epoch)
        assert prepare_offset > seen.prepare_offset, "decide lets no repeat through"
        seen.prepare_offset = prepare_offset


def misplaced(
    *, tx_id: TxId, prepare_offset: JournalOffset, journal_partition: int, previous: JournalOffset
) -> OncelogError | None:
    """Why a marker may not stand in its group, behind the one of PREPARE offset `previous`. Out of
    order, a later marker would make the earlier one look like a repeat."""
    if prepare_offset <= previous:
        return InvalidArgument(
            f"markers must ascend by PREPARE offset, {prepare_offset} follows {previous}",
            field="markers.prepare_offset",
        )
    if journal_partition_of(tx_id) != journal_partition:
        return InvalidArgument(
            f"transaction {show_id(tx_id)} is not of journal partition {journal_partition}",
            field="markers.tx_id",
        )
    return None
