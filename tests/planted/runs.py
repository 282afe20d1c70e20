"""Runs of pytest, each in a process of its own, with a bug planted or without, and what became of
their tests.

A planted module must be imported after the bug, so no two runs share a process. What takes the time
of a short run is the import of pytest, gRPC and Arrow: they are imported once, in `main`, and each
run is a fork of that.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

ROOT: Final = Path(__file__).parents[2]
# Names of environment variables that the plugin reads.
PLANT_VARIABLE: Final = "ONCELOG_PLANT"
REPORT_VARIABLE: Final = "ONCELOG_PLANT_REPORT"
# After so long a run is ended: a bug may be one that hangs.
RUN_SECONDS_MAX: Final = 120
# -vv: whole differences, for what a failure must show may stand anywhere in them.
FLAGS: Final = ("-vv", "-p", "no:cacheprovider", "-p", "tests.planted.plugin")


class Verdict(NamedTuple):
    """Of one test."""

    test: str
    passed: bool
    # It failed by an assertion, or by a refusal that it did not expect; not by an error on the way.
    judged: bool
    text: str


class Run(NamedTuple):
    """What pytest said as a whole, and of each test that was run."""

    output: str
    verdicts: Sequence[Verdict]

    def of(self, node: str) -> list[Verdict]:
        """Of a test; of all of its parameters, where the node id names none."""
        return [v for v in self.verdicts if v.test == node or v.test.startswith(f"{node}[")]


class Runner:
    """The process that forks. Use it as a context manager."""

    def __enter__(self) -> Self:
        environment = dict(os.environ)
        # A rewriting run would write the planted story down as the right one.
        environment.pop("ONCELOG_REWRITE", None)
        # Hypothesis' plugin has pytest rewrite all of it, which takes longer than most runs.
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.planted.runs"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # It ends with its input.
        self._process.communicate(timeout=RUN_SECONDS_MAX)

    def run(self, nodes: Sequence[str], *, bug: str = "") -> Run:
        with tempfile.TemporaryDirectory() as folder:
            report, output = Path(folder, "report"), Path(folder, "output")
            order = {
                "nodes": list(nodes),
                "output": str(output),
                "environment": {PLANT_VARIABLE: bug, REPORT_VARIABLE: str(report)},
            }
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            ended = self._process.stdout.readline()
            assert ended, "the process that forks has ended: what does it say on stderr?"
            lines = report.read_text().splitlines() if report.exists() else []
            return Run(f"{output.read_text()}\n{ended}", [_verdict(line) for line in lines])


class Runners:
    """Several of them side by side. Use it as a context manager."""

    def __init__(self, count: int) -> None:
        self._stack = contextlib.ExitStack()
        self._free: queue.SimpleQueue[Runner] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(count)
        self._count = count
        self._runs: dict[str, Future[Run]] = {}

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self._free.put(self._stack.enter_context(Runner()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._stack.close()

    def begin(self, name: str, nodes: Sequence[str], *, bug: str = "") -> None:
        """These tests, with that bug if one is named, as soon as somebody is free."""
        self._runs[name] = self._pool.submit(self._run, nodes, bug)

    def end(self, name: str) -> Run:
        """Waits for what was begun."""
        return self._runs[name].result()

    def _run(self, nodes: Sequence[str], bug: str) -> Run:
        runner = self._free.get()
        try:
            return runner.run(nodes, bug=bug)
        finally:
            self._free.put(runner)


def _verdict(line: str) -> Verdict:
    told = json.loads(line)
    return Verdict(told["test"], told["passed"], told["judged"], told["text"])


def main() -> None:
    """Reads one order per line; answers when the run has ended."""
    import grpc  # noqa: F401
    import hypothesis  # noqa: F401
    import msgspec  # noqa: F401
    import pyarrow  # noqa: F401
    import pytest  # noqa: F401

    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _be_pytest(order["nodes"], Path(order["output"]), order["environment"])
        _, status = os.waitpid(child, 0)
        print(f"pytest ended with {os.waitstatus_to_exitcode(status)}", flush=True)


def _be_pytest(nodes: Sequence[str], output: Path, environment: Mapping[str, str]) -> None:
    """In the fork; does not return."""
    import pytest

    code = 1
    try:
        signal.alarm(RUN_SECONDS_MAX)
        os.environ.update(environment)
        sys.stdin.close()
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = int(pytest.main([*FLAGS, *nodes]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    # gRPC's fork handlers are not needed, and crash some forks (see tests/conftest.py).
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    main()
