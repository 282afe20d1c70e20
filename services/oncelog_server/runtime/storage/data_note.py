"""What a data log says of itself: where it begins, what it has, and where the next block goes.

    data/settled: two slots, at bytes 0 and 512
    byte  size  field              (little-endian)
       0     4  magic "OSD1"
       4     4  CRC32C             of bytes 8 to 63
       8     8  sequence           the higher slot counts
      16     8  begin              everything below was deleted
      24     8  settled end        everything below stands in blocks, or was deleted
      32     8  settled at         journal offset of the snapshot that it was settled from
      40     8  base               name of the file that takes the next block; perhaps not there yet
      48     8  position           where in that file
      56     8  beyond goes        1: what stands beyond was cut, or is of another log; else 0

Invariants:
  * what it says is synced before it says so;
  * a note goes to the slot that does not hold the last durable one, so a torn one leaves that one;
    one that failed is followed by another in the same slot;
  * it is lowered, durably, before anything that it speaks of is cut.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from oncelog_server.runtime.storage.identity import SLOT_SPACING_BYTES
from oncelog_server.runtime.storage.port import Disk, File

SETTLED_FILE: Final = "settled"

_SLOT: Final = struct.Struct("<4sIQQQQQQQ")
_MAGIC: Final = b"OSD1"
_SEALED: Final = 8


class DataNote(NamedTuple):
    """See the module."""

    begin: int = 0
    settled_end: int = 0
    settled_at: int = 0
    base: int = 0
    position: int = 0
    beyond_goes: int = 0


def encode_note(sequence: int, settled: DataNote) -> bytes:
    slot = _SLOT.pack(_MAGIC, 0, sequence, *settled)
    return slot[:4] + crc32c(slot[_SEALED:]).to_bytes(4, "little") + slot[_SEALED:]


class DataNoteFile:
    """The file. Blocking; raises OSError."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{SETTLED_FILE}"
        # Of the last note that is durable.
        self._sequence = 0
        # None: there is none that is intact.
        self.kept: DataNote | None = None
        if disk.exists(self._path):
            self._load()

    def _load(self) -> None:
        file = self._disk.open(self._path)
        try:
            slots = [file.read(at, _SLOT.size) for at in (0, SLOT_SPACING_BYTES)]
        finally:
            file.close()
        for slot in slots:
            if len(slot) < _SLOT.size:
                continue
            magic, crc, sequence, *settled = _SLOT.unpack(slot)
            if magic != _MAGIC or crc != crc32c(slot[_SEALED:]):
                continue
            if self.kept is None or sequence > self._sequence:
                self._sequence, self.kept = sequence, DataNote(*settled)

    def save(self, settled: DataNote) -> None:
        """Durably."""
        sequence = self._sequence + 1
        at = SLOT_SPACING_BYTES * (sequence % 2)
        file: File = self._disk.open(self._path, create=True)
        try:
            self._disk.write_and_sync(file, at, encode_note(sequence, settled))
        finally:
            file.close()
        self._sequence, self.kept = sequence, settled

    def save_in_both(self, settled: DataNote) -> None:
        """Durably, whichever slot rots."""
        self.save(settled)
        self.save(settled)
