"""Bugs of the Spark sink: names of producers, steps and writers, seen without a JVM."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "scope-is-the-run",
        "I34: commit_seq's scope is the query, so that a new run finds what was committed",
        (Edit("oncelog_spark.batch_transaction:key_of_batch", "scope=query_id", "scope=run_id"),),
        {
            unit(
                "spark/test_source", "test_the_key_of_a_batch_is_its_query_run_and_number"
            ): "== ('the-query', 'the-query', 3)",
        },
    ),
    Bug(
        "named-query-forgets-its-id",
        "I34: a query that committed by its id stays with it",
        (
            Edit(
                "oncelog_spark.query_names:resolved",
                "return before if known[before.producer_name] else key",
                "return key",
            ),
        ),
        {
            unit(
                "spark/test_query_names", "test_i34_a_query_that_committed_by_its_id_stays_with_it"
            ): "== ['11111111",
        },
    ),
    Bug(
        "renamed-query-begins-anew",
        "I34: a later batch whose producer knows no earlier one is refused",
        (
            Edit(
                "oncelog_spark.query_names:require_known",
                "not key.name_before or key.number == 0 or",
                "True or",
            ),
        ),
        {
            unit(
                "spark/test_query_names",
                "test_i34_a_later_batch_whose_producer_knows_no_earlier_one_is_refused",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "part-commits-by-itself",
        "I34: one of several frames is committed with the others",
        (
            Edit(
                "oncelog_spark.sink:OncelogBatchWriter.commit",
                "_written(messages))",
                "_written(messages)); commit_job(self._options, messages)",
            ),
        ),
        {
            unit(
                "spark/test_foreach_batch",
                "test_i34_several_frames_and_the_drivers_own_records_are_one_commit",
            ): "] == []",
        },
    ),
    Bug(
        "replay-does-its-jobs-again",
        "I34: whoever replays a committed batch writes nothing",
        (
            Edit(
                "oncelog_spark.foreach_batch:BatchTransaction.write",
                "if self._replayed:",
                "if False:",
            ),
        ),
        {
            unit(
                "spark/test_foreach_batch",
                "test_i34_a_replayed_batch_is_read_for_its_state_and_writes_nothing",
            ): "assert ['oncelog']",
        },
    ),
    Bug(
        "replay-forgets-the-state",
        "I34: a query with state goes on after a batch that was committed and not noted",
        (
            Edit(
                "oncelog_spark.foreach_batch:BatchTransaction.__exit__",
                "self._read_to_its_end()",
                "pass",
            ),
        ),
        {
            unit(
                "spark/test_foreach_batch",
                "test_i34_a_replayed_batch_is_read_for_its_state_and_writes_nothing",
            ): "assert [] == ['noop']",
        },
    ),
    Bug(
        "block-begins-before-its-source",
        "I21: whose positions belong to a transaction is said by who begins it",
        (
            Edit(
                "oncelog_spark.foreach_batch:BatchTransaction.tx_id",
                "self._batch.take(1)",
                "pass",
            ),
        ),
        {
            unit(
                "spark/test_foreach_batch",
                "test_i21_whose_positions_belong_to_it_is_said_by_who_begins_it",
            ): "assert [] == ['take']",
        },
    ),
    Bug(
        "failed-block-stays-open",
        "I34: a block that fails ends what it opened",
        (
            Edit(
                "oncelog_spark.foreach_batch:BatchTransaction._abort",
                "if not failed_jobs.abort_told(self._protocol, self._messages):",
                "if not self._messages:",
            ),
        ),
        {
            unit(
                "spark/test_foreach_batch",
                "test_i34_a_commit_that_is_refused_leaves_nothing_open",
            ): "assert 0 == 1",
        },
    ),
    Bug(
        "tasks-open-a-session",
        "Spark tasks open no session",
        (
            Edit(
                "oncelog_spark.batch_transaction:register",
                "instance_id=key.instance_id",
                "instance_id=key.instance_id, session=True",
            ),
        ),
        {
            unit(
                "spark/test_batch_transaction",
                "test_i34_every_attempt_asks_for_the_same_transaction",
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
        "refused-batch-reported-as-written",
        "I34: what a task reports stands in the journals, durable",
        (
            Edit(
                "oncelog.writer:Writer._wait",
                "                raise self._error",
                "                pass",
            ),
            Edit("oncelog.writer:Writer.finish", "if written != self._sent:", "if False:"),
        ),
        {
            unit(
                "client/test_writer", "test_i34_what_was_refused_fails_whoever_goes_on"
            ): "DID NOT RAISE",
            unit(
                "spark/test_producing", "test_i34_a_task_of_which_a_batch_is_not_durable_fails"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "unfinished-task-reports",
        "I34: what a task reports stands in the journals, durable, and is all that it wrote",
        (
            Edit(
                "oncelog.writer:Writer.finish",
                "        self._wait(lambda: not self._outstanding)\n",
                "",
            ),
            Edit("oncelog.writer:Writer.finish", "if written != self._sent:", "if False:"),
        ),
        {
            unit(
                "client/test_writer", "test_i34_finish_waits_until_all_of_it_is_durable"
            ): "nobody said",
        },
    ),
    Bug(
        "room-taken-for-written",
        "I34: what a task reports is all that it wrote: a batch that failed is none of it",
        (
            Edit(
                "oncelog.aio.sender:Sender._lose",
                "for batch in batches:\n            _end(batch, batch.doubt.as_reported(error))\n"
                "        self._on_settled(sum(batch.size for batch in batches))",
                "self._on_settled(sum(batch.size for batch in batches))\n"
                "        for batch in batches:\n"
                "            _end(batch, batch.doubt.as_reported(error))",
            ),
            Edit("oncelog.writer:Writer.finish", "if written != self._sent:", "if False:"),
        ),
        {
            unit(
                "client/test_writer", "test_i34_what_makes_room_is_not_yet_written"
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "writer-has-no-bound",
        "a task holds no more than so much that is not acknowledged",
        (
            Edit(
                "oncelog.writer:Writer.send",
                "self._outstanding <= room",
                "True",
            ),
        ),
        {
            unit("client/test_writer", "test_several_are_in_flight_up_to_a_bound"): "<= 40000",
        },
    ),
    Bug(
        "writer-sends-what-the-topic-refuses",
        "a batch is no larger than its topic takes",
        (
            Edit(
                "oncelog.writer:Writer.send",
                "max_batch_bytes=max_batch_bytes_of(described.configs)",
                "max_batch_bytes=max_batch_bytes_of({})",
            ),
        ),
        {
            unit(
                "client/test_writer", "test_batches_are_no_larger_than_the_topic_takes"
            ): "<= 20000",
        },
    ),
    Bug(
        "positions-not-announced",
        "I21: a sink that forgets the group of its source must not commit without the positions",
        (
            Edit(
                "oncelog_spark.source:_register",
                "[pb.Partition.FromString(step.participant)]",
                "[]",
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
                "first = next(iterator, None)\n    key = transaction.resolved(protocol, key)\n"
                "    entered = transaction.enter(",
                "key = transaction.resolved(protocol, key)\n"
                "    transaction.enter(protocol, key)\n    first = next(iterator, None)\n"
                "    entered = transaction.enter(",
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
)
