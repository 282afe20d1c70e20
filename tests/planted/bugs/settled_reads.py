"""Bugs of what is merged, and of what readers see of it."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

LEADER: Final = "oncelog_server.partition_leader"
SETTLING: Final = "partition_leader/test_settling"
READS: Final = "partition_leader/test_settled_reads"

BUGS: Final = (
    Bug(
        "what-is-left-of-a-unit-became-readable-later",
        "a record became readable when its transaction did, whatever was compacted since",
        (
            Edit(
                f"{LEADER}.heads:of_block",
                "head.time_ms = units.time_ms[0]",
                "",
            ),
        ),
        {
            unit(
                "partition_leader/test_compacted_reads",
                "test_what_one_unit_has_left_is_told_as_it_was_sent",
            ): "left.time_ms == sent.time_ms"
        },
    ),
    Bug(
        "leader-with-a-damaged-block-leads-on",
        "I26: who cannot read a settled record leaves it to another replica in sync",
        (
            Edit(
                "oncelog_server.partition_leader.reads:Reader._committed",
                "raise replica.unreadable(lacks) from error",
                "raise lacks from error",
            ),
        ),
        {
            unit(
                "partition_leader/test_settled_reads",
                "test_i26_what_is_in_a_damaged_block_alone_is_not_served",
            ): "who has it leads on"
        },
    ),
    Bug(
        "what-lies-before-the-data-log-is-called-deleted",
        "I26: what is committed and not deleted is read from the journal where blocks lack it",
        (
            Edit(
                f"{LEADER}.reads:Reader._settled",
                "except (CorruptLog, OffsetOutOfRange) as error:",
                "except CorruptLog as error:",
            ),
        ),
        {
            unit(
                "partition_leader/test_deletion_taken_back",
                "test_i26_what_the_journal_has_is_not_called_deleted",
            ): "assert [] == ["
        },
    ),
    Bug(
        "merged-by-encoding",
        "I8, I9: records that are merged stay in commit order, however they were sent",
        (
            Edit(
                f"{LEADER}.merging:merge",
                "for (encoding, codec), group in groupby(parts,",
                "parts = sorted(parts, key=lambda part: part.encoding)\n"
                "    for (encoding, codec), group in groupby(parts,",
            ),
        ),
        {
            unit(SETTLING, "test_what_is_sent_in_two_encodings_keeps_its_order"): (
                "assert [b'1', b'3', b'2'] == [b'1', b'2', b'3']"
            ),
        },
    ),
    Bug(
        "empty-values-merged-into-nulls",
        "an empty key or value is not null, in a merged batch either",
        (
            Edit(
                "oncelogpb.arrow_records:join_rows",
                'values = [row.value or (b"" if row.HasField("value") else None) for row in given]',
                "values = [row.value or None for row in given]",
            ),
        ),
        {unit(SETTLING, "test_empty_is_not_null_once_it_is_merged"): "assert [Record("},
    ),
    Bug(
        "merged-over-a-gap",
        "I14: a block holds neighbours: offsets in it are dense",
        (Edit(f"{LEADER}.settling:_groups", "or not is_next", ""),),
        {
            unit(SETTLING, "test_what_is_no_neighbour_begins_a_block"): (
                "assert [(0, 6)] == [(0, 1), (5, 6)]"
            ),
        },
    ),
    Bug(
        "settled-at-the-time-of-the-batch",
        "a settled record's time is its commit's",
        (
            Edit(
                f"{LEADER}.settling:_piece",
                "at.time_ms if stretch.is_run else stretch.time_ms",
                "at.time_ms",
            ),
        ),
        {
            unit(
                SETTLING, "test_the_records_of_a_transaction_are_of_its_commit"
            ): "assert [1000, 1001, 1002] == [70, 70, 70]",
        },
    ),
    Bug(
        "settled-below-its-marker",
        "I2: a block says below which journal offset all of it became readable: where the journal "
        "is cut below that, it goes",
        (
            Edit(
                f"{LEADER}.settling:_piece",
                "at.offset + frame.record_count if stretch.is_run else stretch.exposed_at + 1",
                "at.offset + frame.record_count",
            ),
        ),
        {
            unit(SETTLING, "test_the_records_of_a_transaction_are_of_its_commit"): "(70, 41)",
        },
    ),
    Bug(
        "compressed-counts-as-sent",
        "a block is about a mebibyte once it is loaded: readers load it as a whole",
        (
            Edit(
                f"{LEADER}.settling:_payload",
                "loaded_bytes = arrow_message.decompressed_bytes(message, head)",
                "loaded_bytes = len(content)",
            ),
        ),
        {
            unit(
                SETTLING,
                "test_what_was_mostly_compressed_stays_so_and_counts_as_it_is_loaded",
            ): "five times 200,000 bytes",
        },
    ),
    Bug(
        "run-settled-from-its-beginning",
        "I6, I14: what is settled of a run is not settled again",
        (
            Edit(
                f"{LEADER}.settling:_stretch",
                "skipped = max(from_offset - first, 0)",
                "skipped = 0",
            ),
        ),
        {unit(READS, "test_a_run_goes_on_where_it_is_settled"): "assert"},
    ),
    Bug(
        "settled-while-looked-for-is-corrupt",
        "I28: what is settled while it is read is read from its block",
        (
            Edit(
                f"{LEADER}.reads:Reader._committed",
                "isinstance(error, OffsetOutOfRange) and position < replica.settled_end",
                "False",
            ),
        ),
        {
            unit(
                READS,
                "test_what_was_settled_while_it_was_looked_for_is_read_from_its_block",
            ): "assert [] == [b'1-0'",
        },
    ),
    Bug(
        "damaged-block-though-the-journal-has-it",
        "I26: what a damaged block held is read from the journal while that is there",
        (
            Edit(
                f"{LEADER}.reads:Reader._settled",
                "lacks = error\n                break",
                "raise",
            ),
        ),
        {
            unit(
                READS,
                "test_i26_what_is_in_a_damaged_block_is_read_from_the_journal_while_that_is_there",
            ): "CORRUPT_LOG",
        },
    ),
    Bug(
        "units-of-tiny-records-weigh-nothing",
        "I31: a reply has about as many bytes as were asked for, and fits into a message",
        (
            Edit(
                f"{LEADER}.reads:_size_of",
                "return len(payload) + told + OFFSET_BYTES * len(head.offsets)",
                "return len(payload)",
            ),
        ),
        {
            unit(
                READS, "test_the_units_of_tiny_records_count_for_the_size_of_a_reply"
            ): "assert 2 == 1",
        },
    ),
    Bug(
        "found-by-time-behind-the-entry",
        "offsets by time are those of the running maximum, in a merged batch too",
        (
            Edit(
                f"{LEADER}.listing:Listing._search",
                "if listed is not None and listed.offset < stretch.end_offset:",
                "if listed is not None:",
            ),
        ),
        {unit(READS, "test_a_time_that_was_deleted_is_looked_for_in_its_entry_alone"): "assert"},
    ),
    Bug(
        "journal-point-where-no-journal-is",
        "I14: a reader of RAW is sent nowhere where the journal has gone",
        (
            Edit(
                f"{LEADER}.listing:_point",
                "if point.earliest >= replica.log_start and answer.offset >= compacted_below:",
                "if True:",
            ),
        ),
        {
            unit(READS, "test_a_journal_point_is_told_only_where_the_journal_is"): "journal_point",
        },
    ),
    Bug(
        "journal-there-from-inside-a-transaction",
        "I3: a reader of RAW takes over where something became readable, or gets a transaction "
        "without its beginning",
        (
            Edit(
                f"{LEADER}.journal_points:find_journaled",
                "if found < entries and committed.unit_row(found) < found:",
                "if False:",
            ),
        ),
        {
            unit(
                READS, "test_i03_the_journal_is_there_from_the_next_whole_transaction_on"
            ): "assert",
        },
    ),
)
