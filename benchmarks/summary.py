"""From rounds to figures: medians and spreads, ratios to other workloads and sides, percentiles.
Pure; nothing here measures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.sides import Measured

P50: Final = "p50_ms"
P99: Final = "p99_ms"
CPU: Final = "cpu_us"
SWITCHES: Final = "switches"
MB: Final = "mb_per_s"
# In the order of the tables' rows.
UNITS: Final = ("records_per_s", "tx_per_s", MB, P50, P99, CPU, SWITCHES)
# Of these more is better.
RATES: Final = ("records_per_s", "tx_per_s", MB)
# From so many bytes a record on, MB/s say something that records/s do not.
MB_FROM_BYTES: Final = 1000

# (workload, side) -> figures.
Summary = Mapping[tuple[str, str], "Figures"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure, over the rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one workload on one side."""

    units: Mapping[str, Spread]
    # What others used of all cores, mean of the rounds.
    foreign_share: float
    # Role -> CPU microseconds per operation, and context switches; "client" among them.
    by_role: Mapping[str, tuple[float, float]]


def summarized(
    rounds: Mapping[tuple[str, str], Sequence[Measured]],
) -> dict[tuple[str, str], Figures]:
    return {key: figures(measured) for key, measured in rounds.items() if measured}


def figures(measured: Sequence[Measured]) -> Figures:
    """CPU and switches are those of the client and of all servers of that side."""
    values: dict[str, list[float]] = {}
    for one in measured:
        for unit, value in of_round(one).items():
            values.setdefault(unit, []).append(value)
    capacity = sum(one.used.capacity_s for one in measured)
    foreign = sum(one.used.foreign_s for one in measured)
    return Figures(
        units={unit: Spread.of(found) for unit, found in values.items()},
        foreign_share=min(foreign / capacity, 1.0) if capacity else 0.0,
        by_role=_by_role(measured),
    )


def of_round(one: Measured) -> dict[str, float]:
    result, total = one.result, one.used.total
    found: dict[str, float] = {}
    if result.operations and result.seconds:
        found[result.unit] = result.operations / result.seconds
        if result.value_bytes >= MB_FROM_BYTES * result.operations:
            found[MB] = result.value_bytes / result.seconds / 1e6
    if result.latencies_s:
        found[P50] = percentile(result.latencies_s, 50) * 1000
        found[P99] = percentile(result.latencies_s, 99) * 1000
    if result.operations:
        found[CPU] = total.cpu_s / result.operations * 1e6
        found[SWITCHES] = total.switches / result.operations
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many per cent of all do not exceed."""
    ordered = sorted(values)
    index = max(-(-len(ordered) * percent // 100) - 1, 0)
    return ordered[int(index)]


def ratio(
    summary: Summary, what: tuple[str, str], base: tuple[str, str], unit: str
) -> float | None:
    """Of medians; None where either is missing or nothing."""
    above, below = (
        summary[key].units.get(unit) if key in summary else None for key in (what, base)
    )
    if above is None or below is None or not below.median:
        return None
    return above.median / below.median


def reached(unit: str, found: float, wanted: float) -> bool:
    return found >= wanted if unit in RATES else found <= wanted


def _by_role(measured: Sequence[Measured]) -> dict[str, tuple[float, float]]:
    operations = sum(one.result.operations for one in measured)
    if not operations:
        return {}
    cpu_s: dict[str, float] = {}
    switches: dict[str, int] = {}
    for one in measured:
        for role, usage in {"client": one.used.client, **one.used.servers}.items():
            cpu_s[role] = cpu_s.get(role, 0.0) + usage.cpu_s
            switches[role] = switches.get(role, 0) + usage.switches
    return {role: (cpu_s[role] / operations * 1e6, switches[role] / operations) for role in cpu_s}
