"""Bugs of readers of compacted topics, whose offsets have holes."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_HOLES: Final = "client/test_holes"

BUGS: Final = (
    Bug(
        "records-counted-over-holes",
        "I14: who begins in a hole reads what is left behind it",
        (
            Edit(
                "oncelog._core.holes:skipped",
                "int(np.searchsorted(offsets, wanted))",
                "min(max(0, wanted - first_offset), len(offsets) - 1)",
            ),
        ),
        {
            unit(
                _HOLES, "test_i14_a_batch_is_cut_in_the_middle_of_its_holes_and_goes_on_there"
            ): "[5, 9]"
        },
    ),
    Bug(
        "positions-counted-over-holes",
        "I14: behind a batch with holes, reading goes on behind its last record",
        (
            Edit(
                "oncelog._core.holes:next_offset",
                "first_offset + count if offsets is None else int(offsets[-1]) + 1",
                "first_offset + count",
            ),
        ),
        {unit(_HOLES, "test_a_batch_says_where_its_records_stand"): "assert 6 == 10"},
    ),
    Bug(
        "nothing-is-given-as-a-batch",
        "a batch that is given has records",
        (
            Edit(
                "oncelog.aio.consumer:Consumer._give",
                "[chunk for _, chunk in taken if chunk.count]",
                "[chunk for _, chunk in taken]",
            ),
        ),
        {
            unit(
                _HOLES, "test_i14_the_end_of_a_log_is_reached_though_its_last_records_are_gone"
            ): "is None"
        },
    ),
    Bug(
        "transactions-wait-behind-holes",
        "I3: the end of a transaction is known where nothing is left behind it",
        (Edit("oncelog._core.units:Units.pass_over", "unit is begun and is_last", "False"),),
        {
            unit(
                _HOLES, "test_i3_the_end_of_a_transaction_is_known_where_nothing_is_left_behind_it"
            ): "assert None is not None"
        },
    ),
    Bug(
        "tables-wait-behind-holes",
        "I3: a table shows a transaction once nothing of it can follow",
        (Edit("oncelog._core.latest:Latest.end", "partition in self._held", "False"),),
        {
            unit(
                _HOLES, "test_i3_a_table_shows_a_transaction_behind_which_nothing_is_left"
            ): "assert {} == "
        },
    ),
    Bug(
        "compacted-parts-are-waited-for",
        "I3: a part of which nothing is left is not waited for",
        (Edit("oncelog._core.across:Across.pass_over", "line.end = to", "pass"),),
        {
            unit(
                _HOLES,
                "test_i3_transactions_over_partitions_are_given_where_a_part_was_compacted_away[2]",
            ): "Extra items in the right set"
        },
    ),
    Bug(
        "held-offsets-counted-up",
        "I14: what is gathered of a compacted topic keeps its offsets",
        (Edit("oncelog.aio.gathering:_piece", "holes.packed(chunk.offsets)", 'b""'),),
        {
            unit(
                _HOLES, "test_i14_offsets_that_were_moved_to_disk_come_back_whole"
            ): "At index 1 diff: 1 != 3"
        },
    ),
    Bug(
        "spark-counts-over-holes",
        "I14: a task gives each record of a compacted topic at its offset",
        (
            Edit(
                "oncelog._core.holes:within",
                "offsets[low:high]",
                "np.arange(offsets[low], offsets[low] + high - low) if high > low else offsets[:0]",
            ),
        ),
        {
            unit(
                "spark/test_fetch",
                "test_i14_ranges_of_a_compacted_topic_have_what_is_left_of_them[0]",
            ): "At index"
        },
    ),
    Bug(
        "consume-waits-behind-holes",
        "I14: `oncelog consume` passes over ranges of which nothing is left",
        (
            Edit(
                "oncelog_server.cli.reading:Reader._records",
                "max(self.positions[number], first)",
                "self.positions[number]",
            ),
        ),
        {
            unit(
                "cli/test_consuming",
                "test_i14_what_is_left_of_a_compacted_topic_is_printed_at_its_offsets[3]",
            ): "Right contains"
        },
    ),
    Bug(
        "all-of-a-merged-batch-is-one-transactions",
        "`oncelog consume` says of each record whose it is",
        (
            Edit(
                "oncelog_server.cli.reading:_written",
                "repeat(run.written, run.record_count) for run in runs",
                "repeat(run.written, count) for run in runs",
            ),
        ),
        {
            unit(
                "cli/test_consuming",
                "test_each_record_of_a_merged_batch_says_whose_it_is_and_since_when_it_is_readable",
            ): "At index 2 diff"
        },
    ),
)
