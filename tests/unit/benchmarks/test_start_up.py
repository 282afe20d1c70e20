"""The benchmark of starts, with logs of seconds: every role's partition is written, trimmed, opened
by another process and replayed."""

from __future__ import annotations

from click.testing import CliRunner

from benchmarks.start_up import COLUMNS, LOGS, ROLES, main


def test_each_role_has_a_row_for_each_kind_of_log() -> None:
    done = CliRunner().invoke(main, ["--small"], catch_exceptions=False)
    header, _, *rows = done.stdout.splitlines()
    assert header == f"| {' | '.join(COLUMNS)} |"
    assert [tuple(row.split(" | ")[:2]) for row in rows] == [
        (f"| {role}", log) for role in ROLES for log in LOGS
    ]
    replayed = COLUMNS.index("frames replayed")
    assert all(int(row.split(" | ")[replayed].replace(",", "")) > 0 for row in rows)
