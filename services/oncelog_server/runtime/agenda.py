"""Which replicas of a process something is to be done for, and when the others are looked at: one
queue of deadlines, turned once a tick, so that who rests costs nothing (docs/adr/0082).

    stir ──► busy: each tick, and a report each second ──► it says for how long it rests
      ▲                                                          │
      └── something happens to it ◄── resting: a look when that is over, and again

Invariants:
  * a replica that was added is busy, or has a deadline, until it is dropped;
  * who is stirred is ticked at the next turn, whatever it said before;
  * a turn looks at RESTING_AT_ONCE of those at rest at most, and a report of all gives the loop a
    turn after REPORTS_AT_ONCE: thousands whose time comes together hold up nobody.

Left out: what a replica does then, and when it says that it rests (`replica/driver`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.timers import Timers

RESTING_AT_ONCE: Final = 50
REPORTS_AT_ONCE: Final = 100


class Looked(Protocol):
    """A replica (`replica/driver`)."""

    @property
    def partition(self) -> PartitionId: ...

    @property
    def rests_ms(self) -> int:
        """For how long nothing is to be done for it, unless it is stirred; 0: something is."""
        ...

    def tick(self) -> None: ...

    def wake(self) -> None: ...

    def report(self) -> None: ...

    def look(self) -> None:
        """At rest, now and then."""
        ...


class Agenda:
    """Of one process."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms`: monotonic."""
        self._now_ms = now_ms
        # In the order in which they became it.
        self._busy: dict[PartitionId, Looked] = {}
        self._resting: dict[PartitionId, Looked] = {}
        self._looks: Timers[PartitionId] = Timers()

    @property
    def busy(self) -> list[Looked]:
        return list(self._busy.values())

    @property
    def resting_count(self) -> int:
        return len(self._resting)

    def stir(self, replica: Looked) -> None:
        """Something is to be done for it; or it is new."""
        partition = replica.partition
        if partition in self._busy:
            return
        if self._resting.pop(partition, None) is not None:
            self._looks.cancel(partition)
        self._busy[partition] = replica

    def drop(self, partition: PartitionId) -> None:
        """It is no more."""
        self._busy.pop(partition, None)
        if self._resting.pop(partition, None) is not None:
            self._looks.cancel(partition)

    def turn(self) -> None:
        """A tick of the process."""
        for replica in self.busy:
            replica.tick()
            self._weigh(replica)
        now_ms = self._now_ms()
        self._looks.turn(now_ms)
        for partition in list(self._looks.due(RESTING_AT_ONCE)):
            replica = self._resting[partition]
            # Before the look: what that stirs stays so.
            self._looks.set(partition, now_ms + max(replica.rests_ms, 1))
            replica.look()
            if partition in self._resting and not replica.rests_ms:
                self.stir(replica)

    def _weigh(self, replica: Looked) -> None:
        partition, rests_ms = replica.partition, replica.rests_ms
        if rests_ms and partition in self._busy:
            self._resting[partition] = self._busy.pop(partition)
            self._looks.set(partition, self._now_ms() + rests_ms)

    def wake(self) -> None:
        """Something changed in etcd. Who rests waits for nobody."""
        for replica in self.busy:
            replica.wake()

    async def report(self) -> None:
        """About every second: who is busy notes what is synced, and shows what changed."""
        for number, replica in enumerate(self.busy):
            if number % REPORTS_AT_ONCE == REPORTS_AT_ONCE - 1:
                await asyncio.sleep(0)
            if replica.partition in self._busy:
                replica.report()

    def check(self) -> None:
        self._looks.check()
        assert not self._busy.keys() & self._resting.keys(), "who is busy has no deadline"
        assert all(partition in self._looks for partition in self._resting), "looked at for ever"
        assert len(self._looks) == len(self._resting)
