"""Bugs of the Spark source: ranges, steps and groups, seen without a JVM."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "fetch-goes-on-one-high",
        "I14: a range is read whole, each record once",
        (
            Edit(
                "oncelog_spark.fetch:_end_of",
                "last.first_offset, last.record_count, holes",
                "last.first_offset, last.record_count + 1, holes",
            ),
        ),
        {
            unit(
                "spark/test_fetch", "test_only_what_is_committed_is_asked_for_and_each_offset_once"
            ): "== [0, 4, 8]",
        },
    ),
    Bug(
        "new-partition-begins-where-retention-left-it",
        "I14: what was deleted of a partition before a query came to it is told as any other loss",
        (
            Edit(
                "oncelog_spark.source:OncelogStreamReader._checked",
                "0 if tp.topic in read else at",
                "at",
            ),
        ),
        {
            unit(
                "spark/test_source",
                "test_i14_a_partition_that_came_to_a_topic_is_read_from_its_first_record",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "batch-of-a-task-cut-from-its-start",
        "I34: what lies outside of a range is of another task",
        (
            Edit(
                "oncelog_spark.fetch:_chunks",
                "rows.slice(before, len(chosen))",
                "rows.slice(0, len(chosen))",
            ),
        ),
        {
            unit(
                "spark/test_fetch", "test_i14_a_range_is_read_whole_and_nothing_beside_it"
            ): "assert [(1, 0)] == [(1, 1)]",
        },
    ),
    Bug(
        "query-goes-on-silently-where-records-were-deleted",
        "I14: failOnDataLoss is true unless somebody says otherwise: a query ends, and says what",
        (
            Edit(
                "oncelog_spark.source:_within",
                "if lost and options.fail_on_data_loss:",
                "if False:",
            ),
        ),
        {
            unit(
                "spark/test_source",
                "test_i34_what_was_deleted_is_not_read_but_its_step_begins_where_the_last_one_ended",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "task-passes-over-what-was-deleted-meanwhile",
        "I14: what is deleted between plan and read is a loss as well",
        (
            Edit(
                "oncelog_spark.fetch:RangeReader._passes_over",
                "if self._fail_on_data_loss:",
                "if False:",
            ),
        ),
        {
            unit(
                "spark/test_fetch",
                "test_what_is_deleted_while_a_task_reads_is_a_loss_or_passed_over",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "what-was-deleted-counts-against-the-limit",
        "a query that goes on where records are comes there with its next batch",
        (
            Edit(
                "oncelog_spark.source:OncelogStreamReader._begins",
                "if self._options.fail_on_data_loss:",
                "if True:",
            ),
        ),
        {
            unit(
                "spark/test_source",
                "test_what_was_deleted_does_not_count_against_the_limit_of_a_batch",
            ): "'0': 8",
        },
    ),
    Bug(
        "end-of-a-batch-goes-back",
        "I15: a query's positions only grow",
        (
            Edit(
                "oncelog_spark.source:OncelogStreamReader.latestOffset",
                "end = forward(vector.positions, latest)",
                "end = dict(latest)",
            ),
        ),
        {
            unit("spark/test_source", "test_i15_the_end_never_goes_back"): "{'0': 10",
        },
    ),
    Bug(
        "available-now-runs-on",
        "Trigger.AvailableNow ends where it was prepared",
        (
            Edit(
                "oncelog_spark.source:OncelogStreamReader._latest",
                "if self._target is not None:",
                "if False:",
            ),
        ),
        {
            unit("spark/test_source", "test_available_now_ends_where_it_was_prepared"): "{'0': 15",
        },
    ),
    Bug(
        "empty-batch-registers-nothing",
        "I21: a batch's positions commit with it, records or not",
        (Edit("oncelog_spark.source:_plan", "if not planned and step.positions:", "if False:"),),
        {
            unit(
                "spark/test_source",
                "test_i21_a_batch_without_records_registers_its_step_in_one_task",
            ): "assert [] == [(0, 6)]",
        },
    ),
    Bug(
        "step-from-where-the-log-begins",
        "I34: `from` is where the last batch ended, whatever was deleted",
        (
            Edit(
                "oncelog_spark.source:OncelogStreamReader.partitions",
                "offsets = step_offsets(subscription, options.group, standing, begin, until)",
                "readable = kept(begin, earliest=subscription.at(Edge.EARLIEST))\n"
                "            offsets = step_offsets(\n"
                "                subscription, options.group, standing, readable, until\n"
                "            )",
            ),
        ),
        {
            unit(
                "spark/test_source",
                "test_i34_what_was_deleted_is_not_read_but_its_step_begins_where_the_last_one_ended",
            ): "('from_offset', 5, 8)",
        },
    ),
    Bug(
        "replayed-batch-registers-again",
        "told ALREADY_COMMITTED it registers nothing and reads on",
        (
            Edit(
                "oncelog_spark.source:_register",
                "if entered.standing is Standing.OPEN:",
                "if True:",
            ),
        ),
        {
            unit(
                "spark/test_source",
                "test_i34_a_batch_that_is_committed_is_read_again_and_registers_nothing",
            ): "== []",
        },
    ),
    Bug(
        "a-query-begins-beside-members",
        "I23: a query whose group has living members is refused",
        (
            Edit(
                "oncelog_spark.source:OncelogStreamReader._alone",
                "if options.group is not None:",
                "if options.transactional_sink is not None:",
            ),
        ),
        {
            unit(
                "spark/test_source", "test_i23_a_query_whose_group_has_members_does_not_begin"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "a-claim-that-outlives-sigterm",
        "I29: members may join at once where Spark has ended a query's reader",
        (Edit("oncelog_spark.claim:Claim.hold", "_unwind_at_sigterm()", "pass"),),
        {
            unit(
                "spark/test_claim", "test_i29_a_query_that_spark_stops_lets_members_join_at_once"
            ): "it ends without a word",
        },
    ),
    Bug(
        "a-release-that-is-cut-short",
        "I29: Spark ends a reader twice, and the second time must not undo what the first began",
        (Edit("oncelog_spark.claim:_unwind", "signal.signal(number, signal.SIG_IGN)", "pass"),),
        {
            unit(
                "spark/test_claim", "test_i29_a_query_that_spark_stops_lets_members_join_at_once"
            ): "what it has begun it does not end",
        },
    ),
    Bug(
        "a-claim-that-nobody-renews",
        "I23: members are kept out of the group of a query for as long as it runs",
        (Edit("oncelog_spark.claim:_renew", "claim.renew()", "pass"),),
        {
            unit(
                "spark/test_source",
                "test_i23_a_query_claims_its_group_from_its_first_look_to_its_end",
            ): "nobody renews it",
        },
    ),
    Bug(
        "a-claim-that-outlives-its-query",
        "I29: members may join at once where a query has stopped",
        (Edit("oncelog_spark.claim:Claim.release", "release=True", "release=False"),),
        {
            unit(
                "spark/test_source",
                "test_i23_a_query_claims_its_group_from_its_first_look_to_its_end",
            ): "== {}",
        },
    ),
    Bug(
        "a-query-goes-on-beside-members",
        "I23: a query whose group gets members ends at its next batch",
        (
            Edit(
                "oncelog_spark.source:OncelogStreamReader.partitions",
                "subscription = self._alone()",
                "subscription = self._subscription()",
            ),
        ),
        {
            unit(
                "spark/test_source",
                "test_i23_a_query_whose_group_gets_members_plans_no_batch_more",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "a-refused-plain-commit-of-a-query-is-a-warning",
        "I23: members that join the group of a running query end it",
        (
            Edit(
                "oncelog_spark.source:OncelogStreamReader.commit",
                "raise refusal(options.group) from error",
                "log.warning('%s', error)",
            ),
        ),
        {
            unit(
                "spark/test_source",
                "test_i23_a_plain_commit_that_members_are_in_the_way_of_ends_the_query",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "ranges-of-one-partition-share-a-task",
        "I14: a fetch names a partition once",
        (
            Edit(
                "oncelog_spark.packing:_Task.takes",
                "part.partition in self._partitions or len(self.parts) >= TASK_RANGES_MAX",
                "len(self.parts) >= TASK_RANGES_MAX",
            ),
        ),
        {
            unit(
                "spark/test_packing", "test_ranges_of_one_partition_never_share_a_task"
            ): "At index 0 diff",
        },
    ),
    Bug(
        "task-ends-with-its-first-range",
        "I14: a task reads all of its ranges to their ends",
        (
            Edit(
                "oncelog_spark.fetch:RangeReader.__iter__",
                "self._open = [one for one in self._open if one.position < one.range.end]",
                "self._open *= all(one.position < one.range.end for one in self._open)",
            ),
        ),
        {
            unit("spark/test_fetch", "test_ranges_that_share_a_task_share_their_fetches"): "(1, 4)",
        },
    ),
    Bug(
        "minimum-of-a-batch-holds-available-now",
        "Trigger.AvailableNow ends with all that there was",
        (
            Edit(
                "oncelog_spark.source:OncelogStreamReader._waits",
                "if at_least is None or self._target is not None:",
                "if at_least is None:",
            ),
        ),
        {
            unit(
                "spark/test_source_options", "test_who_asks_for_all_gets_all_however_little"
            ): "AssertionError: AvailableNow",
        },
    ),
    Bug(
        "deleted-topic-of-a-pattern-passes-silently",
        "I14: a query ends where what it reads is gone, unless somebody says otherwise",
        (
            Edit(
                "oncelog_spark.source:OncelogStreamReader._require_there",
                "if gone and self._options.fail_on_data_loss:",
                "if False:",
            ),
        ),
        {
            unit(
                "spark/test_source_options",
                "test_i14_a_topic_of_a_pattern_that_was_deleted_is_a_loss_or_left_out",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "late-start-begins-silently-at-the-end",
        "a read begins where it was told to, or says that it cannot",
        (
            Edit(
                "oncelog_spark.subscription:Subscription._by_time",
                'if without and late == "error":',
                "if False:",
            ),
        ),
        {
            unit(
                "spark/test_source_options",
                "test_a_time_behind_the_last_record_is_an_error_or_the_end",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "stream-outlives-its-reader",
        "a task that ends early leaves nothing that reads on",
        (
            Edit(
                "oncelog_spark.fetch:RangeReader.close",
                "        self._end_stream()\n",
                "",
            ),
        ),
        {
            unit("spark/test_fetch", "test_a_stream_is_closed_with_its_reader"): "assert 2 == 1",
        },
    ),
    Bug(
        "read-ahead-has-no-bound",
        "what is read ahead and nobody takes is bounded",
        (
            Edit(
                "oncelog.read_ahead:ReadAhead._put",
                "while len(self._replies) >= REPLIES_MAX",
                "while False",
            ),
        ),
        {
            unit("client/test_read_ahead", "test_what_nobody_takes_is_bounded"): "assert 100 ==",
        },
    ),
    Bug(
        "failed-partition-is-a-reply",
        "a stream whose partition failed is over: a fetch finds out why",
        (
            Edit(
                "oncelog.read_ahead:ReadAhead._read",
                'if any(part.HasField("error") for part, _ in in_place.fetched(reply)):',
                "if False:",
            ),
        ),
        {
            unit(
                "client/test_read_ahead", "test_replies_come_in_order_until_the_stream_ends"
            ): "assert [0, 1,",
        },
    ),
)
