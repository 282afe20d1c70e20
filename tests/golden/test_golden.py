"""Every story in `tests/golden/<role>/*.txt`, told to the role's `driver.make()`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.golden import runner
from tests.golden.host import MachineHost

HERE = Path(__file__).parent
STORIES = sorted(HERE.glob("*/*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_story(path: Path) -> None:
    role = importlib.import_module(f"tests.golden.{path.parent.name}.driver")
    runner.run(path, role.make())


@pytest.mark.parametrize("role", ["coordinator", "partition_leader", "offset_manager"])
def test_every_command_of_a_role_is_decided_in_its_stories(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, `decide` is seen to leave no trace in the machine and to raise nothing (`unchanged`).
    A command that no story gives goes unseen."""
    commands = importlib.import_module(f"oncelog_server.{role}.commands").Command
    given: set[type] = set()
    submit = MachineHost.submit

    def noted(host: MachineHost, command: object, label: str = "") -> Any:
        given.add(type(command))
        return submit(host, command, label)

    monkeypatch.setattr(MachineHost, "submit", noted)
    driver = importlib.import_module(f"tests.golden.{role}.driver")
    for path in STORIES:
        if path.parent.name == role:
            runner.run(path, driver.make())
    assert given == set(get_args(commands))


def test_a_script_survives_its_own_rendering() -> None:
    for path in STORIES:
        script = runner.parse(path.read_text(), name=path.name)
        assert runner.parse(runner.render(script), name=path.name) == script


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("begin 1\n----\n", "begin with '# '"),
        ("# Says nothing.\n", "at least one block"),
        ("# An output alone.\n\n----\nx\n", "output without a command"),
    ],
)
def test_a_broken_script_says_what_is_wrong(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        runner.parse(text, name="story.txt")


def test_another_output_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(runner.REWRITE_VARIABLE, raising=False)
    path = tmp_path / "story.txt"
    path.write_text("# Echo.\n\nsay yes\n----\nno\n")
    with pytest.raises(AssertionError):
        runner.run(path, _Echo())
    monkeypatch.setenv(runner.REWRITE_VARIABLE, "1")
    runner.run(path, _Echo())
    assert path.read_text() == "# Echo.\n\nsay yes\n----\nyes\n"


class _Echo:
    def execute(self, line: str) -> str:
        return line.split()[1]

    def finish(self) -> None:
        pass
