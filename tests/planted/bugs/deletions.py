"""Bugs of readers that meet records which were deleted before they read them."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "deleted-records-are-passed-over-silently",
        "I14: by default a consumer passes over nothing, and says what is gone",
        (
            Edit(
                "oncelog._core.deletions:Deletions.are_passed_over",
                "return self._if_deleted != ERROR",
                "return True",
            ),
        ),
        {
            unit(
                "client/test_deletions",
                "test_i14_by_default_a_consumer_passes_over_nothing_and_says_what_is_gone",
            ): "in 'not there'",
        },
    ),
    Bug(
        "a-gap-is-counted-each-time-it-is-met",
        "what is passed over is counted once, however often a transaction is aborted before it",
        (
            Edit(
                "oncelog._core.deletions:Deletions.pass_over",
                "to - max(gap.position, self._passed_to.get(partition, 0))",
                "to - gap.position",
            ),
        ),
        {
            unit(
                "client/test_deletions",
                "test_what_is_passed_over_is_counted_once_however_often_it_is_met",
            ): "rtition=0): 11}",
        },
    ),
    Bug(
        "a-position-behind-the-end-is-taken-for-deleted",
        "I15: nothing was deleted where a partition ends before the position: no reader goes back",
        (
            Edit(
                "oncelog._core.deletions:gap_of",
                "if start is None or start <= position:",
                "if start is None:",
            ),
        ),
        {
            unit(
                "client/test_deletions", "test_what_was_deleted_lies_below_the_start"
            ): "start=0, end=9) == None",
        },
    ),
    Bug(
        "a-gap-is-told-before-what-was-read",
        "I15: what was read before it was deleted is given",
        (
            Edit(
                "oncelog.aio.fetching:Prefetcher._refused",
                "self._queue.append(_Trouble(error, [partition], gap))",
                "self._queue.appendleft(_Trouble(error, [partition], gap))",
            ),
        ),
        {
            unit(
                "client/test_deletions",
                "test_i15_earliest_goes_on_at_the_first_that_is_kept_and_counts_what_it_passed_over",
            ): "[5] == [",
        },
    ),
    Bug(
        "a-gap-is-passed-over-while-whole-transactions-wait-before-it",
        "I3: what was read before it was deleted is given whole, however long a coordinator takes",
        (
            Edit(
                "oncelog.aio.across:TransactionsAcross._waits",
                "if not self._across.has_waiting(partition):",
                "if True:",
            ),
        ),
        {
            unit(
                "client/test_deletions",
                "test_i3_across_what_was_read_before_a_gap_is_given_whole_before_it_is_told",
            ): "what was read is given, and whole",
        },
    ),
    Bug(
        "partitions-wait-for-each-other-across-their-gaps",
        "I31: what waits for a part behind another gap is not waited for longer than it may be",
        (
            Edit(
                "oncelog.aio.across:TransactionsAcross._waits",
                "> self._patience_ms",
                "< 0",
            ),
        ),
        {
            unit(
                "client/test_deletions",
                "test_i31_partitions_that_wait_for_what_lies_behind_their_gaps_do_not_wait_for_ever",
            ): "PendingTransaction",
        },
    ),
    Bug(
        "who-has-not-begun-stands-where-the-log-began",
        "I15: who begins at the first record that is kept is not told of those before it",
        (
            Edit(
                "oncelog._core.positions:Positions.is_at_first",
                "place.is_at_first and place.position == offset",
                "False",
            ),
        ),
        {
            unit(
                "client/test_deletions",
                "test_i15_who_has_not_begun_yet_begins_at_the_first_that_is_kept",
            ): "were deleted",
        },
    ),
    Bug(
        "who-has-begun-begins-again-behind-a-gap",
        "I14: who was given a record, and goes back to it, is told that it is gone",
        (
            Edit(
                "oncelog._core.positions:Positions.given",
                "place.is_at_first = False",
                "pass",
            ),
        ),
        {
            unit(
                "client/test_deletions",
                "test_i15_who_has_not_begun_yet_begins_at_the_first_that_is_kept",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "a-skip-keeps-what-was-gathered",
        "I3: the front of a transaction and what is kept of its end are not put together as one",
        (Edit("oncelog._core.positions:Positions.skip", "self._changed(partition)", "pass"),),
        {
            unit(
                "client/test_deletions",
                "test_a_skip_is_covered_by_the_next_commit_and_undone_by_a_rewind",
            ): "what was gathered for the old position goes",
        },
    ),
    Bug(
        "a-skip-is-not-committed",
        "I15: what was passed over is behind the group, as if it had been given",
        (
            Edit(
                "oncelog._core.positions:Positions.skip",
                "place.position = place.fetch = to",
                "place.position = place.fetch = place.base = to",
            ),
        ),
        {
            unit(
                "client/test_deletions",
                "test_a_skip_is_covered_by_the_next_commit_and_undone_by_a_rewind",
            ): "assert (20, 20, ((2, 40),))",
        },
    ),
    Bug(
        "deleted-records-wait-for-a-consumer",
        "lag counts what is there",
        (
            Edit(
                "oncelog._core.group_offsets:waiting",
                "at.end - max(at.start, position)",
                "at.end - position",
            ),
        ),
        {
            unit(
                "client/test_deletions", "test_what_was_deleted_does_not_wait_for_anybody"
            ): "rtition=0): 7}",
        },
    ),
    Bug(
        "buffered-reader-counts-from-the-front-that-is-gone",
        "I14: a buffered reader gives each record the offset that the committed log gives it",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._is_told",
                'if listed.HasField("journal_point"):',
                "if False:",
            ),
        ),
        {
            unit(
                "client/test_buffering",
                "test_i14_a_journal_without_its_front_is_read_from_where_its_leader_says",
            ): "assert b",
        },
    ),
    Bug(
        "buffered-reader-believes-its-group-more-than-its-leader",
        "I14: where a journal was replaced, what was known of it leads somewhere else",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._begin",
                "if point is None:",
                "if point is None or reading.points.at(wanted).iterator:",
            ),
        ),
        {
            unit(
                "client/test_buffering",
                "test_i14_the_word_of_a_leader_counts_more_than_what_stands_beside_an_offset",
            ): "assert b",
        },
    ),
    Bug(
        "buffered-reader-reads-a-journal-from-its-front-for-what-is-not-there",
        "I15: a position above the end is told as the leader says it, whatever the journal's start",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._is_told",
                "return error",
                "pass",
            ),
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._is_told",
                "super()._refused(partition, error)",
                "pass",
            ),
        ),
        {
            unit(
                "client/test_buffering",
                "test_i15_who_stands_above_the_end_is_told_what_the_leader_says",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "buffered-reader-gives-what-was-deleted",
        "I14: what was deleted is given to nobody, though a journal has it still",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._begins",
                "return reading.pending is None or reading.next_offset != wanted",
                "return reading.points.at(wanted).iterator == 0",
            ),
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._is_told",
                "return error",
                "pass",
            ),
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._is_told",
                "super()._refused(partition, error)",
                "pass",
            ),
        ),
        {
            unit(
                "client/test_buffering",
                "test_i14_a_buffered_reader_gives_nothing_that_was_deleted",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "a-journal-without-its-front-is-taken-for-deleted-records",
        "I14: journal offsets are no offsets: where a journal begins says nothing of what is kept",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._refused",
                "super()._refused(partition, errors.OffsetOutOfRange(error.message))",
                "super()._refused(partition, error)",
            ),
        ),
        {
            unit(
                "client/test_buffering",
                "test_a_front_that_goes_again_and_again_is_told_and_not_as_a_deletion",
            ): "DID NOT RAISE",
        },
    ),
)
