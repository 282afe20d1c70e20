"""Runs golden scripts: commands, what they must print, and nothing else.

A script is a story in a file `tests/golden/<role>/<what happens>.txt`:

    # What the story shows, in a sentence or two.

    command
    command
    ----
    what they print

    next command
    ----
    ...

Blocks are separated by blank lines; output has none. `ONCELOG_REWRITE=1 pytest tests/golden` writes
what was printed into the scripts: review the difference as prose.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

RULE: Final = "----"
REWRITE_VARIABLE: Final = "ONCELOG_REWRITE"


class Driver(Protocol):
    """What a role gives: one per script."""

    def execute(self, line: str) -> str:
        """Does one command; what it printed, without blank lines ("" for nothing)."""
        ...

    def finish(self) -> None:
        """Costly checks at the end of a script. Raises AssertionError."""
        ...


class Block(NamedTuple):
    """Commands and the output of all of them together."""

    commands: tuple[str, ...]
    expected: str


class Script(NamedTuple):
    # The comment lines at the top, with their "# ".
    intent: tuple[str, ...]
    blocks: tuple[Block, ...]


def run(path: Path, driver: Driver) -> None:
    """Tells the story to `driver`. Raises AssertionError where it prints something else."""
    script = parse(path.read_text(), name=path.name)
    told = tuple(Block(block.commands, _execute(block, driver)) for block in script.blocks)
    before, after = render(script), render(Script(script.intent, told))
    if os.environ.get(REWRITE_VARIABLE) == "1":
        driver.finish()
        path.write_text(after)
        return
    # What the story itself shows goes first: it says more than the checks at its end.
    assert after == before, (
        f"{path.name}: if the new output is right, {REWRITE_VARIABLE}=1 writes it\n"
        + "\n".join(_difference(before, after))
    )
    driver.finish()


def parse(text: str, *, name: str) -> Script:
    """The script in `text`. Raises ValueError for one without intent or with a nameless block."""
    lines = text.splitlines()
    intent = tuple(_leading_comments(lines))
    if not intent:
        raise ValueError(f"{name}: begin with '# ' and what the story shows")
    blocks = [_block(chunk, name) for chunk in _chunks(lines[len(intent) :])]
    if not blocks:
        raise ValueError(f"{name}: a story needs at least one block of commands")
    return Script(intent, tuple(blocks))


def render(script: Script) -> str:
    """The text of a script; `parse` of it gives the same script."""
    parts = ["\n".join(script.intent)]
    for block in script.blocks:
        lines = [*block.commands, RULE]
        if block.expected:
            lines.append(block.expected)
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _execute(block: Block, driver: Driver) -> str:
    printed = [driver.execute(command) for command in block.commands if command[0] != "#"]
    output = "\n".join(text for text in printed if text)
    assert "\n\n" not in output, f"output must not hold blank lines: {output!r}"
    return output


def _difference(before: str, after: str) -> Iterator[str]:
    return difflib.unified_diff(
        before.splitlines(), after.splitlines(), "the story", "what happened", lineterm=""
    )


def _leading_comments(lines: list[str]) -> list[str]:
    comments = []
    for line in lines:
        if not line.startswith("# "):
            break
        comments.append(line)
    return comments


def _chunks(lines: list[str]) -> list[list[str]]:
    chunks: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            chunks[-1].append(line.rstrip())
        elif chunks[-1]:
            chunks.append([])
    return [chunk for chunk in chunks if chunk]


def _block(chunk: list[str], name: str) -> Block:
    if RULE not in chunk:
        # A block that was just written: rewriting adds the rule and the output.
        return Block(tuple(chunk), "")
    at = chunk.index(RULE)
    if at == 0:
        raise ValueError(f"{name}: output without a command above it: {chunk[1:2]}")
    return Block(tuple(chunk[:at]), "\n".join(chunk[at + 1 :]))
