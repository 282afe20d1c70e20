"""One run of `oncelog up` over a folder, and commands against it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.integration.shell import Shell

COMMAND = (sys.executable, "-m", "oncelog_server.cli")
# A bound that only ends a test that would hang.
DONE_S = 60
SETTINGS = ("--set=node.disk_free_floor_bytes=0", "--set=node.segment_bytes=1048576")


class Up(Shell):
    """Ready when it is made."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder = folder
        self.said: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [*COMMAND, "up", "--json", "--free-ports", f"--data={folder}", *SETTINGS, *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(json.loads(line))
            if self.said[-1].get("ready"):
                super().__init__(self.said[-1]["bootstrap"])
                return
        raise AssertionError(f"it did not come up: {self.said} {self._process.communicate()[1]}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def interrupt(self) -> list[dict[str, Any]]:
        """Ctrl-C: what it says until it ends, which it must do well."""
        self._process.send_signal(signal.SIGINT)
        out, err = self._process.communicate(timeout=DONE_S)
        assert self._process.returncode == 0, err
        return [json.loads(line) for line in out.splitlines()]

    def end(self) -> None:
        """At the end of a test, whatever state it left; shown where the test fails."""
        with self._process as process:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            if process.stdout is not None and not process.stdout.closed:
                print(*process.communicate(timeout=DONE_S), sep="\n")


@contextlib.contextmanager
def up_over(folder: Path, *settings: str) -> Iterator[Up]:
    up = Up(folder, *settings)
    try:
        yield up
    finally:
        up.end()


def children_of(parent: int, argument: str) -> list[int]:
    """Processes that `parent` started, and that have this in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                status = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_text()
                if int(status[1]) == parent and status[0] != "Z" and argument in command:
                    found.append(int(folder.name))
    return found
