"""`python -m benchmarks.run`: runs the workloads in turns, and prints a table, or writes results.md
with its pictures."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from benchmarks import plots, progress, report, tables
from benchmarks.ending import end_as_by_ctrl_c
from benchmarks.kills import KILLS, kill_table
from benchmarks.limits import limits_beside
from benchmarks.observer import Observer
from benchmarks.report import Report
from benchmarks.rounds import Run, Step, estimate_s, latencies, run, steps
from benchmarks.scale import GROWTHS, Sizes, growth_table
from benchmarks.sides import (
    KAFKA,
    OURS,
    SYNC_EACH,
    SYNCED,
    THREE,
    THREE_BROKERS,
    Side,
    shape_words,
    start_kafka,
    start_ours,
)
from benchmarks.summary import Summary, summarized
from benchmarks.workloads import WORKLOADS, Workload

SECONDS: Final = 5.0
NAMES: Final = (*WORKLOADS, *KILLS, *GROWTHS)
# What a cluster and a broker take to start and to stop.
START_S: Final = 10.0


@click.command()
@click.option("--only", multiple=True, metavar="NAME", help="A workload, or W1 to W10. Repeatable.")
@click.option("--list", "as_list", is_flag=True, help="Print the workloads, and end.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100))
@click.option(
    "--seconds",
    default=SECONDS,
    show_default=True,
    type=click.FloatRange(0.05, 600),
    help="Of each round. Below 5 Kafka is cold, and what is shown is its warm-up.",
)
@click.option("--one-process", is_flag=True, help="All services in one process.")
@click.option("--three-nodes", is_flag=True, help="Each workload on three nodes, too: 3 copies.")
@click.option("--kafka", is_flag=True, help="Beside Kafka, with its defaults and synced.")
@click.option("--kafka-defaults", is_flag=True, help="Beside Kafka with its defaults alone.")
@click.option("--open", "open_transactions", default=1_000, show_default=True, help="Of W10.")
@click.option("--partitions", default=200, show_default=True, help="Of W10.")
@click.option("--log-mb", default=200, show_default=True, help="Of W10.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report to this file, and its pictures into plots/ beside it.",
)
def main(
    only: tuple[str, ...],
    as_list: bool,
    rounds: int,
    seconds: float,
    one_process: bool,
    three_nodes: bool,
    kafka: bool,
    kafka_defaults: bool,
    open_transactions: int,
    partitions: int,
    log_mb: int,
    as_json: bool,
    results: Path | None,
) -> None:
    """Measure Oncelog on this machine, and Kafka beside it. See benchmarks/README.md.

    A whole run beside Kafka takes about an hour; an estimate is printed at its beginning, and
    Ctrl-C shows what was measured until then.
    """
    if as_list:
        _list()
        return
    names = chosen(only)
    workloads = [WORKLOADS[name] for name in names if name in WORKLOADS]
    commit = report.commit()
    sizes = Sizes(open_transactions, partitions, log_mb)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncelog-bench-")))
        _say(f"{len(names)} workloads; what the machine gives is measured first")
        before = limits_beside(folder)
        found, sides = Run(), [OURS]
        if workloads:
            starts = _starts(one_process, three_nodes, kafka, kafka_defaults)
            found, sides = _measure(folder, starts, workloads, rounds, seconds)
        others = (
            {}
            if found.interrupted
            else _others(folder, names, sizes, seconds, kafka=kafka or kafka_defaults)
        )
        after = limits_beside(folder)
    done = Report(
        workloads=workloads,
        sides=sides,
        commit=commit,
        seconds=seconds,
        rounds=rounds,
        summary=summarized(found.rounds),
        warm_up=summarized(found.warm_up),
        limits_before=before,
        limits_after=after,
        failed=found.failed,
        others=others,
        command=shlex.join([".venv/bin/python", "-m", "benchmarks.run", *sys.argv[1:]]),
        interrupted=found.interrupted,
    )
    if results is not None:
        _write(done, found, results)
    _show(done, as_json=as_json)
    if found.failed:
        sys.exit(1)


def chosen(only: Sequence[str]) -> list[str]:
    """The names that are meant, in the order of the table. Raises UsageError."""
    groups: dict[str, list[str]] = {"W9": list(KILLS), "W10": list(GROWTHS)}
    for workload in WORKLOADS.values():
        groups.setdefault(workload.group, []).append(workload.name)
    wanted: set[str] = set()
    for word in only or groups:
        if word not in groups and word not in NAMES:
            raise click.UsageError(f"there is no workload {word!r}; --list shows all")
        wanted.update(groups.get(word, [word]))
    return [name for name in NAMES if name in wanted]


# ------------------------------------------------------------------------------------- the run

Start = Callable[[ExitStack, Path], Side]


def _starts(one_process: bool, three_nodes: bool, kafka: bool, defaults: bool) -> list[Start]:
    options = ("--one-process",) if one_process else ()
    starts: list[Start] = [
        lambda stack, folder: start_ours(stack, folder / "one", name=OURS, options=options)
    ]
    if kafka or defaults:
        starts.append(lambda stack, folder: start_kafka(stack, folder / "kafka", name=KAFKA))
    if kafka:
        starts.append(
            lambda stack, folder: start_kafka(
                stack, folder / "synced", name=SYNCED, settings=[SYNC_EACH]
            )
        )
    if three_nodes:
        starts.append(
            lambda stack, folder: start_ours(
                stack, folder / "three", name=THREE, options=("--nodes", "3"), replicas=3
            )
        )
    if three_nodes and (kafka or defaults):
        starts.append(
            lambda stack, folder: start_kafka(
                stack, folder / "brokers", name=THREE_BROKERS, replicas=3
            )
        )
    return starts


def _measure(
    folder: Path,
    starts: Sequence[Start],
    workloads: Sequence[Workload],
    rounds: int,
    seconds: float,
) -> tuple[Run, list[str]]:
    with ExitStack() as stack:
        sides = [start(stack, folder) for start in starts]
        observer = stack.enter_context(Observer({side.name: side.root_pids for side in sides}))
        planned = list(steps(workloads, sides, rounds=rounds, seconds=seconds))
        _say(
            f"{len(planned)} rounds on {', '.join(side.name for side in sides)}: about "
            f"{estimate_s(planned) / 60:.0f} minutes; Ctrl-C shows what there is by then"
        )
        for workload in workloads:
            if not workload.possible():
                _say(f"{workload.name} is left out: this client cannot do it yet")
        with progress.shown(len(planned)) as say:
            found = run(planned, observer.look, lambda step: say(_words(step)))
        return found, [side.name for side in sides]


def _words(step: Step) -> str:
    turn = f"round {step.turn}" if step.turn else "warm-up"
    return f"{turn} {step.workload.name} on {step.side.name}"


def _others(
    folder: Path, names: Sequence[str], sizes: Sizes, seconds: float, *, kafka: bool
) -> dict[str, str]:
    """Of what is not measured in rounds: title -> table. It has clusters of its own."""
    found = {}
    try:
        if kills := [name for name in names if name in KILLS]:
            _say(f"{len(kills)} kinds of kills: about {len(kills)} minutes")
            found["Until all go on (W9)"] = kill_table(folder / "kills", kills, kafka=kafka)
        if growths := [name for name in names if name in GROWTHS]:
            _say(f"what grows: {sizes}")
            found["What grows (W10)"] = growth_table(folder / "scale", growths, sizes, seconds)
    except KeyboardInterrupt:
        _say("ended before its time")
    return found


# --------------------------------------------------------------------------------------- output


def _write(done: Report, found: Run, results: Path) -> None:
    folder = results.resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    drawn: Sequence[Path] = ()
    try:
        spans = latencies(found.rounds)
        drawn = plots.draw(folder / "plots", spans, done.summary, done.sides)
    except plots.NoMatplotlib as error:
        _say(str(error))
    results.write_text(report.text(replace(done, plots=drawn), folder))
    _say(f"written: {results}, {len(drawn)} pictures")


def _show(done: Report, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_as_json(done), indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else 180)
    for side in (side for side in tables.BESIDE if side in done.sides):
        found = tables.rows(done.summary, done.workloads, done.sides, side)
        if found:
            console.print(
                _table(f"{side}: every acknowledged byte synced", done.sides, side, found)
            )
    for title, table in done.others.items():
        console.print(f"\n{title}\n{table}", markup=False)
    for limit in done.limits_before:
        print(f"{limit.name:45} {limit.value:>12,.2f} {limit.unit}")
    for (name, side), why in done.failed.items():
        _say(f"{name} on {side} FAILED: {why}")


def _table(title: str, sides: Sequence[str], side: str, rows: Sequence[tables.Row]) -> Table:
    table = Table(title=title)
    for column in tables.columns(sides, side):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _as_json(done: Report) -> dict[str, Any]:
    def said(summary: Summary) -> dict[str, Any]:
        return {
            f"{name} on {side}": {
                "foreign_share": round(figures.foreign_share, 3),
                "by_role": figures.by_role,
                **{
                    unit: {"median": spread.median, "min": spread.least, "max": spread.most}
                    for unit, spread in figures.units.items()
                },
            }
            for (name, side), figures in summary.items()
        }

    return {
        "cores": os.cpu_count(),
        "seconds": done.seconds,
        "rounds": done.rounds,
        "limits": [limit._asdict() for limit in done.limits_before],
        "figures": said(done.summary),
        "warm_up": said(done.warm_up),
        "others": done.others,
        "failed": {f"{name} on {side}": why for (name, side), why in done.failed.items()},
    }


def _list() -> None:
    for workload in WORKLOADS.values():
        twin = "" if workload.kafka else " (no twin on Kafka)"
        print(f"{workload.group:4}{workload.name:28}{shape_words(workload.shape)}{twin}")
    for group, table in (("W9", KILLS), ("W10", GROWTHS)):
        for name, what in table.items():
            print(f"{group:4}{name:28}{what}")


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    end_as_by_ctrl_c()
    main()
