"""Bugs of what is told of ended transactions: for how long, and once their frames are gone."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

AGES: Final = "oncelog_server.coordinator.outcome_ages:OutcomeAges"
DESCRIBE: Final = "oncelog_server.coordinator.describe"
STATE: Final = "oncelog_server.coordinator.state:CoordinatorState"

BUGS: Final = (
    Bug(
        "outcome-aged-by-its-frame-time",
        "I4: what is decided while the wall clock is back is told as long as any other",
        (
            Edit(
                f"{STATE}.grow_older",
                "self.outcome_ages, self.age.aged_ms",
                "self.outcome_ages, self.age.last_ms",
            ),
        ),
        {
            story("coordinator/i04_outcome_age_while_the_clock_is_back"): "-EXPIRED",
        },
    ),
    Bug(
        "outcome-over-before-it-is-known",
        "I4: the outcome of what was undecided for long is told from its decision on",
        (
            Edit(
                f"{STATE}.grow_older",
                "offset if oldest is None else journal_offset_of(oldest.tx_id)",
                "offset",
            ),
        ),
        {
            story(
                "coordinator/i04_outcome_of_one_that_was_long_undecided"
            ): "-COMMITTED begin +0 end +0 prepare @46",
        },
    ),
    Bug(
        "outcomes-of-the-forgotten-stay-young",
        "I4: an outcome is over when its time is, also where nobody is left who writes",
        (
            Edit(
                "oncelog_server.coordinator.decide_time:decide_tick",
                "(len(state.producers) or state.outcome_ages.are_told)",
                "len(state.producers)",
            ),
        ),
        {story("coordinator/i04_outcome_of_a_forgotten_producer"): "-EXPIRED"},
    ),
    Bug(
        "time-passes-for-nobody",
        "a journal in which nothing is left to forget is not written to",
        (
            Edit(
                "oncelog_server.coordinator.decide_time:decide_tick",
                "if state.watch.wants_record and (len(state.producers) or "
                "state.outcome_ages.are_told):",
                "if state.watch.wants_record:",
            ),
        ),
        {story("coordinator/i04_outcome_of_a_forgotten_producer"): "wanted from"},
    ),
    Bug(
        "over-by-a-record-that-may-be-lost",
        "I4: what is told to be over is over for every later leader",
        (
            Edit(
                f"{AGES}.over_below",
                "if o.since < high_watermark",
                "if o.since <= high_watermark",
            ),
        ),
        {
            unit(
                "coordinator/test_outcome_ages",
                "test_i4_what_is_over_by_a_record_that_may_be_lost_is_told_still",
            ): "== 0",
        },
    ),
    Bug(
        "outcome-ages-without-end",
        "what a state holds of the ages of outcomes is bounded",
        (Edit(f"{AGES}.saw", "del self.over[:-OVER_KEPT]", "pass"),),
        {
            unit(
                "coordinator/test_outcome_ages", "test_marks_are_few_however_long_a_journal_is"
            ): "<= OVER_KEPT",
        },
    ),
    Bug(
        "control-journal-wanted-for-ever",
        "frames of a control journal go when nobody is told of them any more",
        (
            Edit(
                "oncelog_server.coordinator.machine:CoordinatorMachine.wanted_from",
                "return self.state.outcome_ages.told_from",
                "return JournalOffset(0)",
            ),
        ),
        {
            unit(
                "coordinator/test_trimmed_journals",
                "test_i4_whoever_asks_hears_the_same_whether_a_slot_is_gone_or_not",
            ): "machine.wanted_from() > offset",
        },
    ),
    Bug(
        "expired-only-without-a-slot",
        "I4: the same question gets the same answer, whether a slot file is gone here or not",
        (
            Edit(
                "oncelog_server.coordinator.ended_transactions:EndedTransactions.outcome",
                "if journal_offset_of(tx_id) < ages.over_below(self._replica.high_watermark):",
                "if False:",
            ),
        ),
        {
            unit(
                "coordinator/test_trimmed_journals",
                "test_i4_whoever_asks_hears_the_same_whether_a_slot_is_gone_or_not",
            ): "TRANSACTION_STATE_EXPIRED",
        },
    ),
    Bug(
        "payloads-left-to-the-journal",
        "I5: what waits for a participant stands whole in the state: no frame is needed",
        (
            Edit(
                f"{STATE}.encode",
                "sorted(self.transactions, key=lambda t: t.tx_id)",
                "[msgspec.structs.replace(t, batches=()) for t in self.transactions]",
            ),
        ),
        {
            unit(
                "coordinator/test_trimmed_journals",
                "test_i4_a_transaction_that_waits_for_a_participant_holds_no_frame",
            ): "its payload is in no frame",
        },
    ),
    Bug(
        "parts-forgotten-without-a-word",
        "I3: that nobody knows the parts is no statement that there are none",
        (
            Edit(
                f"{DESCRIBE}:over",
                "parts_forgotten=not _tell_parts(records, outcome)",
                "parts_forgotten=False",
            ),
        ),
        {
            unit(
                "coordinator/test_trimmed_journals",
                "test_i4_an_outcome_is_told_where_its_prepare_is_gone",
            ): "that it lists none says nothing",
        },
    ),
    Bug(
        "parts-of-a-one-shot-sought-in-its-prepare",
        "I3: the PREPARE of a staged one-shot says nothing of its parts",
        (Edit(f"{DESCRIBE}:_tell_parts", "if outcome.is_one_shot:", "if False:"),),
        {
            "tests/unit/coordinator/test_trimmed_journals.py::"
            "test_parts_of_a_one_shot_stand_in_its_first_record[True]": "parts_forgotten",
        },
    ),
    Bug(
        "across-takes-forgotten-parts-for-none",
        "I3: a transaction whose parts nobody knows is not given torn",
        (
            Edit(
                "oncelog.aio.inquiry:told_of",
                "if described.parts_forgotten:",
                "if False:",
            ),
        ),
        {
            unit(
                "client/test_transactions_across",
                "test_i3_a_transaction_whose_parts_are_forgotten_is_named",
            ): "DID NOT RAISE",
        },
    ),
)
