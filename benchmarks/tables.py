"""The summary of a run as rows of text: for a terminal, and for results.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.sides import KAFKA, OURS, SYNCED, THREE, THREE_BROKERS
from benchmarks.summary import UNITS, Summary, ratio, reached
from benchmarks.workloads import OF_KAFKA, Workload

Row = tuple[str, ...]
# Side of ours -> the sides that it is compared with, and their column.
BESIDE: Final[Mapping[str, Mapping[str, str]]] = {
    OURS: {KAFKA: "kafka", SYNCED: "kafka synced"},
    THREE: {THREE_BROKERS: "kafka"},
}
FIRST: Final = ("workload", "unit", "median", "min", "max", "ratio")
AIM_COLUMNS: Final = ("", "workload", "figure", "ratio to", "to reach", "here", "", "foreign")
# Above so much of all cores a ratio says more about the others.
FOREIGN_MUCH: Final = 0.1


def columns(sides: Sequence[str], side: str) -> Row:
    compared = [said for other, said in BESIDE[side].items() if other in sides]
    return (*FIRST, *(word for said in compared for word in (said, f"to {said}")), "foreign")


def rows(
    summary: Summary, workloads: Sequence[Workload], sides: Sequence[str], side: str
) -> list[Row]:
    """One for each figure of each workload of that side of ours."""
    others = [other for other in BESIDE[side] if other in sides]
    found: list[Row] = []
    for workload in workloads:
        key = (workload.name, side)
        if key not in summary:
            continue
        for unit in UNITS:
            if unit not in summary[key].units:
                continue
            spread = summary[key].units[unit]
            compared = [
                word
                for other in others
                for word in (
                    _median(summary, (workload.name, other), unit),
                    _ratio(summary, key, (workload.name, other), unit),
                )
            ]
            found.append(
                (
                    workload.name,
                    unit,
                    *map(shown, (spread.median, spread.least, spread.most)),
                    _ratio(summary, key, (_base(workload, side), _base_side(side)), unit),
                    *compared,
                    f"{_foreign(summary, workload.name, (side, *others)):.0%}",
                )
            )
    return found


def aim_rows(summary: Summary, workloads: Sequence[Workload]) -> list[Row]:
    """What each workload should reach, and what it did."""
    found: list[Row] = []
    for workload in workloads:
        for aim in workload.aims:
            key = (workload.name, OURS)
            base = (workload.name, KAFKA) if aim.of == OF_KAFKA else (workload.ratio_to, OURS)
            value = ratio(summary, key, base, aim.unit)
            if value is None:
                continue
            foreign = max(summary[each].foreign_share for each in (key, base))
            said = "reached" if reached(aim.unit, value, aim.reach) else "**missed**"
            if foreign > FOREIGN_MUCH:
                said = f"unsure ({said.strip('*')} beside others)"
            found.append(
                (
                    *(workload.group, workload.name, aim.unit),
                    "Kafka" if aim.of == OF_KAFKA else workload.ratio_to,
                    *(f"{aim.reach:g}", f"{value:.2f}", said, f"{foreign:.0%}"),
                )
            )
    return found


def role_rows(summary: Summary, workloads: Sequence[Workload], side: str) -> list[Row]:
    """Where one operation is worked on: CPU microseconds and context switches of each process."""
    found: list[Row] = []
    for workload in workloads:
        figures = summary.get((workload.name, side))
        if figures is None:
            continue
        for role, (cpu_us, switches) in sorted(figures.by_role.items()):
            if cpu_us or switches:
                found.append((workload.name, role, shown(cpu_us), shown(switches)))
    return found


ROLE_COLUMNS: Final = ("workload", "process", "cpu_us", "switches")


def markdown(columns: Row, rows: Sequence[Row]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (columns, ("---",) * len(columns), *rows))


def shown(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.2g}"


def _base(workload: Workload, side: str) -> str:
    """What its figures are a ratio of: another workload, or itself with one node."""
    return workload.name if side == THREE else workload.ratio_to


def _base_side(side: str) -> str:
    return OURS if side == THREE else side


def _median(summary: Summary, key: tuple[str, str], unit: str) -> str:
    spread = summary[key].units.get(unit) if key in summary else None
    return "" if spread is None else shown(spread.median)


def _ratio(summary: Summary, what: tuple[str, str], base: tuple[str, str], unit: str) -> str:
    value = ratio(summary, what, base, unit)
    return "" if value is None else f"{value:.2f}"


def _foreign(summary: Summary, name: str, sides: Sequence[str]) -> float:
    """The most of any side that stands in the row."""
    return max(summary[name, side].foreign_share for side in sides if (name, side) in summary)
