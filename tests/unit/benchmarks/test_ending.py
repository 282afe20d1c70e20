"""A benchmark that is told to end stops what it has started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

PROGRAM = """
import contextlib, time
from benchmarks.ending import end_as_by_ctrl_c

end_as_by_ctrl_c()
with contextlib.ExitStack() as stack:
    stack.callback(print, "stopped", flush=True)
    # Long enough for another signal.
    stack.callback(time.sleep, 0.2)
    print("started", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_it_started_is_stopped(number: signal.Signals) -> None:
    # As in the background of a shell.
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, ignored)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        # As timeout(1) does: to the process, then to its group.
        process.send_signal(number)
        process.send_signal(number)
        assert process.stdout.read() == "stopped\n"


def test_each_program_ends_so() -> None:
    programs = {path for path in BENCHMARKS.glob("*.py") if "@click.command" in path.read_text()}
    assert programs
    assert not [
        path.name for path in programs if "    end_as_by_ctrl_c()\n" not in path.read_text()
    ]
