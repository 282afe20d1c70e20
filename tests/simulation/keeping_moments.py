"""Moments of what is deleted: logs that begin later than they did, and what was going on then.
Looked at now and then, on all processes at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.roles import COORDINATOR, OFFSET_MANAGER, PARTITION_LEADER
from tests.simulation.moments import (
    BEHIND_THE_START,
    COORDINATOR_TRIMMED,
    COPY_TRIMMED,
    LEADER_TRIMMED,
    OFFSETS_TRIMMED,
    START_MOVED,
    START_MOVED_OPEN,
    TRIMMED_OPEN,
)

if TYPE_CHECKING:
    from oncelog_server.runtime.replica.driver import Driver
    from tests.simulation.world import World

OF_CONTROL: Final[Mapping[str, str]] = {
    COORDINATOR: COORDINATOR_TRIMMED,
    OFFSET_MANAGER: OFFSETS_TRIMMED,
}


class KeepingMoments:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Where the journal of each replica began when it was looked at last, by incarnation.
        self._journals: dict[bytes, int] = {}
        # Where the committed log began, by partition.
        self._starts: dict[PartitionId, int] = {}

    def look(self) -> None:
        for name, process in self._world.processes.items():
            if self._world.is_up(name):
                for driver in process.node.led_replicas():
                    self._look_at_journal(driver, process.role)
                    if process.role == PARTITION_LEADER:
                        self._look_at_start(driver)
                for driver in self._world.copies.followed(name):
                    self._look_at_journal(driver, process.role)

    def _look_at_journal(self, driver: Driver, role: str) -> None:
        if not driver.is_open:
            return
        journal = driver.journal
        before = self._journals.setdefault(journal.incarnation, journal.log_start)
        if journal.log_start == before:
            return
        self._journals[journal.incarnation] = journal.log_start
        moments = self._world.moments
        if role in OF_CONTROL:
            moments.add(OF_CONTROL[role])
        elif driver.leads and driver.machine.pending.open:
            moments.add(TRIMMED_OPEN)
        moments.add(LEADER_TRIMMED if driver.leads else COPY_TRIMMED)
        for other in self._world.copies.replicas(driver.partition):
            if other.driver is not driver and other.journal.log_end < journal.log_start:
                moments.add(BEHIND_THE_START)

    def _look_at_start(self, driver: Driver) -> None:
        start = int(driver.machine.committed.start_offset)
        before = self._starts.setdefault(driver.partition, start)
        if start > before:
            self._starts[driver.partition] = start
            self._world.moments.add(START_MOVED)
            if driver.machine.pending.open:
                self._world.moments.add(START_MOVED_OPEN)
