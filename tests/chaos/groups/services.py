"""The services beside the workers: `oncelog up`, which starts again what dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import oncelog
from oncelog_server.core.ids import CONTROL_PARTITIONS, partition_of_name
from oncelog_server.core.roles import COORDINATOR, OFFSET_MANAGER
from tests.integration.failover import CONTROL_TOPICS, leader
from tests.integration.up import Up, children_of


class Services:
    """The processes of a running `up`, found by their data."""

    def __init__(self, up: Up, folder: Path, log: oncelog.Log) -> None:
        self._up = up
        self._folder = folder
        self._log = log
        self._names = {said["address"]: said["service"] for said in up.said if "address" in said}

    def signal_leader(
        self, role: str, what: signal.Signals, *, topic: str, group: str, number: int
    ) -> int | None:
        """Of the process of this role that works for the job most: whoever leads the group's
        partition, or partition `number` of the topic, or of the transaction journal. None: nobody
        does just now. Else its process id."""
        place = (topic, number)
        if role == OFFSET_MANAGER:
            place = (CONTROL_TOPICS[role], partition_of_name(group))
        elif role == COORDINATOR:
            place = (CONTROL_TOPICS[role], number % CONTROL_PARTITIONS)
        address = leader(self._log, *place)
        if address is None:
            return None
        for pid in children_of(self._up.pid, f"--data={self._folder / self._names[address]}\0"):
            os.kill(pid, what)
            return pid
        return None

    @staticmethod
    def go_on(pid: int) -> None:
        """SIGCONT, of one that was stopped; it has not ended, for nothing else touches it."""
        os.kill(pid, signal.SIGCONT)
