"""Checkpoints that know less than the group: a first batch that is run again, one that was put
back, and one that a lost run left without a commit (I21, I34)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncelog_spark.jobs import running_totals
from tests.spark import held_sink
from tests.spark.conftest import AVAILABLE_SECONDS_MAX, Lab, numbers
from tests.spark.test_interrupted_commits import wait_for
from tests.spark.test_streaming import forget_commit
from tests.spark.too_busy import run_to_its_end

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


def test_i34_the_state_of_a_first_batch_that_is_replayed_is_made_of_its_records(lab: Lab) -> None:
    """The group stands at its end by then. A replay from there would leave the state empty."""
    source, sink, group, checkpoint = lab.topic(1), lab.topic(1), lab.group(), lab.checkpoint()
    keys = lab.spark.range(60).selectExpr(
        "cast(id % 3 as string) as key", "cast(id as string) as value"
    )
    options = {"bootstrap": lab.bootstrap, "producer": group, "inputGroups": group}

    def run() -> None:
        stream = lab.stream(source, group=group, transactionalSink=group)
        writer = running_totals.emitting(running_totals.totals(stream), sink, options)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query = writer.start()
        try:
            assert query.awaitTermination(AVAILABLE_SECONDS_MAX)
        finally:
            query.stop()

    lab.save(keys.coalesce(1), topic=source)
    run()
    forget_commit(checkpoint)
    lab.save(keys.where("id < 3").coalesce(1), topic=source)
    run()
    states = [json.loads(value) for value in lab.values(sink)]
    totals = {
        number: sorted(state["total"] for state in states if state["batch"] == number)
        for number in (0, 1)
    }
    assert totals == {0: [570.0, 590.0, 610.0], 1: [570.0, 591.0, 612.0]}
    assert lab.positions(group, source) == lab.ends(source)


def test_i34_a_checkpoint_that_was_put_back_is_refused_and_a_new_one_goes_on(lab: Lab) -> None:
    source, sink, group, checkpoint = lab.topic(), lab.topic(), lab.group(), lab.checkpoint()
    backup = lab.checkpoint()
    stream = lab.stream(source, group=group, transactionalSink=group).select("key", "value")

    def run(at: Path) -> None:
        lab.copy(stream, at, topic=sink, inputGroups=group, producer=group)

    for batch in range(3):
        lab.fill(source, 20, first=20 * batch)
        run(checkpoint)
        if batch == 0:
            shutil.copytree(checkpoint, backup)
    lab.fill(source, 20, first=60)
    with pytest.raises(Exception, match=r"CheckpointBehind.*last one is 2"):
        run(backup)
    assert sorted(lab.values(sink)) == numbers(60), "nothing was passed over, nothing written"
    run(lab.checkpoint())
    assert sorted(lab.values(sink)) == numbers(80)
    assert lab.positions(group, source) == lab.ends(source)


def test_i34_a_first_batch_that_died_is_begun_anew_by_a_query_that_is_its_own_producer(
    lab: Lab, tmp_path: Path
) -> None:
    """Nobody tells a source the name of its query: what holds its group is ended all the same."""
    hand = tmp_path / "hand"
    hand.mkdir()
    lab.spark.dataSource.register(held_sink.held_data_source(hand))
    source, sink, group, checkpoint = lab.topic(), lab.topic(), lab.group(), lab.checkpoint()
    lab.fill(source, 100)

    def start() -> StreamingQuery:
        stream = lab.stream(source, group=group, transactionalSink="true").select("key", "value")
        writer = stream.writeStream.format(held_sink.FORMAT).queryName(group)
        return (
            writer.option("bootstrap", lab.bootstrap)
            .option("topic", sink)
            .option("inputGroups", group)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    (hand / held_sink.WAIT_IN_WRITE).touch()
    query = start()
    wait_for(hand / held_sink.WAITING)
    query.stop()
    assert lab.open_transactions(group) == 1, "nobody could end it"
    run_to_its_end(start)
    assert sorted(lab.values(sink)) == numbers(100)
    assert lab.positions(group, source) == lab.ends(source)
    assert lab.open_transactions(group) == 0
