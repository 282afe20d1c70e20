"""`python -m benchmarks.run`: runs the workloads in turns and prints a table (or JSON)."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import oncelog
from benchmarks.machine import CpuSeconds, cpu_seconds
from benchmarks.workloads import RATIO_TO, WORKLOADS, Result
from oncelog_spark.jobs.local_cluster import local_cluster

Measured = tuple[Result, CpuSeconds]


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(WORKLOADS)), help="Repeatable.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100))
@click.option("--one-process", is_flag=True, help="All services in one process.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(only: tuple[str, ...], rounds: int, one_process: bool, as_json: bool) -> None:
    """Measure Oncelog on this machine. See benchmarks/README.md."""
    names = list(only) or list(WORKLOADS)
    options = ("--one-process",) if one_process else ()
    with (
        tempfile.TemporaryDirectory(prefix="oncelog-bench-") as folder,
        local_cluster(Path(folder), options=options) as bootstrap,
    ):
        measured = _run(bootstrap, names, rounds, quiet=as_json)
    figures = {name: _figures(results) for name, results in measured.items()}
    if as_json:
        print(json.dumps(figures, indent=2))
    else:
        Console().print(_table(figures))


def _run(
    bootstrap: str, names: Sequence[str], rounds: int, *, quiet: bool
) -> dict[str, list[Measured]]:
    measured: dict[str, list[Measured]] = {name: [] for name in names}
    with oncelog.connect(bootstrap) as log, Progress(disable=quiet) as progress:
        bar = progress.add_task("measuring", total=rounds * len(names))
        for turn in range(rounds):
            for name in names:
                progress.update(bar, description=name)
                topic = f"{name}-{turn}"
                log.admin.create_topic(topic, partitions=1)
                before = cpu_seconds([os.getpid()])
                result = WORKLOADS[name](log, topic)
                measured[name].append((result, cpu_seconds([os.getpid()]).since(before)))
                log.admin.delete_topic(topic)
                progress.advance(bar)
    return measured


def _figures(measured: Sequence[Measured]) -> dict[str, Any]:
    foreign = sum(cpu.foreign for _, cpu in measured)
    total = sum(cpu.machine for _, cpu in measured)
    figures: dict[str, Any] = {"foreign_cpu_share": round(foreign / total, 2) if total else 0.0}
    if measured[0][0].rounds:
        p50 = [statistics.median(result.rounds) * 1000 for result, _ in measured]
        p99 = [
            sorted(result.rounds)[int(len(result.rounds) * 0.99)] * 1000 for result, _ in measured
        ]
        return figures | {"p50_ms": _spread(p50), "p99_ms": _spread(p99)}
    rates = [result.records / result.seconds for result, _ in measured]
    megabytes = [result.value_bytes / result.seconds / 1e6 for result, _ in measured]
    return figures | {"records_per_s": _spread(rates), "mb_per_s": _spread(megabytes)}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def _table(figures: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Oncelog, every acknowledged byte synced")
    for column in ("workload", "unit", "median", "min", "max", "ratio", "foreign"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, figure in figures.items():
        for unit in ("records_per_s", "mb_per_s", "p50_ms", "p99_ms"):
            if unit in figure:
                table.add_row(
                    name,
                    unit,
                    *(_shown(figure[unit][which]) for which in ("median", "min", "max")),
                    _ratio(figures, name, unit),
                    f"{figure['foreign_cpu_share']:.0%}",
                )
    return table


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def _ratio(figures: dict[str, dict[str, Any]], name: str, unit: str) -> str:
    base = figures.get(RATIO_TO.get(name, ""), {}).get(unit)
    if base is None or not base["median"]:
        return ""
    return f"{figures[name][unit]['median'] / base['median']:.2f}"


if __name__ == "__main__":
    main()
