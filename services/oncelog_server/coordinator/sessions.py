"""Which producer holds its session on which stream. Volatile. PURE.

A session's end aborts the producer's open transaction after a grace, unless the producer came back
on another stream. A change of coordinator never ends a session: a new leader knows none.
"""

from __future__ import annotations

from collections.abc import Iterator

from oncelog_server.coordinator.commands import SessionEnded, SessionOpened
from oncelog_server.core.ids import Generation, ProducerId
from oncelog_server.core.timers import Timers


class Sessions:
    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._held: dict[ProducerId, SessionOpened] = {}
        self._grace: Timers[ProducerId] = Timers()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def are_ending(self) -> bool:
        """Some are in their grace."""
        return len(self._grace) > 0

    def opened(self, session: SessionOpened) -> None:
        """Also takes over from an earlier stream, whose end is then ignored."""
        self._held[session.producer.producer_id] = session
        self._grace.cancel(session.producer.producer_id)

    def ended(self, session: SessionEnded, now_ms: int) -> None:
        if self._held.get(session.producer.producer_id) == SessionOpened(*session):
            self._grace.set(session.producer.producer_id, now_ms + self._grace_ms)

    def turn(self, now_ms: int) -> None:
        self._grace.turn(now_ms)

    def over(self, count_max: int) -> Iterator[tuple[ProducerId, Generation]]:
        """Whose grace has passed."""
        for producer_id in self._grace.due(count_max):
            yield producer_id, self._held[producer_id].producer.generation

    def forget(self, producer_id: ProducerId) -> None:
        self._held.pop(producer_id, None)
        self._grace.cancel(producer_id)

    def check(self) -> None:
        self._grace.check()
