"""Bugs of what is deleted in front of a partition: when, by whose clock, and what is needed all the
same."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

PROPERTY: Final = unit(
    "partition_leader/test_deletion_properties",
    "test_i14_i32_i35_whatever_is_deleted_the_rest_is_where_it_was",
)
LEADER: Final = "oncelog_server.partition_leader"
LOG: Final = f"{LEADER}.committed_log:CommittedLog"
RETENTION: Final = f"{LEADER}.retention"

BUGS: Final = (
    Bug(
        "age-counted-from-append",
        "I32: retention counts from commit: what was open for long is new all the same",
        (
            Edit(
                f"{LEADER}.machine:PartitionMachine._aged",
                "end_offset = self.committed.end_offset",
                "end_offset = self.committed.end_offset + sum(\n"
                "            held.records for held in self.pending.open.values())",
            ),
        ),
        {
            story("partition_leader/retention_counts_age_from_commit"): "end_offset",
            PROPERTY: "end_offset",
        },
    ),
    Bug(
        "journal-goes-past-an-open-transaction",
        "I32: retention never deletes what a pending transaction needs",
        (
            Edit(
                f"{LEADER}.journal_points:needed",
                "    if opened is not None:",
                "    if False:",
            ),
        ),
        {
            story(
                "partition_leader/i32_an_open_transaction_keeps_its_journal"
            ): "what is read again never goes back",
            PROPERTY: "assert",
        },
    ),
    Bug(
        "journal-goes-past-a-damaged-part",
        "I32: what waits for an operator is needed when he exposes it",
        (
            Edit(
                f"{LEADER}.journal_points:needed",
                "if damaged is not None and",
                "if False and",
            ),
        ),
        {
            story(
                "partition_leader/i32_an_open_transaction_keeps_its_journal"
            ): "what is read again never goes back",
        },
    ),
    Bug(
        "a-clock-that-jumps-deletes",
        "no clock that jumps deletes what is younger than fifteen sixteenths of retention.ms",
        (
            Edit(
                f"{RETENTION}:step_ms",
                "else min(max(shortest_ms // SHARE, 1), STEP_MS)",
                "else STEP_MS",
            ),
        ),
        {
            story("partition_leader/a_clock_that_jumps_deletes_nothing_younger"): "+@4 LOG_START",
        },
    ),
    Bug(
        "a-new-limit-believes-what-was-believed-before",
        "a clock that jumped by hours while nothing was limited deletes nothing by a limit of one",
        (
            Edit(
                f"{LEADER}.machine:PartitionMachine.apply",
                "if retention.step_ms(record) < self._step_ms:",
                "if False:",
            ),
        ),
        {
            story("partition_leader/a_limit_for_what_is_there_already"): "+@48 LOG_START 41",
        },
    ),
    Bug(
        "time-that-passed-before-counts",
        "what is committed after a pause is not as old as what was there before it",
        (
            Edit(
                f"{LEADER}.machine:PartitionMachine.apply",
                "            self.marks.time_passed(since_offset=record.since_offset, by_ms=by_ms)",
                "            pass",
            ),
        ),
        {
            unit(
                "partition_leader/test_deletion_properties",
                "test_what_is_committed_after_a_pause_is_as_young_as_it_is",
            ): "before its time",
        },
    ),
    Bug(
        "a-quiet-partition-keeps-everything",
        "retention.ms holds also where nobody writes, and where the clock stands",
        (
            Edit(
                f"{RETENTION}:due",
                "        decided.append(TimePassed(watch.behind_ms, watch.behind_since))",
                "        pass",
            ),
        ),
        {
            story("partition_leader/retention_counts_age_from_commit"): "-@5 TIME_PASSED",
        },
    ),
    Bug(
        "an-empty-partition-says-that-time-passes",
        "a partition with nothing to delete is silent",
        (
            Edit(
                f"{RETENTION}:Watch._compare",
                "ages = ages and committed.start_offset < committed.end_offset",
                "pass",
            ),
        ),
        {story("partition_leader/retention_counts_age_from_commit"): "TIME_PASSED 3600000"},
    ),
    Bug(
        "start-moves-before-it-is-durable",
        "I5, I27: a start that a change of leader takes back hides nothing before",
        (
            Edit(
                f"{LOG}.readable_start",
                "            if moved_at < high_watermark:",
                "            if True:",
            ),
        ),
        {
            story("partition_leader/a_log_begins_later_once_that_is_durable"): "-0..2 plain x1 0+2",
            unit(
                "partition_leader/test_deletion",
                "test_i27_truncate_deletes_nothing_that_is_not_durable",
            ): "assert",
            PROPERTY: "not before it is durable",
        },
    ),
    Bug(
        "rows-go-before-the-start-is-durable",
        "I27: what readers still see stays in the index",
        (
            Edit(
                f"{LOG}.drop",
                "start = self.readable_start(high_watermark)",
                "start = self.start_offset",
            ),
            Edit(
                f"{LOG}.may_drop",
                "return len(self._starts) > 1 and self._starts[1][0] < high_watermark",
                "return len(self._starts) > 1",
            ),
        ),
        {
            unit(
                "partition_leader/test_deletion",
                "test_the_index_lets_go_of_what_is_deleted_once_that_is_durable",
            ): "assert",
        },
    ),
    Bug(
        "needed-by-the-first-entry-alone",
        "what is readable later may lie earlier in the journal: entries are in commit order",
        (
            Edit(
                f"{LOG}.lowest_from",
                "        return min(lowest, ",
                "        return max(lowest, ",
            ),
        ),
        {
            story("partition_leader/a_journal_point_of_every_offset"): "lowest journal offset",
            unit(
                "partition_leader/test_deletion",
                "test_describe_journals_says_what_is_needed_and_by_what",
            ): "assert",
        },
    ),
    Bug(
        "truncates-above-the-end",
        "I6: records that are not there yet are not deleted in advance",
        (
            Edit(
                f"{RETENTION}:truncation",
                "    if before > committed.end_offset:",
                "    if False:",
            ),
        ),
        {
            story("partition_leader/a_log_begins_later_once_that_is_durable"): (
                "the start never goes back"
            ),
        },
    ),
    Bug(
        "truncates-what-is-not-durable",
        "I27: an operator deletes what readers can see, not what may still be lost",
        (
            Edit(
                f"{LEADER}.truncating:_not_above",
                "    if offset > ends.end:",
                "    if False:",
            ),
        ),
        {
            unit(
                "partition_leader/test_deletion",
                "test_i27_truncate_deletes_nothing_that_is_not_durable",
            ): "it is refused at once",
        },
    ),
    Bug(
        "retention-cuts-a-transaction",
        "I3: retention keeps or deletes what became readable at once",
        (
            Edit(
                f"{LOG}.cut_to",
                "self.first_offset(self.unit_row(behind))",
                "self.first_offset(behind)",
            ),
        ),
        {
            story("partition_leader/retention_counts_bytes"): "LOG_START 3",
        },
    ),
    Bug(
        "an-older-memory-of-a-topic-is-obeyed",
        "a new leader whose view of etcd is behind deletes nothing by settings that are no more",
        (
            Edit(
                f"{RETENTION}:configure",
                "settings.version >= known.version and ",
                "",
            ),
        ),
        {story("partition_leader/settings_are_journaled_once"): "+@2 SETTINGS 0"},
    ),
    Bug(
        "a-point-inside-of-a-transaction-misses-its-beginning",
        "I3, I15: a reader of RAW counts what it gives from the transaction's first record on",
        (
            Edit(
                f"{LEADER}.journal_points:find_point",
                "        entry = committed.unit_row(entry)",
                "        pass",
            ),
        ),
        {
            unit(
                "partition_leader/test_deletion_properties",
                "test_i03_a_point_inside_of_a_transaction_leads_to_its_beginning",
            ): "assert",
        },
    ),
    Bug(
        "a-point-of-the-end-at-what-is-not-durable",
        "I27: a change of leader takes back the marker that the point names",
        (
            Edit(
                f"{LEADER}.journal_points:find_point",
                "if offset == committed.readable_end(high_watermark):",
                "if offset == committed.end_offset:",
            ),
        ),
        {
            unit(
                "partition_leader/test_deletion_properties",
                "test_i27_a_point_of_the_end_names_nothing_that_is_not_durable",
            ): "assert",
        },
    ),
    Bug(
        "deleted-while-it-is-read",
        "a reader is told where its own numbering begins, not the journal's",
        (
            Edit(
                f"{LEADER}.reads:Reader.read",
                "            require_in_range(from_offset, ends)\n",
                "",
            ),
        ),
        {
            unit(
                "partition_leader/test_deletion",
                "test_what_is_deleted_while_it_is_read_is_told_in_the_readers_numbering",
            ): "assert",
        },
    ),
    Bug(
        "journals-start-told-to-a-committed-reader",
        "I26: a committed record that the journal lacks is damage, and sends nobody past it",
        (Edit(f"{LEADER}.reads:Reader.read", "if of_journal:\n                raise", "raise"),),
        {
            unit(
                "partition_leader/test_deletion",
                "test_i26_a_committed_record_that_the_journal_lacks_is_damage_and_never_"
                "out_of_range",
            ): "OFFSET_OUT",
        },
    ),
    Bug(
        "found-by-time-below-the-start",
        "I14: no position that is told lies below the start",
        (
            Edit(
                f"{LEADER}.listing:Listing._in_batch",
                "skipped = bisect_left(batch.offsets, begin)",
                "skipped = 0",
            ),
        ),
        {
            unit(
                "partition_leader/test_deletion",
                "test_offsets_by_time_are_never_below_the_start",
            ): "assert 0 == 1",
        },
    ),
    Bug(
        "start-not-in-the-snapshot",
        "I35: a leader that is elected after a deletion shows none of it again",
        (
            Edit(
                f"{LOG}.dump",
                "            self.start_offset,\n",
                "            0,\n",
            ),
        ),
        {
            story("partition_leader/a_log_begins_later_once_that_is_durable"): "assert",
        },
    ),
    Bug(
        "settings-not-in-the-snapshot",
        "I35: every leader deletes by the same settings",
        (
            Edit(
                f"{LEADER}.machine:PartitionMachine.snapshot",
                "            self.settings,\n",
                "            Settings(),\n",
            ),
        ),
        {
            story("partition_leader/settings_are_journaled_once"): "+@4 SETTINGS 3",
        },
    ),
)
