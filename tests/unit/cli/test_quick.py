"""Help comes quickly: it needs nothing of what the commands work with.

No test asserts a time. What takes the time is importing (numpy, pyarrow and grpc alone take four
fifths of it), so what is held here is what is imported.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from oncelog_server.cli.app import COMMANDS
from tests.unit.cli.test_help import VISIBLE

# What no help needs.
HEAVY = frozenset(
    {
        "asyncio",
        "grpc",
        "numpy",
        "oncelog",
        "oncelog_server.runtime.config",
        "oncelog_server.runtime.node",
        "prometheus_client",
        "pyarrow",
        "rich",
        "structlog",
    }
)
ASKING = """
import sys
import oncelog_server.cli.__main__ as entry
for words in {helps!r}:
    try:
        entry.main(words)
    except SystemExit as end:
        assert not end.code, (words, end.code)
print(*sorted(sys.modules), file=sys.stderr)
"""


def _imported_by(*helps: list[str]) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", ASKING.format(helps=list(helps))],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(ran.stderr.split())


def test_the_list_of_commands_imports_no_command() -> None:
    imported = _imported_by(["--help"], ["--version"], ["-h"])
    assert imported & (HEAVY | {module for module, *_ in COMMANDS.values()}) == set()
    assert "google.protobuf" not in imported


@pytest.mark.parametrize("first", sorted({path[0] for path, _ in VISIBLE}))
def test_the_help_of_a_command_imports_little(first: str) -> None:
    helps = [[*path, "--help"] for path, _ in VISIBLE if path[0] == first]
    assert _imported_by([first, "--help"], *helps) & HEAVY == set()


def test_what_the_list_says_is_what_the_commands_say() -> None:
    """The list has its own words, for it imports no command."""
    from oncelog_server.cli.app import oncelog

    for name, (_, _, short) in COMMANDS.items():
        command = oncelog.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        assert command.get_short_help_str(200) == short
