"""The job that is hit, in a process of its own: reads a topic, transforms, writes two topics, all
of it and the group's positions in one transaction per micro-batch.

Written as a user would, but for what the run needs: it takes commands on its standard input, a word
or two in a line, and says on its standard output what happens, a JSON object in a line.

    tell PHASE    says so when a batch gets there: `write` (tasks run) or `commit` (they are done)
    stop PHASE    the same, and the query is stopped there, at once, and started again
    end           the query is stopped, and the process ends

A query that fails is started again in the same session, as often as it takes; where the session is
lost, the process ends, and whoever started it starts another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SOURCE: Final = "orders"
TARGET: Final = "shipped"
AUDIT: Final = "audited"
# What one record becomes: one of TARGET, and each fifth one of AUDIT, too.
AUDITED_EACH: Final = 5
DONE: Final = b" done"
# Positions and sequence of the job; the same over checkpoints that are lost.
JOB: Final = "chaos-job"
OFFSETS_PER_BATCH: Final = 2_000
# A batch may not come for so long: then the phase is said to be now.
PHASE_S_MAX: Final = 20.0
LOOK_EVERY_S: Final = 0.003
REST_S: Final = 1.0
# Drivers live for a minute here: what a JVM and Spark do so as to be quick later is not worth it.
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK_TO_START: Final[dict[str, str]] = {
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Of what a query failed of: its end says where.
SHOWN: Final = 6_000


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one driver."""

    bootstrap: str
    checkpoint: str
    master: str
    folder: str


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def session(settings: Settings) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(settings.master).appName(JOB)
    for key, value in QUICK_TO_START.items():
        builder = builder.config(key, value)
    made = (
        builder.config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.executor.memory", "512m")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", settings.folder)
        .config("spark.sql.warehouse.dir", f"{settings.folder}/warehouse")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("ERROR")
    return made


def started(spark: SparkSession, settings: Settings) -> StreamingQuery:
    orders = (
        spark.readStream.format("oncelog")
        .option("bootstrap", settings.bootstrap)
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(OFFSETS_PER_BATCH))
        .option("group", JOB)
        .option("transactionalSink", JOB)
        .load()
    )
    number = "cast(cast(value as string) as bigint)"
    shipped = f"named_struct('topic', '{TARGET}', 'what', ' done')"
    audited = f"named_struct('topic', '{AUDIT}', 'what', ' done')"
    results = orders.selectExpr(
        "key",
        "value",
        f"explode(if({number} % {AUDITED_EACH} = 0, array({shipped}, {audited}), array({shipped})))"
        " as one",
    ).selectExpr("one.topic as topic", "key", "concat(cast(value as string), one.what) as value")
    return (
        results.writeStream.format("oncelog")
        .option("bootstrap", settings.bootstrap)
        .option("producer", JOB)
        .option("inputGroups", JOB)
        .option("checkpointLocation", settings.checkpoint)
        .start()
    )


def results_of(value: bytes) -> dict[str, bytes]:
    """The same transformation, without Spark: topic -> value."""
    made = {TARGET: value + DONE}
    if int(value) % AUDITED_EACH == 0:
        made[AUDIT] = value + DONE
    return made


class Job:
    """Keeps the query running, and does what it is told."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._spark = session(settings)
        self._query = started(self._spark, settings)
        self._told: queue.Queue[list[str]] = queue.Queue()
        say("started")
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self) -> None:
        while True:
            try:
                word, *rest = self._told.get(timeout=0.1)
            except queue.Empty:
                self._keep_running()
                continue
            if word == "end":
                self._query.stop()
                self._spark.stop()
                say("ended")
                return
            reached = self._reach(*rest)
            if word == "stop":
                self._query.stop()
                say("stopped", phase=rest[0], reached=reached)
                self._start_again()
            else:
                say("reached", phase=rest[0], reached=reached)

    def _listen(self) -> None:
        for line in sys.stdin:
            self._told.put(line.split())
        # Whoever started this is gone.
        self._told.put(["end"])

    def _keep_running(self) -> None:
        if self._query.isActive:
            return
        failure = self._query.exception()
        say("failed", error=str(failure)[-SHOWN:])
        time.sleep(REST_S)
        self._start_again()

    def _start_again(self) -> None:
        while True:
            try:
                self._query = started(self._spark, self._settings)
            except Exception as error:
                if "Connection refused" in str(error) or "Py4JNetwork" in type(error).__name__:
                    raise
                say("failed", error=f"{type(error).__name__}: {error}"[-SHOWN:])
                time.sleep(REST_S)
            else:
                say("started")
                return

    def _reach(self, phase: str) -> bool:
        """Waits until a batch is there; False where none came."""
        tracker = self._spark.sparkContext.statusTracker()
        give_up = time.monotonic() + PHASE_S_MAX

        def until(running: bool) -> bool:
            while bool(tracker.getActiveStageIds()) != running:
                if time.monotonic() >= give_up or not self._query.isActive:
                    return False
                time.sleep(LOOK_EVERY_S)
            return True

        return until(running=True) and (phase == "write" or until(running=False))


def main(arguments: list[str]) -> None:
    # Those that end together with the session take their exit code from what ended it.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    job = Job(Settings(*arguments))
    with contextlib.suppress(KeyboardInterrupt):
        job.run()


if __name__ == "__main__":
    arguments: list[Any] = sys.argv[1:]
    main(arguments)
