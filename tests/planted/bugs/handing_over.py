"""Bugs of leadership that changes hands while all live: who goes first, who waits for whom, and who
is waited for."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

ROLLING = (
    "tests/simulation/test_handing_over.py::"
    "test_i5_a_rolling_restart_of_everything_loses_nothing_and_fails_no_write[1]"
)
HANDING_OVER: Final = "oncelog_server.runtime.handing_over"
PREFERENCE: Final = "oncelog_server.runtime.leadership.preference"
PARTING: Final = "test_what_a_leader_that_stops_does_with_a_partition"

BUGS: Final = (
    Bug(
        "stopped-without-handing-over",
        "I29: who stops hands over while it lives",
        (
            Edit(
                "oncelog_server.runtime.node:Node.stop",
                "await self._handing_over.leave()",
                "pass",
            ),
        ),
        {ROLLING: "others lead before it is gone"},
    ),
    Bug(
        "stopped-while-others-catch-up",
        "I29: leadership goes to who can write: a replica that was restarted is waited for",
        (
            Edit(
                f"{PREFERENCE}:parting",
                "needed = min(min_insync_replicas, len(candidates))",
                "needed = min(1, len(candidates))",
            ),
        ),
        {
            unit(
                "leadership/test_preference",
                PARTING,
            ): "one of them restarted, and comes"
        },
    ),
    Bug(
        "waits-for-who-cannot-come",
        "who stops waits for nobody that is dead, or stops too",
        (
            Edit(
                f"{PREFERENCE}:parting",
                "if node != own and node in others",
                "if node != own",
            ),
        ),
        {
            unit("leadership/test_preference", PARTING): "all stop",
            "tests/simulation/test_handing_over.py::"
            "test_who_is_left_alone_waits_for_nobody": "assert",
        },
    ),
    Bug(
        "leaver-stays-in-sync",
        "I29: who is about to stop is dropped while it acknowledges, and no write waits for it",
        (
            Edit(
                "oncelog_server.runtime.replica.in_sync:InSync._departures",
                "if progress is not None and progress.node in leaving:",
                "if False:",
            ),
        ),
        {
            unit(
                "replica/test_in_sync",
                "test_who_is_about_to_stop_is_dropped_while_it_acknowledges",
            ): "Why.LEAVES"
        },
    ),
    Bug(
        "leaver-joins-again",
        "who is about to stop does not join, only to be dropped",
        (
            Edit(
                "oncelog_server.runtime.replica.in_sync:InSync.next_change",
                "if not is_leaving and self._may_join(incarnation, now_ms):",
                "if self._may_join(incarnation, now_ms):",
            ),
        ),
        {unit("replica/test_in_sync", "test_who_is_about_to_stop_does_not_join"): "Why.JOIN"},
    ),
    Bug(
        "gone-and-joins-again",
        "I29: who has no dialog joins nobody: each write would wait for it until it is given up",
        (
            Edit(
                "oncelog_server.runtime.replica.in_sync:InSync._may_join",
                "incarnation in self._speaking",
                "True",
            ),
        ),
        {
            unit(
                "replica/test_in_sync",
                "test_who_has_gone_does_not_join_again_on_what_it_acknowledged_before",
            ): "assert"
        },
    ),
    Bug(
        "withdrawn-and-elected",
        "who stops does not win back what it handed over",
        (
            Edit(
                "oncelog_server.runtime.leadership.election:Elections.withdraw",
                "self._stands = False",
                "pass",
            ),
        ),
        {
            unit(
                "leadership/test_handing_over",
                "test_i18_who_withdrew_follows_and_is_never_elected_again",
            ): "assert"
        },
    ),
    Bug(
        "resigned-in-etcd-only",
        "I18: who hands over answers nothing from that very turn on",
        (
            Edit(
                "oncelog_server.runtime.leadership.resigning:Resigning.hand_over",
                "history.leave()",
                "pass",
            ),
        ),
        {
            unit(
                "leadership/test_handing_over",
                "test_i18_many_partitions_change_hands_in_few_transactions",
            ): "from this very turn"
        },
    ),
    Bug(
        "resigned-one-by-one",
        "a thousand partitions change hands in a few transactions",
        (
            Edit(
                "oncelog_server.runtime.leadership.resigning:Resigning.resign_all",
                "start : start + TXN_KEYS_MAX",
                "start : start + 1",
            ),
        ),
        {
            unit(
                "leadership/test_handing_over",
                "test_i18_many_partitions_change_hands_in_few_transactions",
            ): "assert"
        },
    ),
    Bug(
        "whoever-comes-first-leads",
        "who should lead goes first, so that the first process to start does not lead all",
        (Edit(f"{PREFERENCE}:pause_ms", "node in others for node in before", "()"),),
        {
            unit(
                "leadership/test_handing_over",
                "test_who_should_lead_is_elected_when_all_live",
            ): "assert",
        },
    ),
    Bug(
        "waits-for-a-dead-one",
        "I29: nobody lets a dead one go first",
        (Edit(f"{PREFERENCE}:pause_ms", "sum(node in others for node in before)", "len(before)"),),
        {
            unit(
                "leadership/test_handing_over",
                "test_nobody_waits_for_a_dead_one_and_the_next_in_the_list_wins",
            ): "assert",
        },
    ),
    Bug(
        "handed-back-as-soon-as-it-comes",
        "a process that comes and goes costs its clients nothing: it has to stay first",
        (
            Edit(
                f"{PREFERENCE}:Balancing.due",
                "if could.get(partition) == known[1]",
                "if True",
            ),
        ),
        {
            unit(
                "leadership/test_preference",
                "test_what_comes_between_begins_the_wait_anew[out of sync]",
            ): "assert"
        },
    ),
    Bug(
        "handed-back-for-ever",
        "what does not arrive where it should is tried less and less often",
        (
            Edit(
                f"{PREFERENCE}:Balancing._patience_ms",
                "1 << self._attempts.get(partition, 0)",
                "1",
            ),
        ),
        {
            unit(
                "leadership/test_preference",
                "test_what_does_not_arrive_is_tried_less_and_less_often",
            ): "assert"
        },
    ),
    Bug(
        "halted-partitions-not-told",
        "an operator is told which partitions cannot be written: the ISR alone never says so",
        (
            Edit(
                "oncelog_server.runtime.replication.describing:describe",
                "driver.is_ready and book.has_enough(now_ms)",
                "driver.is_ready",
            ),
        ),
        {
            unit(
                "runtime/test_describing",
                "test_a_leader_says_whether_it_takes_writes_and_who_keeps_up",
            ): "nobody else keeps up"
        },
    ),
)
