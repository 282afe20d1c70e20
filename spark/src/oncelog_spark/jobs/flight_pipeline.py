"""The three steps of the flights job: load the events, run the query, read back what came out.

Loading and reading back use the Python client, so that Spark's connector does not check itself.
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
from oncelog_spark.jobs.flight_records import Event
from oncelog_spark.jobs.flight_transforms import (
    as_records,
    delay_deltas,
    enriched,
    parsed,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 3
# Events of one loading transaction.
LOAD_RECORDS: Final = 20_000
# How often progress is shown; the end is noticed at once.
SHOW_SECONDS: Final = 1
BINARY: Final = pa.binary()
# Of the JVM: errors alone, so that the progress display stays whole.
LOG4J: Final = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""
# A year of flights is read in a few seconds.
READ_SECONDS_MAX: Final = 300

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


def create_topics(log: oncelog.Log) -> Names:
    """New topics for this run."""
    names = Names.unused({topic.name for topic in log.admin.topics()})
    for name in (names.flights, names.enriched, names.delays):
        log.admin.create_topic(name, partitions=PARTITIONS)
    return names


def load(log: oncelog.Log, names: Names, events: Iterable[Event], on_progress: OnProgress) -> int:
    """Produces the events, some in each transaction. Returns how many."""
    loaded = 0
    remaining = iter(events)
    with log.transactional_producer(f"{names.flights}-loader") as producer:
        while chunk := list(islice(remaining, LOAD_RECORDS)):
            keys, values = zip(*chunk, strict=True)
            table = pa.table({"key": pa.array(keys, BINARY), "value": pa.array(values, BINARY)})
            with producer.transaction() as transaction:
                transaction.send_arrow(names.flights, table)
            loaded += len(chunk)
            on_progress(loaded)
    return loaded


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """A session on two cores of this machine, which writes below `folder` and listens on the
    loopback only."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    folder.mkdir(parents=True, exist_ok=True)
    log4j = folder / "log4j2.properties"
    log4j.write_text(LOG4J)
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.appName("oncelog-flights")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={log4j.as_uri()}")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
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

    try:
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
        finally:
            query.stop()
    except Exception as error:
        raise QueryFailed(str(error)) from error
    return len(query.recentProgress)


def read_back(log: oncelog.Log, topic: str) -> Iterator[bytes]:
    """All committed values of a topic."""
    with log.consumer([topic]) as consumer:
        ends = {place: consumer.end_offset(*place) for place in consumer.assignment}
        give_up = time.monotonic() + READ_SECONDS_MAX
        while any(consumer.position(*place) < end for place, end in ends.items()):
            if time.monotonic() > give_up:
                raise TimeoutError(f"{topic} cannot be read within {READ_SECONDS_MAX} s")
            batch = consumer.poll()
            if batch is not None:
                yield from batch.table.column("value").to_pylist()


def stands_at_end(log: oncelog.Log, names: Names) -> bool:
    """The query's group has committed all of its input, and nothing is pending."""
    with log.consumer([names.flights]) as consumer:
        ends = {place: consumer.end_offset(*place) for place in consumer.assignment}
    stands = {
        oncelog.TopicPartition(one.topic, one.partition): one.offset
        for one in log.admin.group_offsets(names.job)
        if one.pending_tx_id == 0
    }
    # Where there was nothing to read, nothing need be committed.
    return all((stands.get(place) or 0) == end for place, end in ends.items())


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
