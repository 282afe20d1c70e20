"""What dies in the middle: the driver with all of its processes, and the services."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

import oncelog.testing
from oncelog.protocol import Protocol
from tests.spark.conftest import Lab, numbers

pytestmark = pytest.mark.spark

RECORDS, STEP = 600, 50
RUN_SECONDS_MAX = 240


@contextmanager
def job_process(
    lab: Lab, arguments: list[str], *, job: str = "copy_job.py"
) -> Iterator[subprocess.Popen[bytes]]:
    """A job of tests/spark in a session of its own, killed at the end."""
    script = Path(__file__).with_name(job)
    with (lab.folder / "job.log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_i34_a_driver_that_is_killed_repeats_nothing_and_loses_nothing(lab: Lab) -> None:
    source, sink, job, checkpoint = lab.topic(), lab.topic(), lab.group(), lab.checkpoint()
    lab.fill(source, RECORDS)
    arguments = [lab.bootstrap, source, sink, job, str(checkpoint), str(STEP)]
    for kills in (1, 2):
        with job_process(lab, arguments) as process:
            # Wherever it is when some more batches are visible: between two, or in one.
            lab.wait_for_count(sink, kills * 3 * STEP)
            assert process.poll() is None, (lab.folder / "job.log").read_text()
        assert len(set(lab.values(sink))) == len(lab.values(sink)), "a record came out twice"
    # The second time, the checkpoint is lost as well.
    shutil.rmtree(checkpoint)
    with job_process(lab, arguments) as process:
        assert process.wait(RUN_SECONDS_MAX) == 0, (lab.folder / "job.log").read_text()
    assert sorted(lab.values(sink)) == numbers(RECORDS)
    assert lab.positions(job, source) == lab.ends(source)


def test_i29_a_query_survives_the_restart_of_each_service(lab: Lab) -> None:
    with oncelog.testing.cluster() as cluster, Protocol(cluster.bootstrap) as protocol:
        lab = replace(lab, protocol=protocol, bootstrap=cluster.bootstrap)
        source, sink, group = lab.topic(), lab.topic(), lab.group()
        lab.fill(source, RECORDS)
        restarts = iter(("coordinator", "partition_leader", "offset_manager"))
        restarted: list[str] = []
        restarting: list[threading.Thread] = []

        def write(batch: DataFrame, number: int) -> None:
            lab.save(batch, topic=sink, inputGroups=group)
            role = next(restarts, None)
            if role is not None:
                # While the next micro-batches run.
                thread = threading.Thread(target=cluster.restart, args=(role,))
                thread.start()
                restarting.append(thread)
                restarted.append(role)

        stream = lab.stream(
            source, group=group, transactionalSink="true", maxOffsetsPerTrigger=str(STEP * 2)
        )
        lab.copy(stream.select("key", "value"), lab.checkpoint(), each=write)
        for thread in restarting:
            thread.join()
        assert len(restarted) == 3
        assert sorted(lab.values(sink)) == numbers(RECORDS)
        assert lab.positions(group, source) == lab.ends(source)
