"""How full the disk is, and whether data may be accepted: above `disk_free_floor` it may; below it
data is refused, and control frames use the reserve (docs/leadership.md, "Disks").

The disk is looked at every second, and in between once enough was written to make a difference.
Invariant: there is room only where the floor would also hold once all is written that was accepted;
else one burst could take the whole reserve, which ends of transactions need.
"""

from __future__ import annotations

from typing import Final

from oncelog_server.core.ports import Reporter
from oncelog_server.runtime.storage.commit import GroupCommit
from oncelog_server.runtime.storage.port import Disk

# Free space is looked at again once this part of the floor was written: a second may be too long.
LOOKS_PER_FLOOR: Final = 16


class FreeSpace:
    """Of one node's data directory. `commit` may be set once; until then nothing is accepted."""

    def __init__(self, disk: Disk, reporter: Reporter, *, floor_bytes: int) -> None:
        self._disk = disk
        self._reporter = reporter
        # 0: the disk may be filled.
        self._floor_bytes = floor_bytes
        self._commit: GroupCommit | None = None
        # As of the last look, and what was written since.
        self._free_bytes = 0
        self._written_bytes = 0
        self._had_room = True

    def watch(self, commit: GroupCommit) -> None:
        """What it holds and has not written yet is counted; looks for the first time."""
        self._commit = commit
        self.look()

    def has_room(self) -> bool:
        return not self._floor_bytes or self._free_after_bytes() >= self._floor_bytes

    def may_settle(self) -> bool:
        """What is settled may take half of the reserve: it is what lets journals go, and so what a
        disk that ran full of them gets its room back by."""
        return not self._floor_bytes or self._free_after_bytes() >= self._floor_bytes // 2

    def _free_after_bytes(self) -> int:
        """Once all is written that was accepted."""
        assert self._commit is not None, "watch() first"
        return self._free_bytes - self._written_bytes - self._commit.unwritten_bytes

    def wrote(self, written_bytes: int) -> None:
        """Of what was accepted, so much stands on the disk now."""
        self._written_bytes += written_bytes
        if self._written_bytes * LOOKS_PER_FLOOR > self._floor_bytes > 0:
            self.look()

    def look(self) -> None:
        free_bytes = self._free_bytes = self._disk.free_bytes()
        self._written_bytes = 0
        has_room = self.has_room()
        if has_room != self._had_room:
            if has_room:
                self._reporter.event("disk has room again", free_bytes=free_bytes)
            else:
                self._reporter.event(
                    "disk full, data is refused", level="error", free_bytes=free_bytes
                )
        self._had_room = has_room
        self._reporter.gauge("disk_free_bytes", free_bytes)
        self._reporter.gauge("disk_full", float(not has_room))
