"""Bugs of buffered consumers whose leader has no journal of what lies in front any more."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

SETTLED: Final = "client/test_settled_journals"

BUGS: Final = (
    Bug(
        "what-was-settled-is-read-from-the-journal-that-is-gone",
        "I15: what was settled is read in commit order, and then the journal",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._is_told",
                "reading.settled_to = has_from",
                "reading.settled_to = None",
            ),
        ),
        {
            unit(
                SETTLED, "test_i15_what_was_settled_is_read_in_commit_order_and_then_the_journal"
            ): "assert None is not None"
        },
    ),
    Bug(
        "a-buffered-consumer-stays-with-what-was-settled",
        "I15: where the journal begins a buffered consumer goes on with it",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._is_over",
                "if position >= reading.settled_to:",
                "if position > reading.settled_to + (1 << 40):",
            ),
        ),
        {
            unit(
                SETTLED, "test_i15_what_was_settled_is_read_in_commit_order_and_then_the_journal"
            ): "assert None is not None"
        },
    ),
    Bug(
        "an-error-that-one-of-two-streams-met-is-raised-as-it-came",
        "I14: what was deleted is told once, with its topic and its partition",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._follow",
                "return next((error for error in met if error is not None), None)",
                "raise next(error for error in met if error is not None)",
            ),
        ),
        {
            unit(
                SETTLED,
                "test_i14_what_was_deleted_is_told_though_another_partition_reads_its_journal",
            ): "gone"
        },
    ),
    Bug(
        "what-was-given-of-a-batch-is-given-again-in-a-transaction",
        "I3: a transaction that is read by two ways has each record once",
        (
            Edit(
                "oncelog.aio.gathering:_piece",
                "chunk = chunk.cut()",
                "chunk = chunk",
            ),
        ),
        {unit(SETTLED, "test_i3_a_transaction_over_both_is_given_whole"): "At index 2"},
    ),
    Bug(
        "a-deletion-of-settled-records-is-taken-for-a-journal-that-went",
        "I14: what was deleted of what was settled is told",
        (
            Edit(
                "oncelog.aio.buffering:BufferedPrefetcher._refused",
                "reading is not None and reading.settled_to is None",
                "reading is not None",
            ),
        ),
        {unit(SETTLED, "test_i14_what_was_deleted_of_what_was_settled_is_told"): "DID NOT RAISE"},
    ),
)
