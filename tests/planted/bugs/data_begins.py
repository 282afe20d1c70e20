"""Bugs of where a data log begins, once the state by which it does is taken back, and of what it
lacks."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_LOG: Final = "oncelog_server.runtime.storage.data_log:DataLog"
_BEGIN: Final = "storage/test_data_begin"

BUGS: Final = (
    Bug(
        "deletion-outlives-the-journal-that-said-it",
        "I25: what an unclean election takes back of a deletion is settled again",
        (Edit(f"{_LOG}.cut", "if self.begun_at > journal_end:", "if False:"),),
        {
            unit(
                _BEGIN, "test_i25_a_deletion_that_is_cut_takes_the_data_log_with_it"
            ): "== (0, 0, 0)",
            unit(
                _BEGIN, "test_i25_a_cut_of_a_deletion_that_a_crash_interrupts_leaves_none_of_it"
            ): "== (0, 0)",
        },
    ),
    Bug(
        "log-start-does-not-rest-on-what-the-data-log-deleted",
        "I25: who has neither journal nor blocks of what is taken back is copied anew",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.rest_on_data",
                "if self.log_start and",
                "if False and",
            ),
        ),
        {
            unit(
                _BEGIN, "test_i25_a_journal_without_a_front_rests_on_what_the_data_log_has_deleted"
            ): "Allowance(at=20, epoch=3)",
            unit(
                _BEGIN, "test_i25_a_crash_before_that_is_noted_finds_it_in_the_data_log"
            ): "Allowance(at=25, epoch=3)",
        },
    ),
    Bug(
        "taken-back-in-one-slot",
        "I26: whichever slot of the note rots, nothing that was taken back is deleted again",
        (
            Edit(
                f"{_LOG}.take_back_begin",
                "self._note.save_in_both(settled)",
                "self._note.save(settled)",
            ),
        ),
        {
            unit(_BEGIN, "test_i26_a_slot_that_rots_deletes_nothing_again"): "assert 20 == 0",
        },
    ),
    Bug(
        "begin-that-a-later-state-contradicts-stays",
        "I25: a data log that begins behind its committed log is settled again",
        (
            Edit(
                "oncelog_server.runtime.replica.settling:Settling._begins_too_late",
                "return newest.settled.begin < data.begin",
                "return False",
            ),
        ),
        {
            unit(
                "partition_leader/test_deletion_taken_back",
                "test_i25_a_begin_that_a_later_state_contradicts_is_taken_back",
            ): "assert 0 == 1",
        },
    ),
    Bug(
        "missing-records-found-by-who-reads-them",
        "I26: what was settled and is nowhere is told when the log is opened",
        (
            Edit(
                "oncelog_server.runtime.replica.settling:Settling._may_look_for_hole",
                "return self._tells_all_that_went(newest)",
                "return False",
            ),
        ),
        {
            unit(
                "partition_leader/test_holes",
                "test_i26_records_that_are_missing_are_told_when_a_log_is_opened",
            ): "assert 0 == 1",
        },
    ),
    Bug(
        "what-the-journal-has-is-called-missing",
        "I26: records whose frames are there are settled again, or read there",
        (
            Edit(
                "oncelog_server.runtime.replica.holes:find_hole",
                "if _needs_from(stretch, first) < journal.log_start:",
                "if True:",
            ),
        ),
        {
            unit(
                "partition_leader/test_holes",
                "test_i26_what_stands_behind_the_start_of_the_journal_is_not_missing",
            ): "'settled records are missing' not in",
        },
    ),
    Bug(
        "settling-keeps-what-a-cut-took-back",
        "I25: no deletion is done that the journal was cut of",
        (
            Edit(
                "oncelog_server.runtime.replica.follower_snapshots:FollowerSnapshots.go_on",
                "self.settling.begin_anew()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots",
                "test_i25_a_deletion_that_is_cut_with_the_journal_is_not_done_by_a_snapshot_that_went",
            ): "what a state that was taken back deleted is there",
        },
    ),
    Bug(
        "trimming-keeps-what-a-cut-took-back",
        "I25: frames that were let go of by what was cut are needed again",
        (
            Edit(
                "oncelog_server.runtime.replica.follower_snapshots:FollowerSnapshots.go_on",
                "self.trimming.begin_anew()",
                "pass",
            ),
        ),
        {
            unit(
                "runtime/test_follower_snapshots",
                "test_i25_a_deletion_that_is_cut_with_the_journal_is_not_done_by_a_snapshot_that_went",
            ): "nobody says that less is needed",
        },
    ),
)
