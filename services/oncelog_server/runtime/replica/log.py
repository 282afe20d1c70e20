"""The log of one replica while it is open: made, mended, read and closed. When which of that is due
is in `state`.

Invariants: its files are closed once nobody reads them any more; what is in doubt is abandoned when
the disk has nothing of it under way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from errno import EIO
from typing import Final

from oncelog_server.core.block import Block
from oncelog_server.core.frame import StoredFrame
from oncelog_server.core.ids import PartitionId
from oncelog_server.runtime.replica.dialog import SnapshotPart
from oncelog_server.runtime.replica.env import ReplicaEnv
from oncelog_server.runtime.replica.readers import Readers
from oncelog_server.runtime.replica.sending import read_part
from oncelog_server.runtime.storage.disk_use import DiskUse
from oncelog_server.runtime.storage.journal import Journal
from oncelog_server.runtime.storage.snapshot_parts import PartOf

# Damaged logs copied anew in one run: a disk that damages more of them is better replaced.
ANEW_MAX: Final = 3


class ReplicaLog:
    """Of one replica: one after the other, where damaged ones are copied anew."""

    def __init__(
        self,
        partition: PartitionId,
        around: ReplicaEnv,
        *,
        open_log: Callable[[], Awaitable[Journal]],
        begin_anew: Callable[[], Awaitable[None]],
    ) -> None:
        """See Driver."""
        self._partition = partition
        self._around = around
        self._open_log = open_log
        self._begin_anew = begin_anew
        self._anew_count = 0
        self._journal: Journal | None = None
        # Those who use the files of the journal that is open.
        self.readers = Readers(partition)

    @property
    def is_open(self) -> bool:
        """It was found sound, or recovered."""
        return self._journal is not None

    @property
    def journal(self) -> Journal:
        assert self._journal is not None, "its log is open"
        return self._journal

    # ------------------------------------------------------------------------------ its life

    async def open(self) -> None:
        """Raises JournalDamaged, OSError."""
        self._journal = await self._open_log()
        self.readers = Readers(self._partition)
        self._around.reporter.gauge("replica_unusable", 0, partition=str(self._partition))

    async def begin_anew(self) -> None:
        """Of a damaged one, which is closed: the next one is empty. Raises OSError."""
        if self._anew_count == ANEW_MAX:
            raise OSError(
                EIO,
                f"its log was damaged more than {ANEW_MAX} times (ANEW_MAX) since this process "
                "started: replace the disk, then start it again",
            )
        await self._begin_anew()
        self._anew_count += 1

    async def abandon(self) -> None:
        """What is not synced. Raises OSError."""
        # Of a decision that failed, not a write, what was appended before is on its way still: what
        # the disk answers must not be taken for the log as it is cut.
        await self._around.commit.leave(self.journal)
        with self.journal.without_budget():
            await self._around.offload(self.journal.abandon_unsynced)

    async def close(self) -> None:
        """Nobody is answered any more: when all who use its files are done, they are closed."""
        await self._around.commit.leave(self.journal)
        await self.readers.leave()
        async with self._around.places:
            await self._around.offload(self.journal.close)
        self.journal.forget_tail()
        self._journal = None

    def note_synced_end(
        self, *, synced: Callable[[int], None], write_failed: Callable[[OSError], None]
    ) -> None:
        """In a commit of its own where nothing else is on its way: a log that is quiet from now on
        would have no durable note of its last frames, and take a bad one for a torn tail."""
        if self.journal.note_synced_end():
            self._around.commit.wrote(self.journal, synced, write_failed)

    # ------------------------------------------------------------------------------- who reads it

    async def read(self, from_offset: int, max_bytes: int, *, below: int) -> list[StoredFrame]:
        """See Journal.read."""
        with self.readers:
            return await self.journal.read(from_offset, max_bytes, below=below)

    async def read_frames(self, offsets: Sequence[int]) -> list[StoredFrame]:
        """See Journal.read_frames."""
        with self.readers:
            return await self.journal.read_frames(offsets)

    async def read_settled(self, from_offset: int, max_bytes: int, *, below: int) -> list[Block]:
        """See DataLog.read."""
        with self.readers:
            return await self.journal.data.read(from_offset, max_bytes, below=below)

    async def disk_use(self) -> DiskUse:
        """Raises OSError."""
        found: list[DiskUse] = []
        with self.readers:
            journal = self.journal
            await self._around.offload(lambda: found.append(journal.disk_use()))
        return found[0]

    async def read_part(self, wanted: PartOf, *, tombstones_below: int | None) -> SnapshotPart:
        """Of what was before it. Raises InvalidArgument, CorruptLog, Unavailable."""
        with self.readers:
            return await read_part(
                self.journal, self._around.offload, wanted, tombstones_below=tombstones_below
            )
