"""Bugs of what is told of a group: what it has committed, and what an operator has it commit."""

from __future__ import annotations

from typing import Final

from tests.planted.planting import Bug, Edit, unit

_TESTS: Final = "client/test_group_commits"
BUGS: Final = (
    Bug(
        "commit-told-before-its-marker",
        "I22: a group has committed a transaction once its marker is where the group stands",
        (
            Edit(
                "oncelog.aio.group_commits:_is_over",
                "and participant not in waits_for",
                "",
            ),
        ),
        {
            unit(
                _TESTS, "test_i22_a_commit_is_not_told_before_its_marker_is_where_the_group_stands"
            ): "no offsets of group 'g'",
        },
    ),
    Bug(
        "endless-patience-has-no-number",
        "who waits for a commit may wait for ever",
        (
            Edit(
                "oncelog.aio.group_commits:_left_ms",
                "min(max(CALL_MS, deadline_ms - protocol.now_ms()), CALL_MS_MAX)",
                "max(CALL_MS, deadline_ms - protocol.now_ms())",
            ),
        ),
        {unit(_TESTS, "test_patience_may_be_without_end"): "OverflowError"},
    ),
    Bug(
        "commit-of-another-group-told",
        "G-LAST-COMMIT: a transaction without offsets of a group is none that the group commits",
        (
            Edit(
                "oncelog.aio.group_commits:_require_commit",
                "if last.get(told.producer.producer_id, 0) < told.tx_id:",
                "if False:",
            ),
        ),
        {
            unit(
                _TESTS,
                "test_a_transaction_without_offsets_of_the_group_is_none_that_it_commits[last1]",
            ): "DID NOT RAISE",
        },
    ),
    Bug(
        "consume-reads-for-a-group-that-has-members",
        "I23: `oncelog consume --group` prints nothing that it cannot commit",
        (
            Edit(
                "oncelog_server.cli.consume:consume",
                "progress.require_no_members()",
                "pass",
            ),
        ),
        {
            unit(
                "cli/test_records",
                "test_i23_a_group_that_has_members_is_refused_before_anything_is_printed",
            ): "== (1, "
        },
    ),
)
