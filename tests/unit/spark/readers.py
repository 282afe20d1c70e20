"""Readers against a scripted cluster (`leaders`), for the tests of the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from oncelog_spark import batch_transaction as transaction
from oncelog_spark.offsets import FROM, TOPIC_IDS, OffsetRange, TopicPartition
from oncelog_spark.options import source_options
from oncelog_spark.source import OncelogStreamReader, TaskRanges
from tests.unit.spark.leaders import TOPIC_ID

SCHEMA = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])
BASE = {"bootstrap": "x:1", "subscribe": "t", "longPollMs": "0"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = {"group": "g", "transactionalSink": "job"}


RUN = "00000000-0000-0000-0000-00000000000a"
PROPERTIES = {
    transaction.BATCH_ID_PROPERTY: "3",
    transaction.QUERY_ID_PROPERTY: "the-query",
    transaction.RUN_ID_PROPERTY: RUN,
}


class TaskOf:
    """A task of a micro-batch, with what Spark tells it."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = properties

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


def stream(**options: str) -> OncelogStreamReader:
    return OncelogStreamReader(source_options({**BASE, **options}, streaming=True), SCHEMA)


def at(zero: int, one: int, topic_id: bytes = TOPIC_ID) -> dict[str, Any]:
    """A vector as Spark's checkpoint has it."""
    return {"t": {"0": zero, "1": one}, TOPIC_IDS: {"t": topic_id.hex()}}


def begins_at(zero: int, one: int) -> dict[str, Any]:
    """A vector as a query begins with it."""
    return first_batch(at(zero, one), at(zero, one))


def first_batch(start: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
    """`end` as that of a query's first batch, which begins at `start`."""
    return {**end, FROM: {name: at for name, at in start.items() if name != TOPIC_IDS}}


def planned(reader: OncelogStreamReader, start: Any, end: Any) -> list[TaskRanges]:
    found = reader.partitions(start, end)
    assert all(isinstance(part, TaskRanges) for part in found)
    return [part for part in found if isinstance(part, TaskRanges)]


def read_of(parts: Iterable[InputPartition]) -> list[OffsetRange]:
    """What all tasks read, in order."""
    return sorted(one for part in parts if isinstance(part, TaskRanges) for one in part.ranges)


class Clock:
    """Of the reader: nobody waits for it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
