"""Bugs around the checkpoints of Spark's queries: where a first batch begins, what is replayed, and
whose transaction holds a group up."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "first-batch-begins-where-it-is-run",
        "I34: a first batch that is run again is of the records that it was planned of",
        (
            Edit(
                "oncelog_spark.source:OncelogStreamReader.partitions",
                "from_json(start) if last.begin is None",
                "from_json(start) if True",
            ),
        ),
        {
            unit(
                "spark/test_checkpoints",
                "test_i34_a_first_batch_begins_where_it_was_planned_from_whenever_it_is_run",
            ): "OffsetRange(partition=TopicPartition(topic='t', number=0), start=10, end=15)",
            unit(
                "spark/test_checkpoints",
                "test_i34_a_first_batch_that_was_committed_is_read_again_from_its_start",
            ): "OffsetRange",
        },
    ),
    Bug(
        "each-batch-begins-where-the-first-one-does",
        "I34: only a query's first batch says where it begins",
        (
            Edit(
                "oncelog_spark.source:OncelogStreamReader.latestOffset",
                "vector.positions if before.is_initial else None",
                "before.begin",
            ),
        ),
        {
            unit(
                "spark/test_checkpoints",
                "test_i34_a_first_batch_begins_where_it_was_planned_from_whenever_it_is_run",
            ): "assert",
        },
    ),
    Bug(
        "older-checkpoint-passes-over-new-records",
        "I34: of committed batches only the last is replayed",
        (
            Edit(
                "oncelog_spark.batch_transaction:_require_last",
                "last.number > key.number",
                "False",
            ),
        ),
        {
            unit(
                "spark/test_batch_transaction",
                "test_i34_of_committed_batches_only_the_last_is_replayed",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "committed-batch-of-other-records-taken-for-the-same",
        "I34: a batch that was committed with other records is no replay",
        (
            Edit(
                "oncelog_spark.source:_register",
                "elif entered.standing is Standing.ALREADY_COMMITTED:",
                "elif False:",
            ),
        ),
        {
            unit(
                "spark/test_checkpoints",
                "test_i34_a_batch_that_was_committed_with_other_records_gives_no_row",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "what-came-to-a-group-begins-at-the-end",
        "I15: a lost checkpoint passes over nothing of a partition that came meanwhile",
        (
            Edit(
                "oncelog_spark.source:_where_the_group_stands",
                "{**start, **came, **standing}",
                "{**start, **standing}",
            ),
        ),
        {
            unit(
                "spark/test_source",
                "test_i15_it_begins_where_the_group_stands_or_where_the_option_says",
            ): "'1': 4",
        },
    ),
    Bug(
        "lost-run-holds-its-group",
        "I34: what a lost run left open is ended by the next, whatever its name",
        (
            Edit(
                "oncelog_spark.source:_settled",
                "failed_jobs.end_earlier_run(subscription.protocol, tx_id)",
                "pass",
            ),
        ),
        {
            unit(
                "spark/test_checkpoints",
                "test_i34_what_a_lost_run_of_an_unknown_name_left_open_is_ended",
            ): "== [9]",
        },
    ),
    Bug(
        "anybodys-transaction-ended-for-its-group",
        "I34: a query ends earlier runs, and nobody else's transaction",
        (
            Edit(
                "oncelog_spark.failed_jobs:end_earlier_run",
                "or not found.commit_seq.scope",
                "or False",
            ),
        ),
        {
            unit(
                "spark/test_checkpoints",
                "test_i34_what_is_decided_or_no_batch_is_waited_for[of somebody else]",
            ): "== []",
        },
    ),
    Bug(
        "query-overlooks-what-was-given-across",
        "I21: what a group was given beyond its offset is not read again",
        (Edit("oncelog_spark.source:_settled", "    if across:\n", "    if False:\n"),),
        {
            unit(
                "spark/test_checkpoints",
                "test_i21_a_group_that_was_given_more_than_its_offset_says_is_no_querys",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "refused-generation-used-again",
        "I34: a generation that was refused is asked for again",
        (
            Edit(
                "oncelog_spark.batch_transaction:enter",
                "known.pop(run, None)",
                "known.get(run)",
            ),
        ),
        {
            unit(
                "spark/test_batch_transaction",
                "test_i34_a_generation_that_is_refused_is_asked_for_again",
            ): "== 2",
        },
    ),
)
