"""Goes through every state that a small world can reach, shortest ways first.

A state that was seen is not looked at again (by the hash of its key), so the search ends. What it
finds is the shortest story that breaks a promise, step by step.
"""

from __future__ import annotations

import gc
from typing import Final, NamedTuple

from tests.unit.replica.parts import Violation
from tests.unit.replica.world import Step, World

STATES_MAX: Final = 2_000_000


class Found(NamedTuple):
    """What a search saw."""

    states: int
    transitions: int
    # None: every promise holds in every state.
    violation: str | None
    # The steps that led there.
    story: tuple[Step, ...]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(self.story, 1))
        return f"{self.violation} after {len(self.story)} steps:\n{steps}"


def walk(world: World, *steps: Step) -> World:
    """The state after these steps, which must all be possible."""
    for step in steps:
        assert step in world.steps(), f"{step} is not possible: {world.steps()}"
        world = world.take(step)
    return world


def explore(start: World, *, states_max: int = STATES_MAX) -> Found:
    """Raises AssertionError where there are more states than a test has time for."""
    # Nothing here refers to itself, and looking for what does takes a third of the time.
    gc.disable()
    try:
        return _explore(start, states_max)
    finally:
        gc.enable()


def _explore(start: World, states_max: int) -> Found:
    seen = {start.key()}
    # (number of the parent in `came`, step)
    came: list[tuple[int, Step]] = [(-1, ())]
    layer = [(0, start)]
    transitions = 0
    while layer:
        following: list[tuple[int, World]] = []
        for number, world in layer:
            for step in world.steps():
                transitions += 1
                try:
                    after = world.take(step)
                except Violation as broken:
                    story = (*_story(came, number), step)
                    return Found(len(seen), transitions, str(broken), story)
                key = after.key()
                if key in seen:
                    continue
                seen.add(key)
                came.append((number, step))
                following.append((len(came) - 1, after))
        assert len(seen) <= states_max, f"more than {states_max} states: bound the world tighter"
        layer = following
    return Found(len(seen), transitions, None, ())


def _story(came: list[tuple[int, Step]], number: int) -> tuple[Step, ...]:
    steps: list[Step] = []
    while number > 0:
        number, step = came[number]
        steps.append(step)
    return tuple(reversed(steps))
