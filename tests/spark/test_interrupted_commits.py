"""A batch is interrupted where it hurts: its commit raises before or after its effect, its query is
stopped while it writes or commits, another driver commits it meanwhile. Whatever Spark does then,
each record comes out once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark import held_sink
from tests.spark.conftest import Lab, numbers
from tests.spark.test_faults import RUN_SECONDS_MAX, job_process
from tests.spark.too_busy import PATIENCE_S, STARTS_MAX, is_too_busy, run_to_its_end

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

RECORDS = 100
# Then the query knows that it is to end.
STOP_IS_ASKED_S = 2.0


@pytest.fixture
def hand(lab: Lab, tmp_path: Path) -> Path:
    """The folder that holds the sink."""
    folder = tmp_path / "hand"
    folder.mkdir()
    lab.spark.dataSource.register(held_sink.held_data_source(folder))
    return folder


class Job:
    """A query with the sink that a test holds; the same job each time it is started."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.source, self.sink, self.name = lab.topic(), lab.topic(), lab.group()
        self.checkpoint = lab.checkpoint()
        lab.fill(self.source, RECORDS)

    def start(self) -> StreamingQuery:
        stream = self.lab.stream(self.source, group=self.name, transactionalSink=self.name)
        writer = stream.select("key", "value").writeStream.format(held_sink.FORMAT)
        return (
            writer.option("bootstrap", self.lab.bootstrap)
            .option("topic", self.sink)
            .option("producer", self.name)
            .option("inputGroups", self.name)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def run(self) -> None:
        """To its end. Raises what the query failed of."""
        run_to_its_end(self.start)

    def start_until(self, file: Path) -> StreamingQuery:
        """A query that runs, and waits where the test says so."""
        for _ in range(STARTS_MAX):
            query = self.start()
            give_up = time.monotonic() + PATIENCE_S
            while query.isActive and not file.exists():
                assert time.monotonic() < give_up, f"{file.name} never came"
                time.sleep(0.02)
            if query.isActive:
                return query
            assert is_too_busy(query.exception()), query.exception()
        raise AssertionError("this machine is too busy for Spark")

    def require_once(self, count: int = RECORDS) -> None:
        """All records came out once, the group stands behind them, and nothing is open."""
        self.lab.wait_for_values(self.sink, numbers(count))
        assert self.lab.positions(self.name, self.source) == self.lab.ends(self.source)
        assert self.lab.open_transactions(self.name) == 0


def wait_for(file: Path) -> None:
    until(file.exists, f"{file.name} never came")


def until(holds: Callable[[], bool], otherwise: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up, otherwise
        time.sleep(0.02)


def test_i21_i34_a_commit_that_raises_before_its_effect_shows_nothing_and_is_repeated(
    lab: Lab, hand: Path
) -> None:
    job = Job(lab)
    (hand / held_sink.FAIL_BEFORE).touch()
    with pytest.raises(Exception, match="the commit fails before its effect"):
        job.run()
    wait_for(hand / held_sink.ABORTED)
    assert lab.values(job.sink) == []
    assert lab.open_transactions(job.name) == 0, "the abort ended it at once"
    job.run()
    job.require_once()


def test_i34_a_commit_that_raises_after_its_effect_is_not_undone_and_not_repeated(
    lab: Lab, hand: Path
) -> None:
    job = Job(lab)
    (hand / held_sink.FAIL_AFTER).touch()
    with pytest.raises(Exception, match="the commit fails after its effect"):
        job.run()
    # Spark aborts what is committed.
    wait_for(hand / held_sink.ABORTED)
    job.require_once()
    lab.fill(job.source, RECORDS, first=RECORDS)
    job.run()
    job.require_once(2 * RECORDS)


def test_i21_i34_a_query_that_is_stopped_while_it_writes_shows_nothing_of_it(
    lab: Lab, hand: Path
) -> None:
    job = Job(lab)
    (hand / held_sink.WAIT_IN_WRITE).touch()
    job.start_until(hand / held_sink.WAITING).stop()
    assert lab.values(job.sink) == []
    job.run()
    job.require_once()


def test_i34_a_query_that_is_stopped_while_it_commits_repeats_nothing_and_loses_nothing(
    lab: Lab, hand: Path
) -> None:
    job = Job(lab)
    (hand / held_sink.WAIT_IN_COMMIT).touch()
    query = job.start_until(hand / held_sink.WAITING)
    # Whether Spark waits for the commit that it interrupts is Spark's affair.
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    stopping.join(STOP_IS_ASKED_S)
    (hand / held_sink.GO_ON).touch()
    stopping.join()
    wait_for(hand / held_sink.ENDED)
    job.run()
    job.require_once()


def test_i16_i34_of_two_drivers_on_one_checkpoint_one_commits_each_batch(
    lab: Lab, hand: Path
) -> None:
    job = Job(lab)
    (hand / held_sink.WAIT_IN_COMMIT).touch()
    first = job.start_until(hand / held_sink.WAITING)
    try:
        arguments = [lab.bootstrap, job.source, job.sink, job.name, str(job.checkpoint), "1000"]
        for _ in range(STARTS_MAX):
            with job_process(lab, arguments) as second:
                ended = second.wait(RUN_SECONDS_MAX)
            said = (lab.folder / "job.log").read_text()
            if ended == 0:
                break
            assert is_too_busy(said), said
        job.require_once()
        (hand / held_sink.GO_ON).touch()
        until(lambda: not first.isActive, "the first driver goes on over the second")
    finally:
        first.stop()
    assert first.exception() is not None
    job.require_once()
