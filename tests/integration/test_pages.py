"""README and the client's README, pasted word for word by somebody who has just installed it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.pages import (
    Block,
    Terminal,
    blocks_of,
    commands_of,
    usual_ports,
    wait_for_line,
)

pytestmark = pytest.mark.integration

# The environment that the tests run in is the one that `make install` makes.
ENVIRONMENT = Path(sys.executable).parents[1]
CLIENT = "clients/python/README.md"
# What a program that never ends by itself says of it.
ENDLESS = "# endless"


@pytest.fixture
def ports() -> Iterator[None]:
    with usual_ports() as free:
        if not free:
            pytest.skip("something listens on 7400 to 7402, where the pages say that Oncelog is")
        yield


@pytest.fixture
def terminal(tmp_path: Path, ports: None) -> Iterator[Terminal]:
    made = Terminal(tmp_path, ENVIRONMENT)
    try:
        yield made
    finally:
        made.stop()


def test_readme_word_for_word(terminal: Terminal) -> None:
    pasted = 0
    for block in blocks_of("README.md"):
        if block.section not in ("Try it", "Use it"):
            continue
        pasted += 1
        if block.language == "python":
            (terminal.folder / "enrich.py").write_text(block.text)
            continue
        for command in commands_of(block):
            # `make install` was typed before this test ran.
            if command.line.startswith("make"):
                continue
            if command.line == "oncelog up":
                wait_for_line(terminal.start(command.line), "ready:")
                continue
            printed = terminal.type(command.line).splitlines()
            if command.prints:
                # Partitions come in any order.
                assert sorted(printed) == sorted(command.prints), command.line
    assert pasted == 6


def test_what_is_pasted_is_all_there_is() -> None:
    """A block in another section, or of another kind, would be read by nobody."""
    pasted = {"Try it", "Use it", "See it at work"}
    for block in blocks_of("README.md"):
        assert block.section in pasted
        assert block.language in ("console", "python")


PROGRAMS = [block for block in blocks_of(CLIENT) if block.language == "python"]


def test_every_program_of_the_clients_readme_runs(terminal: Terminal) -> None:
    terminal.type(". .venv/bin/activate")
    wait_for_line(terminal.start("oncelog up"), "ready:")
    for topic in ("payments", "enriched"):
        terminal.type(f"oncelog topic create {topic}")
    terminal.type("printf 'a:1\\nb:2\\n' | oncelog produce payments --key-separator :")
    assert len(PROGRAMS) >= 4
    for number, program in enumerate(PROGRAMS):
        _run(terminal, number, program)


def _run(terminal: Terminal, number: int, program: Block) -> None:
    (terminal.folder / f"program{number}.py").write_text(program.text)
    if ENDLESS not in program.text:
        terminal.type(f"python program{number}.py")
        return
    # Its first line shows that it works.
    running = terminal.start(f"python -u program{number}.py")
    assert running.stdout is not None
    first = running.stdout.readline()
    assert first.strip(), program
    assert "Traceback" not in first, first
    running.terminate()
    running.wait(60)
