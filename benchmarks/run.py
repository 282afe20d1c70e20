"""`python -m benchmarks.run`: runs the workloads in turns and prints a table (or JSON)."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import oncelog
from benchmarks.machine import SYNC_BYTES, CpuSeconds, cpu_seconds, syncs_ms
from benchmarks.workloads import PARTITIONS_OF, RATIO_TO, WORKLOADS, Cluster, Result
from oncelog_spark.jobs.local_cluster import local_cluster

Measured = tuple[Result, CpuSeconds]
# What Kafka's twin of a workload is called, and a workload on three nodes, with three copies.
KAFKA: Final = "kafka "
THREE: Final = "3 nodes: "
UNITS: Final = ("records_per_s", "tx_per_s", "mb_per_s", "p50_ms", "p99_ms", "cpu_us")
COLUMNS: Final = (
    "workload",
    "unit",
    "median",
    "min",
    "max",
    "ratio",
    "kafka",
    "to kafka",
    "foreign",
)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(WORKLOADS)), help="Repeatable.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100))
@click.option("--one-process", is_flag=True, help="All services in one process.")
@click.option("--three-nodes", is_flag=True, help="Each workload on three nodes, too: 3 copies.")
@click.option("--kafka", is_flag=True, help="Each workload beside its twin on Kafka.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table for results.md.")
def main(
    only: tuple[str, ...],
    rounds: int,
    one_process: bool,
    three_nodes: bool,
    kafka: bool,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Measure Oncelog on this machine. See benchmarks/README.md."""
    names = list(only) or list(WORKLOADS)
    options = ("--one-process",) if one_process else ()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncelog-bench-")))
        sides = [_start(stack, folder / "one", kafka=kafka, options=options)]
        if three_nodes:
            three = ("--nodes", "3")
            sides.append(_start(stack, folder / "three", kafka=kafka, options=three, replicas=3))
        measured = _run(sides, names, rounds, quiet=as_json or as_markdown)
        sync_ms = syncs_ms(folder)
    figures = {name: _figures(results) for name, results in measured.items()}
    if as_json:
        print(json.dumps(figures, indent=2))
    else:
        rows = _rows(figures)
        if as_markdown:
            print(_markdown(rows))
        else:
            Console().print(_table(rows))
        print(f"One fdatasync of {SYNC_BYTES} bytes on this disk took {sync_ms:.2f} ms (median).")


@dataclass(frozen=True, slots=True)
class Side:
    """A cluster of ours, and one of Kafka's beside it, with as many copies."""

    cluster: Cluster
    broker: str | None
    replicas: int

    @property
    def prefix(self) -> str:
        return "" if self.replicas == 1 else THREE


def _start(
    stack: ExitStack, folder: Path, *, kafka: bool, options: Sequence[str], replicas: int = 1
) -> Side:
    broker = _start_kafka(stack, folder / "kafka", replicas) if kafka else None
    bootstrap = stack.enter_context(local_cluster(folder / "oncelog", options=options))
    log = stack.enter_context(oncelog.connect(bootstrap))
    return Side(Cluster(log, bootstrap), broker, replicas)


def _start_kafka(stack: ExitStack, folder: Path, count: int) -> str:
    from benchmarks.kafka_broker import NoKafka, kafka_brokers

    try:
        return stack.enter_context(kafka_brokers(folder, count))
    except NoKafka as error:
        raise click.ClickException(str(error)) from None


def _run(
    sides: Sequence[Side], names: Sequence[str], rounds: int, *, quiet: bool
) -> dict[str, list[Measured]]:
    measured: dict[str, list[Measured]] = {}
    with Progress(disable=quiet) as progress:
        bar = progress.add_task("measuring", total=(rounds + 1) * len(names) * len(sides))
        # The first round warms all up (Kafka's JVM most of all) and is not counted.
        for turn in range(rounds + 1):
            for name in names:
                for side in sides:
                    which = side.prefix + name
                    progress.update(bar, description=which if turn else f"warm-up {which}")
                    for key, result in _measure(side, name, f"{name}-{turn}").items():
                        if turn:
                            measured.setdefault(key, []).append(result)
                    progress.advance(bar)
    return measured


def _measure(side: Side, name: str, topic: str) -> dict[str, Measured]:
    results = {side.prefix + name: _measure_ours(side, name, topic)}
    if side.broker is not None and name in _kafka_workloads():
        results[KAFKA + side.prefix + name] = _measure_kafka(side, side.broker, name, topic)
    return results


def _measure_ours(side: Side, name: str, topic: str) -> Measured:
    log, partitions = side.cluster.log, PARTITIONS_OF.get(name, 1)
    log.admin.create_topic(topic, partitions=partitions, replication_factor=side.replicas)
    before = cpu_seconds([os.getpid()])
    result = WORKLOADS[name](side.cluster, topic)
    used = cpu_seconds([os.getpid()]).since(before)
    log.admin.delete_topic(topic)
    return result, used


def _measure_kafka(side: Side, broker: str, name: str, topic: str) -> Measured:
    from benchmarks import kafka

    kafka.create_topic(broker, topic, PARTITIONS_OF.get(name, 1), replicas=side.replicas)
    before = cpu_seconds([os.getpid()])
    result = kafka.KAFKA_WORKLOADS[name](broker, topic)
    used = cpu_seconds([os.getpid()]).since(before)
    kafka.delete_topic(broker, topic)
    return result, used


def _kafka_workloads() -> Sequence[str]:
    # The client of Kafka is not installed unless it is wanted: `make bench-kafka`.
    from benchmarks import kafka

    return list(kafka.KAFKA_WORKLOADS)


def _figures(measured: Sequence[Measured]) -> dict[str, Any]:
    foreign = sum(cpu.foreign for _, cpu in measured)
    total = sum(cpu.machine for _, cpu in measured)
    figures: dict[str, Any] = {"foreign_cpu_share": round(foreign / total, 2) if total else 0.0}
    # Of the client and all servers, per record, transaction or round: what others do to the
    # machine changes it least.
    figures["cpu_us"] = _spread(
        [cpu.ours / (result.records or len(result.rounds)) * 1e6 for result, cpu in measured]
    )
    if measured[0][0].rounds:
        p50 = [statistics.median(result.rounds) * 1000 for result, _ in measured]
        p99 = [
            sorted(result.rounds)[int(len(result.rounds) * 0.99)] * 1000 for result, _ in measured
        ]
        return figures | {"p50_ms": _spread(p50), "p99_ms": _spread(p99)}
    rates = [result.records / result.seconds for result, _ in measured]
    figures[measured[0][0].unit] = _spread(rates)
    if measured[0][0].value_bytes:
        megabytes = [result.value_bytes / result.seconds / 1e6 for result, _ in measured]
        figures["mb_per_s"] = _spread(megabytes)
    return figures


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def _rows(figures: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            unit,
            *(_shown(figure[unit][which]) for which in ("median", "min", "max")),
            _ratio(figures, name, _base_of(name), unit),
            _of_kafka(figures, name, unit),
            _ratio(figures, name, KAFKA + name, unit),
            f"{figure['foreign_cpu_share']:.0%}",
        )
        for name, figure in figures.items()
        if not name.startswith(KAFKA)
        for unit in UNITS
        if unit in figure
    ]


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title="Oncelog, every acknowledged byte synced")
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _markdown(rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (COLUMNS, ("---",) * len(COLUMNS), *rows))


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def _base_of(name: str) -> str:
    """What its figures are a ratio of; "" for nothing."""
    return name.removeprefix(THREE) if name.startswith(THREE) else RATIO_TO.get(name, "")


def _of_kafka(figures: dict[str, dict[str, Any]], name: str, unit: str) -> str:
    figure = figures.get(KAFKA + name, {}).get(unit)
    return "" if figure is None else _shown(figure["median"])


def _ratio(figures: dict[str, dict[str, Any]], name: str, other: str, unit: str) -> str:
    base = figures.get(other, {}).get(unit)
    if base is None or not base["median"]:
        return ""
    return f"{figures[name][unit]['median'] / base['median']:.2f}"


if __name__ == "__main__":
    main()
