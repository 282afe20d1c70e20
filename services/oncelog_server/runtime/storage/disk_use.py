"""What one journal takes on its disk, for operators, by what its files are for."""

from __future__ import annotations

from typing import NamedTuple

from oncelog_server.runtime.storage.data_log import DATA_DIRECTORY
from oncelog_server.runtime.storage.port import Disk
from oncelog_server.runtime.storage.segment import INDEX_SUFFIX, SEGMENT_SUFFIX
from oncelog_server.runtime.storage.slot_sets import SLOTS_DIRECTORY
from oncelog_server.runtime.storage.snapshots import SNAPSHOT_PREFIX
from oncelog_server.runtime.storage.tables import TABLES_DIRECTORY


class DiskUse(NamedTuple):
    """Bytes that files take, without holes."""

    segments: int
    tables: int
    snapshots: int
    slots: int
    # Blocks of the data log, and their indexes.
    data: int = 0


def disk_use(disk: Disk, directory: str) -> DiskUse:
    """Blocking. Files come and go meanwhile. Raises OSError."""
    segments = snapshots = 0
    for name in disk.list(directory):
        if name.endswith((SEGMENT_SUFFIX, INDEX_SUFFIX)):
            segments += disk.taken_bytes(f"{directory}/{name}")
        elif name.startswith(SNAPSHOT_PREFIX):
            snapshots += disk.taken_bytes(f"{directory}/{name}")
    tables = _taken(disk, f"{directory}/{TABLES_DIRECTORY}")
    slots = f"{directory}/{SLOTS_DIRECTORY}"
    below = sum(_taken(disk, f"{slots}/{name}") for name in disk.list(slots))
    data = _taken(disk, f"{directory}/{DATA_DIRECTORY}")
    return DiskUse(segments, tables, snapshots, below, data)


def _taken(disk: Disk, directory: str) -> int:
    return sum(disk.taken_bytes(f"{directory}/{name}") for name in disk.list(directory))
