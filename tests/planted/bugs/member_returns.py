"""Bugs of members that come back."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_MODULE: Final = "oncelog._core.membership"
_CORE: Final = f"{_MODULE}:Membership"
_TESTS: Final = "client/test_member_returns"

BUGS: Final = (
    Bug(
        "heartbeats-wait-for-nothing",
        "I29: heartbeats that wait for a moment which rounds to this one keep all others waiting",
        (Edit("oncelog.aio.member:Member._beat", "max(wait_ms, WAIT_MS_MIN)", "wait_ms"),),
        {
            unit(_TESTS, "test_i29_a_wait_that_rounds_to_nothing_passes_all_the_same"): (
                "no time passes"
            ),
        },
    ),
    Bug(
        "who-comes-back-fences-its-successor",
        "I23: a static member that was silent takes the place of the process that replaced it",
        (Edit(f"{_CORE}._is_told_the_holder", "or self._was_member ", ""),),
        {
            unit(_TESTS, "test_i23_who_was_silent_does_not_fence_who_took_its_place"): (
                "DID NOT RAISE"
            ),
        },
    ),
    Bug(
        "new-process-stops-where-it-should-take-over",
        "a second process of an instance takes over at once, by naming whom it was told of",
        (Edit(f"{_CORE}._is_told_the_holder", "self._replaces = holder", "pass"),),
        {
            unit(_TESTS, "test_a_new_process_names_the_holder_that_it_is_told_of"): "assert",
        },
    ),
    Bug(
        "fenced-until-a-late-answer",
        "I23: an answer on its way makes a member of who was fenced",
        (
            Edit(
                f"{_CORE}._is_about",
                "self.state not in (State.LEFT, State.FENCED)",
                "self.state is not State.LEFT",
            ),
        ),
        {
            unit(
                _TESTS, "test_i23_an_answer_that_comes_late_brings_nobody_back_who_was_fenced"
            ): "State.FENCED",
        },
    ),
    Bug(
        "what-failed-is-committed-at-the-end",
        "I21: an automatic commit covers the batch whose step failed",
        (
            Edit(
                "oncelog.aio.consumer:Consumer.commit_no_more",
                "self.auto_commit.stop()",
                "pass",
            ),
        ),
        {
            unit(
                _TESTS,
                "test_i21_what_a_step_that_failed_was_given_is_not_committed_automatically",
            ): "== {}",
        },
    ),
    Bug(
        "the-end-is-looked-up-again",
        "I21: who asks again where it stands begins at an end that has moved",
        (
            Edit(
                "oncelog._core.positions:Positions.began_at",
                "return self._began.get(partition)",
                "return None",
            ),
        ),
        {
            unit(
                _TESTS,
                "test_i21_who_asks_again_where_it_stands_skips_nothing_of_what_came_meanwhile",
            ): "2000",
        },
    ),
    Bug(
        "what-is-held-stops-all-after-a-refusal",
        "I31: one transaction in flight holds back all partitions of a consumer",
        (
            Edit(
                "oncelog.aio.feeding:Feeding.forget",
                "self._begin_anew()",
                "pass",
            ),
        ),
        {
            unit(
                _TESTS,
                "test_what_a_transaction_holds_stops_no_other_partition_after_a_refused_commit",
            ): "== {0, 2, 3}",
        },
    ),
    Bug(
        "who-starts-gives-up-at-the-first-silence",
        "I29: a process that starts while its group is away dies, and is not there when it is back",
        (
            Edit(
                f"{_MODULE}:_is_silence",
                "errors.TryAgain | errors.InDoubt | CannotConnect",
                "errors.TryAgain | errors.InDoubt",
            ),
        ),
        {
            unit(
                "client/test_member_starts",
                "test_i29_a_member_that_starts_while_its_group_is_away_waits_for_it",
            ): "it is waited for",
        },
    ),
    Bug(
        "who-starts-waits-for-ever-unmet",
        "a process that never met its group says so as soon as any other call does",
        (
            Edit(
                "oncelog.aio.member:Member._let_in",
                'self._protocol.until("offset_manager.heartbeat", began_ms, deadline_ms)',
                "deadline_ms",
            ),
        ),
        {
            unit(
                "client/test_member_starts",
                "test_a_member_whose_group_stays_away_is_told_what_is_wrong",
            ): "assert 30",
        },
    ),
    Bug(
        "leave-said-once",
        "I29: what a member held that was not heard for a session is free when its group is back",
        (
            Edit(
                f"{_CORE}._leave_refused",
                "if _is_silence(error) and",
                "if False and",
            ),
        ),
        {
            unit(
                "client/test_membership_core",
                "test_i29_the_old_id_leaves_again_until_the_group_has_heard_it",
            ): "assert (False, 'm2') == (True, 'm1')",
        },
    ),
    Bug(
        "closed-by-another-while-it-is-processed",
        "I21: what another thread or task processes still is not committed at close",
        (
            Edit(
                "oncelog.aio.auto_commit:AutoCommit.closes",
                "(_POLLS.get() or {}).get(id(self)) is not self._poll",
                "False",
            ),
        ),
        {
            unit(
                "client/test_auto_commit",
                "test_i21_at_close_what_another_task_processes_is_not_committed",
            ): "_committed(world) == _next_offsets(processed)",
            unit(
                "client/test_auto_commit",
                "test_i21_at_close_what_another_thread_processes_is_not_committed",
            ): "_committed(world) == _next_offsets(",
        },
    ),
    Bug(
        "own-thread-taken-for-another",
        "who polled and closes has processed all that was given: it is committed",
        (
            Edit(
                "oncelog.plain:Consumer.poll",
                "self.twin.auto_commit.polled_here()",
                "pass",
            ),
        ),
        {
            unit(
                "client/test_auto_commit",
                "test_i21_at_close_what_another_thread_processes_is_not_committed",
            ): "_committed(world) == _next_offsets("
        },
    ),
    Bug(
        "poll-waits-for-its-commit",
        "a poll waits for an automatic commit no longer than for records",
        (
            Edit(
                "oncelog.aio.auto_commit:AutoCommit.where_due",
                "await asyncio.wait([self._running], timeout=left_s)",
                "await asyncio.wait([self._running])",
            ),
        ),
        {
            unit(
                "client/test_auto_commit",
                "test_a_poll_waits_for_a_commit_no_longer_than_for_records",
            ): "it waits for the commit"
        },
    ),
    Bug(
        "committed-beside-an-automatic-commit",
        "I21: a commit that goes on beside the polls is over before anything else moves positions",
        (
            Edit(
                "oncelog.aio.auto_commit:AutoCommit.over",
                "if self._running is not None:",
                "if False:",
            ),
        ),
        {
            unit(
                "client/test_auto_commit",
                "test_i21_what_was_begun_is_over_before_it_seeks_or_commits",
            ): "== [(0, 5), (5, 20)]"
        },
    ),
)
