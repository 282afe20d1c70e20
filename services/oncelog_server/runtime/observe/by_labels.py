"""What collectors of our own share: the series of one metric, by the values of its labels. A scrape
from another thread sees each as it was at some moment, which is all that a scrape promises."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

# What is kept of a series, and how prometheus_client shows all of them.
Kept = TypeVar("Kept")
Family = TypeVar("Family", bound=Metric)


class ByLabels(Collector, Generic[Kept, Family]):
    """Used like prometheus_client's metrics, by whoever adds `labels` and a verb."""

    def __init__(
        self, make: Callable[[], Family], labels: Sequence[str], first: Callable[[], Kept]
    ) -> None:
        """`make`: with the metric's name, help and labels. `first`: of one without labels, which is
        shown before anybody reports it."""
        self._make = make
        self._series: dict[tuple[str, ...], Kept] = {} if labels else {(): first()}

    def remove(self, *values: str) -> None:
        self._series.pop(values, None)

    def describe(self) -> Iterator[Family]:
        """Its name, for who asks for some metrics only."""
        yield self._make()

    def collect(self) -> Iterator[Family]:
        family = self._make()
        # In one step: the loop makes series meanwhile.
        for values, kept in self._series.copy().items():
            self._add(family, values, kept)
        yield family

    @abstractmethod
    def _add(self, family: Family, values: tuple[str, ...], kept: Kept) -> None:
        """As that series is now."""
