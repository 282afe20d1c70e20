"""Bugs of what memory holds of a log while a thread cuts it."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

RULE: Final = "I6: the loop takes nothing of a tail that a thread cuts"
TEST: Final = unit("runtime/test_tails", "test_i6_no_tail_is_in_the_budget_while_a_thread_cuts_it")
SHOWS: Final = "the loop drops frames of it meanwhile"

BUGS: Final = (
    Bug(
        "tail-shared-while-it-is-cut",
        "I6, I7: what was cut is in memory no more",
        (
            Edit(
                "oncelog_server.runtime.storage.tail:MemoryTail.apart",
                "budget, self._budget = self._budget, TailBudget()\n"
                "        budget.let_go(self, self._held_bytes, is_empty=True)",
                "budget = TailBudget()\n        yield\n        return",
            ),
        ),
        {
            unit(
                "storage/test_tail",
                "test_i6_i7_a_thread_cuts_all_behind_the_end_though_others_need_room_meanwhile",
            ): "some of what was cut is there"
        },
    ),
    Bug(
        "tail-shared-while-a-log-is-abandoned",
        RULE,
        (
            Edit(
                "oncelog_server.runtime.replica.log:ReplicaLog.abandon",
                "with self.journal.without_budget():",
                "if True:",
            ),
        ),
        {TEST: SHOWS},
    ),
    Bug(
        "tail-shared-while-a-follower-is-cut",
        RULE,
        (
            Edit(
                "oncelog_server.runtime.replica.followership:Followership._cut",
                "with journal.without_budget():",
                "if True:",
            ),
        ),
        {TEST: SHOWS},
    ),
    Bug(
        "tail-shared-while-a-log-begins-in-the-middle",
        RULE,
        (
            Edit(
                "oncelog_server.runtime.replica.followership:Followership._install",
                "with journal.without_budget():",
                "if True:",
            ),
        ),
        {TEST: SHOWS},
    ),
)
