"""A job that is one function: records of some topics in, records of others out, exactly once.

The function takes a DataFrame with the source's columns, and gives one that the sink takes. Names
come from one name: the query's, which is its producer's, its group's and its checkpoint's.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oncelog_spark.jobs.java import provide_java
from oncelog_spark.schema import SchemaError, check_sink_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Function = Callable[["DataFrame"], "DataFrame"]
# How often a running query is looked at; its end is noticed at once.
LOOK_SECONDS: Final = 1


class JobRefused(ValueError):
    """What the job was given cannot run; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job, as it was asked for."""

    name: str
    # Comma between.
    topics: str
    # None: the function gives a column `topic`.
    to: str | None
    # Of source and sink: where the cluster is, and how it is secured.
    cluster: Mapping[str, str]
    function: Function
    starting: str = "earliest"
    # Batch jobs: where it ends.
    ending: str = "latest"
    max_offsets: int | None = None


@dataclass(slots=True)
class Summary:
    """What a job did."""

    seconds: float = 0.0
    batches: int = 0
    rows: int = 0
    # Of the input, that are not read yet; None where nobody knows.
    behind: int | None = None
    _last: int = field(default=-1, repr=False)

    def see(self, query: StreamingQuery) -> None:
        """What Spark remembers of the query's batches, each counted once."""
        for step in query.recentProgress:
            if step["batchId"] > self._last and step["numInputRows"]:
                self._last = step["batchId"]
                self.batches += 1
                self.rows += step["numInputRows"]
            self.behind = _behind(step)

    def line(self, name: str) -> str:
        """For people."""
        rate = self.rows / max(self.seconds, 1e-9)
        said = f"{name}: {self.rows} records in {self.batches} batches, {self.seconds:.1f} s"
        said += f" ({rate:.0f}/s)"
        return said if self.behind is None else f"{said}, {self.behind} behind"


def find_function(name: str) -> Function:
    """`module:function`, from where Python finds modules and from the current directory. Raises
    JobRefused."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise JobRefused(f"the transform is `module:function`, not {name!r}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise JobRefused(
            f"there is no module {error.name!r}: run this where it is, or set PYTHONPATH"
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        names = ", ".join(sorted(n for n in vars(module) if callable(getattr(module, n))))
        raise JobRefused(f"{module_name} has no function {attribute!r}; it has {names or 'none'}")
    made: Function = found
    return made


def stream_of(spark: SparkSession, job: Job) -> DataFrame:
    """What comes out of the function, of a stream; checked."""
    reader = spark.readStream.format("oncelog").options(**job.cluster)
    reader = reader.option("subscribe", job.topics).option("startingOffsets", job.starting)
    reader = reader.option("group", job.name).option("transactionalSink", job.name)
    if job.max_offsets is not None:
        reader = reader.option("maxOffsetsPerTrigger", job.max_offsets)
    return transformed(job, reader.load())


def batch_of(spark: SparkSession, job: Job) -> DataFrame:
    """The same of a batch, which has an end."""
    reader = spark.read.format("oncelog").options(**job.cluster).option("subscribe", job.topics)
    reader = reader.option("startingOffsets", job.starting).option("endingOffsets", job.ending)
    return transformed(job, reader.load())


def transformed(job: Job, source: DataFrame) -> DataFrame:
    """Raises JobRefused where the sink could not take it: before anything runs."""
    made: Any = job.function(source)
    if not hasattr(made, "schema") or not hasattr(made, "select"):
        raise JobRefused(f"the transform gave {type(made).__name__}, and not a DataFrame")
    try:
        check_sink_schema(made.schema, topic_given=job.to is not None)
    except SchemaError as error:
        hint = "; a DataFrame for the sink is what the transform has to give"
        raise JobRefused(f"{error}{hint}") from error
    frame: DataFrame = made
    return frame


def run_stream(frame: DataFrame, job: Job, checkpoint: str, *, once: bool) -> Summary:
    """Runs until it is stopped; `once`: to what is there now. Raises what the query fails of."""
    writer = frame.writeStream.format("oncelog").options(**job.cluster).queryName(job.name)
    writer = writer.option("producer", job.name).option("inputGroups", job.name)
    if job.to is not None:
        writer = writer.option("topic", job.to)
    if once:
        writer = writer.trigger(availableNow=True)
    summary, began = Summary(), time.monotonic()
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        while not query.awaitTermination(LOOK_SECONDS):
            summary.see(query)
    finally:
        query.stop()
        summary.see(query)
        summary.seconds = time.monotonic() - began
    return summary


def run_batch(frame: DataFrame, job: Job, txn_id: str) -> Summary:
    """A backfill: one transaction, which a second run of the same `txn_id` finds committed."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen, began = Observation(), time.monotonic()
    watched = frame.observe(seen, F.count(F.lit(1)).alias("rows"))
    writer = watched.write.format("oncelog").mode("append").options(**job.cluster)
    if job.to is not None:
        writer = writer.option("topic", job.to)
    # A producer of its own for each: one remembers its last transaction alone.
    writer.option("producer", job.name).option("sinkName", txn_id).option("txnId", txn_id).save()
    return Summary(time.monotonic() - began, batches=1, rows=seen.get["rows"])


@contextmanager
def session(name: str, master: str | None, java_folder: Path) -> Iterator[SparkSession]:
    """The session of spark-submit, where there is one; else one of `master`, on this machine."""
    provide_java(os.environ, java_folder)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
            builder = builder.config("spark.driver.host", "127.0.0.1")
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    try:
        yield made
    finally:
        made.stop()


def _behind(step: Any) -> int | None:
    """Offsets between where a batch ended and the newest ones that its sources knew of."""
    behind = 0
    for source in step["sources"]:
        latest, end = _positions(source["latestOffset"]), _positions(source["endOffset"])
        if latest is None or end is None:
            return None
        behind += sum(max(0, at - end.get(place, at)) for place, at in latest.items())
    return behind


def _positions(told: Any) -> dict[tuple[str, str], int] | None:
    document = json.loads(told) if isinstance(told, str) else told
    if not isinstance(document, dict):
        return None
    return {
        (topic, number): int(offset)
        for topic, numbers in document.items()
        if not topic.startswith("~")
        for number, offset in numbers.items()
    }
