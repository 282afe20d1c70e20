"""The flights that left New York in 2013, through a log and Spark, and a proof that each came out
exactly once.

    python -m oncelog_spark.jobs.flights [--limit N] [--data DIR] [--bootstrap HOST:PORT] [--keep]

It starts a cluster on this machine (real etcd, three services), produces 336,776 departures as
events keyed by carrier, runs a streaming query over them that writes enriched flights and delay
statistics, both outputs and the input positions in one transaction per micro-batch, and then
compares everything that can be read with a plain computation over the CSV. Exit code 0: exactly
once. 1: not. 2: something is missing on this machine, and it says what. 130: interrupted; whatever
it started is stopped then, too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import oncelog
from oncelog_spark.jobs import flight_pipeline as pipeline
from oncelog_spark.jobs import flight_records as truth
from oncelog_spark.jobs.java import JavaMissing, provide_java
from oncelog_spark.jobs.local_cluster import ClusterFailed, local_cluster

BATCH_RECORDS: Final = 50_000
EXACTLY_ONCE, NOT_EXACTLY_ONCE, CANNOT_RUN, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True)
class Report:
    """What the job found out."""

    flights: int
    batches: int
    load_seconds: float
    query_seconds: float
    enriched: truth.Comparison
    delays: truth.Comparison
    # The group stands at the end of its input.
    positions_hold: bool
    names: pipeline.Names

    @property
    def exactly_once(self) -> bool:
        return self.enriched.holds and self.delays.holds and self.positions_hold

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            "verdict": "exactly once" if self.exactly_once else "NOT exactly once",
            "flights": self.flights,
            "micro_batches": self.batches,
            "load_seconds": round(self.load_seconds, 3),
            "loaded_per_second": round(self.flights / max(self.load_seconds, 1e-9)),
            "query_seconds": round(self.query_seconds, 3),
            "processed_per_second": round(self.flights / max(self.query_seconds, 1e-9)),
            "enriched": _comparison(self.enriched),
            "carriers": _comparison(self.delays),
            "positions_hold": self.positions_hold,
            "topics": [self.names.flights, self.names.enriched, self.names.delays],
        }


class Display:
    """Progress on stderr, so that stdout holds the result alone."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description:<34}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._progress.stop()

    @contextmanager
    def step(self, text: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """One line; the yielded function sets how much of it is done."""
        task = self._progress.add_task(text, total=total)
        yield lambda done: self._progress.update(task, completed=done)
        self._progress.update(task, total=total or 1, completed=total or 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; the exit code is described above."""
    options = _parser().parse_args(arguments)
    # As Ctrl-C does: unwinds, so that the cluster is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=True, highlight=False)
    try:
        with ExitStack() as stack:
            folder = options.data
            if folder is None:
                folder = Path(tempfile.mkdtemp(prefix="oncelog-flights-"))
                if not options.keep:
                    stack.callback(_remove, folder)
            report = run(options, folder.absolute())
            if options.keep:
                console.print(f"kept: {folder}")
    except (ClusterFailed, JavaMissing, truth.DataMissing) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        return CANNOT_RUN
    except KeyboardInterrupt:
        return INTERRUPTED
    except pipeline.QueryFailed as error:
        console.print(f"the query failed: {error}", style="red", markup=False, soft_wrap=True)
        return NOT_EXACTLY_ONCE
    if options.json:
        print(json.dumps(report.document()))
    else:
        _print(report)
    return EXACTLY_ONCE if report.exactly_once else NOT_EXACTLY_ONCE


def run(options: argparse.Namespace, folder: Path) -> Report:
    """All steps over `folder`."""
    data = truth.data_folder()
    java = provide_java(os.environ, folder / "java")
    airlines = truth.airlines(data)
    total = min(options.limit or truth.FLIGHT_COUNT, truth.FLIGHT_COUNT)
    with Display() as display, ExitStack() as stack:
        with display.step("etcd and the three services", None):
            cluster = (
                nullcontext(options.bootstrap)
                if options.bootstrap
                else local_cluster(folder / "cluster")
            )
            bootstrap = stack.enter_context(cluster)
        log = stack.enter_context(oncelog.connect(bootstrap))
        names = pipeline.create_topics(log)
        with display.step(f"producing into {names.flights}", total) as on_progress:
            began = time.monotonic()
            events = truth.events(truth.rows(data, options.limit))
            loaded = pipeline.load(log, names, events, on_progress)
            load_seconds = time.monotonic() - began
        with display.step(f"Spark ({java.split(' (')[0]})", None):
            spark = stack.enter_context(pipeline.spark_session(folder / "spark"))
        with display.step("consuming, enriching, producing", total) as on_progress:
            began = time.monotonic()
            batches = pipeline.run_query(
                spark,
                bootstrap,
                names,
                airlines,
                checkpoint=folder / "checkpoints" / names.job,
                batch_records=options.batch,
                on_progress=on_progress,
            )
            query_seconds = time.monotonic() - began
        with display.step("comparing with the CSV", None):
            return Report(
                loaded,
                batches,
                load_seconds,
                query_seconds,
                truth.compare_records(
                    pipeline.read_back(log, names.enriched),
                    truth.rows(data, options.limit),
                    airlines,
                ),
                truth.compare_delays(
                    pipeline.read_back(log, names.delays), truth.rows(data, options.limit)
                ),
                pipeline.stands_at_end(log, names),
                names,
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m oncelog_spark.jobs.flights",
        description="Flights through a log and Spark, with a proof of exactly-once.",
    )
    parser.add_argument("--limit", type=_positive, help="only the first N flights")
    parser.add_argument("--data", type=Path, help="folder for all data (default: a temporary one)")
    parser.add_argument("--bootstrap", help="use the running cluster at HOST:PORT")
    parser.add_argument("--keep", action="store_true", help="do not remove the temporary folder")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--batch",
        type=_positive,
        default=BATCH_RECORDS,
        help="records of a micro-batch at most (default: %(default)s)",
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _print(report: Report) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "expected", "found", "missing", "duplicates", "wrong"):
        table.add_column(column, justify="left" if not column else "right")
    for name, one in (("enriched flights", report.enriched), ("carriers, summed", report.delays)):
        cells = (one.expected, one.found, one.missing, one.duplicates, len(one.wrong))
        table.add_row(name, *(f"{cell:,}" for cell in cells))
    console = Console(highlight=False)
    console.print(table)
    loaded = report.flights / max(report.load_seconds, 1e-9)
    processed = report.flights / max(report.query_seconds, 1e-9)
    console.print(
        f"produced {report.flights:,} events in {report.load_seconds:.1f} s ({loaded:,.0f}/s); "
        f"Spark processed them in {report.query_seconds:.1f} s ({processed:,.0f}/s), "
        f"{report.batches} micro-batches, each one transaction"
    )
    where = "at the end of its input" if report.positions_hold else "NOT at the end of its input"
    console.print(f"the query's group stands {where}")
    for line in (*report.enriched.wrong, *report.delays.wrong):
        console.print(f"  wrong: {line}", markup=False)
    verdict = "every flight came out exactly once" if report.exactly_once else "NOT exactly once"
    console.print(verdict, style="bold green" if report.exactly_once else "bold red")


def _comparison(one: truth.Comparison) -> dict[str, Any]:
    return {
        "expected": one.expected,
        "found": one.found,
        "missing": one.missing,
        "duplicates": one.duplicates,
        "wrong": one.wrong,
    }


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
