"""Bugs of `oncelog group reset-offsets`: it moves what it should not, or elsewhere."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, story, unit

_RESETS: Final = "oncelog._core.group_resets"
_MACHINE: Final = "oncelog_server.offset_manager.decide_unused"
_STORY: Final = story("offset_manager/i21_a_reset_is_whole_and_done_once")
_COMMAND: Final = "oncelog_server.cli.resetting"


def _caught_by(test: str, shows: str = "AssertionError") -> dict[str, str]:
    return {unit("cli/test_reset_offsets", test): shows}


BUGS: Final = (
    Bug(
        "reset-keeps-what-was-beyond",
        "I21: what was given beyond an offset is given again after a reset to it",
        (
            Edit(
                f"{_RESETS}:Reset.is_move",
                "return (self.now.offset, self.now.metadata) != (self.then, self.metadata)",
                "return self.now.offset != self.then",
            ),
        ),
        _caught_by(
            "test_what_stood_beside_an_offset_goes_with_a_reset_and_comes_back_with_the_file",
            "assert []",
        ),
    ),
    Bug(
        "reset-overruns-the-living",
        "a group that came alive meanwhile is not moved: each commit says where it was seen",
        (
            Edit(
                f"{_RESETS}:commits",
                "commit.from_offset = reset.now.offset",
                "commit.from_any = True",
            ),
        ),
        _caught_by("test_a_group_is_moved_from_where_it_was_seen"),
    ),
    Bug(
        "reset-without-execute",
        "a group is moved with --execute alone",
        (
            Edit(
                f"{_COMMAND}:reset_offsets",
                "if execute:",
                "if True:",
            ),
        ),
        _caught_by("test_nothing_changes_without_execute"),
    ),
    Bug(
        "reset-done-twice",
        "I21: a copy of a reset that was done takes nobody back again",
        (Edit(f"{_MACHINE}:decide_reset", "if command.reset_id in group.resets:", "if False:"),),
        {_STORY: "-reset g r1 orders/0:10>0 orders/1:20>0 -> done before"},
    ),
    Bug(
        "reset-under-the-living",
        "I23: no position is moved under the feet of members",
        (Edit(f"{_MACHINE}:_require_unused", "if group.has_members:", "if False:"),),
        {_STORY: "-reset g r2 orders/0:10>0 -> UNKNOWN_MEMBER members=1"},
    ),
    Bug(
        "reset-in-spite-of-what-is-pending",
        "I21: a group is reset while no transaction holds any of its offsets",
        (Edit(f"{_MACHINE}:_require_unused", "if group.pending:", "if False:"),),
        {_STORY: "-reset g r2 orders/0:10>0 -> PENDING_TRANSACTION tx_id=1.5"},
    ),
    Bug(
        "dry-run-that-runs",
        "a dry run changes nothing",
        (
            Edit(
                f"{_MACHINE}:decide_reset",
                "() if command.dry_run else [done]",
                "[done]",
            ),
        ),
        {_STORY: "+@2 RESET g r1"},
    ),
    Bug(
        "reset-out-of-the-partition",
        "an offset that a partition does not have becomes the nearest that it has",
        (
            Edit(
                f"{_RESETS}:_then",
                "return min(max(then, edges.start), edges.end)",
                "return max(then, 0)",
            ),
        ),
        _caught_by("test_where_it_goes"),
    ),
    Bug(
        "reset-changes-the-view",
        "all offsets of a group are of one view",
        (Edit(f"{_RESETS}:commits", "view=reset.now.view,", ""),),
        _caught_by("test_a_group_of_the_journal_view_stays_one"),
    ),
    Bug(
        "saved-over",
        "what was saved is the way back: no file is written over",
        (Edit(f"{_COMMAND}:_save", 'path.open("x"', 'path.open("w"'),),
        _caught_by("test_no_file_is_written_over_and_then_nothing_moves"),
    ),
)
