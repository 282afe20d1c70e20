"""Batch jobs: what is written is read, once, with all of its columns."""

from __future__ import annotations

import datetime as dt
import zlib

import pytest
from pyspark.sql import functions as F

from oncelogpb.v1 import coordinator_pb2, partition_leader_pb2
from oncelogpb.v1 import types_pb2 as pb
from tests.spark.conftest import Lab, numbers, offset_document

pytestmark = pytest.mark.spark

# A condition that holds when two seconds have passed.
A_WHILE_LATER = "reflect('java.lang.Thread', 'sleep', 2000L) = 'null'"


def test_all_columns_come_back(lab: Lab) -> None:
    topic, other = lab.topic(), lab.topic(1)
    when = dt.datetime(2013, 1, 1, 10, 0, 0, 123, tzinfo=dt.UTC)
    frame = lab.spark.createDataFrame(
        [
            (b"v1", "k1", topic, 2, when, [("h", b"1"), ("h", None)]),
            (b"v2", "k2", topic, None, when, None),
            (None, None, other, None, None, []),
        ],
        "value binary, key string, topic string, partition int, timestamp timestamp, "
        "headers array<struct<key:string,value:binary>>",
    )
    lab.save(frame)
    read = lab.read(f"{topic},{other}", includeHeaders="true")
    assert read.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    rows = {row.value: row for row in read.collect()}
    assert len(rows) == 3
    one, two, none = rows[b"v1"], rows[b"v2"], rows[None]
    assert (one.key, one.partition, one.offset) == (b"k1", 2, 0)
    assert [tuple(header) for header in one.headers] == [("h", b"1"), ("h", None)]
    assert one.timestamp.astimezone(dt.UTC) == when
    assert (two.partition, two.headers) == (zlib.crc32(b"k2") % 3, None)
    assert (none.topic, none.key, none.offset) == (other, None, 0)
    assert none.timestamp is not None


def test_a_range_is_read_in_as_many_tasks_as_asked_for(lab: Lab) -> None:
    topic = lab.topic(2)
    lab.fill(topic, 1000)
    ends = lab.ends(topic)
    start, end = {0: 10, 1: 0}, {0: ends[0], 1: ends[1] - 5}
    part = lab.read(
        topic,
        startingOffsets=offset_document(topic, start),
        endingOffsets=offset_document(topic, end),
        minPartitions="6",
    )
    assert part.rdd.getNumPartitions() >= 6
    found = {
        row.partition: (row.low, row.high, row.rows)
        for row in part.groupBy("partition")
        .agg(
            F.min("offset").alias("low"),
            F.max("offset").alias("high"),
            F.count_distinct("offset").alias("rows"),
        )
        .collect()
    }
    assert found == {
        number: (start[number], end[number] - 1, end[number] - start[number]) for number in end
    }


def test_a_part_of_the_columns_can_be_chosen(lab: Lab) -> None:
    topic = lab.topic(1)
    lab.fill(topic, 10)
    reader = lab.spark.read.format("oncelog").schema("offset bigint, value binary")
    frame = reader.option("bootstrap", lab.bootstrap).option("subscribe", topic).load()
    assert [tuple(row) for row in frame.orderBy("offset").collect()][9][0] == 9
    assert frame.columns == ["offset", "value"]


def test_an_empty_topic_and_an_empty_frame_are_no_errors(lab: Lab) -> None:
    topic = lab.topic()
    assert lab.read(topic).count() == 0
    lab.save(lab.spark.range(0).selectExpr("cast(id as string) as value"), topic=topic)
    assert lab.read(topic).count() == 0


def test_i34_a_failed_attempt_leaves_nothing_behind(lab: Lab) -> None:
    topic = lab.topic()

    def broken_at_first(number: int) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        # The rows before it are on their way to the log: far more than a writer collects.
        if context is not None and context.attemptNumber() == 0 and number == 7_999:
            raise RuntimeError("the first attempt fails at its last row")
        return f"{number:01000d}"

    fragile = F.udf(broken_at_first, "string", useArrow=False)
    lab.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 500)
    try:
        frame = lab.spark.range(0, 8_000, numPartitions=1).select(fragile("id").alias("value"))
        lab.save(frame, topic=topic)
    finally:
        lab.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert sorted(map(int, lab.values(topic))) == list(range(8_000))


@pytest.mark.parametrize(
    "options",
    [{}, {"producer": "nightly"}, {"txnId": "load-1"}, {"producer": "hourly", "txnId": "load-2"}],
    ids=["unnamed", "producer", "txnId", "both"],
)
@pytest.mark.parametrize("broken", ["id % 1000 = 999", "id = 1999"], ids=["every task", "one task"])
def test_a_job_that_fails_shows_nothing_and_leaves_nothing_open(
    lab: Lab, options: dict[str, str], broken: str
) -> None:
    """At the last row of a task: its transaction is open by then. Where every task fails, there is
    nobody who could tell the driver of it. The other has written by then: one that begins after
    the end of its job would leave its transaction to its timeout."""
    topic = lab.topic()
    lab.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    try:
        frame = lab.spark.range(0, 2000, numPartitions=2).selectExpr(
            f"if({broken} and {A_WHILE_LATER}, raise_error('no'), cast(id as string)) as value"
        )
        with pytest.raises(Exception, match="no"):
            lab.save(frame, topic=topic, **options)
    finally:
        lab.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert lab.values(topic) == []
    assert lab.open_transactions(options.get("producer") or options.get("txnId") or "") == 0


def test_a_job_without_a_name_leaves_no_producer_that_stays(lab: Lab) -> None:
    """Unnamed producers expire; named ones never do, for they remember their last commit."""
    topic = lab.topic()
    writer = lab.spark.range(10).selectExpr("cast(id as string) as value")
    lab.save(writer, topic=topic)
    request = partition_leader_pb2.FetchRequest(
        isolation=partition_leader_pb2.ISOLATION_RAW,
        partitions=[
            partition_leader_pb2.FetchPartition(
                partition=pb.Partition(topic_id=lab.protocol.topic(topic).topic_id, number=number)
            )
            for number in range(3)
        ],
    )
    fetched = lab.protocol.call("partition_leader.fetch", request)
    tx_ids = {batch.tx_id for part in fetched.partitions for batch in part.batches} - {0}
    [tx_id] = tx_ids
    asked = coordinator_pb2.GetTransactionRequest(tx_id=tx_id)
    described = lab.protocol.call("coordinator.get_transaction", asked).transaction
    assert described.name == ""
    assert described.group != ""


def test_a_job_with_a_txn_id_is_done_once(lab: Lab) -> None:
    topic = lab.topic()
    frame = lab.spark.range(0, 50, numPartitions=3).selectExpr("cast(id as string) as value")
    for _ in range(2):
        lab.save(frame, topic=topic, txnId=f"load-{topic}")
    assert sorted(lab.values(topic)) == numbers(50)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["id"], "no column `id`"),
        (["id as value"], "must be binary or string"),
        (["cast(id as string) as key"], "needs a column `value`"),
        (["cast(id as string) as value", "1L as offset"], "drop column `offset`"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(lab: Lab, columns: list[str], says: str) -> None:
    with pytest.raises(Exception, match=says):
        lab.save(lab.spark.range(1).selectExpr(*columns), topic="any")


def test_wrong_modes_and_options_are_refused(lab: Lab) -> None:
    frame = lab.spark.range(1).selectExpr("cast(id as string) as value")
    writer = frame.write.format("oncelog").option("bootstrap", lab.bootstrap).option("topic", "any")
    with pytest.raises(Exception, match="only appended to"):
        writer.mode("overwrite").save()
    with pytest.raises(Exception, match="did you mean `startingOffsets`"):
        lab.read("any", startingOffset="earliest").count()
    with pytest.raises(Exception, match="UNKNOWN_TOPIC"):
        lab.save(frame, topic="there-is-no-such-topic")
