"""One service of an embedded cluster as a child process: started, watched, stopped.

A child is in a session of its own, so that Ctrl-C at the terminal reaches only `oncelog up`, which
stops its children one by one. On Linux it is told to end when `oncelog up` is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

# How much of a log is shown when its process has died.
TAIL_LINES: Final = 20
TAIL_BYTES: Final = 16_384
# A service hands leadership over and snapshots before it ends; after this long it is killed.
STOP_TIMEOUT_SECONDS: Final = 20.0

_PR_SET_PDEATHSIG: Final = 1


class Service:
    """One child. `start` once, `stop` as often as you like."""

    def __init__(self, name: str, arguments: Sequence[str], *, address: str, log: Path) -> None:
        self.name = name
        self.address = address
        self.log = log
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_to_stop = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and before `start`."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        self._asked_to_stop = False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "oncelog_server.cli", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent(os.getpid()),
            )

    def ask_to_stop(self) -> None:
        """Once: a second SIGTERM may meet a process that has put its handlers away, and kill it in
        the last moments of a stop that went well."""
        if self._process is not None and self._process.poll() is None and not self._asked_to_stop:
            self._asked_to_stop = True
            self._process.terminate()

    def stop(self) -> bool:
        """False where it had to be killed."""
        if self._process is None:
            return True
        self.ask_to_stop()
        try:
            self._process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True

    def tail(self) -> str:
        """The last lines of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-TAIL_LINES:])


def show_exit(code: int) -> str:
    """`exit code 1`, or the signal that ended it."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _end_with_parent(parent: int) -> Callable[[], None] | None:
    """Called in the child between fork and exec: SIGTERM when its parent's main thread ends."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            # It ended between fork and here.
            os._exit(1)

    return tie
