"""Bugs of when markers go, and when it is journaled that all are answered."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "markers-held-back-for-ever",
        "I30: what is held back for a moment goes when that is over",
        (
            Edit(
                "oncelog_server.coordinator.marker_pace:MarkerPace._is_over",
                "self._wake()",
                "pass",
            ),
        ),
        {
            unit(
                "coordinator/test_marker_pace",
                "test_those_that_come_soon_after_it_go_together_within_a_moment",
            ): "all, in PREPARE order, in one message",
        },
    ),
    Bug(
        "who-begins-to-read-waits-for-a-longer-moment",
        "markers are held back longer only where nobody reads what they bring",
        (
            Edit(
                "oncelog_server.coordinator.marker_pace:MarkerPace.may_go",
                "if self._timer_ms <= moment_ms:",
                "if True:",
            ),
        ),
        {
            unit(
                "coordinator/test_marker_pace",
                "test_who_begins_to_read_is_heard_of_with_the_next_answer",
            ): "who reads waits for no longer moment",
        },
    ),
    Bug(
        "a-reader-is-not-told-of",
        "a leader says with its answers whether somebody looks for what markers bring",
        (
            Edit(
                "oncelog_server.participant.handler:ParticipantHandler._submit",
                "is_watched = self._is_watched(replica)",
                "is_watched = False",
            ),
        ),
        {
            unit(
                "partition_leader/test_watched",
                "test_a_leader_says_whether_somebody_reads",
            ): "somebody waits for it",
        },
    ),
    Bug(
        "who-asks-whether-it-is-visible-is-held-back",
        "who asks whether a transaction is visible waits for no longer moment",
        (
            Edit(
                "oncelog_server.coordinator.service:CoordinatorService._visibility",
                "self._waiting.asked(replica.partition.number)",
                "pass",
            ),
        ),
        {
            unit(
                "coordinator/test_marker_pace",
                "test_who_asks_whether_it_is_visible_waits_for_no_longer_moment",
            ): "who asks waits",
        },
    ),
    Bug(
        "who-waits-until-it-is-visible-is-held-back",
        "a marker that somebody waits for waits for no moment",
        (
            Edit(
                "oncelog_server.coordinator.waiting:Waiting.hurrying",
                "self._hurried[journal_partition] += 1",
                "pass",
            ),
            Edit(
                "oncelog_server.coordinator.waiting:Waiting.hurrying",
                "self._hurried[journal_partition] -= 1",
                "pass",
            ),
        ),
        {
            unit(
                "coordinator/test_marker_pace",
                "test_who_waits_until_it_is_visible_waits_for_no_moment",
            ): "assert 0.0",
        },
    ),
    Bug(
        "over-never-journaled-where-a-lease-ran-out",
        "a lease that ran out may come back: what is over is planned once, and so kept until it is"
        " taken (docs/adr/0099)",
        (
            Edit(
                "oncelog_server.coordinator.outbox:CoordinatorOutbox._finish",
                "            self._finish_later()\n",
                "",
            ),
        ),
        {
            unit(
                "coordinator/test_finishing",
                "test_what_cannot_be_journaled_is_tried_again_though_nothing_else_happens",
            ): "assert",
        },
    ),
    Bug(
        "over-journaled-however-much-memory-it-holds",
        "what is over holds its payload until that is journaled: at once where it is much",
        (
            Edit(
                "oncelog_server.coordinator.outbox:CoordinatorOutbox._delivered",
                "are_many or self._finishable_bytes >= FINISH_AT_ONCE_BYTES",
                "are_many",
            ),
        ),
        {
            unit("coordinator/test_finishing", "test_many_are_journaled_at_once"): "assert",
        },
    ),
)
