"""The three steps of the flights job: load the events, run the query, read back what came out.

Loading and reading back use the Python client and its low-level face, so that Spark's connector
does not check itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import oncelog
from oncelog.protocol import Protocol
from oncelog_spark.fetch import read_range
from oncelog_spark.jobs.flight_records import Event
from oncelog_spark.jobs.flight_transforms import (
    as_records,
    delay_deltas,
    enriched,
    parsed,
)
from oncelogpb.v1 import offset_manager_pb2, partition_leader_pb2
from oncelogpb.v1 import types_pb2 as pb

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 3
# Events of one loading transaction.
LOAD_RECORDS: Final = 20_000
POLL_SECONDS: Final = 0.2
# How often progress is shown; the end is noticed at once.
SHOW_SECONDS: Final = 1
BINARY: Final = pa.binary()
# The last commit is decided when the query ends; this long its records may take to appear.
VISIBLE_SECONDS_MAX: Final = 30

# Told how many records are done in all.
OnProgress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Names:
    """Of what one run uses in the cluster. A run has its own, so that runs can share a cluster."""

    flights: str
    enriched: str
    delays: str
    # Consumer group of the query, and name of its sink's producer.
    job: str

    @classmethod
    def unused(cls, taken: set[str]) -> Names:
        """flights, flights-enriched, carrier-delays; with a number where those exist."""
        number = 1
        while True:
            tail = "" if number == 1 else f".{number}"
            names = cls(
                f"flights{tail}",
                f"flights-enriched{tail}",
                f"carrier-delays{tail}",
                f"flights-job{tail}",
            )
            if not {names.flights, names.enriched, names.delays} & taken:
                return names
            number += 1


class QueryFailed(RuntimeError):
    """The streaming query ended with an error."""


def create_topics(protocol: Protocol) -> Names:
    """New topics for this run."""
    listed = protocol.call("partition_leader.list_topics", partition_leader_pb2.ListTopicsRequest())
    names = Names.unused({topic.name for topic in listed.topics})
    for name in (names.flights, names.enriched, names.delays):
        protocol.call(
            "partition_leader.create_topic",
            partition_leader_pb2.CreateTopicRequest(name=name, partitions=PARTITIONS),
        )
    return names


def load(bootstrap: str, names: Names, events: Iterable[Event], on_progress: OnProgress) -> int:
    """Produces the events, some in each transaction. Returns how many."""
    loaded = 0
    remaining = iter(events)
    with oncelog.connect(bootstrap) as log:
        producer = log.transactional_producer()
        while chunk := list(islice(remaining, LOAD_RECORDS)):
            keys, values = zip(*chunk, strict=True)
            table = pa.table({"key": pa.array(keys, BINARY), "value": pa.array(values, BINARY)})
            with producer.transaction() as transaction:
                transaction.send_arrow(names.flights, table)
            loaded += len(chunk)
            on_progress(loaded)
        producer.close()
    return loaded


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """A session on two cores of this machine, which writes below `folder` and listens on the
    loopback only."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.appName("oncelog-flights")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def run_query(
    spark: SparkSession,
    bootstrap: str,
    names: Names,
    airlines: Mapping[str, str],
    *,
    checkpoint: Path,
    batch_records: int,
    on_progress: OnProgress,
) -> int:
    """Reads what is in the topic of flights, in micro-batches of at most `batch_records`; the two
    outputs of each and its input positions commit in one transaction. Returns the number of
    batches. Raises QueryFailed."""
    carriers = spark.createDataFrame(sorted(airlines.items()), "carrier string, airline string")
    source = (
        spark.readStream.format("oncelog")
        .option("bootstrap", bootstrap)
        .option("subscribe", names.flights)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch_records)
        .option("group", names.job)
        .option("transactionalSink", names.job)
        .load()
    )

    def write(batch: DataFrame, _batch_id: int) -> None:
        # Both outputs come from one read of the input.
        flights = batch.persist()
        try:
            records = as_records(enriched(flights, carriers), names.enriched).unionByName(
                as_records(delay_deltas(flights), names.delays)
            )
            (
                records.write.format("oncelog")
                .mode("append")
                .option("bootstrap", bootstrap)
                .option("producer", names.job)
                .option("inputGroups", names.job)
                .save()
            )
        finally:
            flights.unpersist()

    query = (
        parsed(source)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        while not query.awaitTermination(SHOW_SECONDS):
            on_progress(_position(query.lastProgress))
    except Exception as error:
        raise QueryFailed(str(error)) from error
    finally:
        query.stop()
    return len(query.recentProgress)


def read_back(protocol: Protocol, topic: str) -> Iterator[bytes]:
    """All committed values of a topic."""
    described = protocol.topic(topic)
    for number, end in ends(protocol, topic).items():
        partition = pb.Partition(topic_id=described.topic_id, number=number)
        for chunk in read_range(protocol, partition, 0, end, fail_on_data_loss=True):
            yield from chunk.rows.column("value").to_pylist()


def ends(protocol: Protocol, topic: str) -> dict[int, int]:
    """The end of each partition's committed log."""
    described = protocol.topic(topic)
    queries = [
        partition_leader_pb2.OffsetQuery(
            partition=pb.Partition(topic_id=described.topic_id, number=partition.number),
            latest=True,
        )
        for partition in described.partitions
    ]
    request = partition_leader_pb2.ListOffsetsRequest(queries=queries)
    reply = protocol.call("partition_leader.list_offsets", request)
    return {listed.partition.number: listed.offset for listed in reply.offsets}


def positions(protocol: Protocol, names: Names) -> dict[int, int]:
    """Where the query's group stands; the call waits for what is pending."""
    described = protocol.topic(names.flights)
    request = offset_manager_pb2.FetchOffsetsRequest(
        group=names.job,
        partitions=[
            pb.Partition(topic_id=described.topic_id, number=partition.number)
            for partition in described.partitions
        ],
        stable=True,
    )
    reply = protocol.call("offset_manager.fetch_offsets", request)
    return {one.partition.number: one.offset for one in reply.offsets}


def wait_until_visible(protocol: Protocol, topic: str, count: int) -> None:
    """Returns when the topic holds so many records, or when that took too long: then the comparison
    says what is missing."""
    give_up = time.monotonic() + VISIBLE_SECONDS_MAX
    while sum(ends(protocol, topic).values()) < count and time.monotonic() < give_up:
        time.sleep(POLL_SECONDS)


def _position(progress: Any) -> int:
    """Records behind the query, from what Spark says about its last micro-batch."""
    if not progress or not progress["sources"]:
        return 0
    end = progress["sources"][0]["endOffset"]
    document = json.loads(end) if isinstance(end, str) else end
    return sum(
        int(offset)
        for topic, numbers in (document or {}).items()
        if not topic.startswith("~")
        for offset in numbers.values()
    )
