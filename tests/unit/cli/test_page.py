"""docs/command_line.md says what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from oncelog_server.cli.app import oncelog
from oncelog_server.cli.connection import DEFAULT_BOOTSTRAP, PROFILE_VARIABLE, SETTINGS
from oncelog_server.cli.formats import FORMATS, Format

PAGE = (Path(__file__).parents[3] / "docs" / "command_line.md").read_text()
LINES = [
    part.strip()
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    for part in line.removeprefix("$ ").split(" | ")
    if part.strip().startswith("oncelog")
]


@pytest.mark.parametrize("line", LINES)
def test_the_commands_on_the_page_are_understood(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = oncelog
    context = click.Context(oncelog)
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(context, name)
        assert found is not None, name
        command, context = found, click.Context(found, parent=context, info_name=name)
    known = {name for parameter in command.params for name in parameter.opts}
    flags = {word for word in words if word.startswith("--")}
    assert flags <= known
    if "--format" in words:
        form = words[words.index("--format") + 1]
        assert form in FORMATS or Format.parse(form)


def test_every_setting_is_in_the_table() -> None:
    for setting in SETTINGS:
        for name in (setting.flag, setting.variable, f"`{setting.name}`"):
            assert name in PAGE, name
    assert DEFAULT_BOOTSTRAP in PAGE
    assert PROFILE_VARIABLE in PAGE


def test_every_named_format_and_exit_code_is_told() -> None:
    for name in FORMATS:
        assert f"`{name}`" in PAGE
    for code in range(5):
        assert f"| {code} |" in PAGE
