"""Bugs of commits that are written while the one before is still being synced."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_TESTS: Final = "storage/test_commits_ahead"
BUGS: Final = (
    Bug(
        "commit-ahead-outlives-the-one-before",
        "I5: what was written beside a sync that failed may be lost, and no later sync says so",
        (
            Edit(
                "oncelog_server.runtime.storage.commit:GroupCommit._commit",
                "failure = before.ended.result() or failure",
                "",
            ),
        ),
        {
            unit(
                _TESTS, "test_i5_what_was_written_beside_a_sync_that_failed_fails_with_it"
            ): "assert False"
        },
    ),
    Bug(
        "commit-ahead-told-out-of-turn",
        "I5: commits end in the order in which they began",
        (
            Edit(
                "oncelog_server.runtime.storage.commit:GroupCommit._commit",
                "if not before.ended.done():",
                "if False:",
            ),
        ),
        {
            unit(
                _TESTS, "test_i5_a_disk_that_answers_out_of_turn_has_nobody_told_out_of_turn"
            ): "assert [0] == [0, 1]"
        },
    ),
    Bug(
        "syncs-overlap",
        "I5: a disk says of an error once, to either of two who sync at a time",
        (
            Edit(
                "oncelog_server.runtime.storage.disk:RealDisk._do",
                "waited_s = _waited_s(before)",
                "pass",
            ),
        ),
        {
            unit(
                _TESTS, "test_i5_the_next_is_written_beside_a_sync_and_synced_after_it"
            ): "assert 2 == 1"
        },
    ),
    Bug(
        "commit-ahead-of-little",
        "small commits wait, and share a sync",
        (
            Edit(
                "oncelog_server.runtime.storage.commit:GroupCommit._may_begin",
                "self._waiting_bytes >= self._ahead_bytes",
                "True",
            ),
        ),
        {
            unit(
                _TESTS, "test_with_enough_waiting_a_commit_begins_ahead_and_all_are_told_in_order"
            ): "it is not enough to begin ahead"
        },
    ),
    Bug(
        "failure-is-passed-on",
        "what was given to the disk after a failure was known is no part of it",
        (
            Edit(
                "oncelog_server.runtime.storage.commit:GroupCommit._may_begin",
                "and not self._is_failing",
                "",
            ),
        ),
        {
            unit(_TESTS, "test_a_failure_is_not_passed_on_to_who_comes_after_it"): (
                "it was passed on"
            )
        },
    ),
    Bug(
        "cut-of-a-failed-log-ends-the-process",
        "a log whose write failed while it was to be cut goes back to its last good sync",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.cut",
                "if self._failed:\n            self._unwritten.failed()",
                "if self._failed:\n            pass",
            ),
        ),
        {
            unit(
                _TESTS, "test_a_failed_log_is_cut_to_what_is_synced_and_to_nothing_else[1]"
            ): "AssertionError"
        },
    ),
    Bug(
        "failure-forgets-what-the-disk-has",
        "what the disk says of bytes that it has holds, whatever became of their journal since",
        (
            Edit(
                "oncelog_server.runtime.storage.journal:Journal.mark_failed",
                "self._failed = True",
                "self._failed = True\n        self._unwritten.failed()",
            ),
        ),
        {
            unit(
                _TESTS,
                "test_a_file_that_cannot_be_made_beside_a_commit_leaves_that_commit_what_it_is",
            ): "it is not in the files"
        },
    ),
    Bug(
        "who-asks-beside-a-commit-is-not-told",
        "whoever asked is told when what they asked for is durable",
        (
            Edit(
                "oncelog_server.runtime.storage.commit:GroupCommit._commit_all",
                "elif self._under_way:",
                "elif False:",
            ),
        ),
        {
            unit(
                _TESTS, "test_who_asks_when_all_is_under_way_is_told_when_that_has_ended"
            ): "assert [] == [2]"
        },
    ),
)
