"""Bugs of what protects leaders of topics and offset managers alike: fences, order of
markers, questions."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

BUGS: Final = (
    Bug(
        "marker-without-a-prepare",
        "a marker names its PREPARE: offset 0 is EPOCH_START, and says a local abort in journals",
        (
            Edit(
                "oncelog_server.participant.marker_walk:walk",
                "previous = JournalOffset(0)",
                "previous = JournalOffset(-1)",
            ),
        ),
        {
            unit(
                "participant/test_marker_walk", "test_no_marker_has_a_prepare_at_offset_zero"
            ): "INVALID_ARGUMENT"
        },
    ),
    Bug(
        "older-coordinator-obeyed",
        "I19: markers of an older coordinator epoch are refused",
        (
            Edit(
                "oncelog_server.participant.marker_order:MarkerOrder.refusal",
                "if seen is None or coordinator_epoch >= seen.coordinator_epoch:",
                "if True:",
            ),
        ),
        {
            story(
                "partition_leader/marker_of_an_older_coordinator_is_refused"
            ): "-markers commit@9/t6/p2/0*1 epoch=1 -> NOT_LEADER epoch=2 journal_",
            story(
                "offset_manager/marker_of_an_older_coordinator"
            ): "-markers 3 1 3.5:7:c:100:1 -> NOT_LEADER epoch=2 journal_partition",
        },
    ),
    Bug(
        "batch-accepted-after-its-marker",
        "I20: nothing of a TxId is accepted after its marker",
        (
            Edit(
                "oncelog_server.participant.fences:Fences.refusal",
                "if tx_id <= seen.ended.get(journal_partition_of(tx_id), 0):",
                "if False:",
            ),
        ),
        {
            story(
                "partition_leader/i20_batch_after_the_marker_is_refused"
            ): "-send t8 p1 1+1 -> TRANSACTION_ENDED tx_id=8",
            story(
                "offset_manager/i20_offsets_after_the_marker"
            ): "-pend 3.5 100 1 g orders/0:10>20 -> TRANSACTION_ENDED tx_id=3.5",
            story(
                "offset_manager/i20_survives_failover"
            ): "-pend 3.5 100 1 g orders/0:none>10 -> TRANSACTION_ENDED tx_id=3.5",
        },
    ),
    Bug(
        "replaced-generation-still-writes",
        "I16: batches of a generation below the highest seen are PRODUCER_FENCED",
        (
            Edit(
                "oncelog_server.participant.fences:Fences.refusal",
                "if generation < seen.generation:",
                "if False:",
            ),
        ),
        {
            story(
                "partition_leader/i16_a_replaced_generation_is_fenced"
            ): "-send t5 p1.1 1+1 -> PRODUCER_FENCED generation=1.2",
            story(
                "offset_manager/i16_lower_generation_is_fenced"
            ): "-pend 3.9 100 1 g orders/1:none>10 -> PRODUCER_FENCED generation=0",
        },
    ),
    Bug(
        "question-asked-once",
        "leaders repeat their question until the TxId has ended there, else pending for ever",
        (
            Edit(
                "oncelog_server.participant.questions:Questions._asked",
                "self._timers.set(question.tx_id, now_ms + self._again_ms)",
                "self._timers.cancel(question.tx_id)",
            ),
        ),
        {
            story("partition_leader/questions_until_it_has_ended_here"): "-t5 p1.1 +50 bytes",
            story(
                "offset_manager/questions_until_it_has_ended_here"
            ): "-3.5 producer=100 generation=1 +128 bytes",
            unit(
                "partition_leader/test_outbox",
                "test_asks_after_a_second_then_every_two_until_it_has_ended_here",
            ): "assert [] == [[5], [5], [5]]",
        },
    ),
    Bug(
        "inherited-transactions-not-asked-about",
        "asked after every change of leader on either side (I30)",
        (
            Edit(
                "oncelog_server.participant.questions:Questions.inherited",
                "self._timers.set(tx_id, 0)",
                "pass",
            ),
        ),
        {
            story("partition_leader/questions_after_a_change_of_leader_here"): "-t5 p1.1 +10 bytes",
            story(
                "offset_manager/inherited_pending_is_asked_about"
            ): "-3.5 producer=100 generation=1 +64 bytes",
        },
    ),
    Bug(
        "asked-about-what-could-be-lost",
        "outside work waits for the HW to cover what it was decided on",
        (
            Edit(
                "oncelog_server.participant.questions:Questions.due",
                " and transaction.first_position < below",
                "",
            ),
        ),
        {
            story("partition_leader/questions_only_below_the_high_watermark"): "-no questions",
            story("offset_manager/nothing_is_owed_above_the_hw"): "-no questions",
        },
    ),
    Bug(
        "life-told-once",
        "the question says how many bytes came, a sign of life; what got lost is said again",
        (
            Edit(
                "oncelog_server.participant.questions:Questions._asked",
                "            if question.tx_id in self._open:\n",
                "            if question.tx_id in self._open:\n"
                "                self._told[question.tx_id] = question.bytes_received\n",
            ),
        ),
        {
            unit(
                "participant/test_questions",
                "test_bytes_that_no_answer_confirmed_are_told_again",
            ): "assert [(5, 50)] == [(5, 150)]",
        },
    ),
    Bug(
        "pending-offsets-not-asked-about",
        "about a TxId still open after 1 s its participant asks, whatever it holds of it (I30)",
        (
            Edit(
                "oncelog_server.offset_manager.machine:OffsetManagerMachine.apply",
                "self._questions.opened(record.tx_id)",
                "pass",
            ),
        ),
        {
            story(
                "offset_manager/questions_until_it_has_ended_here"
            ): "-3.5 producer=100 generation=1 +64 bytes",
        },
    ),
    Bug(
        "older-marker-lowers-the-fence",
        "I16: a producer's highest generation seen only grows, whatever marker comes late",
        (
            Edit(
                "oncelog_server.participant.fences:Fences.saw",
                "elif generation > seen.generation:",
                "else:",
            ),
        ),
        {
            story(
                "partition_leader/i16_markers_of_a_replaced_generation_leave_the_fence"
            ): "-send t13 p1 0+1 -> PRODUCER_FENCED"
        },
    ),
    Bug(
        "older-end-reopens-the-later-one",
        "I20: the highest ended TxId only grows, whatever marker comes late",
        (
            Edit(
                "oncelog_server.participant.fences:Fences.ended",
                "if tx_id > ended.get(partition, 0):",
                "if True:",
            ),
        ),
        {
            story(
                "partition_leader/i20_an_earlier_end_leaves_the_later_one"
            ): "-send t9 p1 0+1 -> TRANSACTION_ENDED"
        },
    ),
    Bug(
        "fences-of-the-living-forgotten",
        "a producer's entry may go 7 days after its last TxId ended, not after its first",
        (Edit("oncelog_server.participant.fences:Fences.saw", "seen.last_ms = aged_ms", "pass"),),
        {
            story(
                "partition_leader/fences_of_the_living_are_kept"
            ): "-send t13 p1 0+1 -> PRODUCER_FENCED"
        },
    ),
    Bug(
        "epoch-of-another-journal-partition",
        "I19: a coordinator's epoch is that of its own journal partition",
        (
            Edit(
                "oncelog_server.participant.senders:require_granted",
                "PartitionId(TRANSACTION_CONTROL_ID, journal_partition)",
                "PartitionId(TRANSACTION_CONTROL_ID, 0)",
            ),
        ),
        {
            unit(
                "participant/test_senders", "test_i19_an_epoch_counts_for_its_own_journal_partition"
            ): "assert not"
        },
    ),
    Bug(
        "later-epoch-of-the-same-process-unnoticed",
        "I30: asked again after every change of leader, also to the same process",
        (
            Edit(
                "oncelog_server.participant.asking:_run",
                "return leader.boot_id, leader.epoch",
                "return leader.boot_id, 0",
            ),
        ),
        {
            unit(
                "partition_leader/test_outbox",
                "test_the_same_process_in_a_later_epoch_is_asked_at_once_and_once",
            ): "assert [] == [[5]]"
        },
    ),
)
