"""`oncelog check`: judges histories of clients against the promises. Talks to no cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oncelog_server.cli import interrupts
from oncelog_server.cli.examples import examples
from oncelog_server.cli.failures import REFUSED, CommandFailed
from oncelog_server.cli.output import console, print_json
from oncelog_server.cli.session import json_option

# Its help needs nothing of the checker.
if TYPE_CHECKING:
    from oncelog.checker import Report


@click.command(
    epilog=examples(
        "oncelog check history.jsonl",
        "oncelog check worker-1.jsonl worker-2.jsonl --json",
    )
)
@click.argument(
    "files",
    metavar="HISTORY...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@json_option
def check(files: tuple[Path, ...], as_json: bool) -> None:
    """Check what clients were told against the promises I1 to I24 and I32.

    A HISTORY is a file of JSON lines that `oncelog.checker.recorder` writes, or that you write as
    docs/history_format.md says. Several files, of clients of one machine, are one history. Exits
    with 1 where a promise is broken.
    """
    with interrupts.importing():
        from oncelog.checker import HistoryError, check_files
    try:
        report = check_files(files)
    except (HistoryError, OSError) as error:
        raise CommandFailed(str(error)) from error
    if as_json:
        print_json(_described(report))
    else:
        _print(report)
    if not report.clean:
        raise click.exceptions.Exit(REFUSED)


def _described(report: Report) -> dict[str, object]:
    return {
        "clean": report.clean,
        "violations": [
            {
                "invariant": f"I{violation.invariant}",
                "message": violation.message,
                "lines": list(violation.lines),
            }
            for violation in report.violations
        ],
        "more": report.more,
        "size": asdict(report.size),
    }


def _print(report: Report) -> None:
    from rich.markup import escape

    out, size = console(), report.size
    for violation in report.violations:
        lines = ", ".join(violation.lines)
        out.print(f"[bold red]I{violation.invariant}[/] {escape(violation.message)}")
        out.print(f"  lines {escape(lines)}")
    if report.more:
        out.print(f"and {report.more} more of these")
    verdict = "[bold green]clean[/]" if report.clean else f"{len(report.violations)} violations"
    out.print(
        f"{verdict}: {size.operations} operations, {size.records} records, {size.reads} reads, "
        f"{size.transactions} transactions ({size.committed} committed, {size.not_committed} not, "
        f"{size.unknown} unknown)"
    )
