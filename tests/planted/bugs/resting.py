"""Bugs of replicas that rest: those that are forgotten, and those that are taken for late."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_LEADING: Final = "oncelog_server.runtime.replica.leading:Leadership"
_IN_SYNC: Final = "oncelog_server.runtime.replica.in_sync:InSync"

BUGS: Final = (
    Bug(
        "free-space-waits-for-notes",
        "a disk that fills up is seen within a second, however many replicas are busy",
        (
            Edit(
                "oncelog_server.runtime.housekeeping:Housekeeping._keep",
                "self._handing_over.look()",
                "self._handing_over.look()\n            await self._hosting.note()",
            ),
        ),
        {
            unit(
                "runtime/test_housekeeping",
                "test_free_space_is_looked_at_while_thousands_note_what_is_synced",
            ): "assert 1 == "
        },
    ),
    Bug(
        "rest-that-nothing-ends",
        "I30: whoever is stirred is ticked at the next turn, whatever it said before",
        (
            Edit(
                "oncelog_server.runtime.agenda:Agenda.stir",
                "if self._is_busy(partition):",
                "if self._is_busy(partition) or partition in self._resting:",
            ),
        ),
        {
            unit(
                "runtime/test_agenda", "test_i30_who_is_stirred_is_ticked_at_the_next_turn"
            ): "assert"
        },
    ),
    Bug(
        "scrubs-before-what-is-owed",
        "a look brings along what is owed, and scrubs where nothing is",
        (
            Edit(
                "oncelog_server.runtime.replica.driver:Driver.look",
                "        self.tick()\n",
                "        self.tick()\n        if led is not None:\n            led.scrub()\n",
            ),
        ),
        {
            unit(
                "runtime/test_resting",
                "test_a_look_brings_along_what_is_owed_and_scrubs_only_where_nothing_is",
            ): "who owes something does that first"
        },
    ),
    Bug(
        "look-that-finds-something-and-forgets-it",
        "who finds something at a look is looked at again when that is due",
        (
            Edit(
                "oncelog_server.runtime.agenda:Agenda.turn",
                "self._looks.set(partition, _look_at(now_ms, rests_ms))",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_agenda",
                "test_a_look_that_finds_something_is_followed_by_another_when_that_is_due",
            ): "assert 1 == 5"
        },
    ),
    Bug(
        "looks-that-bring-nothing-along",
        "who is looked at instead of ticked reports then, which notes what it synced",
        (Edit("oncelog_server.runtime.replica.driver:Driver.look", "or led.is_looked_at", ""),),
        {
            unit(
                "runtime/test_resting",
                "test_nobody_rests_for_long_before_others_can_count_on_what_it_synced",
            ): "assert None == "
        },
    ),
    Bug(
        "all-are-ticked-after-a-start",
        "who has appended nothing since it leads is not ticked while its notes are made",
        (
            Edit(
                f"{_LEADING}.rests_ms",
                "if not is_untouched and",
                "if",
            ),
        ),
        {
            unit(
                "runtime/test_resting",
                "test_who_has_appended_nothing_since_it_leads_is_not_ticked_until_it_rests",
            ): "assert 2"
        },
    ),
    Bug(
        "busy-ones-of-whom-the-first-are-ticked-for-ever",
        "I30: of thousands that are busy each is ticked, who waited longest first",
        (
            Edit(
                "oncelog_server.runtime.agenda:Agenda._tick",
                "self._busy.pop(partition, None)",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_agenda",
                "test_thousands_that_are_busy_are_ticked_in_turns_and_who_is_stirred_at_once",
            ): "who waited longest comes first"
        },
    ),
    Bug(
        "rest-while-a-member-is-about-to-be-dropped",
        "I29: who dies while all rest is dropped as soon as ever",
        (
            Edit(
                "oncelog_server.runtime.replica.followers:Followers.forget",
                "self._stirred()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_resting_followers",
                "test_i29_who_dies_while_all_rest_is_dropped_as_soon_as_ever",
            ): "assert"
        },
    ),
    Bug(
        "settings-that-wake-nobody",
        "I29: a change of a topic's settings reaches leaders that rest",
        (
            Edit(
                "oncelog_server.runtime.replicas:RoleReplicas.topics_changed",
                "self._stirred(self._drivers[partition])",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_resting", "test_i29_a_change_of_the_topics_settings_ends_a_rest"
            ): "assert"
        },
    ),
    Bug(
        "level-once-level-for-ever",
        "I25: who had everything lags once there is more that it does not sync",
        (
            Edit(
                f"{_IN_SYNC}.synced",
                "self._was_level(tuple(self._level), now_ms)",
                "pass",
            ),
        ),
        {
            unit(
                "replica/test_in_sync",
                "test_who_has_everything_may_be_silent_and_lags_from_the_moment_in_which_there_is_"
                "more",
            ): "assert not"
        },
    ),
    Bug(
        "level-in-the-dialog-before",
        "I25: who begins its dialog anew must say again that it has everything",
        (Edit(f"{_IN_SYNC}.opened", "self._was_level([incarnation], now_ms)", "pass"),),
        {
            unit(
                "replica/test_in_sync",
                "test_who_begins_its_dialog_anew_must_say_again_that_it_has_everything",
            ): "it may have been cut"
        },
    ),
    Bug(
        "rest-while-a-change-is-on-its-way",
        "I29: a leader rests only while no change of who is in sync can become due by itself",
        (
            Edit(
                "oncelog_server.runtime.replica.in_sync:InSync.is_at_rest",
                "if self._in_flight or self._is_held:",
                "if self._is_held:",
            ),
        ),
        {
            unit(
                "replica/test_in_sync",
                "test_i29_a_leader_rests_only_while_no_change_can_become_due_by_itself",
            ): "the answer to a change may be lost"
        },
    ),
    Bug(
        "late-change-of-the-isr-told-as-done",
        "I5: of changes of the ISR that go together, each is told what became of its own",
        (
            Edit(
                "oncelog_server.runtime.leadership.isr_changes:IsrChanges._send_all",
                "if result.succeeded:",
                "if True:",
            ),
        ),
        {
            unit(
                "leadership/test_isr_changes",
                "test_i5_one_that_was_late_is_refused_and_takes_nobody_with_it",
            ): "each is told what stands there"
        },
    ),
    Bug(
        "stirred-while-all-rest-and-not-woken",
        "I30: whoever is stirred is ticked a tick later, also where nobody else is busy",
        (Edit("oncelog_server.runtime.agenda:Agenda.stir", "self._woken.set()", "pass"),),
        {
            unit(
                "runtime/test_agenda",
                "test_i30_who_is_stirred_while_nobody_is_busy_waits_for_no_look",
            ): "assert False"
        },
    ),
)
