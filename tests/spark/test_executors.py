"""Executors that are processes of their own, on two hosts: an attempt that was overtaken, and all
executors killed in the middle of a batch."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark import held_sink
from tests.spark.chaos.driver import of_session, send
from tests.spark.conftest import Lab, numbers

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
RECORDS = 200
# A bound that only ends a test that would hang: four JVMs start, on a machine that may be busy.
PATIENCE_S = 1800


def test_i34_an_overtaken_attempt_and_killed_executors_repeat_nothing_and_lose_nothing(
    lab: Lab,
) -> None:
    """In one test, for a cluster of its own takes as long to start as everything else."""
    hand = lab.folder / "hand"
    hand.mkdir()
    speculated, crashed = lab.topic(4), lab.topic(4)
    on_two, again = lab.topic(), lab.topic()
    for topic in (speculated, crashed):
        lab.fill(topic, RECORDS)
    (hand / held_sink.WAIT_IN_WRITE).touch()
    command = [sys.executable, "-m", "tests.spark.two_hosts_job", lab.bootstrap, str(hand)]
    with (lab.folder / "job.log").open("ab") as output:
        job = subprocess.Popen(
            [*command, speculated, on_two, crashed, again],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def until(holds: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not holds():
            said = (lab.folder / "job.log").read_text
            assert job.poll() is None or holds(), f"it ended before {what}: {said()}"
            assert time.monotonic() < give_up, f"{what}: {said()}"
            time.sleep(0.05)

    try:
        # The first attempt has written all it has, and is not done; nobody lets it go on.
        until((hand / on_two).exists, "another attempt overtakes the first")
        attempts = {file.name for file in hand.glob(held_sink.ATTEMPTS)}
        assert any(name.endswith("-1") for name in attempts), attempts
        require_once(lab, speculated, on_two)

        until((hand / held_sink.WAITING).exists, "a task of the second copy has written")
        executors = [
            pid for pid, line in of_session(job.pid) if "CoarseGrainedExecutorBackend" in line
        ]
        send(signal.SIGKILL, executors)
        assert executors, "there are executors to kill"
        until(lambda: job.poll() is not None, "the second copy ends")
        assert job.returncode == 0, (lab.folder / "job.log").read_text()
        require_once(lab, crashed, again)
    finally:
        send(signal.SIGKILL, [pid for pid, _ in of_session(job.pid)])
        job.wait()


def require_once(lab: Lab, source: str, sink: str) -> None:
    lab.wait_for_values(sink, numbers(RECORDS))
    assert lab.positions(sink, source) == lab.ends(source)
    assert lab.open_transactions(sink) == 0
