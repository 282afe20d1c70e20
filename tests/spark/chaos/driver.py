"""One driver of the job, seen from outside: its processes, what it is told and what it says."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

# A bound that only ends what would hang: a session starts, with JVMs, on a busy machine.
STARTS_S: Final = 600.0
SESSION_AT: Final = 3


class Part(Enum):
    """Of a driver's processes, by what their command line says."""

    # The program and its JVM.
    DRIVER = "driver"
    # JVMs beside it, where the master is a local cluster.
    EXECUTORS = "executors"
    # Python workers: of tasks, of the source, of the sink.
    WORKERS = "workers"
    ALL = "all"


class Driver:
    """Started when it is made; nobody waits for it. Its processes are a session of their own, also
    those that have lost their parent."""

    def __init__(
        self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], master: str
    ) -> None:
        self.master = master
        self.said: list[dict[str, Any]] = []
        self._news: queue.Queue[dict[str, Any]] = queue.Queue()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.chaos.job", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
                text=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def has_started(self) -> bool:
        return any(said["event"] == "started" for said in self.said)

    def failures(self) -> list[str]:
        """What its queries failed of."""
        return [said["error"] for said in self.said if said["event"] == "failed"]

    def tell(self, *words: str) -> None:
        """It may have died."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{' '.join(words)}\n")
            self._process.stdin.flush()

    def hears(self, event: str, within_s: float, tend: Callable[[], None]) -> bool:
        """Waits until it says so; False where it ends, or time is over."""
        waited_s, step_s = 0.0, 0.05
        while waited_s < within_s:
            try:
                if self._news.get(timeout=step_s)["event"] == event:
                    return True
            except queue.Empty:
                if not self.is_running:
                    return False
                waited_s += step_s
                tend()
        return False

    def forget_news(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._news.get_nowait()

    # ------------------------------------------------------------------------------------ signals

    def pids(self, part: Part) -> list[int]:
        """Its processes of this part that live now."""
        return [pid for pid, command in of_session(self._process.pid) if _is_of(part, command)]

    def end(self) -> None:
        """All of it, also what was stopped or orphaned."""
        send(signal.SIGKILL, self.pids(Part.ALL))
        self._process.wait()

    def wait(self, seconds: float) -> bool:
        """Until the program has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return not self.is_running

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                self.said.append(said)
                self._news.put(said)


def _is_of(part: Part, command: str) -> bool:
    if part is Part.ALL:
        return True
    if "CoarseGrainedExecutorBackend" in command:
        return part is Part.EXECUTORS
    is_driver = (
        "tests.spark.chaos.job" in command or "org.apache.spark.deploy.SparkSubmit" in command
    )
    return part is (Part.DRIVER if is_driver else Part.WORKERS)


def send(what: signal.Signals, pids: Iterable[int]) -> None:
    """To those that live still."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)


def of_session(leader: int) -> list[tuple[int, str]]:
    """Process id and command line of all that live in it."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                # "pid (name) state parent group session ...", and a name may hold anything.
                status = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(status[SESSION_AT]) == leader and status[0] != "Z":
                    command = (folder / "cmdline").read_text().replace("\0", " ")
                    found.append((int(folder.name), command))
    return found
