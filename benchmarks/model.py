"""`python -m benchmarks.model`: checks the model of docs/performance.md on this machine, and prints
the tables that stand there.

    work     one process: what a core of each role gives, by the CPU that an operation takes there
    leaders  1, 2, 4 partition leaders: the CPU of an operation stays, and is shared out
    wires    0, 0.5, 2, 100 ms each way before every process: latency grows by its trips alone

CPU is what is compared: on a machine that others use, rates say how much of it was left. Of
latencies it is the least: nobody is quicker than the wire, and who waited for a processor was not
the quickest.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click

import oncelog
from benchmarks import ours
from benchmarks.apart import apart
from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.inputs import Inputs
from benchmarks.measure import Meter, Task, credited
from benchmarks.observer import Observer
from benchmarks.sides import OURS, Measured
from benchmarks.summary import P50, Figures, figures
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
# What servers do beside nothing is looked at for so long.
IDLE_S: Final = 3.0
RATE_UNITS: Final = ("tx_per_s", "records_per_s")
LEADERS: Final = (1, 2, 4)
# What is bound by leaders, and spread over them.
SPREAD: Final = ("plain-100-6p", "producers-64-in-1")
# The last one is so long that its trips are seen through whatever else a machine does.
WIRES_MS: Final = (0.0, 0.5, 2.0, 100.0)
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


def predicted(costs: Mapping[str, float], counts: Mapping[str, int], cores: float) -> Prediction:
    """By the CPU microseconds of each role. A process has one core at most (one interpreter), and
    all together what the machine has. `counts` says how many processes of a role there are, where
    it is not one."""
    bounds = {
        role: counts.get(role, 1) / cpu_us * 1e6 for role, cpu_us in costs.items() if cpu_us > 0
    }
    bounds["all cores"] = cores / sum(costs.values()) * 1e6
    bound_by = min(bounds, key=lambda role: bounds[role])
    return Prediction(bounds[bound_by], bound_by)


def predicted_ms(without_ms: float, trips: float, each_way_ms: float) -> float:
    return without_ms + 2 * trips * each_way_ms


# -------------------------------------------------------------------------------------- measuring

Measure = Callable[[str], list[Measured]]


class Place(NamedTuple):
    """A cluster, and how it is measured."""

    measure: Measure
    # Role -> CPU seconds a second when nobody asks anything: leases, ticks, signs of life.
    idle: Mapping[str, float]


def of_operations(measured: Figures, idle: Mapping[str, float]) -> dict[str, float]:
    """Role -> CPU microseconds of one operation, without what the role does anyway."""
    unit = next(unit for unit in RATE_UNITS if unit in measured.units)
    seconds_each = 1 / measured.units[unit].median
    return {
        role: max(cpu_us - idle.get(role, 0.0) * seconds_each * 1e6, 0.0)
        for role, (cpu_us, _) in measured.by_role.items()
    }


@contextmanager
def measuring(
    folder: Path, *, leaders: int = 1, wire_ms: float = 0.0, seconds: float, rounds: int
) -> Iterator[Place]:
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

        yield Place(measure, _idle(observer))


def _idle(observer: Observer) -> dict[str, float]:
    meter = Meter(IDLE_S, observer.look, os.cpu_count() or 1, OURS)
    with meter:
        time.sleep(meter.left_s())
    assert meter.used is not None, "it was entered"
    return {role: used.cpu_s / meter.seconds for role, used in meter.used.servers.items()}


def work_table(place: Place) -> str:
    shares = (f"{place.idle.get(role, 0.0):.1%}" for role in ROLES)
    found: list[Row] = [("", "nothing, of a core", *shares, "")]
    for name, what in WORK.items():
        costs = of_operations(figures(place.measure(name)), place.idle)
        found.append(
            (name, what, *(shown(costs.get(role, 0.0)) for role in ROLES), _of_a_core(costs))
        )
    return markdown(("workload", "operation", *ROLES, "a core of the busiest gives, 1/s"), found)


def _of_a_core(costs: Mapping[str, float]) -> str:
    role = max(costs, key=lambda role: costs[role])
    return f"{1e6 / costs[role]:,.0f} ({role})" if costs[role] else ""


def leaders_table(folder: Path, seconds: float, rounds: int) -> str:
    found: list[Row] = []
    first: dict[str, dict[str, float]] = {}
    for count in LEADERS:
        where = folder / f"leaders-{count}"
        with measuring(where, leaders=count, seconds=seconds, rounds=rounds) as place:
            for name in SPREAD:
                measured = figures(place.measure(name))
                costs = of_operations(measured, place.idle)
                first.setdefault(name, costs)
                found.append(_leaders_row(name, count, measured, costs, first[name]))
    return markdown(
        (
            *("workload", "leaders", "cpu_us", "of one leader's", "leaders' cpu_us"),
            *("foreign", "predicted, 1/s", "bound by", "measured, 1/s", "measured to predicted"),
        ),
        sorted(found),
    )


def _leaders_row(
    name: str,
    count: int,
    measured: Figures,
    costs: Mapping[str, float],
    first: Mapping[str, float],
) -> Row:
    """`first` are the costs with one leader: the model predicts by them."""
    cores = (os.cpu_count() or 1) * (1 - measured.foreign_share)
    expected = predicted(first, {"partition_leader": count}, cores)
    unit = next(unit for unit in RATE_UNITS if unit in measured.units)
    rate, cpu = measured.units[unit].median, sum(costs.values())
    return (
        name,
        str(count),
        shown(cpu),
        f"{cpu / sum(first.values()):.2f}",
        shown(costs["partition_leader"]),
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
        where = folder / f"wire-{wire_ms}"
        with measuring(where, wire_ms=wire_ms, seconds=seconds, rounds=rounds) as place:
            for name in TRIPS:
                measured = place.measure(name)
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
    """Check the model of docs/performance.md, and print its tables. A quarter of an hour."""
    parts = only or PARTS
    with tempfile.TemporaryDirectory(prefix="oncelog-model-", dir=folder) as made:
        where = Path(made)
        if "work" in parts:
            with measuring(where / "work", seconds=seconds, rounds=rounds) as place:
                print(work_table(place), flush=True)
        if "leaders" in parts:
            print(f"\n{leaders_table(where, seconds, rounds)}", flush=True)
        if "wires" in parts:
            print(f"\n{wires_table(where, seconds, rounds)}", flush=True)


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
