"""Keeps the `replica.json` of each replica that leads up to date, for `oncelog cluster recover`.

Invariant: one writer at a time. What could not be written is tried again each second: the older
record is true as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime import vital
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.record import ReplicaRecord, load_record, save_record
from oncelog_server.runtime.storage.port import Disk


class Records:
    """Of one role. `describe` gives the directory of a replica, and what it should say now; None:
    nothing is to be written."""

    def __init__(
        self,
        disk: Disk,
        describe: Callable[[PartitionId], tuple[str, ReplicaRecord] | None],
        around: ReplicaEnv,
    ) -> None:
        self._disk = disk
        self._describe = describe
        self._around = around
        # What the files say.
        self._known: dict[PartitionId, ReplicaRecord] = {}
        # Partitions whose file may say too little.
        self._stale: set[PartitionId] = set()
        self._writing: asyncio.Task[None] | None = None

    def load(self, partition: PartitionId, directory: str) -> None:
        """Blocking."""
        if (record := load_record(self._disk, directory)) is not None:
            self._known[partition] = record

    def forget(self, partition: PartitionId) -> None:
        self._known.pop(partition, None)
        self._stale.discard(partition)

    def changed(self, partitions: Iterable[PartitionId]) -> None:
        """Their files may say too little: they are written soon."""
        self._stale.update(partitions)
        self._begin()

    async def write(self) -> None:
        """Writes what is to be written; returns when nothing is being written."""
        self._begin()
        await self.stop()

    async def stop(self) -> None:
        """Returns when nothing is being written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def _begin(self) -> None:
        if self._writing is None and self._stale:
            self._writing = vital.spawn(self._write_all(), self._around.fatal)

    async def _write_all(self) -> None:
        try:
            again: set[PartitionId] = set()
            while self._stale:
                partition = min(self._stale)
                self._stale.discard(partition)
                if not await self._write(partition):
                    again.add(partition)
            self._stale |= again
        finally:
            self._writing = None

    async def _write(self, partition: PartitionId) -> bool:
        """False where it is to be tried again."""
        found = self._describe(partition)
        if found is None:
            return True
        directory, record = found
        known = self._known.get(partition)
        if known is not None and known.says_as_much_as(record):
            return True
        try:
            await self._around.offload(lambda: save_record(self._disk, directory, record))
        except OSError as error:
            self._around.reporter.event(
                "replica record not written",
                level="warning",
                partition=str(partition),
                error=str(error),
            )
            return False
        self._known[partition] = record
        return True
