"""Bugs of the Spark connector: ranges, steps and writers, seen without a JVM."""

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
        (Edit("oncelog_spark.fetch:read_range", "if fail_on_data_loss:", "if False:"),),
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
                "step = BatchStep.of(subscription, options.group, begin, until)",
                "readable = _within(subscription, options, begin)\n"
                "            step = BatchStep.of(subscription, options.group, readable, until)",
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
        "scope-is-the-run",
        "I34: commit_seq's scope is the query, so that a new run finds what was committed",
        (Edit("oncelog_spark.transaction:streaming_key", "scope=query_id", "scope=run_id"),),
        {
            unit(
                "spark/test_source", "test_the_key_of_a_batch_is_its_query_run_and_number"
            ): "== ('the-query', 'the-query', 3)",
        },
    ),
    Bug(
        "tasks-open-a-session",
        "Spark tasks open no session",
        (
            Edit(
                "oncelog_spark.transaction:enter",
                "instance_id=key.instance_id",
                "instance_id=key.instance_id, session=True",
            ),
        ),
        {
            unit(
                "spark/test_transaction", "test_i34_every_attempt_asks_for_the_same_transaction"
            ): "True)",
        },
    ),
    Bug(
        "losers-in-the-manifest",
        "I34: the manifest names each writer with its own count",
        (
            Edit(
                "oncelog_spark.manifest:build_manifest",
                "(part.topic_id, part.number, message.writer): part.record_count",
                "(part.topic_id, part.number, 0): part.record_count",
            ),
        ),
        {
            unit(
                "spark/test_manifest", "test_i34_the_manifest_names_exactly_the_winners"
            ): "== [(b'oncelog:o",
        },
    ),
    Bug(
        "sequence-counts-batches",
        "a sequence counts records per partition of its writer",
        (Edit("oncelog_spark.producing:TaskProducer._batches", "+= piece.num_rows", "+= 1"),),
        {
            unit(
                "spark/test_producing",
                "test_i9_sequences_count_records_per_partition_over_all_that_a_task_sends",
            ): "== {0: [(0,",
        },
    ),
    Bug(
        "refused-batch-reported-as-written",
        "I34: what a task reports stands in the journals, durable",
        (
            Edit(
                "oncelog_spark.producing:TaskProducer._send",
                "                raise_for(result)",
                "                pass",
            ),
        ),
        {
            unit(
                "spark/test_producing", "test_i34_a_task_whose_last_batch_is_not_durable_fails"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "unfinished-task-reports",
        "I34: what a task reports stands in the journals, durable",
        (
            Edit(
                "oncelog_spark.producing:TaskProducer.finish",
                "            self._under_way.popleft().result()",
                "            self._under_way.popleft()",
            ),
        ),
        {
            unit(
                "spark/test_producing", "test_i34_a_task_whose_last_batch_is_not_durable_fails"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "positions-not-announced",
        "I21: a sink that forgets the group of its source must not commit without the positions",
        (
            Edit(
                "oncelog_spark.source:_register",
                "transaction.enter(protocol, key, [pb.Partition.FromString(step.participant)])",
                "transaction.enter(protocol, key)",
            ),
        ),
        {
            unit(
                "spark/test_source",
                "test_i34_a_task_registers_the_batchs_step_before_it_gives_a_row",
            ): "assert [] == [",
        },
    ),
    Bug(
        "sink-begins-before-its-source",
        "I21: whoever begins first announces, so the source must",
        (
            Edit(
                "oncelog_spark.sink:write_task",
                "first = next(iterator, None)\n    entered = transaction.enter(protocol, key)",
                "entered = transaction.enter(protocol, key)\n    first = next(iterator, None)",
            ),
        ),
        {
            unit(
                "spark/test_sink", "test_i21_a_task_lets_its_source_begin_first"
            ): "'begin_transaction'",
        },
    ),
    Bug(
        "failed-job-fences-its-query",
        "I16: a failed write inside of foreachBatch must not take the query's producer over",
        (
            Edit(
                "oncelog_spark.failed_jobs:abort_untold",
                "if key.producer_name and key.scope_is_run:",
                "if False:",
            ),
        ),
        {
            unit(
                "spark/test_failed_jobs",
                "test_i16_a_producer_that_may_be_a_querys_is_not_registered_again",
            ): "== []",
        },
    ),
    Bug(
        "an-earlier-batch-is-taken-for-a-mismatch",
        "I34: what another batch left pending is no reason to end it",
        (
            Edit(
                "oncelog_spark.agreement:_refuse",
                "(found.commit_seq.scope, found.commit_seq.number) == (key.scope, key.number)",
                "found.commit_seq.scope == key.scope",
            ),
        ),
        {
            unit(
                "spark/test_agreement",
                "test_what_is_not_of_this_batch_is_nobodys_mistake_here[the batch before]",
            ): "assert not True",
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
)
