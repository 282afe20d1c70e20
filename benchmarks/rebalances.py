"""`python -m benchmarks.rebalances [--kafka]`: for how long a partition gets no further when a
member of its group is killed, leaves or joins.

Three processes copy nine partitions into nine, in transactions, record by record as they come. Then
one of them is killed; a new one joins; one closes its consumer; a new one joins; and so on. With
`--kafka` as many do the same beside them with confluent-kafka (`group.protocol=consumer`), and the
events take turns, so that what else the machine does hits both.

A partition is given a hundred records a second, so it stands still for as long as nobody commits
any of it: from the last commit before the event to the first one after it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click

import oncelog
from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.rebalance_member import KAFKA, OURS
from benchmarks.standstill import Arrival, Event, Standstill, standstills
from oncelog_spark.jobs.local_cluster import local_cluster

PARTITIONS: Final = 9
MEMBERS: Final = 3
# Of all partitions together, a second; sent so often.
RECORDS_PER_S: Final = 900
FEED_EVERY_S: Final = 0.05
# Kafka's least settings of the new protocol are 45 s and 5 s, unless a broker says otherwise.
HEARTBEATS_PER_SESSION: Final = 3
# Bounds that only end what would hang.
READY_WITHIN_S: Final = 60.0
LOOK_EVERY_S: Final = 0.1
GROUP: Final = "rebalanced"
KILLED: Final = "member killed"
LEAVES: Final = "member leaves"
JOINS: Final = "member joins"

Send = Callable[[bytes, int], object]


class Side:
    """One group, its members and its feeder, over one cluster."""

    def __init__(self, name: str, bootstrap: str, folder: Path, session_ms: int) -> None:
        self.name = name
        self.events: list[Event] = []
        self._command = [
            *(sys.executable, "-m", "benchmarks.rebalance_member"),
            *(name, bootstrap, GROUP, str(session_ms)),
        ]
        self._folder = folder
        # In the order in which they were started.
        self._members: list[subprocess.Popen[bytes]] = []
        self._said: list[Path] = []

    def start(self) -> None:
        self._said.append(self._folder / f"{self.name}-{len(self._said)}.txt")
        with self._said[-1].open("wb") as out:
            self._members.append(subprocess.Popen(self._command, stdout=out))

    def join(self) -> None:
        self._happens(JOINS)
        self.start()

    def kill(self) -> None:
        """The one that is there for longest."""
        self._happens(KILLED)
        self._members[0].kill()
        self._members.pop(0).wait()

    def leave(self) -> None:
        self._happens(LEAVES)
        self._members[0].terminate()
        self._members.pop(0).wait(READY_WITHIN_S)

    def end(self) -> None:
        for member in self._members:
            member.kill()
            member.wait()

    def _happens(self, kind: str) -> None:
        for member in self._members:
            assert member.poll() is None, f"a member of {self.name} ended by itself"
        self.events.append(Event(time.monotonic(), kind))

    def arrivals(self) -> dict[int, list[Arrival]]:
        found: dict[int, list[Arrival]] = defaultdict(list)
        for said in self._said:
            for line in said.read_text().splitlines():
                at, *numbers = line.split()
                for number in numbers:
                    found[int(number)].append(Arrival(float(at), said.stem))
        return {number: sorted(of_it) for number, of_it in sorted(found.items())}

    def is_ready(self) -> bool:
        """Each member and each partition has got somewhere."""
        arrivals = self.arrivals()
        working = {arrival.by for of_it in arrivals.values() for arrival in of_it}
        return len(arrivals) == PARTITIONS and len(working) == len(self._members)


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 100))
@click.option("--session-ms", default=6_000, show_default=True, type=click.IntRange(1_000, 60_000))
@click.option("--kafka", is_flag=True, help="The same beside it with Kafka.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(rounds: int, session_ms: int, kafka: bool, as_json: bool) -> None:
    """Measure how long partitions stand still at rebalances. See benchmarks/README.md."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncelog-bench-")))
        sides = [_ours(stack, folder, session_ms)]
        if kafka:
            sides.append(_kafkas(stack, folder, session_ms))
        _run(sides, rounds, session_ms / 1000)
        found = {side.name: standstills(side.arrivals(), side.events) for side in sides}
    if as_json:
        print(json.dumps(_figures(found), indent=2))
    else:
        print(_table(found))


def _run(sides: Sequence[Side], rounds: int, session_s: float) -> None:
    with ExitStack() as stack:
        for side in sides:
            stack.callback(side.end)
            for _ in range(MEMBERS):
                side.start()
        _wait(lambda: all(side.is_ready() for side in sides), "all members work")
        heartbeat_s = session_s / HEARTBEATS_PER_SESSION
        calm_s = 2 * heartbeat_s + 2
        time.sleep(calm_s)
        for turn in range(rounds):
            for what, then_s in (
                (Side.kill, session_s + calm_s),
                (Side.join, calm_s),
                (Side.leave, calm_s),
                (Side.join, calm_s),
            ):
                for side in sides:
                    what(side)
                    time.sleep(then_s)
            print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)


def _ours(stack: ExitStack, folder: Path, session_ms: int) -> Side:
    bootstrap = stack.enter_context(local_cluster(folder / "oncelog"))
    log = stack.enter_context(oncelog.connect(bootstrap))
    for end in ("in", "out"):
        log.admin.create_topic(f"{GROUP}-{end}", partitions=PARTITIONS)
    producer = stack.enter_context(log.producer())
    stack.enter_context(
        _fed(lambda value, place: producer.send(f"{GROUP}-in", value, partition=place))
    )
    return Side(OURS, bootstrap, folder, session_ms)


def _kafkas(stack: ExitStack, folder: Path, session_ms: int) -> Side:
    from confluent_kafka import Producer

    from benchmarks.kafka import create_topic
    from benchmarks.kafka_broker import NoKafka, kafka_brokers

    heartbeat_ms = session_ms // HEARTBEATS_PER_SESSION
    settings = [
        f"group.consumer.{least}{what}.ms={value}"
        for what, value in (("session.timeout", session_ms), ("heartbeat.interval", heartbeat_ms))
        for least in ("min.", "")
    ]
    try:
        bootstrap = stack.enter_context(kafka_brokers(folder / "kafka", 1, settings=settings))
    except NoKafka as error:
        raise click.ClickException(str(error)) from None
    for end in ("in", "out"):
        create_topic(bootstrap, f"{GROUP}-{end}", PARTITIONS, replicas=1)
    producer = Producer({"bootstrap.servers": bootstrap})

    def send(value: bytes, place: int) -> None:
        producer.produce(f"{GROUP}-in", value, partition=place)
        producer.poll(0)

    stack.enter_context(_fed(send))
    return Side(KAFKA, bootstrap, folder, session_ms)


@contextmanager
def _fed(send: Send) -> Iterator[None]:
    """Records come to all partitions alike, until the end."""
    ends = threading.Event()

    def feed() -> None:
        begun, sent = time.monotonic(), 0
        while not ends.wait(FEED_EVERY_S):
            due = int((time.monotonic() - begun) * RECORDS_PER_S)
            for number in range(sent, due):
                send(b"%d" % number, number % PARTITIONS)
            sent = max(sent, due)

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        ends.set()
        feeder.join()


def _wait(predicate: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + READY_WITHIN_S
    while not predicate():
        if time.monotonic() > end:
            raise click.ClickException(f"not so within {READY_WITHIN_S:g} s: {what}")
        time.sleep(LOOK_EVERY_S)


# ------------------------------------------------------------------------------------------ shown


def _figures(found: dict[str, list[Standstill]]) -> dict[str, Any]:
    """By side, event, and whether the partition moved: seconds."""
    figures: dict[str, Any] = {}
    for side, of_side in found.items():
        by_kind: dict[str, list[float]] = defaultdict(list)
        for one in of_side:
            moved = "moved" if one.moved else "stayed"
            by_kind[f"{one.event.kind}, {moved}"].append(one.seconds)
        figures[side] = {
            kind: {
                "times": len(seconds),
                "median_s": round(statistics.median(seconds), 3),
                "worst_s": round(max(seconds), 3),
            }
            for kind, seconds in sorted(by_kind.items())
        }
    return figures


def _table(found: dict[str, list[Standstill]]) -> str:
    figures = _figures(found)
    ours, theirs = figures[OURS], figures.get(KAFKA, {})
    lines = [
        "| what happens, and the partition | times | median s | worst s "
        "| Kafka: times | median s | worst s | median to Kafka |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind in sorted({*ours, *theirs}):
        cells = [*_cells(ours.get(kind)), *_cells(theirs.get(kind))]
        ratio = "–"
        if kind in ours and kind in theirs and theirs[kind]["median_s"]:
            ratio = f"{ours[kind]['median_s'] / theirs[kind]['median_s']:.2f}"
        lines.append(f"| {kind} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def _cells(figure: dict[str, Any] | None) -> tuple[str, str, str]:
    if figure is None:
        return "0", "–", "–"
    return str(figure["times"]), f"{figure['median_s']:.2f}", f"{figure['worst_s']:.2f}"


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
