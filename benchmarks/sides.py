"""What is measured beside each other: a cluster of ours, and Kafka in one or more settings. Each
side makes its topics, runs its twin of a workload, and knows the root of its processes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

import oncelog
from benchmarks import ours
from benchmarks.inputs import Inputs
from benchmarks.machine import use_free_memory
from benchmarks.measure import Meter, Result, Shape, Task, Used, credited
from benchmarks.observer import Look
from benchmarks.workloads import Workload
from oncelog_spark.jobs.local_cluster import RUNNING_FILE, local_cluster

OURS: Final = "oncelog"
KAFKA: Final = "kafka"
# With our durability: nothing is acknowledged that is not synced.
SYNCED: Final = "kafka synced"
SYNC_EACH: Final = "log.flush.interval.messages=1"
# The same with three nodes and three copies.
THREE: Final = "3 nodes"
THREE_BROKERS: Final = "3 brokers"
# Of new memory that a round may need: for pages of what it writes, and of what it is read from.
NEW_BYTES_PER_S: Final = 768 << 20


@dataclass(frozen=True, slots=True)
class Measured:
    """One round."""

    result: Result
    used: Used


@dataclass(frozen=True, slots=True)
class Side:
    """Started, and ready for workloads."""

    name: str
    # Of its processes; all their descendants belong to it.
    root_pids: Sequence[int]
    replicas: int
    run: Callable[[Workload, Task], Result]
    has: Callable[[Workload], bool]
    create: Callable[[str, int], None]
    delete: Callable[[str], None]

    def measure(
        self, workload: Workload, topic: str, seconds: float, look: Callable[[], Look]
    ) -> Measured:
        """One round of it, over a fresh topic."""
        meter = Meter(seconds, look, os.cpu_count() or 1, self.name)
        self.create(topic, workload.shape.partitions)
        use_free_memory(int(seconds * NEW_BYTES_PER_S))
        try:
            result = self.run(workload, Task(topic, workload.shape, meter))
        finally:
            self.delete(topic)
        assert meter.used is not None, "the workload entered its meter"
        return Measured(result, credited(meter.used, result.workers))


def pid_over(folder: Path) -> int:
    """Of the `oncelog up` that runs over that folder."""
    return int(json.loads((folder / RUNNING_FILE).read_bytes())["pid"])


def remove_deleted(folder: Path) -> None:
    """What topics left that were deleted some time ago, in the data directories below `folder`. A
    broker removes such files itself, and what is written next finds blocks and memory that were in
    use a moment ago; a server of ours leaves that to operators (docs/operating.md, "Deleted
    topics"), and each round would be written where nobody wrote before. That can take several times
    as long (docs/performance.md, "New files")."""
    for parent, names, _ in os.walk(folder):
        if "partitions" in names:
            # Replicas of others move out of there meanwhile.
            names.remove("partitions")
        if "orphans" in names:
            names.remove("orphans")
            for replica in (Path(parent) / "orphans").iterdir():
                shutil.rmtree(replica, ignore_errors=True)


def start_ours(
    stack: ExitStack, folder: Path, *, name: str, options: Sequence[str] = (), replicas: int = 1
) -> Side:
    bootstrap = stack.enter_context(local_cluster(folder, options=options))
    log = stack.enter_context(oncelog.connect(bootstrap))

    def create(topic: str, partitions: int) -> None:
        log.admin.create_topic(topic, partitions=partitions, replication_factor=replicas)

    def fill(topic: str, value: bytes, records: int) -> None:
        ours.fill(log, topic, value, records)

    def delete(topic: str) -> None:
        log.admin.delete_topic(topic)
        remove_deleted(folder)

    cluster = ours.Cluster(log, bootstrap, Inputs(create, fill))
    return Side(
        name=name,
        root_pids=[pid_over(folder)],
        replicas=replicas,
        run=lambda workload, task: workload.ours(cluster, task),
        has=lambda workload: workload.possible(),
        create=create,
        delete=delete,
    )


def start_kafka(
    stack: ExitStack, folder: Path, *, name: str, settings: Sequence[str] = (), replicas: int = 1
) -> Side:
    from benchmarks import kafka
    from benchmarks.kafka_broker import NoKafka, running_brokers

    try:
        brokers = stack.enter_context(running_brokers(folder, replicas, settings=settings))
    except NoKafka as error:
        raise click.ClickException(str(error)) from None
    bootstrap = brokers.bootstrap

    def create(topic: str, partitions: int) -> None:
        kafka.create_topic(bootstrap, topic, partitions, replicas=replicas)

    def fill(topic: str, value: bytes, records: int) -> None:
        kafka.fill(bootstrap, topic, value, records)

    broker = kafka.Broker(bootstrap, Inputs(create, fill))

    def run(workload: Workload, task: Task) -> Result:
        twin: Any = getattr(kafka, workload.kafka)
        done: Result = twin(broker, task)
        return done

    return Side(
        name=name,
        root_pids=list(brokers.pids.values()),
        replicas=replicas,
        run=run,
        has=lambda workload: bool(workload.kafka),
        create=create,
        delete=lambda topic: kafka.delete_topic(bootstrap, topic),
    )


def shape_words(shape: Shape) -> str:
    """What is not as usual about it, for whoever lists workloads."""
    words = [f"{shape.value_bytes:,} B", f"{shape.partitions} partitions"]
    for said, value, usual in (
        ("{} keys", shape.keys, 0),
        ("{:,} records a transaction", shape.records, 0),
        ("{} ms a transaction", shape.every_ms, 0),
        ("{} producers", shape.producers, 1),
        ("{} processes", shape.processes, 1),
        ("{} in flight", shape.in_flight, 1),
    ):
        if value != usual:
            words.append(said.format(value))
    words += [word for word in ("flushed", "beside_open", "arrow") if getattr(shape, word)]
    return ", ".join(words).replace("_", " ").replace("1 partitions", "1 partition")
