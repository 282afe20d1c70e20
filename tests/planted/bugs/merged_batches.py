"""Bugs of readers of batches that were merged from several."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

MERGED: Final = "client/test_merged"

BUGS: Final = (
    Bug(
        "units-counted-by-who-they-are",
        "I31: a batch that was merged from batches of one transaction can be read: they may differ "
        "in their places alone",
        (
            Edit(
                "oncelog._core.merged:Merged.__init__",
                "size = max(map(len, (counts, *places, *columns)))",
                "size = max(map(len, (counts, *columns)))",
            ),
        ),
        {
            unit(
                MERGED,
                "test_units_that_differ_in_nothing_but_their_places_are_all_counted",
            ): "says that it was merged from",
        },
    ),
    Bug(
        "what-follows-in-a-merged-batch-waits-for-the-next",
        "what was merged is given as soon as it was read",
        (
            Edit(
                "oncelog.aio.gathering:Gathering.poll",
                "self._take_following(editions)",
                "self._follow(editions)",
            ),
        ),
        {
            unit(
                MERGED, "test_i3_whole_transactions_of_a_merged_batch_are_those_that_were_sent"
            ): "nothing more comes"
        },
    ),
    Bug(
        "neighbours-in-a-merged-batch-are-one-transaction",
        "I3: whole transactions of a merged batch are those that were sent",
        (
            Edit(
                "oncelog._core.merged:Merged.runs",
                "written.tx_id == begun.written.tx_id",
                "begun.written.tx_id",
            ),
        ),
        {
            unit(
                MERGED,
                "test_i9_neighbours_of_one_transaction_are_one_run_and_plain_batches_are_not",
            ): "At index 2 diff: (7, 3, 6)",
            unit(MERGED, "test_i3_however_a_log_was_merged_the_same_is_given"): "At index",
        },
    ),
    Bug(
        "a-transaction-ends-with-its-merged-batch",
        "I3: a transaction may go on behind a merged batch",
        (
            Edit(
                "oncelog.batch:Chunk.by_run",
                "is_last=self.is_last or run.start + run.record_count < end",
                "is_last=True",
            ),
        ),
        {
            unit(
                MERGED, "test_i3_whole_transactions_of_a_merged_batch_are_those_that_were_sent"
            ): "At index",
        },
    ),
    Bug(
        "offsets-of-a-transaction-are-counted-over-what-was-compacted-away",
        "I14: a transaction of which records were compacted away keeps its offsets",
        (
            Edit(
                "oncelog._core.units:Unit.count",
                "self.offsets.append(piece.first_offset)",
                "self.offsets.append(self.first_offset + self.record_count - records)",
            ),
        ),
        {
            unit(
                MERGED,
                "test_i14_a_transaction_of_which_records_were_compacted_away_keeps_its_offsets",
            ): "[1, 2, 3, 4])"
        },
    ),
    Bug(
        "a-position-is-counted-over-what-was-compacted-away",
        "I14: the position behind a transaction is behind its last record, whatever went before",
        (
            Edit(
                "oncelog._core.units:Unit.count",
                "holes.next_offset(piece.first_offset, records, offsets)",
                "self.first_offset + self.record_count",
            ),
        ),
        {
            unit(
                MERGED,
                "test_i14_a_transaction_of_which_records_were_compacted_away_keeps_its_offsets",
            ): "(7, 4, 5, "
        },
    ),
    Bug(
        "a-task-counts-offsets-over-what-was-compacted-away",
        "I14: a task of a Spark query gives each record its offset",
        (
            Edit(
                "oncelog_spark.fetch:_chunks",
                "    if parts:\n"
                "        yield Chunk(partition, pa.concat_arrays(offsets), joined(parts))",
                "    if parts:\n        first, rows = offsets[0][0].as_py(), joined(parts)\n"
                "        yield Chunk(partition, pa.array(range(first, first + len(rows))), rows)",
            ),
        ),
        {
            unit(
                "spark/test_fetch",
                "test_i14_offsets_are_kept_where_records_between_were_compacted_away",
            ): "At index 4 diff: (4, 6)"
        },
    ),
    Bug(
        "a-table-shows-the-front-of-a-transaction-of-a-merged-batch",
        "I3: of a transaction that goes on behind a merged batch a table shows nothing",
        (
            Edit(
                "oncelog._core.merged:moments",
                "        yield last\n",
                "        yield last._replace(written=Written(0, 0, 0, 0))\n",
            ),
        ),
        {
            unit(
                MERGED,
                "test_i3_of_a_transaction_that_goes_on_a_table_shows_nothing_of_the_merged_batch",
            ): "b'key-7': b'1'",
        },
    ),
)
