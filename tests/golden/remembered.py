"""What a machine remembers, taken from its attributes and not from its snapshot.

A field that `snapshot()` leaves out is missing on both sides where two snapshots are compared. Here
it is not: what `apply` built is walked as it lies in memory (I35).

Left out: what `seen` changes and a new leader starts anew (timers, sessions, questions, what is
under way), what is derived from the rest and asked again by every leader, and the configuration.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

NOT_REPLICATED: Final = frozenset(
    {
        # Configuration.
        "config",
        "_config",
        # Partition leader, offset manager: question timers.
        "_questions",
        # Coordinator: what was acknowledged, what is under way, timers and sessions.
        "deliveries",
        "first_staged",
        "idle",
        "lifetime",
        "sessions",
        "asked",
        "asked_parts",
        "unarmed",
        "unborn",
        # Whether the journal ages.
        "watch",
        "_watch",
        "_cleaning",
        # Offset manager: which members were heard of.
        "_liveness",
        "_claims",
        "memberships_changed",
    }
)
PLAIN: Final = (type(None), bool, int, float, str, bytes, Enum)


def remembered(thing: Any) -> Any:
    """Plain values that are equal where what was remembered is. The order of a dict is no part of
    it: where it matters, `check` asserts it."""
    if isinstance(thing, PLAIN):
        return thing
    if isinstance(thing, Mapping):
        return {key: remembered(value) for key, value in thing.items()}
    if isinstance(thing, set | frozenset):
        return frozenset(thing)
    if isinstance(thing, array):
        return thing.tolist()
    if isinstance(thing, Sequence | deque):
        return [remembered(one) for one in thing]
    assert not callable(thing), f"{thing!r} is nothing that a journal could give back"
    return {
        name: remembered(getattr(thing, name))
        for name in _names(thing)
        if name not in NOT_REPLICATED
    }


def _names(thing: Any) -> list[str]:
    """Of its attributes."""
    if isinstance(thing, msgspec.Struct):
        return list(thing.__struct_fields__)
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return sorted({*slots, *getattr(thing, "__dict__", {})})
