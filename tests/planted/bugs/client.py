"""Bugs of the client: what it sends, sends again, counts, and believes of a lost answer."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "retry-takes-a-new-sequence",
        "§6, I6: a batch keeps its sequence: a retry under another one is appended again",
        (
            Edit(
                "oncelog._core.sequencing:Lane._retire",
                "        self.waiting.extendleft(reversed(again))",
                "        for batch in again:\n"
                "            batch.base_sequence = self.next_sequence\n"
                "            self.next_sequence += batch.sealed.record_count\n"
                "        self.waiting.extendleft(reversed(again))",
            ),
        ),
        {
            unit(
                "client/test_sequencing",
                "test_after_a_failure_nothing_new_goes_before_what_failed_goes_again",
            ): "assert [4, 5, 2, 3] == [0, 1, 2, 3]",
            unit(
                "client/test_producing",
                "test_i6_bad_weather_neither_loses_nor_repeats_nor_reorders[lost answer]",
            ): "OUT_OF_ORDER_SEQUENCE: gap",
        },
    ),
    Bug(
        "restarted-lane-keeps-its-producer-id",
        "§6: a sequence that starts at 0 again is a repeat under the old producer id",
        (
            Edit(
                "oncelog.aio.sender:Sender._restart",
                "self._identities[partition] = self._renew()",
                "self._identities[partition] = self._identity",
            ),
        ),
        {
            unit(
                "client/test_producing",
                "test_a_refused_batch_does_not_take_the_others_of_its_partition_with_it",
            ): "assert [b'good', b'last'] == [b'good', b'fine', b'last']",
        },
    ),
    Bug(
        "doubtful-batch-under-a-new-id",
        "I6: what may stand under the old producer id is not sent under a new one",
        (
            Edit(
                "oncelog._core.sequencing:Lane.restart",
                "kept = [batch for batch in self.waiting if not batch.in_doubt]",
                "kept = list(self.waiting)",
            ),
        ),
        {
            unit(
                "client/test_sequencing",
                "test_i6_what_may_stand_under_the_old_id_is_never_sent_under_a_new_one",
            ): "doubt=<oncelogpb.doubt.Doubt",
        },
    ),
    Bug(
        "doubt-ends-with-the-next-refusal",
        "§9, I4: a refusal promises that nothing happened, of this sending only",
        (
            Edit(
                "oncelogpb.doubt:Doubt.told",
                "        if not self._lost or error.reason",
                "        self._lost = False\n        if not self._lost or error.reason",
            ),
        ),
        {
            unit(
                "client/test_doubt",
                "test_i4_a_commit_that_begins_the_next_and_is_fenced_on_repetition_learns_that_it_happened",
            ): "PRODUCER_FENCED: a later instance took over",
            unit(
                "client/test_delivery",
                "test_i6_a_lost_answer_stays_in_doubt_whatever_is_refused_after_it",
            ): "TOO_LARGE: no",
        },
    ),
    Bug(
        "split-call-forgets-its-doubt",
        "§9, I6: NOT_LEADER after a lost answer promises nothing",
        (
            Edit(
                "oncelog._fan_out:FanOut.call_partitions",
                "doubts.setdefault(index, Doubt(method, request)).told(error)",
                "Doubt(method, request).told(error)",
            ),
        ),
        {
            unit(
                "client/test_protocol",
                "test_a_refusal_of_a_batch_after_a_lost_answer_is_still_an_unknown_outcome",
            ): "isinstance(NotLeader('x')",
        },
    ),
    Bug(
        "rights-called-a-fact",
        "§9: rights are judged before a request is looked up: their refusal ends no doubt",
        (
            Edit(
                "oncelogpb.doubt:Doubt.told",
                "        if not self._lost or error.reason",
                "        if not self._lost or error.reason in RIGHTS or error.reason",
            ),
        ),
        {
            unit(
                "wire/test_doubt",
                "test_i4_after_a_lost_answer_a_refusal_that_is_no_fact_is_an_unknown_outcome",
            ): "Unauthenticated(",
        },
    ),
    Bug(
        "one-shot-in-doubt-under-another-number",
        "I6: what may stand, or may yet arrive, under one number is not sent under another",
        (
            Edit(
                "oncelogpb.doubt:facts_of",
                "    return FACTS[method]",
                "    known = FACTS[method]\n"
                '    return known._replace(reasons=known.reasons | {"OUT_OF_ORDER_SEQUENCE"})',
            ),
        ),
        {
            unit(
                "client/test_doubt",
                "test_i6_a_one_shot_in_doubt_is_not_sent_under_another_number",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "refused-at-once-asked-at-once",
        "§4, I31: every loop has a limit: the stream empties only while the loop runs",
        (
            Edit(
                "oncelog.aio.sender:Sender._gather",
                "while lane.sendable() and partition not in self._held:",
                "while lane.sendable():",
            ),
        ),
        {
            unit(
                "client/test_delivery",
                "test_i31_a_stream_that_takes_nothing_more_is_asked_again_after_a_wait",
            ): "Deadlock",
        },
    ),
    Bug(
        "plain-commit-repeated-blindly",
        "§8, I21: a plain commit is not idempotent: a lost answer is looked up",
        (
            Edit(
                "oncelog.aio.consumer:Consumer.commit",
                "if doubt.lost and await self._stands(progress):",
                "if doubt.lost:",
            ),
        ),
        {
            unit(
                "client/test_committing",
                "test_i21_a_commit_whose_answer_is_lost_is_repeated_only_where_it_did_not_happen",
            ): "assert {} == {0: 10}",
        },
    ),
    Bug(
        "own-late-commit-called-stale",
        "§8, I21: a repeat of what took effect late is no lost race",
        (
            Edit(
                "oncelog.aio.consumer:Consumer.commit",
                "if doubt.lost and await self._stands(progress):",
                "if False:",
            ),
        ),
        {
            unit(
                "client/test_committing",
                "test_i21_a_commit_whose_answer_is_lost_is_repeated_only_where_it_did_not_happen",
            ): "STALE_POSITION: it stands at 10",
        },
    ),
    Bug(
        "abort-keeps-what-was-read-ahead",
        "I21: after an abort the same input is given again",
        (
            Edit(
                "oncelog._core.positions:Positions.rewind",
                "place.position = place.fetch = place.base",
                "place.position = place.base",
            ),
        ),
        {
            unit(
                "client/test_positions", "test_i21_an_abort_gives_back_all_since_the_last_commit"
            ): "assert 15 == 30",
        },
    ),
    Bug(
        "seek-skips-what-was-read-ahead",
        "I14: what was read ahead and dropped is asked for again",
        (
            Edit(
                "oncelog.aio.fetching:Prefetcher.follow_positions",
                "        self._positions.unfetch()\n",
                "",
            ),
        ),
        {
            unit(
                "client/test_seeking", "test_i14_a_seek_of_one_partition_skips_nothing_of_another"
            ): "assert None is not None",
        },
    ),
    Bug(
        "batch-cut-at-its-wrong-end",
        "I15: reading goes on inside a batch: the first records are skipped",
        (
            Edit(
                "oncelog.aio.fetching:Prefetcher._queue_batch",
                "            skip=skip,\n            count=batch.record_count - skip,",
                "            skip=0,\n            count=batch.record_count - skip,",
            ),
        ),
        {
            unit(
                "client/test_consuming",
                "test_i15_it_starts_where_the_group_stands_and_cuts_what_lies_before",
            ): "assert b'4' == b'7'",
        },
    ),
    Bug(
        "commit-one-low",
        "I21: a commit names the next offset to read",
        (
            Edit(
                "oncelog._core.positions:Positions._offset",
                "to_offset=item.to",
                "to_offset=item.to - 1",
            ),
        ),
        {
            unit(
                "client/test_positions", "test_from_is_what_the_group_must_have[10-from_offset]"
            ): "assert 14 == 15",
        },
    ),
    Bug(
        "chain-on-anothers-transaction",
        "why.md: `from` may chain only on a transaction of the same producer",
        (
            Edit(
                "oncelog._core.positions:Positions._offset",
                " and place.after.producer_id == producer_id",
                "",
            ),
        ),
        {
            unit(
                "client/test_positions",
                "test_a_decided_commit_is_chained_on_by_the_same_producer_only",
            ): "assert 99 == 0",
        },
    ),
    Bug(
        "sent-offsets-never-remembered",
        "§8, I21: each commit starts where the last one ended",
        (
            Edit(
                "oncelog._core.positions:Positions.sent",
                "place.since, place.after = to, after",
                "pass",
            ),
        ),
        {
            unit(
                "client/test_send_offsets",
                "test_i21_each_commit_of_a_loop_starts_where_the_last_one_ended",
            ): "('from_offset', 7, 12, 0)",
        },
    ),
    Bug(
        "unknown-start-is-not-checked",
        "§8: offsets carry `from`, checked by the group",
        (
            Edit(
                "oncelog.aio.consumed:Consumed.add",
                "since = Origin.ANY if asked is None else await asked.since(place)",
                "since = Origin.ANY",
            ),
        ),
        {
            unit(
                "client/test_send_offsets",
                "test_i21_what_was_taken_before_the_first_poll_is_checked_too",
            ): "('from_any', 0, 9, 0)",
        },
    ),
    Bug(
        "second-group-dropped-from-a-one-shot",
        "§7: a one-shot carries the offsets of one group",
        (
            Edit(
                "oncelog.aio.transactions:Transaction._is_one_shot",
                "            and len(self._consumed.groups(progress)) <= 1\n",
                "",
            ),
        ),
        {
            unit(
                "client/test_send_offsets",
                "test_i21_offsets_of_two_groups_are_both_in_the_manifest_and_no_one_shot",
            ): "assert 'transact' not in",
        },
    ),
    Bug(
        "offset-partition-not-in-the-manifest",
        "why.md: offset partitions are in the manifest",
        (
            Edit(
                "oncelog.aio.consumed:Consumed.make_pending",
                "participants.add(PartitionKey.of(reply.participant))",
                "pass",
            ),
        ),
        {
            unit(
                "client/test_send_offsets",
                "test_i21_offsets_of_two_groups_are_both_in_the_manifest_and_no_one_shot",
            ): "== [[3]]",
        },
    ),
    Bug(
        "client-one-shot-beside-an-open-transaction",
        "why.md: one-shot is refused while a transaction is open",
        (
            Edit(
                "oncelog.aio.transactions:Transaction._is_one_shot",
                "            and not self._producer.has_adopted\n",
                "",
            ),
        ),
        {
            unit(
                "client/test_begin_next",
                "test_a_small_one_uses_what_is_open_and_does_not_go_beside_it",
            ): "assert 103 == 102",
        },
    ),
    Bug(
        "begun-next-under-anothers-timeout",
        "§7, I30: a transaction ends by the timeout it was begun with",
        (
            Edit(
                "oncelog._core.transaction:ProducerCore.take_adopted",
                "fresh and wanted_ms == adopted.timeout_ms",
                "fresh",
            ),
        ),
        {
            unit(
                "client/test_begin_next",
                "test_i30_one_that_was_begun_with_another_timeout_is_aborted_not_used",
            ): "assert [] == [102]",
        },
    ),
    Bug(
        "commits-what-is-spoiled",
        "I3: a transaction of which a batch was refused is not committed without it",
        (
            Edit(
                "oncelog.aio.transactions:Transaction._commit_opened",
                "        self._core.require_open()\n        manifest",
                "        manifest",
            ),
        ),
        {
            unit(
                "client/test_transactions",
                "test_i20_a_batch_behind_the_marker_spoils_the_transaction_and_the_commit_says_why",
            ): "a spoiled transaction cannot commit",
        },
    ),
    Bug(
        "commit-counts-what-came-so-far",
        "I3: the manifest counts what the leaders acknowledged, all of it",
        (
            Edit(
                "oncelog.aio.transactions:Transaction._commit_opened",
                "asyncio.gather(self._sender.drain(), pending)",
                "asyncio.gather(pending)",
            ),
        ),
        {
            unit(
                "client/test_decisions",
                "test_i3_a_commit_waits_for_all_acknowledgements_and_counts_them",
            ): "== [([0, 1], [4, 3])]",
        },
    ),
    Bug(
        "lost-commit-keeps-its-positions",
        "I21: after an outcome in doubt the group says where it stands",
        (
            Edit(
                "oncelog.aio.transactions:Transaction._lose",
                "        self._consumed.unknown()",
                "        pass",
            ),
        ),
        {
            unit(
                "client/test_transactions",
                "test_i4_a_commit_that_nobody_answers_is_looked_up[1-in doubt]",
            ): "assert [Progress(",
        },
    ),
    Bug(
        "session-begins-its-numbers-again",
        "§7: request ids of a generation grow; an earlier one finds its old transaction",
        (
            Edit(
                "oncelog.aio.transactional_producer:TransactionalProducer._take_over",
                "if (again.producer_id, again.generation) !=",
                "if True or (again.producer_id, again.generation) !=",
            ),
        ),
        {
            unit(
                "client/test_decisions",
                "test_a_new_session_of_the_same_generation_goes_on_with_the_numbers",
            ): "assert [1, 1] == [1, 2]",
        },
    ),
    Bug(
        "doubt-keeps-its-instance",
        "I16: a new instance ends what nobody knows of",
        (
            Edit(
                "oncelog.aio.transactional_producer:TransactionalProducer.doubt",
                "        self._instance_id = self.protocol.entropy(16)",
                "        pass",
            ),
        ),
        {
            unit(
                "client/test_transactions",
                "test_after_an_outcome_in_doubt_a_new_instance_registers_and_the_old_one_is_ended",
            ): "assert 1 == 2",
        },
    ),
    Bug(
        "linger-disarmed-behind-a-record",
        "§10: a record goes after its linger, whoever seals meanwhile",
        (
            Edit(
                "oncelog.aio.recorder:Recorder._lingered",
                "        buffer.armed = False\n"
                "        if not self.stopped:\n"
                "            self._seal_here(buffer)",
                "        if not self.stopped:\n"
                "            self._seal_here(buffer)\n"
                "        buffer.armed = False",
            ),
        ),
        {
            unit(
                "client/test_recording",
                "test_a_record_that_comes_while_its_buffer_is_sealed_goes_after_its_own_linger",
            ): "assert [b'early'] == [b'early', b'late']",
        },
    ),
    Bug(
        "gone-topic-believed-for-ever",
        "§5: a topic made again is another topic",
        (
            Edit(
                "oncelog._whereabouts:Whereabouts.learn_failure",
                "            self.directory.forget_topic_id(key.topic_id)",
                "            pass",
            ),
        ),
        {
            unit(
                "client/test_recreated_topics",
                "test_what_is_gone_is_told_once_and_the_next_use_finds_what_was_made_again",
            ): "UNKNOWN_TOPIC: no topic with id",
        },
    ),
    Bug(
        "deleted-topic-fails-without-a-word",
        "I5: what was not delivered is told",
        (Edit("oncelog.aio.sender:Sender._give_up", "        self._lose(lost, error)\n", ""),),
        {
            unit(
                "client/test_delivery",
                "test_a_topic_that_is_deleted_fails_what_waits_for_it_and_hangs_nobody",
            ): "DID NOT RAISE UnknownTopic",
        },
    ),
    Bug(
        "unentered-transaction-keeps-its-input",
        "I21: what a transaction was given and did not commit is given again",
        (
            Edit(
                "oncelog.aio.transactions:Transaction.__aenter__",
                "self.turn_back()",
                "pass",
            ),
        ),
        {
            unit(
                "client/test_transactions",
                "test_i21_a_transaction_that_cannot_be_entered_gives_its_input_back",
            ): "assert 10 == 7",
        },
    ),
)
