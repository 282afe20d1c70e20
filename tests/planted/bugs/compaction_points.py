"""Bugs of what leaders agree on of a topic that is compacted, and of what they serve of it."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

LEADER: Final = "oncelog_server.partition_leader"
STATE: Final = f"{LEADER}.compaction:CompactionState"
POINTS: Final = "partition_leader/test_compaction"
READS: Final = "partition_leader/test_compacted_reads"
KEYS: Final = "partition_leader/test_keys"
PROPERTY: Final = unit(POINTS, "test_i33_i35_tombstones_go_only_so_long_after_what_they_superseded")
GO: Final = story("partition_leader/tombstones_go_so_long_after_what_they_superseded")

BUGS: Final = (
    Bug(
        "tombstones-go-with-what-they-superseded",
        "I33: a tombstone goes delete.retention.ms after nobody serves what it superseded",
        (
            Edit(
                f"{LEADER}.compaction:due",
                "if state.is_waiting and waited_ms >= settings.delete_retention_ms:",
                "if state.is_waiting:",
            ),
        ),
        {PROPERTY: "nobody had the time to come to these"},
    ),
    Bug(
        "newest-point-counts-from-the-oldest",
        "I33: time is counted from when a point itself was journaled",
        (
            Edit(
                f"{STATE}.reached",
                "self.compacted_below, self.newest_since_ms = point.compacted_below, aged_ms",
                "self.compacted_below = self.waiting = point.compacted_below",
            ),
        ),
        {PROPERTY: "nobody had the time to come to these"},
    ),
    Bug(
        "time-that-passed-ages-a-point-that-came-at-its-end",
        "I33: time that was measured before a point was journaled does not count for it",
        (
            Edit(
                f"{STATE}.time_passed",
                "if self.compacted_below > self.waiting:",
                "if False:",
            ),
        ),
        {
            unit(POINTS, "test_i33_time_that_passed_before_a_point_does_not_count_for_it"): (
                "it came a second before"
            )
        },
    ),
    Bug(
        "last-record-below-the-point",
        "I33: the last record of a log stays, so a reader comes to its end",
        (
            Edit(
                f"{LEADER}.compaction:due",
                "min(watch.cleaned_below, end_offset - 1)",
                "min(watch.cleaned_below, end_offset)",
            ),
        ),
        {PROPERTY: "the last record is never below the point"},
    ),
    Bug(
        "points-are-left-out-of-snapshots",
        "I35: what is compacted, and since when, is part of the state",
        (
            Edit(
                f"{LEADER}.machine:PartitionMachine.restore",
                "self.compaction = dumped.compaction",
                "pass",
            ),
        ),
        {
            PROPERTY: "another",
            story("partition_leader/a_compaction_point_comes_with_the_journal"): "below 0",
        },
    ),
    Bug(
        "point-at-every-look",
        "points are journaled no more often than their interval",
        (
            Edit(
                f"{LEADER}.compaction:CompactionWatch.look",
                "self.is_due = now_ms >= self._not_before_ms",
                "self.is_due = True",
            ),
        ),
        {
            unit(POINTS, "test_points_come_no_more_often_than_their_interval"): (
                "assert recorded <= most"
            ),
            story("partition_leader/compaction_points_have_an_interval"): "COMPACTED",
        },
    ),
    Bug(
        "quiet-partition-says-nothing",
        "tombstones of a partition that nobody writes to go, too",
        (
            Edit(
                f"{LEADER}.retention:Watch._compare",
                "if not (ages or waiting) or is_new",
                "if not ages or is_new",
            ),
        ),
        {GO: "TIME_PASSED"},
    ),
    Bug(
        "clock-believed-where-tombstones-go",
        "I33: of a clock that jumps a sixteenth of delete.retention.ms is believed",
        (
            Edit(
                f"{LEADER}.retention:_shortest_ms",
                "[settings.delete_retention_ms] if settings.is_compacted else []",
                "[]",
            ),
        ),
        {story("partition_leader/a_clock_that_jumps_lets_no_tombstone_go"): "tombstones below"},
    ),
    Bug(
        "compacted-topic-deletes-by-age",
        "what is compacted alone is deleted by nothing",
        (
            Edit(
                f"{LEADER}.topic_configs:settings_of",
                'if DELETE in in_force[CLEANUP_POLICY].split(","):',
                "if True:",
            ),
        ),
        {
            unit(
                POINTS, "test_what_is_compacted_alone_is_deleted_by_nothing_and_is_settled"
            ): "assert Settings("
        },
    ),
    Bug(
        "served-below-the-point-by-who-has-not-compacted",
        "I33: no leader serves what others have removed for good",
        (
            Edit(
                f"{LEADER}.reads:_require_compacted",
                "if from_offset < compacted_below and replica.compacted_to < compacted_below:",
                "if False:",
            ),
        ),
        {
            unit(READS, "test_i33_below_the_point_nothing_is_served_that_is_compacted_less"): (
                "Loading"
            )
        },
    ),
    Bug(
        "journal-served-below-the-point",
        "I33: a damaged block below the point is not read from the journal",
        (
            Edit(
                f"{LEADER}.reads:Reader._committed",
                "from_blocks_alone = position < compacted_below",
                "from_blocks_alone = False",
            ),
        ),
        {unit(READS, "test_i33_below_the_point_nothing_is_read_from_the_journal"): ("CorruptLog")},
    ),
    Bug(
        "journal-readers-begin-below-the-point",
        "I33: a reader of RAW begins where everybody has everything",
        (
            Edit(
                f"{LEADER}.listing:_point",
                "if point.earliest >= replica.log_start and answer.offset >= compacted_below:",
                "if point.earliest >= replica.log_start:",
            ),
        ),
        {
            unit(READS, "test_i33_a_reader_of_the_journal_begins_no_lower_than_the_point"): (
                "assert [True, True, True, True] == [False, False, True, True]"
            )
        },
    ),
    Bug(
        "reader-stuck-in-a-hole",
        "I14: a read that begins in a hole goes on with the first record behind it",
        (
            Edit(
                f"{LEADER}.holes:has_any",
                "return bool(block.record_count) and block.offsets[-1] >= from_offset",
                "return bool(block.record_count)",
            ),
        ),
        {
            unit(READS, "test_i14_a_read_in_a_hole_goes_on_with_the_first_record_behind_it"): (
                "the one before has nothing to give"
            )
        },
    ),
    Bug(
        "holes-told-to-who-does-not-know-them",
        "who does not ask for offsets gets no batch that has holes",
        (
            Edit(
                f"{LEADER}.reads:Reader._settled",
                "if not (tells.offsets or block.is_dense):",
                "if False:",
            ),
        ),
        {
            unit(
                READS,
                "test_rows_of_neighbours_are_given_to_who_does_not_know_of_holes"
                "_and_no_more_than_a_reply",
            ): "first_offset"
        },
    ),
    Bug(
        "what-is-behind-so-many-batches-read-from-the-journal",
        "I33: what is settled is read from blocks, however many batches a reply may have",
        (
            Edit(
                f"{LEADER}.reads:Reader._committed",
                "from_blocks_alone = position < min(replica.settled_end, ends.end)",
                "pass",
            ),
        ),
        {
            unit(READS, "test_so_many_rows_of_neighbours_are_in_a_reply"): (
                "[0, 2, 4, 0, 20] == [0, 2, 4]"
            )
        },
    ),
    Bug(
        "time-of-what-is-gone-leads-to-the-end",
        "I33: positions by time are too early, never too late, also where the record is gone",
        (
            Edit(
                f"{LEADER}.listing:Listing._search",
                "if led_machine(replica).settings.is_compacted and begins < compacted_to:",
                "if False:",
            ),
        ),
        {
            unit(READS, "test_i33_the_time_of_a_record_that_is_gone_leads_to_the_next_one"): (
                "assert [(9, None), "
            )
        },
    ),
    Bug(
        "record-without-a-key-taken-as-rows",
        "a topic that is compacted takes no record without a key",
        (
            Edit(
                "oncelogpb.records:_validate_rows",
                "if limits.compacted_topic:",
                "if False:",
            ),
        ),
        {unit(KEYS, "test_a_batch_is_refused_alone"): "INVALID_ARGUMENT"},
    ),
    Bug(
        "record-without-a-key-taken-as-arrow",
        "a topic that is compacted takes no record without a key",
        (
            Edit(
                "oncelogpb.records:_validate_arrow",
                "if limits.compacted_topic and head.nodes[0][1]:",
                "if False:",
            ),
        ),
        {unit(KEYS, "test_a_record_without_a_key_is_refused_by_name[compact-lz4]"): ("assert")},
    ),
    Bug(
        "one-shot-without-a-key-taken",
        "a topic that is compacted takes no record without a key, in a one-shot either",
        (
            Edit(
                "oncelog_server.coordinator.fitness:Fitness._batch_limits",
                'topic.name if is_compacted(topic.configs) else ""',
                '""',
            ),
        ),
        {
            unit(
                "coordinator/test_known_requests",
                "test_a_one_shot_to_a_topic_that_is_compacted_needs_keys",
            ): "DID NOT RAISE"
        },
    ),
)
