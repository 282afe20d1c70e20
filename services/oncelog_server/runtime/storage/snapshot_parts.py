"""What was before a log that begins above 0, read in parts: for another replica, which ends below.

    FILE      the snapshot of the log start, as it stands on the disk (`snapshots`)
    EPOCHS    entries of the epoch table below the log start (`epochs`)
    TABLE     rows of one chunk of a table (`tables`); the file says which chunks there are, and how
              many of the rows belong to it
    DATA      blocks of the data log, from the one that holds an offset on (`data_log`)
    BLOCKS    the same of a log that may begin at 0, for a replica in which they are damaged
    SLOTS     slots of one name, each with its journal offset (8 bytes, little-endian) in front

Each part goes under the CRCs that it was written with, and whoever gets it compares them: so what
rots here is not spread. Nothing is held between two reads: where a part goes on is said with each.

Left out: who may read it, and the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.epochs import EpochTable
from oncelog_server.runtime.storage.keeping import Allowance
from oncelog_server.runtime.storage.port import Disk
from oncelog_server.runtime.storage.slots import SlotFiles
from oncelog_server.runtime.storage.snapshots import snapshot_path
from oncelog_server.runtime.storage.tables import chunk_path

# One read; of slots, what is looked through, for most of their files may be holes.
PART_BYTES_MAX: Final = 1 << 20


class Content(Enum):
    """See the module."""

    FILE = "file"
    EPOCHS = "epochs"
    TABLE = "table"
    SLOTS = "slots"
    DATA = "data"
    BLOCKS = "blocks"


class PartOf(NamedTuple):
    """Where a read begins."""

    content: Content
    # Of the chunk or the slots; "" for the others.
    name: str = ""
    # Bytes; of slots, a journal offset; of data, an offset.
    position: int = 0


class Part(NamedTuple):
    """What was read."""

    data: bytes
    # Where it goes on; None: that was all.
    next_position: int | None


class SnapshotParts:
    """Of one journal."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        offset: int,
        allowed: Allowance,
        epochs: EpochTable,
        slots: Mapping[str, SlotFiles],
        data: DataLog,
    ) -> None:
        self.offset = offset
        # What a log that begins there rests on.
        self.allowed = allowed
        self._disk = disk
        self._directory = directory
        below = [entry for entry in epochs.entries if entry.first_offset < offset]
        self._epochs = b"".join(entry.encode() for entry in below)
        self._slots = slots
        self._data = data

    @property
    def slot_names(self) -> Sequence[str]:
        return sorted(self._slots)

    def read(self, wanted: PartOf) -> Part:
        """Blocking. Raises OSError, KeyError where there is no such thing, CorruptLog."""
        match wanted.content:
            case Content.FILE:
                return self._read(snapshot_path(self._directory, self.offset), wanted.position)
            case Content.EPOCHS:
                return _part_of(self._epochs, wanted.position)
            case Content.TABLE:
                return self._read(chunk_path(self._directory, wanted.name), wanted.position)
            case Content.SLOTS:
                slots, end = self._slots[wanted.name], self.offset
                data, following = slots.stored(wanted.position, end, max_bytes=PART_BYTES_MAX)
                return Part(data, following if following < end else None)
            case Content.DATA | Content.BLOCKS:
                # Where it goes on says the last block.
                if wanted.position < self._data.begin:
                    return Part(b"", None)
                return Part(self._data.parts_from(wanted.position, PART_BYTES_MAX), None)

    def _read(self, path: str, position: int) -> Part:
        if not self._disk.exists(path):
            raise KeyError(path)
        file = self._disk.open(path)
        try:
            data = file.read(position, PART_BYTES_MAX)
            following = position + len(data)
            return Part(data, following if data and following < file.size() else None)
        finally:
            file.close()


def _part_of(data: bytes, position: int) -> Part:
    part = data[position : position + PART_BYTES_MAX]
    following = position + len(part)
    return Part(part, following if following < len(data) else None)
