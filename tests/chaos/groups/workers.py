"""The processes of a group's members. Only processes that were started here are touched, each by
its id."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

PROGRAM: Final = Path(__file__).with_name("worker.py")
# A bound that only ends what would hang.
ENDS_WITHIN_S: Final = 60.0
# Exit codes: of Python for an error that nobody caught.
UNCAUGHT: Final = 1


class Worker:
    """One process."""

    def __init__(self, command: list[str], told: Path) -> None:
        self._told = told
        self.is_stopped = False
        self.is_told = False
        with told.open("w") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def said(self) -> str:
        return self._told.read_text()

    def has_begun(self) -> bool:
        """It was given partitions."""
        return " assigned" in self.said()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait(ENDS_WITHIN_S)

    def ask_to_end(self) -> None:
        self._process.terminate()
        self.is_told = True

    def stop(self) -> None:
        """SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)
        self.is_stopped = True

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.is_stopped = False

    def wait(self) -> None:
        self._process.wait(ENDS_WITHIN_S)

    def require_ended_well(self) -> None:
        """As a program does that was told to by SIGTERM. Who was not in its loop yet just dies."""
        is_early = self.exit_code == -signal.SIGTERM and not self.has_begun()
        assert is_early or self.exit_code == 0, (
            f"it ended with {self.exit_code}:\n{self.said()[-3000:]}"
        )


class Slot:
    """Where one worker after the other runs: of static ones, all under one instance id."""

    def __init__(
        self, folder: Path, bootstrap: str, job: str, name: str, *, mode: str, session_ms: int
    ) -> None:
        self.name = name
        self.mode = mode
        self._folder = folder
        self._arguments = [bootstrap, job, name, mode, str(session_ms)]
        # All that ever ran, the newest last.
        self.workers: list[Worker] = []
        # They were told to end, or to stop for a successor: nothing else may end one.
        self.doomed: set[Worker] = set()

    @property
    def worker(self) -> Worker:
        return self.workers[-1]

    @property
    def works(self) -> bool:
        """Nothing has happened to it that it is still busy with."""
        worker = self.worker
        return worker.is_alive and not worker.is_stopped and not worker.is_told

    def start(self) -> None:
        told = self._folder / f"{self.name}-{len(self.workers)}.log"
        self.workers.append(Worker([sys.executable, str(PROGRAM), *self._arguments], told))

    def check(self) -> None:
        """Nobody ends by itself, but a static member that another process has replaced."""
        for worker in self.workers:
            code = worker.exit_code
            if code is None or (worker in self.doomed and code <= 0):
                continue
            fenced = code == UNCAUGHT and "FencedInstance" in worker.said()
            is_expected = worker in self.doomed and fenced
            assert is_expected, f"{self.name} ended by itself with {code}:\n{worker.said()[-3000:]}"

    def end_all(self) -> None:
        """At the end of a run, whatever state it left."""
        for worker in self.workers:
            if worker.is_alive:
                worker.kill()
