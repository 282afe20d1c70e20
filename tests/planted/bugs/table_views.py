"""Bugs of tables that follow a topic."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

LATEST = "client/test_latest"
VIEW = "client/test_table_view"

BUGS: Final = (
    Bug(
        "a-table-shows-half-of-a-transaction",
        "I3: what a transaction has in a partition is shown at one moment",
        (
            Edit(
                "oncelog._core.latest:Latest.add",
                "if held is None and (is_last or not tx_id):",
                "if held is None:",
            ),
        ),
        {
            unit(
                LATEST, "test_i3_a_table_shows_a_transactions_part_whole"
            ): "{b'a': b'1'} != {b'a': b'0'}",
            unit(VIEW, "test_i3_no_look_shows_half_of_a_transactions_part"): "== {0, 1, 10004}",
        },
    ),
    Bug(
        "a-piece-of-a-batch-says-that-its-transaction-ends",
        "I3: where a batch is taken in pieces, the last one ends its transaction",
        (
            Edit(
                "oncelog.batch:Chunk._part",
                "is_last=self.is_last and start + count == self.count,",
                "is_last=self.is_last,",
            ),
        ),
        {
            unit(
                VIEW, "test_i3_a_batch_that_is_taken_in_pieces_is_shown_whole"
            ): "== [0, 0, 0, 30000]"
        },
    ),
    Bug(
        "a-table-keeps-what-a-tombstone-removes",
        "I33: a record without a value removes its key",
        (
            Edit(
                "oncelog._core.latest:Latest._apply",
                "del entries[key]\n",
                'entries[key] = b"", stamp\n',
            ),
        ),
        {
            unit(
                LATEST,
                "test_i33_the_last_value_counts_and_a_record_without_one_removes_its_key",
            ): "{b'a': b''}"
        },
    ),
    Bug(
        "an-older-value-of-another-partition-counts",
        "of a key in several partitions the value that became readable last counts",
        (
            Edit(
                "oncelog._core.latest:Latest._apply",
                "before[1][1] != partition and before[1] > stamp",
                "before[1][1] != partition and before[1] > stamp and not keys",
            ),
        ),
        {
            unit(
                LATEST,
                "test_of_a_key_in_several_partitions_the_value_that_became_readable_last_counts",
            ): "{b'moved': b'old'}"
        },
    ),
    Bug(
        "a-removed-key-is-forgotten-at-once",
        "an older value does not come back behind a tombstone that was read before it",
        (
            Edit(
                "oncelog._core.latest:Latest._is_removed_since",
                "if removed[1] != stamp[1] and removed > stamp:",
                "if removed[1] == stamp[1] and removed > stamp:",
            ),
        ),
        {
            unit(
                LATEST,
                "test_removed_keys_are_forgotten_when_all_that_could_be_older_was_read",
            ): "{b'b': b'old'} == {}"
        },
    ),
    Bug(
        "a-table-keeps-what-was-deleted-behind-its-back",
        "I14: where records were deleted unread, a table shows what a new one would",
        (
            Edit(
                "oncelog.aio.table_view:TableView._begin_anew",
                "self._latest.drop(partition)",
                "self._latest.shown_up_to(partition, 0)",
            ),
        ),
        {
            unit(
                VIEW, "test_where_records_were_deleted_it_shows_what_a_new_table_would"
            ): "{b'b': b'1', b'c': b'1'}"
        },
    ),
    Bug(
        "who-waits-for-an-empty-topic-is-not-told",
        "a table of nothing has caught up as soon as its partitions have begun",
        (
            Edit(
                "oncelog.aio.following:Following.poll",
                "self._on_begun()",
                "_ = self._on_begun",
            ),
        ),
        {
            unit(
                VIEW, "test_an_empty_topic_is_caught_up_with_as_soon_as_it_has_begun"
            ): "assert 60.001 < 6"
        },
    ),
    Bug(
        "a-table-takes-more-memory-than-it-may",
        "above memory_bytes_max a table ends by that name",
        (
            Edit(
                "oncelog._core.latest:Latest._require_room",
                "self.bytes_held > self._memory_bytes_max",
                "self.bytes_held < 0",
            ),
        ),
        {
            unit(LATEST, "test_what_is_above_its_memory_is_refused_by_name"): "DID NOT RAISE",
            unit(VIEW, "test_too_little_memory_ends_it_by_name"): "DID NOT RAISE",
        },
    ),
    Bug(
        "a-table-comes-too-late-for-a-tombstone",
        "I33: a table shows no key whose tombstone was compacted away before it came there",
        (
            Edit(
                "oncelog._core.pace:Pace.is_late",
                "kept_ms is not None and",
                "kept_ms is None and kept_ms and",
            ),
        ),
        {
            unit(
                "client/test_table_pace",
                "test_i33_a_table_that_comes_too_late_for_a_tombstone_begins_anew",
            ): "b'a': b'1'"
        },
    ),
    Bug(
        "a-table-that-hears-nothing-is-late",
        "a table that has shown all is not late, however long nothing came",
        (Edit("oncelog._core.pace:Pace.read_all", "self.since = asked", "pass"),),
        {
            unit(
                "client/test_table_pace",
                "test_a_table_that_has_caught_up_may_hear_nothing_for_long",
            ): "assert "
        },
    ),
)
