"""Moments of what is settled: data logs that grow and go in front, and journals that go where only
the data log has what can be read. Looked at now and then, on all processes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog_server.core.roles import PARTITION_LEADER
from tests.simulation.moments import (
    COPY_SETTLED,
    LEADER_SETTLED,
    SETTLED_DELETED,
    SETTLED_OPEN,
    SETTLED_READ,
    SETTLED_TRIMMED,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncelog_server.runtime.replica.driver import Driver
    from tests.simulation.world import World


class SettlingMoments:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Begin and end of the data log of each replica when it was looked at last.
        self._data: dict[bytes, tuple[int, int]] = {}

    def look(self) -> None:
        for name, process in self._world.processes.items():
            if process.role == PARTITION_LEADER and self._world.is_up(name):
                for driver in process.node.led_replicas():
                    self._look_at(driver)
                    if self._is_gone(driver):
                        self._world.moments.add(SETTLED_TRIMMED)
                for driver in self._world.copies.followed(name):
                    self._look_at(driver)

    def _look_at(self, driver: Driver) -> None:
        data = driver.journal.data if driver.is_open else None
        if data is None:
            return
        incarnation = driver.journal.incarnation
        begin, end = self._data.get(incarnation, (0, 0))
        self._data[incarnation] = data.begin, data.settled_end
        add = self._world.moments.add
        if data.settled_end > end:
            add(LEADER_SETTLED if driver.leads else COPY_SETTLED)
            if driver.leads and driver.machine.pending.open:
                add(SETTLED_OPEN)
        if data.begin > begin:
            add(SETTLED_DELETED)

    def everything_was_read(self) -> None:
        """By somebody, just now."""
        if any(self._is_gone(driver) for driver in self._led()):
            self._world.moments.add(SETTLED_READ)

    def _led(self) -> Iterator[Driver]:
        for process in self._world.processes.values():
            if process.role == PARTITION_LEADER:
                yield from process.node.led_replicas()

    @staticmethod
    def _is_gone(driver: Driver) -> bool:
        """The journal has not all that can be read."""
        return bool(driver.machine.needed_from() < driver.journal.log_start)
