"""A job on a cluster of two hosts, in a process of its own: executors are processes, which can be
killed, and of a task that is slow Spark runs another attempt on the other host.

    python -m tests.spark.two_hosts_job BOOTSTRAP FOLDER SPECULATED ON-TWO CRASHED ON-TWO

Master and workers live in the driver's JVM, as those of `local-cluster` do; but each worker has an
address of its own, for Spark speculates on another host only. Runs the two copies one after the
other; the second one again where it fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.spark import held_sink
from tests.spark.chaos.job import QUICK_TO_START
from tests.spark.too_busy import STARTS_MAX, is_too_busy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOSTS: Final = ("127.0.0.2", "127.0.0.3")
SETTINGS: Final = {
    **QUICK_TO_START,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    # A task is slow once half of them are done.
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
}


def session(folder: Path) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf().setAll(
        [*SETTINGS.items(), ("spark.local.dir", str(folder)), ("spark.app.name", "two hosts")]
    )
    gateway: Any = launch_gateway(conf)  # type: ignore[no-untyped-call]
    jvm = gateway.jvm
    java_conf = jvm.org.apache.spark.SparkConf()
    started = jvm.org.apache.spark.deploy.master.Master.startRpcEnvAndEndpoint(
        "127.0.0.1", 0, 0, java_conf
    )
    master = f"spark://127.0.0.1:{started._1().address().port()}"
    masters = gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = master
    nothing: Any = jvm.scala.Option.empty()
    for number, host in enumerate(HOSTS):
        jvm.org.apache.spark.deploy.worker.Worker.startRpcEnvAndEndpoint(
            *(host, 0, 0, 1, 512, masters, str(folder / f"worker-{number}")),
            *(jvm.scala.Option.apply(number), java_conf, nothing),
        )
    SparkContext(gateway=gateway, conf=conf.setMaster(master))
    made = SparkSession.builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def copy(spark: SparkSession, bootstrap: str, source: str, job: str, folder: Path) -> None:
    """All that is there, to topic `job`. Raises what the query failed of."""
    stream = (
        spark.readStream.format("oncelog")
        .option("bootstrap", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("minPartitions", "4")
        .option("group", job)
        .option("transactionalSink", job)
        .load()
    )
    query = (
        stream.select("key", "value")
        .writeStream.format(held_sink.FORMAT)
        .option("bootstrap", bootstrap)
        .option("topic", job)
        .option("producer", job)
        .option("inputGroups", job)
        .option("checkpointLocation", str(folder / f"checkpoint-{job}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(bootstrap: str, place: str, *copies: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = Path(place)
    spark = session(folder)
    spark.dataSource.register(held_sink.held_data_source(folder))
    speculated, on_two, crashed, again = copies
    _again_and_again(lambda: copy(spark, bootstrap, speculated, on_two, folder), only=is_too_busy)
    # And another one waits, for its executor to be killed.
    (folder / held_sink.WAITING).unlink()
    (folder / held_sink.WAIT_IN_WRITE).touch()
    (folder / on_two).touch()
    _again_and_again(lambda: copy(spark, bootstrap, crashed, again, folder), only=lambda _: True)


def _again_and_again(work: Callable[[], None], *, only: Callable[[Exception], bool]) -> None:
    """Until it succeeds; raises what it failed of where that is no reason to try again."""
    for _ in range(STARTS_MAX):
        try:
            work()
        except Exception as error:
            print(f"a run failed: {error}", flush=True)
            if not only(error):
                raise
        else:
            return
    raise SystemExit("it failed each time")


if __name__ == "__main__":
    main(*sys.argv[1:])
