"""`python -m benchmarks.spark_run`: our Spark connector beside Spark's own Kafka connector.

Each side is a Spark session in a process of its own (`spark_side`), with its servers beside it, and
each workload runs in turns, so that both meet the same machine. Ours runs on the Spark of `make
install`; Spark's Kafka connector on the newest Spark whose jars can all be had, in a virtual
environment and a folder of jars that are made once, in a cache.

What is compared is not the same promise: Kafka's sink is at least once and nothing of it is synced,
ours is exactly once and synced.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.kafka_broker import NoKafka, kafka_brokers
from benchmarks.machine import cpu_seconds, use_free_memory
from benchmarks.sides import remove_deleted
from oncelog.protocol import Protocol
from oncelog_spark.jobs.local_cluster import local_cluster
from oncelogpb.v1 import partition_leader_pb2

KAFKA_SPARK: Final = "4.0.0"
POM: Final = Path(__file__).with_name("spark_kafka.xml")
SIDE: Final = Path(__file__).with_name("spark_side.py")
# Of Spark's Kafka connector; Spark brings the others that Maven would bring again.
JARS: Final = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
INSTALL_SECONDS_MAX: Final = 900
OURS: Final = "oncelog"
THEIRS: Final = "kafka"
SIZES: Final = {"100": 100, "1k": 1024}
ROWS: Final = {"100": 2_000_000, "1k": 400_000}
MICRO_ROWS: Final = 50_000
MICRO_BATCHES: Final = 15
# The first three are not counted.
MICRO_BATCHES_MIN: Final = 8
# Of new memory that a round may need.
ROUND_BYTES: Final = 3 << 30
# After a topic was made, or deleted: until all know of it, and its files are gone.
REST_S: Final = 1.5


class Side:
    """A Spark session that is asked over pipes."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if not os.environ.get("SPARK_SIDE_STDERR") else None,
            text=True,
            env=environment,
        )
        self.pid = self._process.pid

    def ask(self, **request: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            # What Spark and its workers print stands between the answers.
            if line.startswith("{"):
                answer: dict[str, float] = json.loads(line)
                return answer
        raise click.ClickException(f"a Spark session ended: {request}")

    def create(self, topic: str, partitions: int) -> None:
        """A topic of Kafka, by the client that Spark's connector brings."""
        self.ask(do="create", topic=topic, partitions=partitions)

    def delete(self, topic: str) -> None:
        self.ask(do="delete", topic=topic)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass
class Measured:
    """Of one workload and one side, by round."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    answers: list[dict[str, float]] = field(default_factory=list)


@dataclass
class Bench:
    """Both sides and their servers."""

    sides: dict[str, Side]
    create: dict[str, Callable[[str, int], None]]
    delete: dict[str, Callable[[str], None]]
    # Whose CPU a side's workload takes: the session and its servers.
    roots: dict[str, list[int]]
    measured: dict[tuple[str, str], Measured] = field(default_factory=dict)
    # By size of a record.
    rows: dict[str, int] = field(default_factory=dict)
    batches: int = MICRO_BATCHES
    scale: float = 1.0

    def run(self, workload: str, side: str, *, counts: bool, **request: Any) -> None:
        use_free_memory(int(ROUND_BYTES * self.scale))
        before = cpu_seconds(self.roots[side])
        answer = self.sides[side].ask(**request)
        used = cpu_seconds(self.roots[side]).since(before).ours
        if not counts:
            return
        kept = self.measured.setdefault((workload, side), Measured())
        kept.seconds.append(answer["seconds"])
        kept.cpu.append(used)
        kept.answers.append(answer)

    def make(self, side: str, topic: str, partitions: int) -> None:
        """A topic that is there for some time before anybody writes to it: Kafka's idempotent
        producer, 3.9, can begin a new partition twice, and is refused as out of order for ever."""
        self.create[side](topic, partitions)
        time.sleep(REST_S)

    def remove(self, side: str, topic: str) -> None:
        """What was written: what comes next finds blocks and memory that were in use a moment ago,
        and nothing of it that is still on its way to the disk."""
        self.delete[side](topic)
        time.sleep(REST_S)


@click.command()
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100))
@click.option("--only", multiple=True, help="What a workload's name begins with; repeatable.")
@click.option("--master", default="local[2]", show_default=True, help="local-cluster[2,1,1024]")
@click.option("--without-kafka", is_flag=True, help="Ours alone: nothing is downloaded.")
@click.option(
    "--scale", default=1.0, show_default=True, help="Of the rows that are written and read."
)
@click.option("--markdown", is_flag=True, help="As it stands in spark_results.md.")
def main(
    rounds: int,
    only: tuple[str, ...],
    master: str,
    without_kafka: bool,
    scale: float,
    markdown: bool,
) -> None:
    """Measure the Spark connector beside Spark's own Kafka connector."""
    wanted = [name for name in _names() if not only or name.startswith(only)]
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as folder, ExitStack() as stack:
        bench = stack.enter_context(_bench(Path(folder), master, with_kafka=not without_kafka))
        bench.scale = scale
        bench.rows = {size: int(rows * scale) for size, rows in ROWS.items()}
        bench.batches = max(int(MICRO_BATCHES * scale), MICRO_BATCHES_MIN)
        for number in range(rounds + 1):
            for name in wanted:
                # Who is first changes with every round.
                for side in sorted(bench.sides, reverse=bool(number % 2)):
                    _workload(bench, name, side, number)
                click.echo(f"round {number}: {name}", err=True)
    for line in _table(bench, wanted, markdown=markdown):
        click.echo(line)


def _names() -> list[str]:
    names = [
        f"{what}-{size}-p{count}"
        for size in SIZES
        for what in ("write", "read")
        for count in (1, 6)
    ]
    return [*names, "micro-100-p1", "micro-100-p6"]


def _workload(bench: Bench, name: str, side: str, number: int) -> None:
    """One round; round 0 warms up, and makes what is read later."""
    what, _, rest = name.partition("-")
    size, _, count = rest.rpartition("-p")
    partitions = int(count)
    if what == "micro":
        source, sink = f"micro-source-p{count}", f"micro-sink-p{count}-{number}"
        if number == 0:
            bench.make(side, source, partitions)
            rows = MICRO_ROWS * bench.batches
            bench.sides[side].ask(do="write", topic=source, rows=rows, size=100)
        bench.make(side, sink, partitions)
        request = {"do": "stream", "topic": source, "sink": sink, "rows": MICRO_ROWS}
        bench.run(name, side, counts=number > 0, **request)
        bench.remove(side, sink)
        return
    topic = f"written-{size}-p{count}-{number}"
    if what == "write":
        bench.make(side, topic, partitions)
        request = {"do": "write", "topic": topic, "rows": bench.rows[size], "size": SIZES[size]}
        bench.run(name, side, counts=number > 0, **request)
        bench.remove(side, topic)
        return
    source = f"read-{size}-p{count}"
    if number == 0:
        bench.make(side, source, partitions)
        bench.sides[side].ask(do="write", topic=source, rows=bench.rows[size], size=SIZES[size])
    bench.run(name, side, counts=number > 0, do="read", topic=source)


def _table(bench: Bench, wanted: Sequence[str], *, markdown: bool) -> Iterator[str]:
    header = ("workload", "unit", "ours", "kafka", "ours / kafka", "cpu s", "kafka cpu s")
    yield _row(header, markdown=markdown)
    if markdown:
        yield _row(["---"] * len(header), markdown=True)
    for name in wanted:
        ours, theirs = (bench.measured.get((name, side)) for side in (OURS, THEIRS))
        unit = "ms" if name.startswith("micro") else "MB/s" if "-1k" in name else "M rec/s"
        shown = [_figure(bench, name, each) for each in (ours, theirs)]
        ratio = f"{shown[0] / shown[1]:.2f}" if shown[0] and shown[1] else ""
        used = [f"{statistics.median(each.cpu):.2f}" if each else "" for each in (ours, theirs)]
        cells = (name, unit, *(f"{each:.2f}" if each else "" for each in shown), ratio, *used)
        yield _row(cells, markdown=markdown)
    for (name, side), kept in bench.measured.items():
        if name.startswith("micro") and not markdown:
            yield f"{name} {side}: {kept.answers[-1]}"


def _figure(bench: Bench, name: str, measured: Measured | None) -> float | None:
    if measured is None:
        return None
    seconds = statistics.median(measured.seconds)
    if name.startswith("micro"):
        return seconds * 1000
    size = name.split("-")[1]
    return bench.rows[size] * (SIZES[size] if size == "1k" else 1) / seconds / 1e6


def _row(cells: Sequence[str], *, markdown: bool) -> str:
    if markdown:
        return f"| {' | '.join(cells)} |"
    return "".join(f"{cell:>16}" for cell in cells)


# ---------------------------------------------------------------------------------- the two sides


@contextmanager
def _bench(folder: Path, master: str, *, with_kafka: bool) -> Iterator[Bench]:
    with ExitStack() as stack:
        bench = Bench({}, {}, {}, {})
        bootstrap = stack.enter_context(local_cluster(folder / "oncelog"))
        protocol = stack.enter_context(Protocol(bootstrap))
        bench.sides[OURS] = _side(stack, sys.executable, OURS, {"bootstrap": bootstrap}, master)
        bench.create[OURS] = lambda topic, count: _create(protocol, topic, count)
        bench.delete[OURS] = lambda topic: _delete(protocol, topic, folder / "oncelog")
        bench.roots[OURS] = [bench.sides[OURS].pid, *_children(bench.sides[OURS].pid)]
        if with_kafka:
            try:
                python, jars = _kafka_spark()
                brokers = stack.enter_context(kafka_brokers(folder / "kafka", 1))
            except NoKafka as error:
                raise click.ClickException(str(error)) from None
            server = {"kafka.bootstrap.servers": brokers}
            bench.sides[THEIRS] = _side(stack, str(python), THEIRS, server, master, jars)
            bench.create[THEIRS] = bench.sides[THEIRS].create
            bench.delete[THEIRS] = bench.sides[THEIRS].delete
            others = {bench.sides[OURS].pid, *bench.roots[OURS]}
            mine = [bench.sides[THEIRS].pid, *_children(bench.sides[THEIRS].pid)]
            bench.roots[THEIRS] = [pid for pid in mine if pid not in others]
        yield bench


def _children(other_than: int) -> list[int]:
    """Servers that this process has started so far, but for the Spark sessions."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in listed if int(pid) != other_than]


def _side(
    stack: ExitStack,
    python: str,
    system: str,
    server: dict[str, str],
    master: str,
    jars: Sequence[Path] = (),
) -> Side:
    environment = {**os.environ, "PYSPARK_PYTHON": python, "GRPC_ENABLE_FORK_SUPPORT": "false"}
    environment.pop("SPARK_HOME", None)
    names = ",".join(map(str, jars))
    command = [python, str(SIDE), system, json.dumps(server), master, names]
    side = Side(command, environment)
    stack.callback(side.close)
    return side


def _create(protocol: Protocol, topic: str, partitions: int) -> None:
    request = partition_leader_pb2.CreateTopicRequest(name=topic, partitions=partitions)
    protocol.led_topic(protocol.call("partition_leader.create_topic", request).topic)


def _delete(protocol: Protocol, topic: str, folder: Path) -> None:
    request = partition_leader_pb2.DeleteTopicRequest(name=topic)
    protocol.call("partition_leader.delete_topic", request)
    remove_deleted(folder)


def _kafka_spark() -> tuple[Path, list[Path]]:
    """A Python with the Spark of Spark's Kafka connector, and the connector's jars. Raises NoKafka
    where they cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oncelog"
    home = cache / f"spark-kafka-{KAFKA_SPARK}"
    if not home.exists():
        if shutil.which("mvn") is None:
            raise NoKafka(
                f"there is no Maven to download Spark's Kafka connector with, and no {home}"
            )
        partial = home.with_name(f"{home.name}.{os.getpid()}")
        try:
            _install(partial, home)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise NoKafka(f"Spark {KAFKA_SPARK} with Kafka cannot be had: {error}") from None
    jars = [jar for jar in sorted((home / "jars").iterdir()) if jar.name.startswith(JARS)]
    return home / "venv" / "bin" / "python", jars


def _install(partial: Path, home: Path) -> None:
    click.echo(f"installing Spark {KAFKA_SPARK} and its Kafka connector into {home}", err=True)
    copy = ("mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies")
    subprocess.run(
        (*copy, f"-DoutputDirectory={partial / 'jars'}"), check=True, timeout=INSTALL_SECONDS_MAX
    )
    partial.rename(home)
    # An environment cannot be moved: this one is made in its place.
    venv.create(home / "venv", with_pip=True)
    pip = (str(home / "venv" / "bin" / "pip"), "install", "--quiet", f"pyspark=={KAFKA_SPARK}")
    try:
        subprocess.run(pip, check=True, timeout=INSTALL_SECONDS_MAX)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        shutil.rmtree(home, ignore_errors=True)
        raise


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
