"""One cluster and one Spark session for all tests; a topic of its own for each.

ONCELOG_BOOTSTRAP names a running cluster to test against; without it one is started.
"""

from __future__ import annotations

import builtins
import itertools
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from oncelog.protocol import Protocol
from oncelog_spark.fetch import RangeOf, RangeReader
from oncelog_spark.jobs.java import JavaMissing, provide_java
from oncelog_spark.jobs.local_cluster import local_cluster
from oncelog_spark.offsets import OffsetRange, TopicPartition
from oncelogpb.v1 import coordinator_pb2, offset_manager_pb2, partition_leader_pb2
from oncelogpb.v1 import types_pb2 as pb

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Of every Spark that a test starts, in a process of its own as well.
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))

# An arrival takes far less; this is when a test gives up.
AVAILABLE_SECONDS_MAX = 300
VISIBLE_SECONDS_MAX = 20


# Spark gives a Python process 10 s to import PySpark and to connect back, which no setting changes.
# Where a machine is busy that is not enough; a user starts such a query again, too.
AGAIN = pytest.mark.flaky(reruns=2, only_rerun="Python worker failed to connect back")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(AGAIN)


@pytest.fixture(scope="session", autouse=True)
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The installed Spark without the archive of PySpark's sources, which each of its Python
    processes compiles anew (spark/README.md); `tests/wheels` runs with it."""
    installed, home = Path(pyspark.__file__).parent, tmp_path_factory.mktemp("home")
    (home / "python" / "lib").mkdir(parents=True)
    for folder in (installed, installed / "python", installed / "python" / "lib"):
        for path in folder.iterdir():
            there = home / path.relative_to(installed)
            if path.name != "pyspark.zip" and not there.exists():
                there.symlink_to(path)
    os.environ["SPARK_HOME"] = str(home)


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = os.environ.get("ONCELOG_BOOTSTRAP")
    if running:
        yield running
        return
    with local_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    try:
        provide_java(os.environ, folder / "java")
    except JavaMissing as error:
        pytest.fail(str(error))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        # Two cores; a task may fail three times.
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("FATAL")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def protocol(bootstrap: str) -> Iterator[Protocol]:
    with Protocol(bootstrap) as opened:
        yield opened


@dataclass
class Lab:
    """What a test does beside Spark."""

    spark: SparkSession
    protocol: Protocol
    bootstrap: str
    folder: Path
    _numbers: Iterator[int]

    def topic(self, partitions: int = 3) -> str:
        """A new topic."""
        name = f"t{next(self._numbers)}-{uuid.uuid4().hex[:8]}"
        self.protocol.call(
            "partition_leader.create_topic",
            partition_leader_pb2.CreateTopicRequest(name=name, partitions=partitions),
        )
        return name

    def group(self) -> str:
        return f"g{next(self._numbers)}-{uuid.uuid4().hex[:8]}"

    def checkpoint(self) -> Path:
        return self.folder / f"checkpoint-{next(self._numbers)}"

    def fill(self, topic: str, count: int, *, first: int = 0) -> None:
        """Records with the values first, first + 1, ... as text, keyed by themselves."""
        numbers = self.spark.range(first, first + count, numPartitions=2)
        text = numbers.selectExpr("cast(id as string) as key", "cast(id as string) as value")
        self.save(text, topic=topic)

    def save(self, frame: DataFrame, **options: str) -> None:
        writer = frame.write.format("oncelog").mode("append").option("bootstrap", self.bootstrap)
        writer.options(**options).save()

    def read(self, topic: str, **options: str) -> DataFrame:
        reader = self.spark.read.format("oncelog").option("bootstrap", self.bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def stream(self, topic: str, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("oncelog").option("bootstrap", self.bootstrap)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        return reader.options(**options).load()

    def copy(
        self,
        source: DataFrame,
        checkpoint: Path,
        *,
        each: Callable[[DataFrame, int], None] | None = None,
        format: str = "oncelog",
        **options: str,
    ) -> StreamingQuery:
        """Runs what is available to the sink (or to `each`), and gives the ended query. Raises what
        the query failed of."""
        writer = source.writeStream.option("checkpointLocation", str(checkpoint))
        if each is not None:
            writer = writer.foreachBatch(each)
        else:
            writer = writer.format(format).option("bootstrap", self.bootstrap)
        query = writer.options(**options).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(AVAILABLE_SECONDS_MAX), "the query does not end"
        finally:
            query.stop()
        return query

    def values(self, topic: str) -> list[str]:
        """All committed values, read without Spark, in no order."""
        return [value.decode() for value in self.bytes(topic)]

    def bytes(self, topic: str) -> list[builtins.bytes]:
        """The same, of values that are no text."""
        described = self.protocol.topic(topic)
        found: list[builtins.bytes] = []
        for number, end in self.ends(topic).items():
            part = RangeOf(
                pb.Partition(topic_id=described.topic_id, number=number),
                OffsetRange(TopicPartition(topic, number), 0, end),
            )
            for chunk in RangeReader(
                self.protocol, [part], fail_on_data_loss=True, timeout_ms=60_000
            ):
                found += chunk.rows.column("value").to_pylist()
        return found

    def ends(self, topic: str) -> dict[int, int]:
        """End of the committed log of each partition."""
        described = self.protocol.topic(topic)
        request = partition_leader_pb2.ListOffsetsRequest(
            queries=[
                partition_leader_pb2.OffsetQuery(
                    partition=pb.Partition(topic_id=described.topic_id, number=p.number),
                    latest=True,
                )
                for p in described.partitions
            ]
        )
        reply = self.protocol.call("partition_leader.list_offsets", request)
        return {listed.partition.number: listed.offset for listed in reply.offsets}

    def positions(self, group: str, topic: str) -> dict[int, int | None]:
        """Where the group stands, once nothing is pending."""
        described = self.protocol.topic(topic)
        request = offset_manager_pb2.FetchOffsetsRequest(
            group=group,
            partitions=[
                pb.Partition(topic_id=described.topic_id, number=p.number)
                for p in described.partitions
            ],
            stable=True,
        )
        reply = self.protocol.call("offset_manager.fetch_offsets", request)
        return {
            one.partition.number: one.offset if one.HasField("offset") else None
            for one in reply.offsets
        }

    def open_transactions(self, name: str) -> int:
        """How many a producer of that name has; `name` "": how many unnamed ones have."""
        request = coordinator_pb2.ListTransactionsRequest(
            states=[pb.TRANSACTION_STATE_ONGOING], name=name
        )
        reply = self.protocol.call("coordinator.list_transactions", request)
        return sum(1 for one in reply.transactions if one.name == name)

    def wait_for_values(self, topic: str, wanted: list[str]) -> None:
        """Until exactly these are there."""
        give_up = time.monotonic() + VISIBLE_SECONDS_MAX
        while (found := sorted(self.values(topic))) != wanted:
            assert time.monotonic() < give_up, f"{len(found)} values instead of {len(wanted)}"
            time.sleep(0.05)

    def wait_for_count(self, topic: str, wanted: int) -> None:
        """Until at least so many records are visible."""
        give_up = time.monotonic() + AVAILABLE_SECONDS_MAX
        while sum(self.ends(topic).values()) < wanted:
            assert time.monotonic() < give_up, f"{wanted} records never became visible"
            time.sleep(0.05)


@pytest.fixture
def lab(spark: SparkSession, protocol: Protocol, bootstrap: str, tmp_path: Path) -> Lab:
    return Lab(spark, protocol, bootstrap, tmp_path, itertools.count())


def numbers(count: int, *, first: int = 0) -> list[str]:
    """What `fill` writes, sorted."""
    return sorted(str(number) for number in range(first, first + count))


def offset_document(topic: str, offsets: dict[int, int]) -> str:
    """As startingOffsets and endingOffsets want it."""
    document: dict[str, Any] = {topic: {str(number): at for number, at in offsets.items()}}
    return json.dumps(document)
