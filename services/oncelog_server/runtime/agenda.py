"""Which replicas of a process something is to be done for, and when the others are looked at: one
queue of deadlines, turned once a tick while somebody is busy, and else when a look is due, so that
who rests costs nothing (docs/adr/0082).

    stir ──► busy: ticked, and a report each second ──► it says for how long it rests
      ▲                                                          │
      └── something happens to it ◄── resting: a look when that is over, and again

Invariants:
  * a replica that was added is busy, or has a deadline, until it is dropped;
  * who is stirred at rest is ticked at the next turn, whatever it said before;
  * a turn ticks BUSY_AT_ONCE of those that were busy before, who waited longest first, and looks at
    RESTING_AT_ONCE of those at rest at most, and a report of all gives the loop a turn after
    REPORTS_AT_ONCE: thousands whose time comes together, as at a start, hold up nobody.

Left out: what a replica does then, and when it says that it rests (`replica/driver`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.timers import Timers

# About a sixth of a core, with ten ticks a second.
BUSY_AT_ONCE: Final = 500
RESTING_AT_ONCE: Final = 50
REPORTS_AT_ONCE: Final = 100
# And then the loop gets so many times what these took.
REPORT_REST: Final = 3
# Who rests for LONG_REST_MS and more is looked at with others, up to this much before his time.
LOOKS_TOGETHER_MS: Final = 1_000
LONG_REST_MS: Final = 10_000
# While nobody is busy, deadlines are read anew so often: clocks and the loop's time may differ.
IDLE_MS_MAX: Final = 1_000


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
        # Busy since the last turn, and those before: who was ticked longest ago is first.
        self._stirred: dict[PartitionId, Looked] = {}
        self._busy: dict[PartitionId, Looked] = {}
        self._resting: dict[PartitionId, Looked] = {}
        self._looks: Timers[PartitionId] = Timers()
        # Somebody was stirred.
        self._woken = asyncio.Event()

    @property
    def busy(self) -> list[Looked]:
        return [*self._busy.values(), *self._stirred.values()]

    @property
    def resting_count(self) -> int:
        return len(self._resting)

    def stir(self, replica: Looked) -> None:
        """Something is to be done for it; or it is new."""
        partition = replica.partition
        if self._is_busy(partition):
            return
        if self._resting.pop(partition, None) is not None:
            self._looks.cancel(partition)
        self._stirred[partition] = replica
        self._woken.set()

    def drop(self, partition: PartitionId) -> None:
        """It is no more."""
        self._stirred.pop(partition, None)
        self._busy.pop(partition, None)
        if self._resting.pop(partition, None) is not None:
            self._looks.cancel(partition)

    async def next_turn(self, tick_ms: int) -> None:
        """Returns when a turn is due: a tick later, or a tick after somebody was stirred, or when
        the first of those at rest is to be looked at."""
        await asyncio.sleep(tick_ms / 1000)
        while not self._busy and not self._stirred:
            look_ms = self._looks.next_ms()
            left_ms = IDLE_MS_MAX if look_ms is None else look_ms - self._now_ms()
            if left_ms <= 0:
                return
            self._woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_ms, IDLE_MS_MAX) / 1000):
                    await self._woken.wait()
                await asyncio.sleep(tick_ms / 1000)

    def turn(self) -> None:
        """A tick of the process."""
        before = list(islice(self._busy.values(), BUSY_AT_ONCE))
        for replica in [*before, *self._stirred.values()]:
            self._tick(replica)
        now_ms = self._now_ms()
        self._looks.turn(now_ms)
        for partition in list(self._looks.due(RESTING_AT_ONCE)):
            if partition not in self._resting:
                # The look of another one has stirred or dropped it.
                continue
            replica = self._resting[partition]
            # Before the look: what that stirs stays so.
            self._looks.set(partition, _look_at(now_ms, max(replica.rests_ms, 1)))
            replica.look()
            if partition not in self._resting:
                continue
            if rests_ms := replica.rests_ms:
                # It may have found something, and want another one sooner.
                self._looks.set(partition, _look_at(now_ms, rests_ms))
            else:
                self.stir(replica)

    def _is_busy(self, partition: PartitionId) -> bool:
        return partition in self._stirred or partition in self._busy

    def _tick(self, replica: Looked) -> None:
        partition = replica.partition
        if not self._is_busy(partition):
            # The tick of another one has dropped it.
            return
        self._stirred.pop(partition, None)
        self._busy.pop(partition, None)
        self._busy[partition] = replica
        replica.tick()
        if (rests_ms := replica.rests_ms) and partition in self._busy:
            self._resting[partition] = self._busy.pop(partition)
            self._looks.set(partition, _look_at(self._now_ms(), rests_ms))

    def wake(self) -> None:
        """Something changed in etcd. Who rests waits for nobody."""
        for replica in self.busy:
            replica.wake()

    async def report(self) -> None:
        """About every second, and less often where thousands are busy: who is busy notes what is
        synced, and shows what changed."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for number, replica in enumerate(self.busy):
            if number % REPORTS_AT_ONCE == REPORTS_AT_ONCE - 1:
                await asyncio.sleep(REPORT_REST * (loop.time() - began_s))
                began_s = loop.time()
            if self._is_busy(replica.partition):
                replica.report()

    def check(self) -> None:
        self._looks.check()
        busy = self._busy.keys() | self._stirred.keys()
        assert not busy & self._resting.keys(), "who is busy has no deadline"
        assert len(busy) == len(self._busy) + len(self._stirred)
        assert all(partition in self._looks for partition in self._resting), "looked at for ever"
        assert len(self._looks) == len(self._resting)


def _look_at(now_ms: int, rests_ms: int) -> int:
    """When who rests for so long is looked at."""
    look_ms = now_ms + rests_ms
    return look_ms if rests_ms < LONG_REST_MS else look_ms - look_ms % LOOKS_TOGETHER_MS
