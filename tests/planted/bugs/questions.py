"""Bugs of questions and their answers: what is not durable, what nobody has given out, whom a
verdict is about."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

BUGS: Final = (
    Bug(
        "question-answered-above-the-high-watermark",
        'an answer "unknown" only for a TxId below the HW: p aborts T; T commits: data lost',
        (
            Edit(
                "oncelog_server.coordinator.questions:verdict",
                "return AnswerCode.NEVER if unborn else AnswerCode.LATER",
                "return AnswerCode.NEVER",
            ),
        ),
        {
            story("coordinator/question_below_the_high_watermark"): "-ask T2 a/0 -> LATER",
        },
    ),
    Bug(
        "question-answered-from-a-prepare-that-may-vanish",
        'an answer "ended" only from below the HW',
        (
            Edit(
                "oncelog_server.coordinator.questions:is_decided",
                " and transaction.prepare_offset < below",
                "",
            ),
        ),
        {
            story("coordinator/question_below_the_high_watermark"): "-ask T2 a/0 -> ONGOING",
            story("coordinator/question_after_crash"): "-ask T2 a/0 -> ONGOING",
        },
    ),
    Bug(
        "no-such-transaction-at-the-high-watermark",
        "I4: what is not durable yet may be lost, or not: UNAVAILABLE, never a guess",
        (
            Edit(
                "oncelog_server.coordinator.ended_transactions:EndedTransactions.known_outcome",
                "journal_offset_of(tx_id) >= self._replica.high_watermark",
                "journal_offset_of(tx_id) > self._replica.high_watermark",
            ),
        ),
        {story("coordinator/commit_at_the_high_watermark"): "AssertionError"},
    ),
    Bug(
        "never-on-a-proof-that-is-not-durable",
        "a paused coordinator does not know T, which began at its successor; p aborts T; T commits",
        (
            Edit(
                "oncelog_server.coordinator.unborn:Unborn.is_disproved",
                "asked.log_end <= self._proved_at < below",
                "asked.log_end <= self._proved_at",
            ),
        ),
        {story("coordinator/question_about_what_was_never_given_out"): "+ask T50 a/1 -> NEVER"},
    ),
    Bug(
        "never-on-a-proof-from-before-the-question",
        "the TxId may have been given out, by a successor, between the proof and the question",
        (
            Edit(
                "oncelog_server.coordinator.unborn:Unborn.is_disproved",
                "asked is not None and asked.log_end <= self._proved_at < below",
                "0 < self._proved_at < below",
            ),
        ),
        {story("coordinator/question_about_what_was_never_given_out"): "-ask T41 a/0 -> LATER"},
    ),
    Bug(
        "nobody-proves-the-log-end",
        "I30: a batch under a TxId that no coordinator has given out stays open for ever",
        (
            Edit(
                "oncelog_server.coordinator.decide_time:prove_log_end",
                "return [LogEndProved()] if state.unborn.wants_proof else []",
                "return []",
            ),
        ),
        {
            story("coordinator/question_about_what_was_never_given_out"): "-@2 PROVED",
            unit(
                "coordinator/test_questions",
                "test_i30_a_txid_that_nobody_gave_out_is_answered_never",
            ): "assert",
        },
    ),
    Bug(
        "verdict-drops-the-offsets-of-another",
        "I21: a late verdict about Q drops what P made pending under its own TxId meanwhile",
        (
            Edit(
                "oncelog_server.offset_manager.machine:OffsetManagerMachine._hear",
                "            and opened.is_of(heard.producer_id, heard.generation)\n",
                "",
            ),
        ),
        {
            story(
                "offset_manager/i21_markers_are_of_their_own_producer"
            ): "-verdict 3.30 never of=100.1 -> 0 dropped"
        },
    ),
    Bug(
        "later-taken-for-never",
        "only the last four verdicts journal an ABORT here; LATER and silence never do",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._hear_verdicts",
                "if heard.verdict in FINAL_VERDICTS",
                "if True",
            ),
        ),
        {
            story("partition_leader/questions_until_it_has_ended_here"): "-verdict t5 ongoing -> 0",
        },
    ),
    Bug(
        "verdict-drops-the-batches-of-another",
        "I5: a late verdict about Q drops what P wrote under its own TxId meanwhile",
        (
            Edit(
                "oncelog_server.partition_leader.machine:PartitionMachine._held_by",
                "held is not None and held.is_of(producer_id, generation)",
                "held is not None",
            ),
        ),
        {
            story(
                "partition_leader/verdicts_are_about_whom_the_question_named"
            ): "-verdict t5 never of=p2 -> 0"
        },
    ),
)
