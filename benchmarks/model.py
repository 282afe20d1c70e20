"""`python -m benchmarks.model`: checks the model of docs/performance.md on this machine, and prints
the tables that stand there.

    work     one process: what a core of each role gives, by the CPU that an operation takes there
    leaders  1, 2, 4 partition leaders: the CPU of an operation stays, and is shared out
    wires    0, 0.5, 2 ms each way before every process: latency grows by its trips, and by no more

CPU is what is compared: on a machine that others use, rates say how much of it was left. Of
latencies it is the least: nobody is quicker than the wire, and who waited for a processor was not
the quickest.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click

import oncelog
from benchmarks import ours
from benchmarks.apart import apart
from benchmarks.inputs import Inputs
from benchmarks.measure import Meter, Task, credited
from benchmarks.observer import Observer
from benchmarks.sides import OURS, Measured
from benchmarks.summary import CPU, P50, Figures, figures
from benchmarks.tables import Row, markdown, shown
from benchmarks.workloads import WORKLOADS

ROLES: Final = ("client", "coordinator", "partition_leader", "offset_manager")
# Kinds of work, and what one operation of them is.
WORK: Final[Mapping[str, str]] = {
    "plain-100": "a plain record of 100 B",
    "keys-100": "the same, with a key",
    "plain-1k": "a plain record of 1 KiB",
    "arrow-100": "a record of 100 B from an Arrow table",
    "read-100": "a record of 100 B read as Arrow",
    "read-100-objects": "the same, as an object",
    "read-1k": "a record of 1 KiB read as Arrow",
    "one-record": "a transaction of one record",
    "flushed": "the same, flushed before its commit",
    "producers-64-in-1": "a transaction of 4 partitions, 64 producers at once",
    "pipeline-750": "a record of a pipeline with 750 a transaction",
    "end-to-end": "a plain record, sent and read alone",
}
LEADERS: Final = (1, 2, 4)
# What is bound by leaders, and spread over them.
SPREAD: Final = ("plain-100-6p", "producers-64-in-1")
WIRES_MS: Final = (0.0, 0.5, 2.0)
# Trips over a wire, there and back, that one operation waits for; why: docs/performance.md.
TRIPS: Final[Mapping[str, float]] = {
    "one-record": 1,
    "flushed": 2,
    "pipeline-75": 2,
    "end-to-end": 1,
}


class Prediction(NamedTuple):
    """Of a rate: what bounds it, operations a second."""

    rate: float
    bound_by: str


def predicted(
    by_role: Mapping[str, tuple[float, float]], counts: Mapping[str, int], cores: float
) -> Prediction:
    """A process has one core at most (one interpreter), and all together what the machine has.
    `counts` says how many processes of a role there are, where it is not one."""
    bounds = {
        role: counts.get(role, 1) / cpu_us * 1e6
        for role, (cpu_us, _) in by_role.items()
        if cpu_us > 0
    }
    total_us = sum(cpu_us for cpu_us, _ in by_role.values())
    bounds["all cores"] = cores / total_us * 1e6
    bound_by = min(bounds, key=lambda role: bounds[role])
    return Prediction(bounds[bound_by], bound_by)


def predicted_ms(without_ms: float, trips: float, each_way_ms: float) -> float:
    return without_ms + 2 * trips * each_way_ms


# -------------------------------------------------------------------------------------- measuring

Measure = Callable[[str], list[Measured]]


@contextmanager
def measuring(
    folder: Path, *, leaders: int = 1, wire_ms: float = 0.0, seconds: float, rounds: int
) -> Iterator[Measure]:
    """Over a cluster of its own."""
    with (
        apart(folder, leaders=leaders, wire_ms=wire_ms) as running,
        oncelog.connect(running.bootstrap, timeout_ms=120_000) as log,
        Observer({OURS: running.pids}) as observer,
    ):

        def create(topic: str, partitions: int) -> None:
            log.admin.create_topic(topic, partitions=partitions)

        inputs = Inputs(create, lambda topic, value, count: ours.fill(log, topic, value, count))
        cluster = ours.Cluster(log, running.bootstrap, inputs)

        def one(name: str, turn: int, wanted: float) -> Measured:
            workload = WORKLOADS[name]
            topic = f"{name}-{turn}"
            create(topic, workload.shape.partitions)
            meter = Meter(wanted, observer.look, os.cpu_count() or 1, OURS)
            result = workload.ours(cluster, Task(topic, workload.shape, meter))
            log.admin.delete_topic(topic)
            assert meter.used is not None, "the workload entered its meter"
            return Measured(result, credited(meter.used, result.workers))

        def measure(name: str) -> list[Measured]:
            one(name, 0, seconds / 5)
            return [one(name, turn, seconds) for turn in range(1, rounds + 1)]

        yield measure


def work_table(measure: Measure) -> str:
    found: list[Row] = []
    for name, what in WORK.items():
        measured = figures(measure(name))
        costs = [measured.by_role.get(role, (0.0, 0.0)) for role in ROLES]
        found.append((name, what, *(shown(cpu_us) for cpu_us, _ in costs), _of_a_core(costs)))
    return markdown(("workload", "operation", *ROLES, "a core of the busiest gives, 1/s"), found)


def _of_a_core(costs: Sequence[tuple[float, float]]) -> str:
    most, role = max((cpu_us, role) for (cpu_us, _), role in zip(costs, ROLES, strict=True))
    return f"{1e6 / most:,.0f} ({role})" if most else ""


def leaders_table(folder: Path, seconds: float, rounds: int) -> str:
    found: list[Row] = []
    first: dict[str, Figures] = {}
    for count in LEADERS:
        place = folder / f"leaders-{count}"
        with measuring(place, leaders=count, seconds=seconds, rounds=rounds) as measure:
            for name in SPREAD:
                measured = figures(measure(name))
                first.setdefault(name, measured)
                found.append(_leaders_row(name, count, measured, first[name]))
    return markdown(
        (
            *("workload", "leaders", "cpu_us", "of one leader's", "leaders' cpu_us"),
            *("foreign", "predicted, 1/s", "bound by", "measured, 1/s", "measured to predicted"),
        ),
        sorted(found),
    )


def _leaders_row(name: str, count: int, measured: Figures, first: Figures) -> Row:
    cores = (os.cpu_count() or 1) * (1 - measured.foreign_share)
    # By what it cost with one leader: that is the model.
    expected = predicted(first.by_role, {"partition_leader": count}, cores)
    unit = next(unit for unit in ("tx_per_s", "records_per_s") if unit in measured.units)
    rate, cpu = measured.units[unit].median, measured.units[CPU].median
    return (
        name,
        str(count),
        shown(cpu),
        f"{cpu / first.units[CPU].median:.2f}",
        shown(measured.by_role["partition_leader"][0]),
        f"{measured.foreign_share:.0%}",
        f"{expected.rate:,.0f}",
        expected.bound_by,
        f"{rate:,.0f}",
        f"{rate / expected.rate:.2f}",
    )


def wires_table(folder: Path, seconds: float, rounds: int) -> str:
    found: list[Row] = []
    without: dict[str, float] = {}
    for wire_ms in WIRES_MS:
        place = folder / f"wire-{wire_ms}"
        with measuring(place, wire_ms=wire_ms, seconds=seconds, rounds=rounds) as measure:
            for name in TRIPS:
                measured = measure(name)
                least_ms = min(min(one.result.latencies_s) for one in measured) * 1000
                without.setdefault(name, least_ms)
                p50_ms = figures(measured).units[P50].median
                found.append(_wires_row(name, wire_ms, without[name], least_ms, p50_ms))
    order = list(TRIPS)
    return markdown(
        (
            *("workload", "each way, ms", "trips", "least ms, predicted", "least ms"),
            *("measured to predicted", "trips seen", "p50_ms"),
        ),
        sorted(found, key=lambda row: (order.index(row[0]), float(row[1]))),
    )


def _wires_row(name: str, wire_ms: float, without_ms: float, least_ms: float, p50_ms: float) -> Row:
    trips = TRIPS[name]
    expected = predicted_ms(without_ms, trips, wire_ms)
    seen = f"{(least_ms - without_ms) / (2 * wire_ms):.1f}" if wire_ms else ""
    return (
        *(name, f"{wire_ms:g}", f"{trips:g}", shown(expected), shown(least_ms)),
        *(f"{least_ms / expected:.2f}", seen, shown(p50_ms)),
    )


PARTS: Final = ("work", "leaders", "wires")


@click.command()
@click.option("--only", multiple=True, type=click.Choice(PARTS), help="Repeatable.")
@click.option("--seconds", default=5.0, show_default=True, help="Of each round.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100))
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Whose disk.")
def main(only: tuple[str, ...], seconds: float, rounds: int, folder: Path | None) -> None:
    """Check the model of docs/performance.md, and print its tables. About fifteen minutes."""
    parts = only or PARTS
    with tempfile.TemporaryDirectory(prefix="oncelog-model-", dir=folder) as made:
        place = Path(made)
        if "work" in parts:
            with measuring(place / "work", seconds=seconds, rounds=rounds) as measure:
                print(work_table(measure), flush=True)
        if "leaders" in parts:
            print(f"\n{leaders_table(place, seconds, rounds)}", flush=True)
        if "wires" in parts:
            print(f"\n{wires_table(place, seconds, rounds)}", flush=True)


if __name__ == "__main__":
    main()
