"""A cluster of this machine's own: `oncelog up` as a child process, over a folder.

The command is `oncelog_server.cli`, of the distribution oncelog-server, which is not a dependency
of this one: it is started as a process and found by the file that it announces itself with.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# A first start may build etcd (about 90 s), which `up` shows progress of.
UP: Final = (sys.executable, "-m", "oncelog_server.cli", "up")
START_SECONDS_MAX: Final = 600
STOP_SECONDS_MAX: Final = 30
POLL_SECONDS: Final = 0.1
RUNNING_FILE: Final = "running.json"
OUTPUT_FILE: Final = "up.log"
LINES_SHOWN: Final = 20


class ClusterFailed(RuntimeError):
    """The cluster did not start; the message has the end of its output."""


@contextmanager
def local_cluster(folder: Path, *, options: Sequence[str] = ()) -> Iterator[str]:
    """Runs a cluster over `folder` and gives its bootstrap addresses; stops it at the end.
    `options` are further ones of `oncelog up`. Raises ClusterFailed."""
    if importlib.util.find_spec("oncelog_server") is None:
        raise ClusterFailed(
            "the services are not installed: pip install oncelog-server, or name a running "
            "cluster with --bootstrap"
        )
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / OUTPUT_FILE
    with output.open("ab") as log:
        process = subprocess.Popen(
            [*UP, "--data", str(folder), "--free-ports", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the job: the cluster is stopped by it, after what uses it.
            start_new_session=True,
        )
    try:
        yield _wait_until_running(process, folder)
    finally:
        _stop(process)


def _wait_until_running(process: subprocess.Popen[bytes], folder: Path) -> str:
    give_up = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < give_up:
        if process.poll() is not None:
            raise ClusterFailed(f"`oncelog up` ended with {process.returncode}:\n{_tail(folder)}")
        bootstrap = _announced(folder / RUNNING_FILE, process.pid)
        if bootstrap is not None:
            return bootstrap
        time.sleep(POLL_SECONDS)
    raise ClusterFailed(f"`oncelog up` is not ready after {START_SECONDS_MAX} s:\n{_tail(folder)}")


def _announced(file: Path, pid: int) -> str | None:
    """The addresses, once this process has written them: an older one may have died over them."""
    try:
        running = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return str(running["bootstrap"]) if running.get("pid") == pid else None


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        # It leads a session of its own: its children go with it.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(folder: Path) -> str:
    lines = (folder / OUTPUT_FILE).read_text(errors="replace").splitlines()
    return "\n".join(lines[-LINES_SHOWN:])
