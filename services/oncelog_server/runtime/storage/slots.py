"""Fixed-size slots addressed by journal offset: outcomes of ended transactions, beside the journal
and not in a machine's memory.

    slots/<name>/00000000000001048576.slots     journal offsets from this number, 2^20 of them;
                                                sparse: what was not written takes no space
    byte  size  field                           (at (offset - number) * (slot bytes + 4))
       0     4  CRC32C                          of the offset (8 bytes) and the slot; never 0
       4     -  slot

Slots go into the page cache and are synced before each snapshot; what a crash takes is written
again by replay from that snapshot.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from crc32c import crc32c

from oncelog_server.core.ports import Disk, File
from oncelogpb.errors import CorruptLog

SLOT_RANGE_OFFSETS: Final = 1 << 20
# Files of one name that stay open.
SLOT_FILES_OPEN_MAX: Final = 64
_CRC_BYTES: Final = 4


def encode_slot(offset: int, slot: bytes) -> bytes:
    """With the CRC in front. 0 would say that nothing was written, so it becomes 1."""
    crc = crc32c(slot, crc32c(offset.to_bytes(8, "little"))) or 1
    return crc.to_bytes(_CRC_BYTES, "little") + slot


class SlotFiles:
    """The Slots port. `write` and `read` belong to the loop; `sync` may run in a thread beside."""

    def __init__(self, disk: Disk, directory: str, slot_bytes: int) -> None:
        assert slot_bytes > 0
        self.slot_bytes = slot_bytes
        self._disk = disk
        self._directory = directory
        # By first offset; the one used longest ago comes first.
        self._files: OrderedDict[int, File] = OrderedDict()
        self._unsynced: set[File] = set()
        self._has_directory = False

    def write(self, offset: int, slot: bytes) -> None:
        """Raises OSError."""
        assert len(slot) == self.slot_bytes, f"a slot has {self.slot_bytes} bytes"
        file = self._file(offset, create=True)
        assert file is not None
        self._unsynced.add(file)
        self._disk.write_unsynced(file, self._position(offset), encode_slot(offset, slot))

    def read(self, offset: int) -> bytes | None:
        """None where nothing was written. Raises CorruptLog, OSError."""
        file = self._file(offset, create=False)
        if file is None:
            return None
        position = self._position(offset)
        stored = file.read(position, _CRC_BYTES + self.slot_bytes)
        if not stored.strip(b"\0"):
            return None
        slot = stored[_CRC_BYTES:]
        if encode_slot(offset, slot) != stored or len(slot) != self.slot_bytes:
            raise CorruptLog(
                f"{file.path} is damaged at byte {position}: the slot of journal offset {offset}",
                file=file.path,
                position=position,
            )
        return slot

    def sync(self) -> None:
        """Blocking. Raises OSError: what was to be synced stays so."""
        syncing, self._unsynced = self._unsynced, set()
        try:
            for file in sorted(syncing, key=lambda file: file.path):
                self._disk.sync(file)
        except OSError:
            self._unsynced |= syncing
            raise

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._unsynced.clear()

    def _position(self, offset: int) -> int:
        return offset % SLOT_RANGE_OFFSETS * (_CRC_BYTES + self.slot_bytes)

    def _file(self, offset: int, *, create: bool) -> File | None:
        first = offset - offset % SLOT_RANGE_OFFSETS
        file = self._files.get(first)
        if file is not None:
            self._files.move_to_end(first)
            return file
        path = f"{self._directory}/{first:020d}.slots"
        if create and not self._has_directory:
            self._disk.make_directory(self._directory)
            self._has_directory = True
        if not create and not self._disk.exists(path):
            return None
        file = self._files[first] = self._disk.open(path, create=create)
        if len(self._files) > SLOT_FILES_OPEN_MAX:
            _, oldest = self._files.popitem(last=False)
            if oldest in self._unsynced:
                self._disk.sync(oldest)
                self._unsynced.discard(oldest)
            oldest.close()
        return file
