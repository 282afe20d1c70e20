"""What every command has: help with examples, --json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from oncelog_server.cli.app import COMMANDS, oncelog


def _leaves(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _leaves(command, (*path, name))
        else:
            yield (*path, name), command


LEAVES = list(_leaves(oncelog))
VISIBLE = [(path, command) for path, command in LEAVES if not command.hidden]


@pytest.mark.parametrize("path", [path for path, _ in VISIBLE], ids=" ".join)
def test_help_has_examples_that_name_the_command(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(oncelog, [*path, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"oncelog {' '.join(path)}" in result.output.partition("Examples:")[2]


@pytest.mark.parametrize("path", [path for path, _ in VISIBLE], ids=" ".join)
def test_examples_use_options_that_exist(path: tuple[str, ...]) -> None:
    command = dict(VISIBLE)[path]
    known = {opt for param in command.params for opt in param.opts}
    examples = (command.epilog or "").splitlines()
    own = [line for line in examples if f"oncelog {' '.join(path)}" in line]
    used = {flag for line in own for flag in re.findall(r"(?<!\S)--[a-z0-9-]+", line)}
    assert used <= known


@pytest.mark.parametrize("path", [path for path, _ in VISIBLE], ids=" ".join)
def test_every_command_but_serve_prints_json(path: tuple[str, ...]) -> None:
    command = dict(VISIBLE)[path]
    flags = {opt for param in command.params for opt in param.opts}
    assert ("--json" in flags) == (path != ("serve",))


def test_commands_are_found_by_name() -> None:
    assert list(COMMANDS) == oncelog.list_commands(click.Context(oncelog))
    result = CliRunner().invoke(oncelog, ["topics"])
    assert result.exit_code == 2


def test_advice_names_commands_that_exist() -> None:
    """In all that the command line says: `oncelog a b` must be a command."""
    said = "".join(file.read_text() for file in Path("services/oncelog_server").rglob("*.py"))
    known = {" ".join(path) for path, _ in LEAVES} | set(COMMANDS) | {""}
    for words in re.findall(r"`oncelog ([a-z -]+?)[ `]", said):
        assert words in known or words.split()[0] in known, f"`oncelog {words}`"


def test_who_deletes_a_topic_is_told_what_becomes_of_its_files() -> None:
    told = CliRunner().invoke(oncelog, ["topic", "delete", "--help"]).output
    assert "orphans/" in told
    assert "for good" not in told
