"""Bugs of `oncelog group reset-offsets`: it moves what it should not, or elsewhere."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_RESETS: Final = "oncelog._core.group_resets"
_COMMAND: Final = "oncelog_server.cli.resetting"


def _caught_by(test: str, shows: str = "AssertionError") -> dict[str, str]:
    return {unit("cli/test_reset_offsets", test): shows}


BUGS: Final = (
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
                "if execute and plan is not None:",
                "if plan is not None:",
            ),
        ),
        _caught_by("test_nothing_changes_without_execute"),
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
        (Edit(f"{_RESETS}:commits", ", view=reset.now.view", ""),),
        _caught_by("test_a_group_of_the_journal_view_stays_one"),
    ),
    Bug(
        "saved-over",
        "what was saved is the way back: no file is written over",
        (Edit(f"{_COMMAND}:_save", 'path.open("x"', 'path.open("w"'),),
        _caught_by("test_no_file_is_written_over_and_then_nothing_moves"),
    ),
)
