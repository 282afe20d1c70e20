"""Gauges, at a third of what prometheus_client's cost to make: a process with 10,000 partitions has
200,000 series, and makes them all at its start. From any thread: a level is one entry of a dict."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.core import GaugeMetricFamily

from oncelog_server.runtime.observe.by_labels import ByLabels


class Level:
    """One series of a metric."""

    __slots__ = ("_series", "_values")

    def __init__(self, series: dict[tuple[str, ...], float], values: tuple[str, ...]) -> None:
        self._series = series
        self._values = values

    def set(self, value: float) -> None:
        self._series[self._values] = value


class Levels(ByLabels[float, GaugeMetricFamily]):
    """All series of one metric."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        super().__init__(lambda: GaugeMetricFamily(name, help_text, labels=labels), labels, float)

    def labels(self, *values: str) -> Level:
        return Level(self._series, values)

    def set(self, value: float) -> None:
        """Of a metric without labels."""
        self._series[()] = value

    def _add(self, family: GaugeMetricFamily, values: tuple[str, ...], kept: float) -> None:
        family.add_metric(values, kept)
