"""What `unchanged` sees, and what it lets through."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from oncelog_server.core.timers import Timers
from tests.golden.unchanged import decide, unchanged


class Inner(msgspec.Struct):
    number: int = 0


class Slotted:
    __slots__ = ("column",)

    def __init__(self) -> None:
        self.column = array("q", (1, 2))


class Thing:
    """A bit of everything that machines are made of."""

    def __init__(self) -> None:
        self.inner = Inner()
        self.slotted = Slotted()
        self.timers: Timers[int] = Timers()
        self.timers.set(7, 100)
        self.by_name = {"a": [Inner()], "b": []}
        self.held: set[int] = {3, 4}
        self.payload = memoryview(b"payload")


class Raising:
    def decide(self, command: object, now: object) -> None:
        raise KeyError(command)


TRACES: list[tuple[Callable[[Thing], Any], str]] = [
    (lambda thing: setattr(thing.inner, "number", 1), "Thing.inner.number"),
    (lambda thing: thing.slotted.column.append(3), "Thing.slotted.column"),
    (lambda thing: thing.timers.turn(200), "Thing.timers._due"),
    (lambda thing: thing.timers.set(7, 200), "Thing.timers._deadline_ms[7]"),
    (lambda thing: setattr(thing.by_name["a"][0], "number", 9), "Thing.by_name['a'][0].number"),
    (lambda thing: thing.by_name.update(a=thing.by_name.pop("a")), "Thing.by_name"),
    (lambda thing: thing.held.add(5), "Thing.held"),
    (lambda thing: setattr(thing, "cached", 1), "Thing"),
]


@pytest.mark.parametrize(("leave", "where"), TRACES, ids=[where for _, where in TRACES])
def test_a_trace_is_named(leave: Callable[[Thing], Any], where: str) -> None:
    thing = Thing()
    with pytest.raises(AssertionError) as caught, unchanged(thing, "a look"):
        leave(thing)
    assert where in str(caught.value)


def test_reading_leaves_none() -> None:
    thing = Thing()
    with unchanged(thing, "a look"):
        assert list(thing.timers.due()) == []
        assert sorted(thing.held) == [3, 4]
        assert thing.by_name["a"][0] == Inner()


def test_an_exception_out_of_decide_is_a_bug() -> None:
    machine: Any = Raising()
    now: Any = None
    with pytest.raises(AssertionError, match="gives a Decision, and raises"):
        decide(machine, "command", now)
