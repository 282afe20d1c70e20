"""Bugs of who deletes by hand, and of what is said of disks."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

BUGS: Final = (
    Bug(
        "truncation-to-the-end-as-it-is-by-then",
        "I32: what goes is what was shown, whatever is written meanwhile",
        (
            Edit(
                "oncelog_server.cli.truncating:truncate",
                "done = _execute(session, cuts, dry_run=False)",
                "done = _execute("
                "session, _plan(session, name, _before(text), partition), dry_run=False)",
            ),
        ),
        {
            unit("cli/test_truncate", "test_what_was_shown_is_what_goes"): "(0, 150, False)",
        },
    ),
    Bug(
        "dry-run-deletes",
        "I32: a dry run deletes nothing",
        (
            Edit(
                "oncelog.aio.truncating:_truncate",
                "offset=cut.before, dry_run=dry_run",
                "offset=cut.before",
            ),
        ),
        {
            unit(
                "cli/test_truncate", "test_a_dry_run_deletes_nothing_and_says_so"
            ): "(0, 40, False)",
        },
    ),
    Bug(
        "one-offset-for-all-partitions",
        "an offset is of one partition",
        (
            Edit(
                "oncelog.aio.truncating:_offsets",
                "if len(partitions) > 1:",
                "if False:",
            ),
            Edit("oncelog.aio.truncating:_offsets", "return [before]", "return [before] * 99"),
            Edit(
                "oncelog.aio.truncating:plan",
                "zip(keys, offsets, strict=True)",
                "zip(keys, offsets, strict=False)",
            ),
        ),
        {
            unit("cli/test_truncate", "test_an_offset_is_of_one_partition"): "assert 0 != 0",
        },
    ),
    Bug(
        "records-that-nothing-limits-look-limited",
        "who looks for room is told that no retention is set",
        (Edit("oncelog_server.cli.disk_use:_retention", "if value != UNLIMITED", "if True"),),
        {
            unit(
                "cli/test_disk_use", "test_what_holds_a_journal_is_said_in_words"
            ): "retention.ms=-1",
        },
    ),
)
