"""How long a partition gets no further at a rebalance: each gap once, at the event that made it."""

from __future__ import annotations

from benchmarks.standstill import Arrival, Event, Standstill, standstills, table


def by(who: str, *times: float) -> list[Arrival]:
    return [Arrival(at, who) for at in times]


def seconds_of(found: list[Standstill]) -> dict[str, float]:
    return {one.event.kind: one.seconds for one in found}


def test_a_gap_is_that_of_the_event_in_it() -> None:
    (found,) = standstills({3: [*by("a", 1, 2), *by("b", 9, 10)]}, [Event(2.5, "kill")])
    assert (found.partition, found.seconds, found.moved) == (3, 7, True)


def test_where_nothing_stood_still_the_ordinary_distance_is_counted() -> None:
    (found,) = standstills({0: by("a", 1, 2, 3)}, [Event(1.5, "kill")])
    assert (found.seconds, found.moved) == (1, False)


def test_a_gap_that_began_after_an_event_is_that_of_the_last_one() -> None:
    events = [Event(1.5, "kill"), Event(2.5, "join")]
    assert seconds_of(standstills({0: by("a", 1, 2, 3, 8)}, events)) == {"kill": 1, "join": 5}


def test_of_several_events_in_one_gap_the_first_counts() -> None:
    events = [Event(2.5, "kill"), Event(4, "join"), Event(5, "leave")]
    assert seconds_of(standstills({0: by("a", 1, 2, 6)}, events)) == {"kill": 4}


def test_or_the_one_that_weighs_more() -> None:
    events = [Event(2.5, "kill"), Event(4, "service", 1), Event(5, "leave")]
    assert seconds_of(standstills({0: by("a", 1, 2, 6)}, events)) == {"service": 4}


def test_what_came_before_all_events_is_nobodys() -> None:
    assert standstills({0: by("a", 1, 5, 6)}, [Event(9, "kill")]) == []


def test_who_moved_and_who_stayed_are_told_apart() -> None:
    events = [Event(2.5, "kill")]
    shown = table(standstills({0: [*by("a", 2), *by("b", 6)], 1: by("a", 2, 3)}, events))
    assert [line.split()[:3] for line in shown.splitlines()[1:]] == [
        ["kill", "stayed", "1"],
        ["kill", "moved", "1"],
    ]
