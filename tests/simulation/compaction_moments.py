"""Moments of compaction: data logs of which something is taken out, and the points that leaders
journal. Looked at now and then, on all processes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog_server.core.cleaning import Cleanness
from oncelog_server.core.ids import PartitionId
from oncelog_server.core.roles import PARTITION_LEADER
from tests.simulation.moments import (
    COMPACTED_DELETED,
    COMPACTED_OPEN,
    COPY_COMPACTED,
    LEADER_COMPACTED,
    POINT_JOURNALED,
    TOMBSTONES_GONE,
)

if TYPE_CHECKING:
    from oncelog_server.runtime.replica.driver import Driver
    from tests.simulation.world import World


class CompactionMoments:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        # What was taken out of each replica's data log, and where it began, when it was looked at
        # last, by incarnation.
        self._data: dict[bytes, tuple[Cleanness, int]] = {}
        self._points: dict[PartitionId, int] = {}

    def look(self) -> None:
        for name, process in self._world.processes.items():
            if process.role == PARTITION_LEADER and self._world.is_up(name):
                for driver in process.node.led_replicas():
                    self._look_at(driver)
                    self._look_at_point(driver)
                for driver in self._world.copies.followed(name):
                    self._look_at(driver)

    def _look_at(self, driver: Driver) -> None:
        if not driver.is_open:
            return
        data, incarnation = driver.journal.data, driver.journal.incarnation
        before, begin = self._data.get(incarnation, (Cleanness(), 0))
        said = data.cleanness
        self._data[incarnation] = said, data.begin
        add = self._world.moments.add
        if said.holes_below and said.compacted_to > before.compacted_to:
            add(LEADER_COMPACTED if driver.leads else COPY_COMPACTED)
            if driver.leads and driver.machine.pending.open:
                add(COMPACTED_OPEN)
        if said.tombstones_to > before.tombstones_to:
            add(TOMBSTONES_GONE)
        if said.compacted_to and data.begin > begin:
            add(COMPACTED_DELETED)

    def _look_at_point(self, driver: Driver) -> None:
        point = driver.machine.compaction.compacted_below
        if point > self._points.get(driver.partition, 0):
            self._points[driver.partition] = point
            self._world.moments.add(POINT_JOURNALED)
