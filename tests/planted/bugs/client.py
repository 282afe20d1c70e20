"""Bugs of the client: what it sends, sends again, counts, and believes of a lost answer."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "gone-processes-are-waited-for",
        "I29: who is no member any more answers nothing: calls to it end, and go elsewhere",
        (
            Edit(
                "oncelog._metadata:Metadata._abandon_gone",
                "            self.transport.abandon(gone)",
                "            pass",
            ),
        ),
        {
            unit(
                "client/test_suspects",
                "test_i29_what_waits_for_a_process_ends_when_the_cluster_says_that_it_is_gone",
            ): "assert",
        },
    ),
    Bug(
        "only-what-failed-is-asked-for-anew",
        "I29: a process that is silent is silent about all that it leads",
        (
            Edit(
                "oncelog._metadata:Metadata.suspect",
                "        self.directory.forget_processes([endpoint])",
                "        pass",
            ),
            Edit(
                "oncelog._metadata:Metadata._abandon_gone",
                "        self.directory.forget_strangers()",
                "        pass",
            ),
        ),
        {
            unit(
                "client/test_suspects",
                "test_i29_who_uses_something_else_of_a_silent_process_asks_first_who_leads_it",
            ): "assert",
            unit(
                "client/test_suspects",
                "test_i29_nothing_goes_to_who_is_no_member_any_more",
            ): "assert",
        },
    ),
    Bug(
        "whoever-leads-now-is-suspected",
        "I29: who did not answer is suspected, not who leads by the time that this is known",
        (
            Edit(
                "oncelog._fan_out:FanOut._ask_one",
                "            self._protocol.suspect(process, error)",
                "            for part in routing.items_of(method, request):\n"
                "                now = self._protocol._known(part)\n"
                "                self._protocol.suspect(now or process, error)",
            ),
        ),
        {
            unit(
                "client/test_suspects",
                "test_i29_a_late_failure_says_nothing_of_who_leads_by_then",
            ): "assert",
        },
    ),
    Bug(
        "a-closed-channel-cancels-its-callers",
        "I31: every call ends with an error of ours, also where its channel is closed under it",
        (
            Edit(
                "oncelogpb.calls:_raising",
                "        if task is None or task.cancelling() > cancelled_before:",
                "        if True:",
            ),
        ),
        {
            unit(
                "client/test_transport",
                "test_i31_who_is_gone_is_waited_for_by_nobody",
            ): "CancelledError",
        },
    ),
    Bug(
        "retry-takes-a-new-sequence",
        "I6: a batch keeps its sequence: a retry under another one is appended again",
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
        "a sequence that starts at 0 again is a repeat under the old producer id",
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
        "refused-at-once-asked-at-once",
        "I31: every loop has a limit: the stream empties only while the loop runs",
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
        "I21: a plain commit is not idempotent: a lost answer is looked up",
        (
            Edit(
                "oncelog.aio.offsets:Offsets.commit",
                "doubt.lost and await self._stands(progress):",
                "doubt.lost:",
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
        "I21: a repeat of what took effect late is no lost race",
        (
            Edit(
                "oncelog.aio.offsets:Offsets.commit",
                "if member is None and doubt.lost and await self._stands(progress):",
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
        "pause-skips-what-was-read-ahead",
        "I14: what was read ahead and dropped is asked for again",
        (
            Edit(
                "oncelog.aio.fetching:Prefetcher.follow_positions",
                "        self._positions.unfetch(changed)\n",
                "",
            ),
        ),
        {
            unit(
                "client/test_seeking", "test_i14_what_a_pause_dropped_is_read_again"
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
        "`from` may chain only on a transaction of the same producer",
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
        "I21: each commit starts where the last one ended",
        (
            Edit(
                "oncelog._core.positions:Positions.sent",
                "place.since, place.after, place.beside = to, after, beside",
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
        "linger-disarmed-behind-a-record",
        "a record goes after its linger, whoever seals meanwhile",
        (
            Edit(
                "oncelog.aio.recorder:Recorder._lingered",
                "        buffer.armed = False\n"
                "        if not self.stopped:\n"
                "            self._seal_here(buffer, buffer.take)",
                "        if not self.stopped:\n"
                "            self._seal_here(buffer, buffer.take)\n"
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
        "a topic made again is another topic",
        (
            Edit(
                "oncelog._metadata:Metadata.learn_failure",
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
        "quiet-consumer-gives-no-sign",
        "I21: a living consumer's group does not expire under it",
        (
            Edit(
                "oncelog.aio.sign_of_life:SignOfLife._after",
                "        self._timer = asyncio.get_running_loop().call_later(seconds, self._due)",
                "        pass",
            ),
        ),
        {
            unit(
                "client/test_sign_of_life",
                "test_i21_a_group_whose_topic_is_quiet_for_longer_than_its_retention_goes_on",
            ): "STALE_POSITION: it stands at None",
        },
    ),
    Bug(
        "sign-of-life-by-its-own-clock",
        "I21: a living consumer's group does not expire under it, however short its retention",
        (
            Edit(
                "oncelog.aio.sign_of_life:SignOfLife.begin",
                "        if retention_ms:\n",
                "        if False:\n",
            ),
        ),
        {
            unit(
                "client/test_sign_of_life",
                "test_i21_an_offset_manager_that_forgets_soon_is_told_often",
            ): "would have been too late",
        },
    ),
    Bug(
        "told-once-then-silent",
        "I14: a consumer that cannot read says so each time, and reads on when it can",
        (
            Edit(
                "oncelog.aio.fetching:Prefetcher.take",
                "                    self._freed += head.partitions\n",
                "",
            ),
        ),
        {
            unit(
                "client/test_troubles",
                "test_i14_a_consumer_tells_each_poll_what_is_the_matter_and_reads_on_when_it_is_over",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "bad-record-takes-its-chunk-along",
        "one bad record fails alone, the others stand",
        (
            Edit(
                "oncelog._core.batching:_seal_chosen",
                "    refused = _refuse_chosen(chosen, layout)",
                "    refused = _refuse_chosen(chosen, layout)\n"
                "    rows = range(count if refused else 0)\n"
                "    refused |= dict.fromkeys(rows, [*refused.values(), None][0])",
            ),
        ),
        {
            unit(
                "client/test_receipts", "test_one_bad_record_takes_no_good_one_along"
            ): "assert (1001, False) == (1, False)",
        },
    ),
    Bug(
        "record-left-in-a-taken-cell",
        "I6: a record that comes while its cell is taken goes into the next one",
        (
            Edit(
                "oncelog.aio.front:Front.send",
                "        if buffer.cell is not cell:",
                "        if False:",
            ),
        ),
        {
            unit(
                "client/test_receipts",
                "test_i6_a_record_whose_cell_is_taken_under_its_hands_goes_into_the_next",
            ): "a record is in its own cell",
        },
    ),
    Bug(
        "topics-own-batch-limit-ignored",
        "a batch is no larger than its topic takes",
        (
            Edit(
                "oncelog._core.batching:max_batch_bytes_of",
                "    return min(most, int(chosen)) if chosen.isdigit() else most",
                "    return most",
            ),
        ),
        {
            unit(
                "client/test_producing", "test_batches_are_no_larger_than_their_topic_takes"
            ): "assert ",
        },
    ),
    Bug(
        "added-partitions-from-where-reading-began",
        "I15, ADR 32: what comes to a topic while it is read is read from its first record on",
        (
            Edit(
                "oncelog.aio.offsets:Offsets._begins_at_first",
                "self._positions.is_added(partition) or self._options.start",
                "self._options.start",
            ),
        ),
        {
            unit(
                "client/test_added_partitions",
                "test_a_consumer_reads_them_from_their_first_record_on",
            ): "assert 7 == 3",
        },
    ),
    Bug(
        "topic-loses-partitions-by-an-old-answer",
        "ADR 32: a client never believes that a topic has fewer partitions than it was told once",
        (
            Edit(
                "oncelog._core.routing:Directory.learn_topic",
                "topic.partitions.extend(known.partitions[len(topic.partitions) :])",
                "pass",
            ),
        ),
        {
            unit(
                "client/test_routing",
                "test_a_topic_never_loses_partitions_by_an_answer_of_before",
            ): "== [0, 1, 2]",
        },
    ),
    Bug(
        "lag-without-what-was-never-committed",
        "a partition that a group never committed waits from its first record on (ADR 33)",
        (
            Edit(
                "oncelog._core.group_offsets:of_whole_topics",
                "if key not in found:",
                "if False:",
            ),
        ),
        {
            unit("cli/test_admin", "test_offsets_of_the_journal_view_are_shown_too"): "['journal']",
        },
    ),
)
