"""How long a partition of a group's input gets no further when members come and go. PURE.

    arrivals   ──x──x──x─────────────────x──x──x──
                         ▲ an event      │
               the gap ◄─┴───────────────┘ is that event's

A gap is counted once, at the first event that lies in it (of those that weigh most, where they do
not weigh the same), else at the last one before it. Of an event and a partition the longest gap
counts: also one of the ordinary distance between two transactions, where the partition went on as
before.
"""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Arrival(NamedTuple):
    """What a member got through, of one partition."""

    at_s: float
    # Which member; "" where nobody asks.
    by: str


class Event(NamedTuple):
    """After which partitions may move."""

    at_s: float
    kind: str
    # A gap with several events in it is one of those that weigh most.
    weight: int = 0


class Standstill(NamedTuple):
    """The longest time at one event in which nothing of one partition arrived."""

    event: Event
    partition: int
    seconds: float
    # Another member went on with it.
    moved: bool


def standstills(
    arrivals: Mapping[int, Sequence[Arrival]], events: Sequence[Event]
) -> list[Standstill]:
    """All in the order of time."""
    found: list[Standstill] = []
    for partition, of_it in arrivals.items():
        longest: dict[Event, Standstill] = {}
        for before, after in itertools.pairwise(of_it):
            event = _event_of(events, before.at_s, after.at_s)
            if event is None:
                continue
            known = longest.get(event)
            longest[event] = Standstill(
                event,
                partition,
                max(after.at_s - before.at_s, 0.0 if known is None else known.seconds),
                before.by != after.by or (known is not None and known.moved),
            )
        found += longest.values()
    return found


def _event_of(events: Sequence[Event], since_s: float, until_s: float) -> Event | None:
    at = bisect_left(events, since_s, key=lambda event: event.at_s)
    within = [event for event in events[at:] if event.at_s < until_s]
    if within:
        return max(within, key=lambda event: event.weight)
    return events[at - 1] if at else None


def table(found: Iterable[Standstill]) -> str:
    """One line for each kind of event, partitions that moved apart from those that stayed."""
    by_kind: dict[tuple[str, bool], list[Standstill]] = {}
    for one in found:
        by_kind.setdefault((one.event.kind, one.moved), []).append(one)
    lines = [f"{'event':28} {'partitions':12} {'times':>5} {'median s':>9} {'worst s':>9}"]
    for (kind, moved), of_kind in sorted(by_kind.items()):
        seconds = [one.seconds for one in of_kind]
        lines.append(
            f"{kind:28} {'moved' if moved else 'stayed':12} {len(seconds):5} "
            f"{statistics.median(seconds):9.2f} {max(seconds):9.2f}"
        )
    return "\n".join(lines)
