"""Which members of groups are silent for longer than their session. Volatile. PURE.

A new leader has heard nobody: all get a whole session from the moment in which it begins to look.
Sessions run by a clock that stands still while this process does: who was stopped for a minute has
heard nobody in that time, and must not take all of them for dead. A member goes by its own clock,
and gives up its partitions earlier (docs/protocol.md, "Groups").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oncelog_server.core.timers import Timers

# The most that one look lets the clock go on. Looks come every `node.tick_ms`; what is beyond this
# was a pause of the process, or of its loop.
STEP_MS_MAX: Final = 1_000

# Group and member id.
Key = tuple[str, str]


class Liveness:
    """Invariant: each member has a timer, or waits for the next look to start it."""

    def __init__(self) -> None:
        self._session_ms: dict[Key, int] = {}
        self._timers: Timers[Key] = Timers()
        # Of whom nothing was heard yet.
        self._unarmed: dict[Key, None] = {}
        # When they were heard of last, by the clock below.
        self._heard_ms: dict[Key, int] = {}
        self._ran_ms = 0
        self._looked_ms: int | None = None

    def __len__(self) -> int:
        """Members."""
        return len(self._session_ms)

    def is_member(self, group: str, member_id: str, session_ms: int) -> None:
        """It is one, with this session."""
        key = (group, member_id)
        if self._session_ms.get(key) != session_ms:
            self._session_ms[key] = session_ms
            self._unarmed[key] = None

    def is_gone(self, group: str, member_id: str) -> None:
        key = (group, member_id)
        self._session_ms.pop(key, None)
        self._unarmed.pop(key, None)
        self._heard_ms.pop(key, None)
        self._timers.cancel(key)

    def heard(self, group: str, member_id: str, now_ms: int) -> None:
        """Of somebody who is no member it means nothing."""
        key = (group, member_id)
        if key in self._session_ms:
            self._heard_ms[key] = self._ran(now_ms)
            self._arm(key, now_ms)

    def look(self, now_ms: int) -> None:
        self._ran_ms, self._looked_ms = self._ran(now_ms), now_ms
        for key in list(self._unarmed):
            self._arm(key, now_ms)
        self._timers.turn(self._ran_ms)

    def over(self, groups_max: int) -> dict[str, list[str]]:
        """Members whose session is over, by group, of so many groups."""
        over: dict[str, list[str]] = {}
        for group, member_id in self._timers.due():
            if group in over or len(over) < groups_max:
                over.setdefault(group, []).append(member_id)
        return over

    def silent_ms(self, group: str, member_id: str, now_ms: int) -> int | None:
        """None: not heard of since this leader began."""
        heard_ms = self._heard_ms.get((group, member_id))
        return None if heard_ms is None else self._ran(now_ms) - heard_ms

    def _ran(self, now_ms: int) -> int:
        if self._looked_ms is None:
            return self._ran_ms
        return self._ran_ms + min(now_ms - self._looked_ms, STEP_MS_MAX)

    def _arm(self, key: Key, now_ms: int) -> None:
        self._unarmed.pop(key, None)
        self._timers.set(key, self._ran(now_ms) + self._session_ms[key])

    def keys(self) -> Iterator[Key]:
        return iter(self._session_ms)

    def check(self) -> None:
        self._timers.check()
        for key in self._session_ms:
            assert key in self._timers or key in self._unarmed, f"nobody looks after {key}"
