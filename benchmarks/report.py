"""results.md, written by the run that measured it: nothing in it is written by hand."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import tables
from benchmarks.limits import Limit, rows
from benchmarks.summary import Summary
from benchmarks.tables import FOREIGN_MUCH, Row, markdown
from benchmarks.workloads import Workload

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("grpcio", "pyarrow", "uvloop", "confluent-kafka")

READ_FIRST: Final = """\
## Read this first

* We sync before we acknowledge. `kafka` is a broker with Kafka's defaults, which does not;
  `kafka synced` is one with `log.flush.interval.messages=1`, which syncs each batch.
* A round lasts {seconds:g} s, by time and not by a count. There are {rounds} of each; workloads
  take turns, and so do the sides. The table shows the median, the least and the most. One shorter
  round of each came before, and is [shown apart](#warm-up).
* `cpu_us` and `switches`: CPU and context switches (voluntary or not) of the client and of all
  servers of that side, per record, transaction or round, with what servers do anyway. What others
  do to the machine changes them least, unless hardly anything is done beside them.
* `ratio` is to the workload that `workloads.py` names; `to kafka` is ours divided by Kafka's: of
  rates more is better, of ms, us and switches less.
* `foreign`: what anybody else used of all cores meanwhile, the broker that was not measured and
  what the host took included; the most of the sides in that row. **Above some 10 % a row says more
  about the others**, but for its CPU and switches.
"""


@dataclass(frozen=True, slots=True)
class Report:
    """All that a run has to say."""

    workloads: Sequence[Workload]
    # In the order of the columns.
    sides: Sequence[str]
    # What is measured.
    commit: str
    seconds: float
    rounds: int
    summary: Summary
    warm_up: Summary
    limits_before: Sequence[Limit]
    limits_after: Sequence[Limit]
    failed: Mapping[tuple[str, str], str]
    # Title -> table, of what is not measured in rounds.
    others: Mapping[str, str] = field(default_factory=dict)
    plots: Sequence[Path] = ()
    command: str = ""
    interrupted: bool = False

    @property
    def foreign_share(self) -> float:
        """Mean over all that was measured."""
        shares = [figures.foreign_share for figures in self.summary.values()]
        return sum(shares) / len(shares) if shares else 0.0


def text(report: Report, folder: Path) -> str:
    """`folder` is where it will lie: links to pictures begin there."""
    parts = [
        "# A full run\n",
        f"```console\n$ {report.command}\n```\n",
        _setting(report),
        READ_FIRST.format(seconds=report.seconds, rounds=report.rounds),
        _main(report),
    ]
    if aims := tables.aim_rows(report.summary, report.workloads):
        parts.append("## What was to be reached\n\n" + markdown(tables.AIM_COLUMNS, aims) + "\n")
    for plot in report.plots:
        parts.append(f"![{plot.stem}]({os.path.relpath(plot, folder)})\n")
    parts += [f"## {title}\n\n{table}\n" for title, table in report.others.items()]
    parts.append(
        "## Who works on it\n\nOf each operation on our side, by process.\n\n"
        + markdown(
            tables.ROLE_COLUMNS,
            tables.role_rows(report.summary, report.workloads, report.sides[0]),
        )
        + "\n"
    )
    parts.append("## What the machine gives\n\n" + _limits(report) + "\n")
    parts.append(
        "## Warm-up\n\nThe first, short round of each, when all is cold; in no other table.\n\n"
        + _tables(report, report.warm_up)
        + "\n"
    )
    return "\n".join(parts)


def _setting(report: Report) -> str:
    today = datetime.date.today()
    said = [
        f"{today.day} {today:%B %Y}, commit {report.commit}. {_machine()}. {_versions()}.",
        f"Others used {report.foreign_share:.0%} of all cores on average.",
    ]
    if report.foreign_share > FOREIGN_MUCH:
        said.append("**That is much: ratios count, and rows with a large `foreign` count little.**")
    if report.interrupted:
        said.append("**It was ended before its time.**")
    for (name, side), why in report.failed.items():
        said.append(f"\n* **{name} on {side} failed**: {why.splitlines()[0]}")
    return " ".join(said) + "\n"


def _main(report: Report) -> str:
    return _tables(report, report.summary) + "\n"


def _tables(report: Report, summary: Summary) -> str:
    parts = []
    for side in (side for side in tables.BESIDE if side in report.sides):
        found: list[Row] = tables.rows(summary, report.workloads, report.sides, side)
        if found:
            parts.append(f"### {side}\n" if side != report.sides[0] else "")
            parts.append(markdown(tables.columns(report.sides, side), found))
    return "\n".join(part for part in parts if part)


def _limits(report: Report) -> str:
    found = rows(report.limits_before, report.limits_after)
    return markdown(("limit", "before the run", "after it", "unit"), found)


def commit() -> str:
    """To be asked before a run, which is long and draws pictures into the checkout."""
    command = ("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _machine() -> str:
    cpu = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    release = platform.release().partition("-")[0]
    return f"{os.cpu_count()} cores of {cpu}, {platform.system()} {release}"


def _versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    if shutil.which("java"):
        said = subprocess.run(("java", "-version"), capture_output=True, text=True, check=False)
        found.append(said.stderr.splitlines()[0] if said.stderr else "Java")
    return ", ".join(found)
