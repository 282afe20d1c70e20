"""Streams: every record of the input comes out once, whatever Spark repeats."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.spark.conftest import Lab, numbers

pytestmark = pytest.mark.spark


def forget_commit(checkpoint: Path) -> None:
    """As if the driver had died after the sink's commit, before Spark noted it."""
    newest = max(
        (file for file in (checkpoint / "commits").iterdir() if file.name.isdecimal()),
        key=lambda file: int(file.name),
    )
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def test_i21_available_now_reads_all_in_limited_steps_and_moves_the_group(lab: Lab) -> None:
    source, sink, group, checkpoint = lab.topic(), lab.topic(), lab.group(), lab.checkpoint()
    lab.fill(source, 1000)
    stream = lab.stream(source, maxOffsetsPerTrigger="300", group=group, transactionalSink="true")
    query = lab.copy(stream.select("key", "value"), checkpoint, topic=sink, inputGroups=group)
    assert [step["numInputRows"] for step in query.recentProgress if step["numInputRows"]] == [
        300,
        300,
        300,
        100,
    ]
    assert sorted(lab.values(sink)) == numbers(1000)
    assert lab.positions(group, source) == lab.ends(source)

    # Later records are read by a restart from the checkpoint.
    lab.fill(source, 50, first=1000)
    lab.copy(
        lab.stream(source, group=group, transactionalSink="true").select("key", "value"),
        checkpoint,
        topic=sink,
        inputGroups=group,
    )
    assert sorted(lab.values(sink)) == numbers(1050)
    assert lab.positions(group, source) == lab.ends(source)


def test_i34_a_replayed_batch_is_not_written_again(lab: Lab) -> None:
    source, sink, group, checkpoint = lab.topic(), lab.topic(), lab.group(), lab.checkpoint()
    lab.fill(source, 200)
    stream = lab.stream(source, group=group, transactionalSink="true").select("key", "value")
    lab.copy(stream, checkpoint, topic=sink, inputGroups=group)
    forget_commit(checkpoint)
    lab.copy(stream, checkpoint, topic=sink, inputGroups=group)
    assert sorted(lab.values(sink)) == numbers(200)
    # The query goes on behind the replayed batch.
    lab.fill(source, 20, first=200)
    lab.copy(stream, checkpoint, topic=sink, inputGroups=group)
    assert sorted(lab.values(sink)) == numbers(220)
    assert lab.positions(group, source) == lab.ends(source)


def test_i34_a_lost_checkpoint_is_not_a_lost_position(lab: Lab) -> None:
    source, sink, group, checkpoint = lab.topic(), lab.topic(), lab.group(), lab.checkpoint()
    name = f"job-{group}"
    stream = lab.stream(source, group=group, transactionalSink=name).select("key", "value")
    lab.fill(source, 100)
    lab.copy(stream, checkpoint, topic=sink, inputGroups=group, producer=name)
    shutil.rmtree(checkpoint)
    lab.fill(source, 30, first=100)
    lab.copy(stream, checkpoint, topic=sink, inputGroups=group, producer=name)
    assert sorted(lab.values(sink)) == numbers(130)
    assert lab.positions(group, source) == lab.ends(source)


def test_i34_a_failed_batch_shows_nothing_and_its_restart_everything(lab: Lab) -> None:
    source, sink, group, checkpoint = lab.topic(), lab.topic(), lab.group(), lab.checkpoint()
    lab.fill(source, 100)
    stream = lab.stream(source, group=group, transactionalSink="true").select("key", "value")
    broken = stream.withColumn(
        "value", F.expr("if(key = cast('7' as binary), raise_error('no'), value)")
    )
    with pytest.raises(Exception, match="no"):
        lab.copy(broken, checkpoint, topic=sink, inputGroups=group)
    assert lab.values(sink) == []
    lab.copy(stream, checkpoint, topic=sink, inputGroups=group)
    assert sorted(lab.values(sink)) == numbers(100)
    assert lab.positions(group, source) == lab.ends(source)


def test_i34_a_task_that_is_tried_again_writes_once(lab: Lab) -> None:
    source, sink, checkpoint = lab.topic(), lab.topic(), lab.checkpoint()
    lab.fill(source, 100)

    def broken_at_first(value: bytes) -> bytes:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and value == b"42":
            raise RuntimeError("the first attempt fails")
        return value

    fragile = F.udf(broken_at_first, "binary", useArrow=False)
    stream = lab.stream(source).select(fragile("value").alias("value"))
    lab.copy(stream, checkpoint, topic=sink)
    assert sorted(lab.values(sink)) == numbers(100)


def test_two_writes_in_one_batch_need_names(lab: Lab) -> None:
    source, one, two, group = lab.topic(), lab.topic(), lab.topic(), lab.group()
    lab.fill(source, 100)
    stream = lab.stream(source, maxOffsetsPerTrigger="60").select("value")

    def unnamed(batch: DataFrame, _number: int) -> None:
        lab.save(batch, topic=one)
        lab.save(batch, topic=two)

    with pytest.raises(Exception, match=r"second write in one batch.*set sinkName"):
        lab.copy(stream, lab.checkpoint(), each=unnamed)

    one, two = lab.topic(), lab.topic()

    def named(batch: DataFrame, _number: int) -> None:
        lab.save(batch, topic=one, sinkName="one", inputGroups=group)
        lab.save(batch, topic=two, sinkName="two")

    checkpoint = lab.checkpoint()
    stream = lab.stream(
        source, maxOffsetsPerTrigger="60", group=group, transactionalSink="true", sinkName="one"
    ).select("value")
    lab.copy(stream, checkpoint, each=named)
    forget_commit(checkpoint)
    lab.copy(stream, checkpoint, each=named)
    assert sorted(lab.values(one)) == sorted(lab.values(two)) == numbers(100)
    assert lab.positions(group, source) == lab.ends(source)


def test_a_group_without_sink_shows_the_lag(lab: Lab) -> None:
    source, sink, group, checkpoint = lab.topic(1), lab.topic(), lab.group(), lab.checkpoint()
    lab.fill(source, 100)
    stream = lab.stream(source, group=group, maxOffsetsPerTrigger="40").select("value")
    lab.copy(stream, checkpoint, topic=sink)
    # Spark tells a source of batch N when it plans batch N + 1.
    assert lab.positions(group, source)[0] in (40, 80, 100)
    assert sorted(lab.values(sink)) == numbers(100)


def test_a_running_stream_waits_for_records(lab: Lab) -> None:
    source, sink, checkpoint = lab.topic(), lab.topic(), lab.checkpoint()
    writer = lab.stream(source).select("value").writeStream.format("oncelog")
    query = (
        writer.option("bootstrap", lab.bootstrap)
        .option("topic", sink)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        for step in range(3):
            lab.fill(source, 10, first=10 * step)
            lab.wait_for_values(sink, numbers(10 * (step + 1)))
    finally:
        query.stop()


def test_a_group_that_was_moved_stops_the_query(lab: Lab) -> None:
    source, sink, group, checkpoint = lab.topic(1), lab.topic(), lab.group(), lab.checkpoint()
    lab.fill(source, 10)
    stream = lab.stream(source, group=group, transactionalSink="true").select("value")
    lab.copy(stream, checkpoint, topic=sink, inputGroups=group)
    # Somebody else uses the same group on the same topic.
    lab.fill(source, 10, first=10)
    lab.copy(stream, lab.checkpoint(), topic=sink, inputGroups=group)
    lab.fill(source, 10, first=20)
    with pytest.raises(Exception, match="belongs to one query"):
        lab.copy(stream, checkpoint, topic=sink, inputGroups=group)
    assert sorted(lab.values(sink)) == numbers(20)
