"""All rooms of the suite, in lanes that run beside each other: what `make test` runs.

    python -m tests.lanes [arguments of pytest]

Two lanes compute, in virtual time; the others mostly wait for processes that start, leases that end
and JVMs. Each is a pytest of its own, whose output is shown when it has ended. Ends with 1 where a
lane failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
# Lane -> its rooms. Every test file is in exactly one (tests/tidy).
LANES: Final[Mapping[str, Sequence[str]]] = {
    "cluster": (
        "tests/integration",
        "tests/interop",
        "tests/access",
        "tests/chaos",
        "tests/faults/test_processes.py",
    ),
    "spark": ("tests/spark", "tests/wheels"),
    "unit": (
        "tests/golden",
        "tests/unit",
        "tests/checker",
        "tests/fuzz",
        "tests/tidy",
    ),
    "simulation": (
        "tests/simulation",
        "tests/faults/test_actions.py",
        "tests/faults/test_matrix.py",
        "tests/planted",
    ),
}
# They yield the processor to the others, in which leases and time limits of Spark's run on.
COMPUTING: Final = ("unit", "simulation")
NICE: Final = 5
# Lanes that share a cache of pytest's would write it at the same time.
FLAGS: Final = ("-p", "no:cacheprovider", "--durations=10")
# A lane that ends without tests, because of an argument, is no failure.
NO_TESTS: Final = 5
POLL_S: Final = 0.2


class Lane(NamedTuple):
    """One that runs."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    begun_s: float


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        running = [_start(name, arguments, Path(folder)) for name in LANES]
        failed: list[str] = []
        try:
            while running:
                time.sleep(POLL_S)
                for lane in [lane for lane in running if lane.process.poll() is not None]:
                    running.remove(lane)
                    if _show(lane) not in (0, NO_TESTS):
                        failed.append(lane.name)
        except KeyboardInterrupt:
            # They hear of it, too, and take down what they have started.
            for lane in running:
                lane.process.wait()
            return 130
        finally:
            for lane in running:
                lane.process.send_signal(signal.SIGINT)
    print(f"failed: {', '.join(failed)}" if failed else "all lanes passed", flush=True)
    return 1 if failed else 0


def _start(name: str, arguments: Sequence[str], folder: Path) -> Lane:
    output = (folder / name).open("w+b")
    command = [sys.executable, "-m", "pytest", *FLAGS, *arguments, *LANES[name]]
    if name in COMPUTING:
        command = ["nice", "-n", str(NICE), *command]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=dict(os.environ)
    )
    return Lane(name, process, output, time.monotonic())


def _show(lane: Lane) -> int:
    """Its output, and how it ended."""
    took_s = time.monotonic() - lane.begun_s
    lane.output.seek(0)
    text = lane.output.read().decode(errors="replace")
    lane.output.close()
    print(f"== {lane.name}, {took_s / 60:.1f} minutes\n{text}", flush=True)
    return lane.process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
