"""When elections look again at which partitions: at those that something changed for, at once; at
those where something is not done, after a moment.

    call(partitions), call_all ─► due ──┬─► begin: what is due, and nothing else ─► look, `looked`
    again(partitions) ─ ROUND_RETRY_MS ─┘        ▲                                      │
                                                 └── next: a rest, and something due ◄──┘

What is judged of a partition depends on its own key, on who lives, on its topic, and on what this
process did with it. So whoever changes one of these calls for the partitions that it is about, and
a change of one among thousands costs what one costs.

Who lives, and topics, are about all partitions, and each of them is looked at in one go. So after
each round the loop has ROUND_REST times as long for everything else: else streams fall silent and
leases run out, which are changes, which call for rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from oncelog_server.core.ids import PartitionId

# What is not done is looked at again after so long.
ROUND_RETRY_MS: Final = 200
# The loop's other work gets so many times what rounds take.
ROUND_REST: Final = 10
# And never longer than this: a process that was stopped in the middle of a round looked for long.
REST_MS_MAX: Final = 500


class Rounds:
    """Of one process. `begin`, look, `looked`, what comes of it, `next`."""

    def __init__(self) -> None:
        self._called = asyncio.Event()
        self._began_s = self._took_s = 0.0
        self._due: set[PartitionId] = set()
        # All are due: nothing was looked at yet.
        self._all_are_due = True
        # Where something is not done, and what makes these due.
        self._unfinished: set[PartitionId] = set()
        self._retry: asyncio.TimerHandle | None = None

    def call(self, partitions: Iterable[PartitionId]) -> None:
        """Something changed for these: another round comes."""
        self._due.update(partitions)
        if self._due:
            self._called.set()

    def call_all(self) -> None:
        """Something changed that any partition may depend on."""
        self._all_are_due = True
        self._called.set()

    def again(self, partitions: Iterable[PartitionId]) -> None:
        """Something is not done there."""
        self._unfinished.update(partitions)
        if self._retry is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(ROUND_RETRY_MS / 1000, self._call_unfinished)

    def _call_unfinished(self) -> None:
        self._retry = None
        self.call(self._unfinished)

    def begin(self) -> frozenset[PartitionId] | None:
        """What is due; None: all. What changes from here on calls for another round."""
        self._called.clear()
        self._began_s = self._now()
        due = None if self._all_are_due else frozenset(self._due)
        self._unfinished = self._unfinished - due if due is not None else set()
        self._due, self._all_are_due = set(), False
        return due

    def looked(self) -> None:
        """At what was due; what is asked of etcd now is waited for, and holds up nobody."""
        self._took_s = self._now() - self._began_s

    async def next(self) -> None:
        """Returns when another round is due."""
        if self._took_s:
            await asyncio.sleep(min(ROUND_REST * self._took_s, REST_MS_MAX / 1000))
        await self._called.wait()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
