"""Bugs of what a COMMITTED marker exposes: what its manifest counts, of its own producer."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story

BUGS: Final = (
    Bug(
        "manifest-count-not-checked",
        "the manifest's counts are checked at the marker, else a part of a transaction is exposed",
        (
            Edit(
                "oncelog_server.partition_leader.pending:OpenTransaction.holds",
                "            columns.has_boundary_at(count)\n",
                "            columns.records <= count or columns.has_boundary_at(count)\n",
            ),
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._expose",
                ".until(part.record_count)",
                "",
            ),
        ),
        {
            story(
                "partition_leader/damaged_part_is_dropped"
            ): "-@4 DAMAGED t5 p1.1 prepare=8 epoch=1 0*3",
            story(
                "partition_leader/damaged_part_is_exposed"
            ): "-@8 DAMAGED t5 p1.1 prepare=8 epoch=1 8*2 7*2",
        },
    ),
    Bug(
        "surplus-is-damage",
        "I5: a batch that comes after the decision puts the whole committed part out of sight",
        (
            Edit(
                "oncelog_server.partition_leader.pending:WriterColumns.has_boundary_at",
                "return count == self.records or self.find(count) is not None",
                "return count == self.records",
            ),
        ),
        {
            story(
                "partition_leader/i03_exactly_what_the_manifest_counts_is_exposed"
            ): "+@7 DAMAGED t5 p1.1 prepare=8 epoch=1 0*2",
        },
    ),
    Bug(
        "surplus-exposed",
        "I3: what came after the decision is shown as if it had been committed",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._expose",
                ".until(part.record_count)",
                "",
            ),
        ),
        {
            story(
                "partition_leader/i03_exactly_what_the_manifest_counts_is_exposed"
            ): "+2..5 t5 p1.1 2+3",
        },
    ),
    Bug(
        "count-inside-a-batch-is-no-damage",
        "I3: a batch is exposed whole or not; a manifest that cuts one is wrong",
        (
            Edit(
                "oncelog_server.partition_leader.pending:WriterColumns.has_boundary_at",
                "return count == self.records or self.find(count) is not None",
                "return count <= self.records",
            ),
        ),
        {
            story("partition_leader/i03_exactly_what_the_manifest_counts_is_exposed"): "assert",
        },
    ),
    Bug(
        "missing-part-is-no-damage",
        "a COMMITTED part of which nothing stands here is said, not hidden",
        (
            Edit(
                "oncelog_server.partition_leader.markers:_holds",
                "return not any(part.record_count for part in marker.parts)",
                "return True",
            ),
        ),
        {
            story(
                "partition_leader/damaged_part_that_holds_nothing"
            ): "-@4 DAMAGED t5 p1.1 prepare=8 epoch=1 0*2",
        },
    ),
    Bug(
        "losers-of-the-manifest-exposed",
        "winners are named by the driver, else a zombie attempt's records are in the output",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._expose",
                "found = tuple(",
                "parts = [WriterPart(w, c.records) for w, c in held.writers.items()]\n"
                "        found = tuple(",
            ),
        ),
        {
            story("partition_leader/several_writers_in_manifest_order"): "-end 4",
        },
    ),
    Bug(
        "batches-of-a-stranger-kept-as-damage",
        "I1: an operator who exposes a damaged part exposes what somebody else wrote there",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._end",
                "if held is None or held.is_of(producer_id, generation):",
                "if True:",
            ),
        ),
        {story("partition_leader/marker_of_another_producer_is_damage"): "first open position 1"},
    ),
    Bug(
        "marker-commits-the-offsets-of-another",
        "I21: P's COMMITTED marker commits what Q made pending under P's TxId",
        (
            Edit(
                "oncelog_server.offset_manager.state:State.mark",
                "outcome = Outcome.ABORTED",
                "pass",
            ),
        ),
        {
            story(
                "offset_manager/i21_markers_are_of_their_own_producer"
            ): "-fetch g orders/0 orders/1 -> orders/0=none"
        },
    ),
)
