"""Bugs of the client's transactions: in whose name, under which number, and what is believed of a
lost answer."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
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
        "I4: a refusal promises that nothing happened, of this sending only",
        (
            Edit(
                "oncelogpb.doubt:Doubt.as_reported",
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
        "I6: NOT_LEADER after a lost answer promises nothing",
        (
            Edit(
                "oncelog._fan_out:FanOut.call_partitions",
                "doubts.setdefault(index, Doubt(method, request)).as_reported(error)",
                "Doubt(method, request).as_reported(error)",
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
        "rights are judged before a request is looked up: their refusal ends no doubt",
        (
            Edit(
                "oncelogpb.doubt:Doubt.as_reported",
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
        "unknown-start-is-not-checked",
        "offsets carry `from`, checked by the group",
        (
            Edit(
                "oncelog.aio.consumed:Consumed.add",
                "(Origin.ANY, None) if asked is None else await asked.since(place)",
                "(Origin.ANY, None)",
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
        "a one-shot carries the offsets of one group",
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
        "offset partitions are in the manifest",
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
        "one-shot is refused while a transaction is open",
        (
            Edit(
                "oncelog.aio.transactions:Transaction._is_one_shot",
                "            and not self._registration.has_adopted\n",
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
        "I30: a transaction ends by the timeout it was begun with",
        (
            Edit(
                "oncelog._core.transaction:Adopted.serves",
                "fresh and wanted_ms == self.timeout_ms",
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
                "oncelog.aio.transactions:Transaction._completed",
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
                "oncelog.aio.transactions:Transaction._completed",
                "asyncio.gather(self._written.drain(), pending)",
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
                "oncelog.aio.ending:Ending._lose",
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
        "request ids of a generation grow; an earlier one finds its old transaction",
        (
            Edit(
                "oncelog.aio.registration:Registration._take_over",
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
                "oncelog.aio.registration:Registration._begin_anew",
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
        "registers-again-as-if-for-the-first-time",
        "I16: who was replaced learns it himself, and fences nobody",
        (
            Edit(
                "oncelog.aio.registration:Registration._register",
                "            request.held_generation = held",
                "            request.held_generation = held * 0",
            ),
        ),
        {
            unit(
                "client/test_registering",
                "test_i16_the_instance_that_was_replaced_stops_and_the_living_goes_on",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "refusal-of-an-older-instance-believed",
        "I16: what is said of an instance id that is not ours any more fences nobody",
        (
            Edit(
                "oncelog.aio.registration:Registration._register",
                "if instance_id == self._instance_id:",
                "if True:",
            ),
            Edit(
                "oncelog.aio.registration:Registration._begin_anew",
                "            self._takeover.cancel()",
                "            pass",
            ),
            Edit(
                "oncelog.aio.registration:Registration._take_over",
                "        async with self._registering:",
                "        if True:",
            ),
        ),
        {
            unit(
                "client/test_registering", "test_i16_a_take_over_that_is_refused_late_fences_nobody"
            ): "PRODUCER_FENCED: this instance was replaced",
        },
    ),
    Bug(
        "refused-transaction-keeps-its-input",
        "I21: a transaction that is not made gives its input back",
        (
            Edit(
                "oncelog.aio.transactional_producer:TransactionalProducer.transaction",
                "consumer.feeding.rewind()",
                "pass",
            ),
        ),
        {
            unit(
                "client/test_turning_back",
                "test_i21_a_transaction_that_cannot_be_made_sends_the_consumer_back",
            ): "assert 10 == 7",
        },
    ),
    Bug(
        "refused-next-refuses-the-commit",
        "I4: the commit's own answer never depends on what came along with it",
        (
            Edit(
                "oncelog.aio.registration:Registration.keep_next",
                "            error = errors.from_status(reply.next_error)",
                "            raise errors.from_status(reply.next_error)",
            ),
        ),
        {
            unit(
                "client/test_begin_next",
                "test_i4_a_next_transaction_that_was_refused_does_not_touch_the_commit",
            ): "LIMIT_EXCEEDED: open_transactions_max",
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
    Bug(
        "held-for-ever-in-a-small-buffer",
        "I31: what is held for the end of a transaction makes no room",
        (
            Edit(
                "oncelog.aio.written:Written.overflows",
                " or self.recorder.outstanding > self._options.buffer_bytes_max",
                "",
            ),
        ),
        {
            unit(
                "client/test_decisions",
                "test_i31_a_buffer_smaller_than_one_message_does_not_wait_for_ever",
            ): "Deadlock",
        },
    ),
)
