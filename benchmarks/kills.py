"""`python -m benchmarks.kills [--kafka] [--nodes 3]`: kill -9 of a producer, a partition leader, a
coordinator: how long until all go on.

Two processes commit a record to each of six partitions, over and over; a reader follows. After a
kill all go on when the reader has, of each partition, a record that was sent after it. What was
killed is started again at once: a service by `oncelog up`, a broker and a producer by this program.
So a figure holds what a process takes to start, and with one node nobody else could take over.
Kafka's coordinator and leader are one process.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import click

import oncelog
from benchmarks.crowd import KAFKA, OURS
from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.kill_writer import SILENT
from benchmarks.observer import below, processes_now, role_of
from benchmarks.sides import pid_over
from benchmarks.tables import Row, markdown
from oncelog_spark.jobs.local_cluster import local_cluster

KILLS: Final[Mapping[str, str]] = {
    "kill-producer": "kill -9 of a process with three producers",
    "kill-leader": "kill -9 of a partition leader",
    "kill-coordinator": "kill -9 of a coordinator",
}
ROLES: Final = {"kill-leader": "partition_leader", "kill-coordinator": "coordinator"}
PARTITIONS: Final = 6
WRITERS: Final = 2
ROUNDS: Final = 3
TOPIC: Final = "killed-beside"
# Traffic before a kill, and after all go on.
CALM_S: Final = 2.0
PATIENCE_S: Final = 90.0
LOOK_EVERY_S: Final = 0.02
POLL_S: Final = 0.2
COLUMNS: Final = ("killed", "side", "kills", "median s", "worst s")


class Reader:
    """What a reader of committed records has seen: of each partition the newest time of sending."""

    def __init__(self, read: Callable[[], Sequence[tuple[int, bytes]]]) -> None:
        self.newest: dict[int, float] = {}
        self._read = read
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def _follow(self) -> None:
        while not self._over.is_set():
            for partition, value in self._read():
                self.newest[partition] = max(self.newest.get(partition, 0.0), float(value))

    def wait_until_all_go_on(self, since: float) -> float:
        """Seconds from then until each partition gave a record that was sent later."""
        while not all(self.newest.get(each, 0.0) > since for each in range(PARTITIONS)):
            if time.monotonic() - since > PATIENCE_S:
                raise TimeoutError(
                    f"after {PATIENCE_S:.0f} s these partitions stand still: "
                    f"{[each for each in range(PARTITIONS) if self.newest.get(each, 0) <= since]}"
                )
            time.sleep(LOOK_EVERY_S)
        return time.monotonic() - since

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)


class Writers:
    """The processes that write, each to its share of the partitions."""

    def __init__(self, side: str, bootstrap: str) -> None:
        self._command = (sys.executable, "-m", "benchmarks.kill_writer", side, bootstrap, TOPIC)
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Writers:
        self._running = [self._start(number) for number in range(WRITERS)]
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._running:
            process.kill()
            process.communicate()

    def kill_one(self, turn: int) -> None:
        """And start it again, as whatever runs it would."""
        number = turn % WRITERS
        self._running[number].kill()
        self._running[number].communicate()
        self._running[number] = self._start(number)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        share = PARTITIONS // WRITERS
        return subprocess.Popen(
            [*self._command, str(number * share), str(share)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[1],
            start_new_session=True,
        )


def kill_table(folder: Path, kinds: Sequence[str], *, nodes: int = 1, kafka: bool = False) -> str:
    """Markdown: of each kind, for each side."""
    found: list[Row] = []
    with _ours(folder / "oncelog", nodes) as (writers, reader, kill_role):
        for kind in kinds:
            kill = writers.kill_one if kind == "kill-producer" else kill_role(ROLES[kind])
            found.append(_row(kind, OURS, _killed(kill, reader)))
    if kafka:
        with _kafka(folder / "kafka", nodes) as (writers, reader, kill_broker):
            for kind in kinds:
                kill = writers.kill_one if kind == "kill-producer" else kill_broker
                found.append(_row(kind, KAFKA, _killed(kill, reader)))
    return markdown(COLUMNS, found)


def _killed(kill: Callable[[int], None], reader: Reader) -> list[float]:
    took = []
    for turn in range(ROUNDS):
        time.sleep(CALM_S)
        reader.wait_until_all_go_on(time.monotonic())
        since = time.monotonic()
        kill(turn)
        took.append(reader.wait_until_all_go_on(since))
    return took


def _row(kind: str, side: str, took: Sequence[float]) -> Row:
    median, worst = statistics.median(took), max(took)
    return (KILLS[kind], side, str(len(took)), f"{median:.2f}", f"{worst:.2f}")


# -------------------------------------------------------------------------------------- the sides


@contextmanager
def _ours(
    folder: Path, nodes: int
) -> Iterator[tuple[Writers, Reader, Callable[[str], Callable[[int], None]]]]:
    with ExitStack() as stack:
        bootstrap = stack.enter_context(local_cluster(folder, options=("--nodes", str(nodes))))
        log = stack.enter_context(oncelog.connect(bootstrap))
        log.admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=min(nodes, 3))
        consumer = stack.enter_context(log.consumer([TOPIC]))

        def read() -> list[tuple[int, bytes]]:
            with suppress(oncelog.OncelogError):
                batch = consumer.poll(POLL_S)
                if batch is not None:
                    return [(each.partition, each.value or b"0") for each in batch.records()]
            return []

        reader = stack.enter_context(Reader(read))
        writers = stack.enter_context(Writers(OURS, bootstrap))
        reader.wait_until_all_go_on(time.monotonic())
        root = pid_over(folder)

        def kill_role(role: str) -> Callable[[int], None]:
            def kill(turn: int) -> None:
                pids = sorted(pid for pid in below(root, processes_now()) if role_of(pid) == role)
                os.kill(pids[turn % len(pids)], signal.SIGKILL)

            return kill

        yield writers, reader, kill_role


@contextmanager
def _kafka(folder: Path, nodes: int) -> Iterator[tuple[Writers, Reader, Callable[[int], None]]]:
    from confluent_kafka import Consumer, TopicPartition

    from benchmarks.kafka import create_topic
    from benchmarks.kafka_broker import running_brokers

    with ExitStack() as stack:
        brokers = stack.enter_context(running_brokers(folder, nodes))
        create_topic(brokers.bootstrap, TOPIC, PARTITIONS, replicas=min(nodes, 3))
        settings = {"bootstrap.servers": brokers.bootstrap, "group.id": "reader", **SILENT}
        consumer: Any = Consumer(settings)
        stack.callback(consumer.close)
        consumer.assign([TopicPartition(TOPIC, each, 0) for each in range(PARTITIONS)])

        def read() -> list[tuple[int, bytes]]:
            records = consumer.consume(1_000, POLL_S)
            return [(each.partition(), each.value()) for each in records if each.error() is None]

        reader = stack.enter_context(Reader(read))
        writers = stack.enter_context(Writers(KAFKA, brokers.bootstrap))
        reader.wait_until_all_go_on(time.monotonic())

        def kill(turn: int) -> None:
            broker = brokers.brokers[turn % nodes]
            broker.kill()
            broker.start()

        yield writers, reader, kill


@click.command()
@click.option("--kafka", is_flag=True, help="Kafka, too.")
@click.option("--nodes", default=1, show_default=True, type=click.IntRange(1, 5))
@click.option("--only", multiple=True, type=click.Choice(list(KILLS)), help="Repeatable.")
def main(kafka: bool, nodes: int, only: tuple[str, ...]) -> None:
    """Measure how long it takes until all go on after a kill -9. See benchmarks/README.md."""
    with tempfile.TemporaryDirectory(prefix="oncelog-kills-") as folder:
        print(kill_table(Path(folder), list(only) or list(KILLS), nodes=nodes, kafka=kafka))


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
