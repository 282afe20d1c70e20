"""The flights: events, the truth, and a comparison that notices every kind of fault."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest

from oncelog_spark.jobs import flight_records as flights
from oncelog_spark.jobs.flight_pipeline import Names

NAMES = {"UA": "United", "AA": "American"}


def row(**changed: str) -> dict[str, str]:
    return {
        "carrier": "UA",
        "tailnum": "N1",
        "origin": "EWR",
        "dest": "IAH",
        "time_hour": "2013-01-01T10:00:00Z",
        "flight": "1545",
        "dep_delay": "2",
        "arr_delay": "11",
        "air_time": "227",
        "distance": "1400",
        **changed,
    }


CANCELLED = row(dep_delay="NA", arr_delay="NA", air_time="NA", tailnum="NA")
LATE = row(carrier="AA", dep_delay="16")
ROWS = [row(), CANCELLED, LATE]


def written(rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    return [flights.expected_record(number, one, NAMES) for number, one in enumerate(rows)]


def encoded(documents: Sequence[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(document).encode() for document in documents]


def test_the_whole_data_set_is_there() -> None:
    folder = flights.data_folder()
    assert sum(1 for _ in flights.rows(folder)) == flights.FLIGHT_COUNT
    first = next(flights.events(flights.rows(folder)))
    assert first.key == b"UA"
    assert json.loads(first.value)["distance"] == 1400
    assert flights.airlines(folder)["UA"] == "United Air Lines Inc."
    assert len(list(islice(flights.rows(folder, 7), 10))) == 7


def test_what_is_not_known_is_null_in_events_and_absent_in_records() -> None:
    event = json.loads(next(flights.events([CANCELLED])).value)
    assert event["tailnum"] is event["dep_delay"] is None
    record = flights.expected_record(0, CANCELLED, NAMES)
    assert record["status"] == "cancelled"
    assert {"made_up", "mph"}.isdisjoint(record)


def test_records_are_enriched() -> None:
    on_time, _, late = written(ROWS)
    assert (on_time["airline"], on_time["route"], on_time["status"]) == (
        "United",
        "EWR-IAH",
        "on time",
    )
    assert (on_time["made_up"], on_time["mph"]) == (-9, 1400 * 60 // 227)
    assert late["status"] == "late"


def test_exactly_once_is_recognized() -> None:
    comparison = flights.compare_records(reversed(encoded(written(ROWS))), ROWS, NAMES)
    assert comparison.holds
    assert (comparison.expected, comparison.found) == (3, 3)


@pytest.mark.parametrize(
    ("change", "missing", "duplicates", "wrong"),
    [
        (lambda found: found[:2], 1, 0, 0),
        (lambda found: [*found, found[1]], 0, 1, 0),
        (lambda found: [found[0], found[0], found[2]], 1, 1, 0),
        (lambda found: [*found[:2], {**found[2], "mph": 1}], 0, 0, 1),
        (lambda found: [*found, {**found[2], "id": 99}], 0, 0, 1),
    ],
)
def test_every_fault_is_noticed(change: Any, missing: int, duplicates: int, wrong: int) -> None:
    found = encoded(change(written(ROWS)))
    comparison = flights.compare_records(found, ROWS, NAMES)
    assert not comparison.holds
    assert (comparison.missing, comparison.duplicates) == (missing, duplicates)
    assert len(comparison.wrong) == wrong


def delta(carrier: str, **numbers: int) -> dict[str, Any]:
    return {"carrier": carrier, **numbers}


DELTAS = [
    delta("UA", flights=1, departed=1, delay_sum=2, delay_max=2),
    # Spark leaves out what is null: of a batch in which nothing departed.
    delta("UA", flights=1, departed=0),
    delta("AA", flights=1, departed=1, delay_sum=16, delay_max=16),
]


def test_deltas_add_up_to_the_truth() -> None:
    assert flights.compare_delays(encoded(DELTAS), ROWS).holds


@pytest.mark.parametrize("found", [DELTAS[:2], DELTAS[1:], [*DELTAS, DELTAS[1]]])
def test_a_batch_that_counts_twice_or_not_is_noticed(found: list[dict[str, Any]]) -> None:
    comparison = flights.compare_delays(encoded(found), ROWS)
    assert not comparison.holds
    assert len(comparison.wrong) == 1


def test_a_run_in_a_used_cluster_takes_names_of_its_own() -> None:
    assert Names.unused(set()).flights == "flights"
    assert Names.unused({"flights", "carrier-delays.2"}).enriched == "flights-enriched.3"
