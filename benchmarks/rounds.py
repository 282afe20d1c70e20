"""All workloads in turns, over all sides: what else the machine does hits all of them alike. In
every second turn the sides come in the opposite order, so that none of them always follows the
other's clearing up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.observer import Look
from benchmarks.sides import Measured, Side
from benchmarks.workloads import Workload

# A round of the warm-up lasts as long as this share of a later one.
WARM_UP_SHARE: Final = 0.2
# Between two: what a round left behind (deleted topics, garbage) is cleared up meanwhile.
REST_S: Final = 0.5
# What a round takes besides its seconds, roughly: topics, connections, inputs, its end.
BESIDE_S: Final = 2.0

# (workload, side) -> its rounds.
Rounds = dict[tuple[str, str], list[Measured]]


@dataclass(slots=True)
class Run:
    """What a run has found so far. `interrupted` where it was ended before its time."""

    warm_up: Rounds = field(default_factory=dict)
    rounds: Rounds = field(default_factory=dict)
    # (workload, side) -> what went wrong there.
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One round that is to come."""

    # 0: the warm-up.
    turn: int
    workload: Workload
    side: Side
    seconds: float


def steps(
    workloads: Sequence[Workload], sides: Sequence[Side], *, rounds: int, seconds: float
) -> Iterator[Step]:
    for turn in range(rounds + 1):
        for workload in workloads:
            for side in sides if turn % 2 == 0 else list(reversed(sides)):
                if side.has(workload):
                    yield Step(turn, workload, side, seconds if turn else seconds * WARM_UP_SHARE)


def estimate_s(planned: Sequence[Step]) -> float:
    return sum(step.seconds + BESIDE_S + REST_S for step in planned)


def run(planned: Sequence[Step], look: Callable[[], Look], say: Callable[[Step], None]) -> Run:
    """Ctrl-C ends it, and what was measured until then is kept."""
    found = Run()
    try:
        for step in planned:
            key = (step.workload.name, step.side.name)
            if key in found.failed:
                continue
            say(step)
            topic = f"{step.workload.name}-{step.turn}"
            try:
                measured = step.side.measure(step.workload, topic, step.seconds, look)
            except Exception as error:
                # The others go on: an hour of figures is worth more than an early end.
                found.failed[key] = f"{type(error).__name__}: {error}"
                continue
            into = found.rounds if step.turn else found.warm_up
            into.setdefault(key, []).append(measured)
            time.sleep(REST_S)
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def latencies(rounds: Rounds) -> Mapping[tuple[str, str], list[float]]:
    """Of all rounds together, seconds, where single ones count."""
    return {
        key: [each for one in measured for each in one.result.latencies_s]
        for key, measured in rounds.items()
        if any(one.result.latencies_s for one in measured)
    }
