"""One transaction of several sinks, when what it runs in dies, fails or is stopped in its middle.
After each both outputs equal the input, record by record, the group stands at its end, and no
transaction is left that could hold anything staged."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame

import oncelog_spark
from oncelog_spark import batch_transaction
from oncelogpb import errors
from tests.spark.conftest import Lab, numbers
from tests.spark.test_faults import job_process
from tests.spark.too_busy import PATIENCE_S, STARTS_MAX, is_too_busy, run_to_its_end

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


def run_job(lab: Lab, arguments: list[str]) -> tuple[int, str]:
    """Runs two_sinks_job.py until it ends or dies: its exit code, and what it said."""
    log, told = lab.folder / "job.log", 0
    for _ in range(STARTS_MAX):
        with job_process(lab, arguments, job="two_sinks_job.py") as process:
            code = process.wait(PATIENCE_S)
        said = log.read_text()[told:]
        if code != 1 or not is_too_busy(said):
            return code, said
        told += len(said)
    raise AssertionError("this machine is too busy for Spark")


def test_i34_a_driver_that_is_killed_in_the_middle_of_several_sinks(lab: Lab) -> None:
    source, one, other = lab.topic(), lab.topic(), lab.topic()
    job, checkpoint = lab.group(), lab.checkpoint()
    lab.fill(source, 150)
    names = [lab.bootstrap, source, one, other, job, str(checkpoint)]
    # It dies in batch 1 of three, each time further on, and begins with that batch each time.
    for place, batches in (("between", 1), ("before", 1), ("after", 2), ("nowhere", 3)):
        code, said = run_job(lab, [*names, place])
        assert code == (0 if place == "nowhere" else -signal.SIGKILL), said
        first = lab.values(one)
        assert len(first) == len(set(first)) == 50 * batches, place
        told = [f"batch {number}" for number in range(batches)]
        assert sorted(lab.values(other)) == sorted([*first, *told]), place
    assert sorted(lab.values(one)) == numbers(150)
    assert lab.positions(job, source) == lab.ends(source)
    assert lab.open_transactions(job) == 0


class Copying:
    """Copies a topic to two, each batch in one transaction."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.source, self.one, self.other = lab.topic(), lab.topic(), lab.topic()
        self.group, self.checkpoint = lab.group(), lab.checkpoint()
        lab.fill(self.source, 60)
        self.between: Callable[[], None] = lambda: None
        # The function of a batch has ended, however it did.
        self.ended = threading.Event()

    def each(self, batch: DataFrame, number: int) -> None:
        given = {
            "bootstrap": self.lab.bootstrap,
            "producer": self.group,
            "inputGroups": self.group,
        }
        values = batch.select("value")
        try:
            with oncelog_spark.transaction(batch, number, given) as tx:
                tx.write(values, topic=self.one)
                self.between()
                tx.write(values, topic=self.other)
        finally:
            self.ended.set()

    def start(self) -> StreamingQuery:
        stream = self.lab.stream(
            self.source, group=self.group, transactionalSink=self.group, maxOffsetsPerTrigger="30"
        )
        writer = stream.writeStream.foreachBatch(self.each).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()

    def run(self) -> None:
        """To its end. Raises what the query failed of."""
        run_to_its_end(self.start)

    def start_until(self, there: threading.Event) -> StreamingQuery:
        """A query that runs, and waits where the test says so."""
        for _ in range(STARTS_MAX):
            query = self.start()
            for _ in range(PATIENCE_S):
                if there.wait(1.0):
                    return query
                if not query.isActive:
                    break
            query.stop()
            assert is_too_busy(query.exception()), query.exception()
            self.ended.clear()
        raise AssertionError("this machine is too busy for Spark")

    def counts(self) -> tuple[int, int]:
        return len(self.lab.values(self.one)), len(self.lab.values(self.other))

    def require_exactly_once(self) -> None:
        assert sorted(self.lab.values(self.one)) == numbers(60)
        assert sorted(self.lab.values(self.other)) == numbers(60)
        assert self.lab.positions(self.group, self.source) == self.lab.ends(self.source)
        assert self.lab.open_transactions(self.group) == 0


@pytest.mark.parametrize(("effect", "visible"), [("before", 0), ("after", 30)])
def test_i34_a_commit_of_several_sinks_that_raises(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, effect: str, visible: int
) -> None:
    """Before its effect nothing is visible; after it the batch is committed, whatever was said."""
    copying, commit = Copying(lab), batch_transaction.commit
    left = [1]

    def raising(*arguments: Any) -> None:
        if not left:
            commit(*arguments)
            return
        left.pop()
        if effect == "after":
            commit(*arguments)
        raise errors.UnknownOutcome("the answer is lost")

    monkeypatch.setattr(batch_transaction, "commit", raising)
    with pytest.raises(Exception, match="the answer is lost"):
        copying.run()
    assert copying.counts() == (visible, visible)
    copying.run()
    copying.require_exactly_once()


@pytest.mark.parametrize("when", ["between two sinks", "during the commit"])
def test_i34_a_query_that_is_stopped_in_the_middle_of_several_sinks(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    copying, commit = Copying(lab), batch_transaction.commit
    there, go_on = threading.Event(), threading.Event()

    def halt() -> None:
        there.set()
        assert go_on.wait(PATIENCE_S)

    def slow(*arguments: Any) -> None:
        halt()
        commit(*arguments)

    if when == "between two sinks":
        copying.between = halt
    else:
        monkeypatch.setattr(batch_transaction, "commit", slow)
    query = copying.start_until(there)
    stopping = threading.Thread(target=query.stop)
    try:
        stopping.start()
    finally:
        go_on.set()
    stopping.join(PATIENCE_S)
    assert not query.isActive
    # Python's thread of the function goes on after Spark has stopped waiting for it.
    assert copying.ended.wait(PATIENCE_S)
    one, other = copying.counts()
    assert one == other
    copying.run()
    copying.require_exactly_once()
