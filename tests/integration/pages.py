"""What a page tells its reader to type, as it stands there: fenced blocks, in their order.

A `console` block holds commands (`$ ...`) and, below a command, what it prints. Other blocks are
files, by their language.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from oncelog_server.core.roles import PORTS
from oncelog_server.runtime.loopback_ports import is_free

ROOT = Path(__file__).parents[2]
# Bounds that only end a test that would hang.
READY_S, DONE_S = 120.0, 120.0
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMPT = "$ "


class Block(NamedTuple):
    """One fenced block."""

    # The heading above it.
    section: str
    language: str
    text: str


class Command(NamedTuple):
    """A line that is typed, and what the page says that it prints (nothing: not told)."""

    line: str
    prints: list[str]


def blocks_of(page: str) -> list[Block]:
    """Of a page by its path below the repository."""
    text = (ROOT / page).read_text()
    headings = [
        (match.start(), match[1]) for match in re.finditer(r"^#+ (.*)$", text, re.MULTILINE)
    ]
    found = []
    for match in _FENCE.finditer(text):
        section = [heading for start, heading in headings if start < match.start()][-1]
        found.append(Block(section, match[1], match[2]))
    return found


def commands_of(block: Block) -> list[Command]:
    """Remarks behind a command are of the shell's own making: it knows them."""
    commands: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith(_PROMPT):
            commands.append(Command(line.removeprefix(_PROMPT), []))
        else:
            commands[-1].prints.append(line)
    return commands


class Terminal:
    """A directory like a checkout: with its `.venv`, and nothing else of it."""

    def __init__(self, folder: Path, environment: Path) -> None:
        self.folder = folder
        (folder / ".venv").symlink_to(environment)
        # Words that change the shell itself stay in force.
        self._before: list[str] = []
        self._running: list[subprocess.Popen[str]] = []
        # Nothing of whoever runs the tests: no cluster, no profile, no path.
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ONCELOG_", "VIRTUAL_ENV", "PYTHON"))
        } | {"ONCELOG_CONFIG": str(folder / "no-profiles.toml"), "HOME": os.environ["HOME"]}

    def type(self, command: str) -> str:
        """What it prints, once it is done. It must end well."""
        if command.startswith((". ", "export ")):
            self._before.append(command)
            return ""
        done = subprocess.run(
            ["bash", "-c", "\n".join([*self._before, command])],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=DONE_S,
            check=False,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def start(self, command: str) -> subprocess.Popen[str]:
        """One that goes on until `stop`."""
        process = subprocess.Popen(
            ["bash", "-c", "\n".join([*self._before, f"exec {command}"])],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._running.append(process)
        return process

    def stop(self) -> None:
        """Ctrl-C for all that goes on."""
        for process in reversed(self._running):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.communicate(timeout=DONE_S)
        self._running.clear()


def wait_for_line(process: subprocess.Popen[str], begins: str) -> str:
    """What it says, up to that line."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith(begins):
            return said
    raise AssertionError(f"it ended before it said {begins!r}:\n{said}")


@contextlib.contextmanager
def usual_ports() -> Iterator[bool]:
    """Only one test at a time may have them. False: somebody else listens there."""
    with (Path(tempfile.gettempdir()) / "oncelog-usual-ports.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        give_up = time.monotonic() + READY_S
        while not (free := all(map(is_free, PORTS.values()))) and time.monotonic() < give_up:
            time.sleep(0.5)
        yield free
