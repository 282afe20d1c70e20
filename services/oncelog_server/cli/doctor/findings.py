"""What the doctor found: one line each, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from oncelog_server.cli.output import console, print_json


class Status(StrEnum):
    """How a check ended."""

    OK = "OK"
    # Works, and will not for long, or not as well as it could.
    WARN = "WARN"
    FAIL = "FAIL"
    # Could not be looked at from here; says why.
    SKIP = "SKIP"


class Finding(NamedTuple):
    """One check. `area` is one word: what was looked at."""

    area: str
    status: Status
    what: str
    # For whoever runs the cluster; empty where there is nothing to do.
    do: str = ""


def ok(area: str, what: str) -> Finding:
    return Finding(area, Status.OK, what)


def warn(area: str, what: str, do: str) -> Finding:
    return Finding(area, Status.WARN, what, do)


def fail(area: str, what: str, do: str) -> Finding:
    return Finding(area, Status.FAIL, what, do)


def skip(area: str, what: str, do: str = "") -> Finding:
    return Finding(area, Status.SKIP, what, do)


def is_well(findings: Iterable[Finding]) -> bool:
    """Nothing failed."""
    return all(finding.status is not Status.FAIL for finding in findings)


def show(findings: Sequence[Finding], *, as_json: bool) -> None:
    """On stdout."""
    if as_json:
        print_json({"well": is_well(findings), "checks": [_described(one) for one in findings]})
        return
    from rich.text import Text

    styles = {
        Status.OK: "green",
        Status.WARN: "bold yellow",
        Status.FAIL: "bold red",
        Status.SKIP: "dim",
    }
    out = console()
    for one in findings:
        line = Text(f"{one.status.value:<5}", style=styles[one.status])
        line.append(f"{one.area:<13} {one.what}", style="default")
        out.print(line, soft_wrap=True)
        if one.do:
            out.print(Text(f"{'':<19}→ {one.do}", style="default"), soft_wrap=True)
    out.print(Text(_summary(findings)))


def _summary(findings: Sequence[Finding]) -> str:
    counts = {status: sum(one.status is status for one in findings) for status in Status}
    told = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    return f"{told}: {'well' if is_well(findings) else 'something is wrong, see FAIL'}"


def _described(finding: Finding) -> dict[str, Any]:
    return {
        "area": finding.area,
        "status": finding.status.value,
        "what": finding.what,
        "do": finding.do or None,
    }
