"""Pictures of a run, as PNG: how latencies are distributed, and what transactions of more records
gain. matplotlib is imported only here, and only when something is drawn: it comes with
benchmarks/requirements.txt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.summary import Summary
from benchmarks.workloads import WORKLOADS

LATENCIES: Final = "latencies.png"
SIZES: Final = "transaction-sizes.png"
RATE: Final = "records_per_s"
COLOURS: Final = ("#0b6e99", "#d9730d", "#9b51a0", "#448361", "#787774")
DPI: Final = 110
COLUMNS: Final = 3
# Of all that have latencies; the others differ from these by their shape alone.
PICTURED: Final = (
    *("one-record", "flushed", "of-750", "pipeline-750", "pipeline-7500", "producers-1-in-1"),
    *("producers-64-in-1", "producers-64-in-4", "end-to-end"),
)
# Points of one curve; more are not seen.
POINTS_MAX: Final = 500


class NoMatplotlib(RuntimeError):
    """The message says how to get it."""


def draw(
    folder: Path,
    latencies: Mapping[tuple[str, str], Sequence[float]],
    summary: Summary,
    sides: Sequence[str],
) -> list[Path]:
    """The pictures that there is something to draw in. Raises NoMatplotlib."""
    pyplot = _pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    names = [name for name in PICTURED if any((name, side) in latencies for side in sides)]
    if names:
        _draw_latencies(pyplot, folder / LATENCIES, latencies, names, sides)
        found.append(folder / LATENCIES)
    curves = {side: sizes(summary, side) for side in sides}
    if any(len(curve) > 1 for curve in curves.values()):
        _draw_sizes(pyplot, folder / SIZES, curves)
        found.append(folder / SIZES)
    return found


def curve(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Milliseconds, and the share of all that took longer: 0.01 is the 99th percentile."""
    ordered = sorted(values)
    count = len(ordered)
    step = max(count // POINTS_MAX, 1)
    # All of the tail: it is what such a picture is for.
    chosen = sorted({*range(0, count, step), *range(max(count - POINTS_MAX // 5, 0), count)})
    return [ordered[index] * 1000 for index in chosen], [1 - index / count for index in chosen]


def sizes(summary: Summary, side: str) -> list[tuple[int, float]]:
    """(records a transaction, records a second), of the workloads that differ in nothing else."""
    return [
        (workload.shape.records, summary[name, side].units[RATE].median)
        for name, workload in WORKLOADS.items()
        if name == f"of-{workload.shape.records}" and (name, side) in summary
    ]


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise NoMatplotlib(
            "plots need matplotlib: pip install -r benchmarks/requirements.txt"
        ) from None
    # Without a screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _draw_latencies(
    pyplot: Any,
    file: Path,
    latencies: Mapping[tuple[str, str], Sequence[float]],
    names: Sequence[str],
    sides: Sequence[str],
) -> None:
    from matplotlib import ticker

    lines = -(-len(names) // COLUMNS)
    figure, axes = pyplot.subplots(
        lines, COLUMNS, figsize=(4 * COLUMNS, 3 * lines), squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes.flat, names, strict=False):
        for side, colour in zip(sides, COLOURS, strict=False):
            if (name, side) in latencies:
                axis.plot(*curve(latencies[name, side]), label=side, color=colour)
        axis.set_xscale("log")
        axis.set_yscale("log")
        # Else the decades' neighbours are labelled over each other.
        axis.xaxis.set_minor_formatter(ticker.NullFormatter())
        axis.yaxis.set_minor_formatter(ticker.NullFormatter())
        axis.xaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_title(name)
        axis.grid(visible=True, which="major", alpha=0.3)
    for axis in axes.flat[len(names) :]:
        axis.set_axis_off()
    axes.flat[0].legend()
    figure.supxlabel("milliseconds")
    figure.supylabel("share that took longer")
    figure.savefig(file, dpi=DPI)
    pyplot.close(figure)


def _draw_sizes(pyplot: Any, file: Path, curves: Mapping[str, list[tuple[int, float]]]) -> None:
    figure, axis = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for (side, points), colour in zip(curves.items(), COLOURS, strict=False):
        if points:
            axis.plot(*zip(*points, strict=True), marker="o", label=side, color=colour)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("records of 100 B a transaction")
    axis.set_ylabel("records a second")
    axis.grid(visible=True, which="major", alpha=0.3)
    axis.legend()
    figure.savefig(file, dpi=DPI)
    pyplot.close(figure)
