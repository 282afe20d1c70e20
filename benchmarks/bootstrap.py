"""`python -m benchmarks.bootstrap [--gb 2] [--rounds 3]`: what live traffic loses while an empty
replica is built beside it, and whether that goes on after a kill of either side.

Nine real processes on this machine (`oncelog up --nodes 3`) and a settled topic of one partition,
with replicas on two of the nodes and so many GB in it, most of which no journal has any more. One
producer writes to that very partition all the time, as quickly as it is acknowledged. Then, by
turns:

    alone ── WINDOW_S ──► a third replica is added, from nothing ──► it is in sync ──► taken away
      └─ MB/s              └─ MB/s, until then

and at last once more, while first the process that receives is killed (kill -9), then the one that
leads: `up` starts both again, and no block is fetched twice but for what was not synced.

The share that live traffic loses is that of one round: of its MB/s beside a bootstrap and in the
windows before and after it. All of it shares this machine's cores and its disk, with etcd: where
each node has its own, only the leader's is shared.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pyarrow as pa

import oncelog
from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.machine import process_cpu_seconds
from oncelog_spark.jobs.local_cluster import local_cluster

TOPIC: Final = "live"
NAMES: Final = ("partition_leader", "partition_leader-2", "partition_leader-3")
VALUE_BYTES: Final = 1_000
# Of the transactions that fill the topic, and of what live traffic sends at once.
FILL_ROWS: Final = 1_000
LIVE_ROWS: Final = 100
WINDOW_S: Final = 15.0
SMALL_WINDOW_S: Final = 2.0
PATIENCE_S: Final = 900.0
LOOK_S: Final = 0.2
SMALL_GB: Final = 0.05
SEGMENT_BYTES: Final = 32 << 20
GB: Final = 10**9
# When the two sides are killed: so much has come.
RECEIVER_KILLED_AT: Final = 0.3
LEADER_KILLED_AT: Final = 0.6
# What is not synced is fetched again.
FETCHED_TWICE_MAX: Final = 64 << 20


class Live:
    """A producer that writes as quickly as it is acknowledged, in a thread."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        # When each send was acknowledged, and how long that took, seconds.
        self.acknowledged: list[tuple[float, float]] = []
        self.error: BaseException | None = None

    def _write(self) -> None:
        table = pa.table({"value": [b"l" * VALUE_BYTES] * LIVE_ROWS})
        try:
            with oncelog.connect(self._bootstrap) as log, log.producer() as producer:
                while not self._over.is_set():
                    begin = time.monotonic()
                    producer.send_arrow(TOPIC, table)
                    producer.flush()
                    now = time.monotonic()
                    self.acknowledged.append((now, now - begin))
        except BaseException as error:
            self.error = error

    @property
    def records(self) -> int:
        return len(self.acknowledged) * LIVE_ROWS

    def between(self, begin: float, end: float) -> Window:
        took = [took for at, took in self.acknowledged if begin <= at < end]
        mb_s = len(took) * LIVE_ROWS * VALUE_BYTES / 1e6 / (end - begin)
        p99 = statistics.quantiles(took, n=100)[98] if len(took) > 1 else 0.0
        return Window(mb_s, statistics.median(took) * 1000, p99 * 1000)

    def __enter__(self) -> Live:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        if self.error is not None and error[0] is None:
            raise self.error


class Window(NamedTuple):
    """What live traffic got in a while."""

    mb_s: float
    p50_ms: float
    p99_ms: float


class Built(NamedTuple):
    """A replica that was made of nothing."""

    seconds: float
    mb: float


class Bench:
    """A cluster with the topic in it, and the places of its replicas."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self.nodes = [(folder / name / "node_id").read_text() for name in NAMES]
        with oncelog.connect(bootstrap) as log:
            log.admin.create_topic(
                TOPIC, 1, replication_factor=3, configs={"materialization": "copy"}
            )
            self.topic_id = log.admin.describe_topic(TOPIC).topic_id

    def ask(self, *words: str) -> Any:
        command = [sys.executable, "-m", "oncelog_server.cli", *words, "--json"]
        done = subprocess.run(
            [*command, f"--bootstrap={self.bootstrap}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise click.ClickException(f"{' '.join(words)}: {done.stderr or done.stdout}")
        return json.loads(done.stdout)

    def move(self, *which: int) -> None:
        """Its replicas shall be on these nodes; does not wait."""
        self.ask(
            "topic",
            "reassign",
            TOPIC,
            f"--to={','.join(self.nodes[n] for n in which)}",
            "--wait-s=0",
        )

    def partition(self) -> Any:
        (topic,) = self.ask("topic", "describe", TOPIC)
        return topic["partitions"][0]

    def is_on(self, *which: int) -> bool:
        found = self.partition()
        wanted = [self.nodes[n] for n in which]
        return found["replicas"] == wanted and len(found["isr"]) == len(wanted)

    def received_bytes(self, node: int) -> int:
        """What its data log has, as files show it."""
        files = (self.folder / NAMES[node]).glob(f"partitions/{self.topic_id}-0/data/*.data")
        return sum(path.stat().st_size for path in files)

    def forget_orphans(self) -> None:
        """What was taken away is put aside: this benchmark has no use for it."""
        for name in NAMES:
            shutil.rmtree(self.folder / name / "orphans", ignore_errors=True)

    def pid(self, node: int) -> int:
        found = f"--data={self.folder / NAMES[node]}\0".encode()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and found in (entry / "cmdline").read_bytes():
                    return int(entry.name)
        raise click.ClickException(f"{NAMES[node]} does not run")

    def leader(self) -> int:
        return self.nodes.index(self.partition()["leader_node"])


def until(holds: Callable[[], bool], what: str) -> float:
    """Seconds."""
    begin = time.monotonic()
    while not holds():
        if time.monotonic() - begin > PATIENCE_S:
            raise click.ClickException(f"after {PATIENCE_S:.0f} s: {what}")
        time.sleep(LOOK_S)
    return time.monotonic() - begin


def fill(bench: Bench, size: int) -> int:
    """Returns when so many bytes are settled everywhere but for the last segments. Records."""
    table = pa.table({"value": [b"v" * VALUE_BYTES] * FILL_ROWS})
    count = max(1, size // (FILL_ROWS * VALUE_BYTES))
    with oncelog.connect(bench.bootstrap) as log, log.transactional_producer() as producer:
        for number in range(count):
            with producer.transaction(wait="visible") as tx:
                tx.send_arrow(TOPIC, table)
            if number % 200 == 0:
                click.echo(f"{number} of {count} transactions written", err=True)
    most = max(0, size - 4 * SEGMENT_BYTES)
    until(lambda: bench.received_bytes(0) >= most, "not settled")
    return count * FILL_ROWS


def build(bench: Bench) -> Built:
    """A third replica, of nothing."""
    bench.move(0, 1, 2)
    seconds = until(lambda: bench.is_on(0, 1, 2), "the new replica is not in sync")
    return Built(seconds, bench.received_bytes(2) / 1e6)


def take_away(bench: Bench) -> None:
    bench.move(0, 1)
    until(lambda: bench.is_on(0, 1), "the third replica is still there")
    until(lambda: not bench.received_bytes(2), "its files are still there")
    bench.forget_orphans()


@contextmanager
def cpu_of(bench: Bench) -> Iterator[dict[int, float]]:
    """CPU seconds of the leader's process and of the one that receives, once the block is over."""
    found: dict[int, float] = {}
    before = {node: process_cpu_seconds(bench.pid(node)) for node in (0, 2)}
    yield found
    for node, was in before.items():
        found[node] = process_cpu_seconds(bench.pid(node)) - was


def measure(bench: Bench, live: Live, rounds: int, window_s: float) -> list[list[str]]:
    """A row of each round."""
    rows = []
    before = window(live, window_s)
    for number in range(rounds):
        begin = time.monotonic()
        with cpu_of(bench) as cpu:
            built = build(bench)
        beside = live.between(begin, time.monotonic())
        take_away(bench)
        after = window(live, window_s)
        alone_mb_s = (before.mb_s + after.mb_s) / 2
        rows.append(
            [
                str(number + 1),
                f"{built.mb:,.0f}",
                f"{built.seconds:.0f}",
                f"{built.mb / built.seconds:.0f}",
                f"{alone_mb_s:.1f}",
                f"{beside.mb_s:.1f}",
                f"{1 - beside.mb_s / alone_mb_s:.2f}",
                f"{(before.p50_ms + after.p50_ms) / 2:.1f}",
                f"{beside.p50_ms:.1f}",
                f"{(before.p99_ms + after.p99_ms) / 2:.0f}",
                f"{beside.p99_ms:.0f}",
                f"{cpu[0]:.1f}",
                f"{cpu[2]:.1f}",
            ]
        )
        click.echo(f"round: {rows[-1]}", err=True)
        before = after
    return rows


COLUMNS: Final = (
    "round",
    "built MB",
    "s",
    "MB/s",
    "live alone MB/s",
    "beside it",
    "share lost",
    "p50 alone ms",
    "beside it",
    "p99 alone ms",
    "beside it",
    "leader CPU s",
    "receiver CPU s",
)


def window(live: Live, seconds: float) -> Window:
    begin = time.monotonic()
    time.sleep(seconds)
    return live.between(begin, time.monotonic())


def kill_both(bench: Bench) -> list[str]:
    """What happened, in sentences. Raises AssertionError where anything is begun anew."""
    said = []
    whole = bench.received_bytes(0)
    leader = bench.leader()
    bench.move(0, 1, 2)
    for node, share, side in (
        (2, RECEIVER_KILLED_AT, "the receiver"),
        (leader, LEADER_KILLED_AT, "the leader"),
    ):
        had, least = _killed(bench, node, at_bytes=int(share * whole))
        assert had - least <= FETCHED_TWICE_MAX, f"begun anew: {least:,} bytes left of {had:,}"
        said.append(
            f"{side} was killed when {had / 1e6:,.0f} MB had come; {least / 1e6:,.0f} MB of them "
            "stayed, and it went on behind them"
        )
    until(lambda: bench.is_on(0, 1, 2), "the new replica is not in sync")
    said.append(f"in sync, with {bench.received_bytes(2) / 1e6:,.0f} MB")
    return said


def _killed(bench: Bench, node: int, *, at_bytes: int) -> tuple[int, int]:
    """Kills its process once so much has come. What had come then, and the least that was there
    until more came."""
    until(lambda: bench.received_bytes(2) >= at_bytes, f"less than {at_bytes:,} bytes have come")
    os.kill(bench.pid(node), signal.SIGKILL)
    least = had = bench.received_bytes(2)
    give_up = time.monotonic() + PATIENCE_S
    while (has := bench.received_bytes(2)) <= had and time.monotonic() < give_up:
        least = min(least, has)
        time.sleep(LOOK_S / 10)
    return had, least


def count_all(bench: Bench, wanted: int) -> int:
    """How many records there are, as the leader says. Raises AssertionError."""
    with oncelog.connect(bench.bootstrap) as log:
        (end,) = log.admin.offsets(TOPIC)
    assert end >= wanted, f"I4: {end} records, and {wanted} were acknowledged"
    return end


@click.command()
@click.option("--gb", default=2.0, show_default=True, type=click.FloatRange(0.01, 50))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 20))
@click.option("--small", is_flag=True, help=f"{SMALL_GB} GB, one round, short windows.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where the data goes.")
def main(gb: float, rounds: int, small: bool, folder: Path | None) -> None:
    """A replica is built beside live traffic. See benchmarks/README.md."""
    if small:
        gb, rounds = SMALL_GB, 1
    options = ["--nodes", "3", "--set", f"node.segment_bytes={SEGMENT_BYTES}"]
    with tempfile.TemporaryDirectory(dir=folder, prefix="oncelog-bootstrap-") as name:
        cluster = Path(name).resolve()
        with local_cluster(cluster, options=options) as bootstrap:
            bench = Bench(cluster, bootstrap)
            bench.move(0, 1)
            until(lambda: bench.is_on(0, 1), "the replicas are not on the first two nodes")
            until(lambda: bench.leader() == 0, "another node leads")
            bench.forget_orphans()
            filled = fill(bench, int(gb * GB))
            with Live(bootstrap) as live:
                rows = measure(bench, live, rounds, SMALL_WINDOW_S if small else WINDOW_S)
                said = kill_both(bench)
            end = count_all(bench, filled + live.records)
    print(f"| {' | '.join(COLUMNS)} |\n| {' | '.join('---' for _ in COLUMNS)} |")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print("", *said, sep="\n")
    print(f"{filled + live.records:,} records were acknowledged, {end:,} are there")


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
