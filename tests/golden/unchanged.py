"""That a question about a machine changes nothing of it: `decide`, `owed`, `snapshot`, `check`.

A machine is compared as it lies in memory, before and after: every attribute of every object in it,
in order, replicated or volatile. So a timer that `decide` turns is seen, and a row that `snapshot`
notes as given; what they would give is not asked.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from oncelog_server.core.ids import JournalOffset
from oncelog_server.core.machine import Decision, Instant, Machine


def decide(machine: Machine[Any, Any, Any], command: object, now: Instant) -> Decision[Any]:
    """`machine.decide`, which leaves no trace and raises nothing: what it refuses, it says in its
    Decision."""
    with unchanged(machine, f"decide of {type(command).__name__}"):
        try:
            return machine.decide(command, now)
        except Exception as error:
            raise AssertionError(f"decide of {command!r} gives a Decision, and raises") from error


def look_at(machine: Machine[Any, Any, Any], high_watermark: JournalOffset) -> None:
    """Asks all that may be asked at any time; the answers are the same the second time."""
    with unchanged(machine, "a look at it"):
        machine.check()
        answers = [(machine.owed(high_watermark), machine.snapshot()) for _ in range(2)]
        assert answers[0] == answers[1], "the same question gets the same answer"


@contextmanager
def unchanged(machine: object, what: str) -> Iterator[None]:
    """Raises AssertionError where `what`, done inside, left a trace in the machine."""
    before = fingerprint(machine)
    yield
    if fingerprint(machine) != before:
        places = list(_differences(pickle.loads(before), machine, type(machine).__name__))
        changed = ", ".join(places) or "which objects are the same ones"
        raise AssertionError(f"{what} changes nothing, but it changed {changed}")


def fingerprint(machine: object) -> bytes:
    """Equal where nothing in it has changed. Of one object only: two that are equal may differ."""
    written = io.BytesIO()
    _Pickler(written, pickle.HIGHEST_PROTOCOL).dump(machine)
    return written.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, memoryview):
            return bytes, (bytes(thing),)
        return NotImplemented


def _differences(before: Any, after: Any, path: str) -> Iterator[str]:
    """The innermost places that differ."""
    pairs: list[tuple[str, Any, Any]]
    if type(before) is not type(after):
        pairs = []
    elif isinstance(before, Mapping) and list(before) == list(after):
        pairs = [(f"{path}[{key!r}]", before[key], after[key]) for key in before]
    elif isinstance(before, list | tuple) and len(before) == len(after):
        pairs = [(f"{path}[{i}]", *both) for i, both in enumerate(zip(before, after, strict=True))]
    else:
        pairs = [
            (f"{path}.{name}", getattr(before, name, None), getattr(after, name, None))
            for name in sorted({*_names(before), *_names(after)})
        ]
    if not pairs:
        yield path
    for place, one, other in pairs:
        if fingerprint(one) != fingerprint(other):
            yield from _differences(one, other, place)


def _names(thing: Any) -> Sequence[str]:
    """Of its attributes."""
    if isinstance(thing, msgspec.Struct):
        return thing.__struct_fields__
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return sorted({*slots, *getattr(thing, "__dict__", {})})
