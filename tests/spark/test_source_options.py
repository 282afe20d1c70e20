"""Options that Spark's Kafka source has: the same names, the same meaning, real Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from oncelogpb.v1 import partition_leader_pb2
from tests.spark.conftest import AVAILABLE_SECONDS_MAX, Lab, numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


def until(query: StreamingQuery, true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + AVAILABLE_SECONDS_MAX
    while not true():
        assert query.isActive, query.exception()
        assert time.monotonic() < give_up, query.lastProgress
        time.sleep(0.1)


def running(lab: Lab, stream: DataFrame, topic: str) -> StreamingQuery:
    return (
        stream.select("key", "value")
        .writeStream.format("oncelog")
        .option("bootstrap", lab.bootstrap)
        .option("checkpointLocation", str(lab.checkpoint()))
        .option("topic", topic)
        .start()
    )


def by_pattern(lab: Lab, pattern: str, **options: str) -> DataFrame:
    reader = lab.spark.readStream.format("oncelog").option("bootstrap", lab.bootstrap)
    reader = reader.option("subscribePattern", pattern).option("startingOffsets", "earliest")
    return reader.options(**options).load()


def test_a_running_query_reads_partitions_and_topics_that_come(lab: Lab) -> None:
    one, sink = lab.topic(1), lab.topic()
    other = f"{one}-too"
    lab.fill(one, 10)
    query = running(lab, by_pattern(lab, f"{one}.*"), sink)
    try:
        until(query, lambda: sum(lab.ends(sink).values()) == 10)
        lab.protocol.call(
            "partition_leader.alter_topic",
            partition_leader_pb2.AlterTopicRequest(name=one, partitions=3),
        )
        lab.protocol.call(
            "partition_leader.create_topic",
            partition_leader_pb2.CreateTopicRequest(name=other, partitions=2),
        )
        lab.protocol.forget_topic(one)
        lab.fill(one, 40, first=10)
        lab.fill(other, 50, first=50)
        until(query, lambda: sum(lab.ends(sink).values()) >= 100)
    finally:
        query.stop()
    lab.wait_for_values(sink, numbers(100))


def test_a_pattern_is_read_by_batch_jobs_and_matches_whole_names(lab: Lab) -> None:
    one = lab.topic(2)
    lab.protocol.call(
        "partition_leader.create_topic",
        partition_leader_pb2.CreateTopicRequest(name=f"{one}-too", partitions=1),
    )
    lab.fill(one, 5)
    lab.fill(f"{one}-too", 3)
    reader = lab.spark.read.format("oncelog").option("bootstrap", lab.bootstrap)
    assert reader.option("subscribePattern", one).load().count() == 5
    reader = lab.spark.read.format("oncelog").option("bootstrap", lab.bootstrap)
    assert reader.option("subscribePattern", f"{one}(-too)?").load().count() == 8


def test_times_for_each_partition_say_where_a_read_begins_and_ends(lab: Lab) -> None:
    topic = lab.topic(2)
    written = lab.spark.sql(
        "select cast(id as string) as value, cast(id % 2 as int) as partition, "
        "timestamp_millis(1000 * (id div 2)) as timestamp from range(0, 20, 1, 1)"
    )
    lab.save(written, topic=topic)

    def found(**options: str) -> list[int]:
        return sorted(int(row.value) for row in lab.read(topic, **options).collect())

    begins = json.dumps({topic: {"0": 3_000, "1": 8_000}})
    ends = json.dumps({topic: {"0": 5_000, "1": 99_000}})
    assert found(startingOffsetsByTimestamp=begins, endingOffsetsByTimestamp=ends) == [6, 8, 17, 19]
    late = json.dumps({topic: {"0": 9_000, "1": 10_000}})
    with pytest.raises(Exception, match=f"{topic}/1: no record is so late"):
        found(startingOffsetsByTimestamp=late)
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert found(startingOffsetsByTimestamp=late, **latest) == [18]


def test_a_small_read_is_one_task_and_options_make_more(lab: Lab) -> None:
    topic = lab.topic(6)
    lab.fill(topic, 600)

    def tasks(**options: str) -> tuple[int, int]:
        frame = lab.read(topic, **options)
        return frame.rdd.getNumPartitions(), frame.count()

    assert tasks() == (1, 600)
    assert tasks(minPartitions="6") == (6, 600)
    most = max(lab.ends(topic).values())
    assert tasks(maxRecordsPerPartition=str(most)) == (6, 600)
    assert tasks(maxRecordsPerPartition="10")[0] >= 60
    rows = lab.read(topic).select("topic", "partition", "offset").collect()
    expected = [(topic, p, n) for p, end in lab.ends(topic).items() for n in range(end)]
    assert sorted(map(tuple, rows)) == sorted(expected)


def test_columns_that_are_not_asked_for_are_not_read(lab: Lab) -> None:
    topic = lab.topic(1)
    lab.fill(topic, 30)
    reader = lab.spark.read.format("oncelog").option("bootstrap", lab.bootstrap)
    reader = reader.option("subscribe", topic)
    only = reader.schema("offset bigint, value binary").load()
    assert only.columns == ["offset", "value"]
    assert [(row.offset, len(row.value) > 0) for row in only.orderBy("offset").collect()] == [
        (number, True) for number in range(30)
    ]
    assert reader.schema("partition int").load().count() == 30


def test_a_batch_waits_for_enough_records_or_for_the_delay(lab: Lab) -> None:
    source, sink = lab.topic(1), lab.topic()
    lab.fill(source, 5)
    limits = {"minOffsetsPerTrigger": "50", "maxTriggerDelay": "1h", "longPollMs": "50"}
    query = running(lab, lab.stream(source, **limits), sink)
    try:
        until(query, lambda: sum(lab.ends(sink).values()) == 5)
        lab.fill(source, 20, first=5)
        # Asked for again and again meanwhile.
        time.sleep(1)
        assert sum(lab.ends(sink).values()) == 5
        lab.fill(source, 40, first=25)
        until(query, lambda: sum(lab.ends(sink).values()) == 65)
    finally:
        query.stop()
    # AvailableNow ends with all that there is.
    rest = lab.topic()
    stream = lab.stream(source, **limits).select("key", "value")
    lab.copy(stream, lab.checkpoint(), topic=rest)
    assert sum(lab.ends(rest).values()) == 65


def test_progress_shows_how_far_the_query_is_behind(lab: Lab) -> None:
    source, sink, group = lab.topic(2), lab.topic(), lab.group()
    lab.fill(source, 100)
    stream = lab.stream(source, group=group, transactionalSink="true", maxOffsetsPerTrigger="40")
    query = lab.copy(stream.select("key", "value"), lab.checkpoint(), topic=sink, inputGroups=group)
    lags = []
    for progress in query.recentProgress:
        shown: Any = progress["sources"][0]["latestOffset"]
        document = json.loads(shown) if isinstance(shown, str) else shown
        assert sum(document[source].values()) == 100
        if progress["numInputRows"]:
            lag = document["~lag"]
            lags.append((lag["offsetsBehindLatest"], lag["groupOffsetsBehindLatest"]))
            assert lag["group"] == group
    assert lags == [(60, 100), (20, 60), (0, 20)]
