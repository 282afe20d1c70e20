"""What a data log says of itself: where it begins, what it has, and where the next block goes.

    data/settled: two slots, at bytes 0 and 512
    byte  size  field              (little-endian)
       0     4  magic "OSD2"
       4     4  CRC32C             of bytes 8 to 111
       8     8  sequence           the higher slot counts
      16     8  begin              everything below was deleted
      24     8  settled end        everything below stands in blocks, or was deleted
      32     8  settled at         journal offset of the snapshot that it was settled from
      40     8  base               name of the file that takes the next block; perhaps not there yet
      48     8  position           where in that file
      56     8  beyond goes        1: what stands beyond was cut, or is of another log; else 0
      64     8  begun at           journal offset of a state that begins at `begin` or behind; or 0
      72     8  compacted to       what a later record below this offset superseded is gone
      80     8  tombstones to      tombstones below may be gone, others are not
      88     8  holes below        what was taken out was superseded by a record below this offset
      96     8  dropped at         journal offset of a state by which tombstones may be gone; or 0
     104     8  dropped to         tombstones below are gone

Of an earlier version, "OSD1": it ends at byte 63, and nothing was taken out. It is read, and never
written.

Invariants:
  * what it says is synced before it says so;
  * a note goes to the slot that does not hold the last durable one, so a torn one leaves that one;
    one that failed is followed by another in the same slot, and so is one that a start has found
    and not written again;
  * it is lowered, durably, before anything that it speaks of is cut.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from oncelog_server.runtime.storage.identity import SLOT_SPACING_BYTES, is_sealed, sealed
from oncelog_server.runtime.storage.port import Disk, File, set_aside

SETTLED_FILE: Final = "settled"
# Of an offset that no note says: above all that are.
NOT_KNOWN: Final = (1 << 63) - 1

_SLOT: Final = struct.Struct("<4sIQQQQQQQQQQQQQ")
_MAGIC: Final = b"OSD2"
_SLOT_1: Final = struct.Struct("<4sIQQQQQQQ")
_MAGIC_1: Final = b"OSD1"


class DataNote(NamedTuple):
    """See the module. Offsets, but for `settled_at`, `begun_at` and `dropped_at`, journal
    offsets."""

    begin: int = 0
    settled_end: int = 0
    settled_at: int = 0
    base: int = 0
    position: int = 0
    beyond_goes: int = 0
    begun_at: int = 0
    compacted_to: int = 0
    tombstones_to: int = 0
    holes_below: int = 0
    dropped_at: int = 0
    dropped_to: int = 0


def encode_note(sequence: int, settled: DataNote) -> bytes:
    return sealed(_SLOT.pack(_MAGIC, 0, sequence, *settled))


def decode_note(slot: bytes) -> tuple[int, DataNote] | None:
    """And its sequence. None unless every byte is as written. `slot`: as far as the file goes."""
    if slot[:4] == _MAGIC_1:
        slot = slot[: _SLOT_1.size]
        if len(slot) < _SLOT_1.size or not is_sealed(slot):
            return None
        _, _, sequence, *fields = _SLOT_1.unpack(slot)
        settled = DataNote(*fields)
        return sequence, settled._replace(begun_at=NOT_KNOWN if settled.begin else 0)
    if slot[:4] != _MAGIC or len(slot) < _SLOT.size or not is_sealed(slot):
        return None
    _, _, sequence, *fields = _SLOT.unpack(slot)
    return sequence, DataNote(*fields)


class DataNoteFile:
    """The file. Blocking; raises OSError."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{SETTLED_FILE}"
        # Of the last note that is durable.
        self._sequence = 0
        # None: there is none that is intact. `make_durable` is for one that was found.
        self.kept: DataNote | None = None
        # What the other slot says.
        self._other: DataNote | None = None
        if disk.exists(self._path):
            self._load()

    def _load(self) -> None:
        file = self._disk.open(self._path)
        try:
            slots = [file.read(at, _SLOT.size) for at in (0, SLOT_SPACING_BYTES)]
            is_readable = not file.has_unreadable
        finally:
            file.close()
        for slot in slots:
            found = decode_note(slot)
            if found is None:
                continue
            sequence, other = found
            if self.kept is None or sequence > self._sequence:
                self._sequence, self.kept, other = sequence, other, self.kept
            self._other = other
        if not is_readable:
            # One slot may still say something; until it is written, a crash finds a lost note.
            set_aside(self._disk, self._path)
            if self.kept is not None:
                self.save_in_both(self.kept)

    def make_durable(self) -> None:
        """Before anything rests on what was found, which only the page cache may hold. Of a start
        that finds more in the same file than the other slot says nothing is written: that is found
        again by whoever reads the other one."""
        if self.kept is None:
            return
        if self._other is None or not _is_only_more(self.kept, self._other):
            self._write(self._sequence, self.kept)
            return
        # The other one is durable, so the next note goes to this slot.
        self._sequence += 1

    def save(self, settled: DataNote) -> None:
        """Durably."""
        sequence = self._sequence + 1
        self._write(sequence, settled)
        self._sequence, self.kept, self._other = sequence, settled, self.kept

    def _write(self, sequence: int, settled: DataNote) -> None:
        at = SLOT_SPACING_BYTES * (sequence % 2)
        file: File = self._disk.open(self._path, create=True)
        try:
            self._disk.write_and_sync(file, at, encode_note(sequence, settled))
        finally:
            file.close()

    def save_in_both(self, settled: DataNote) -> None:
        """Durably, whichever slot rots."""
        self.save(settled)
        self.save(settled)


def _is_only_more(newer: DataNote, older: DataNote) -> bool:
    """As many blocks of the same file, or more."""
    end, at, position = newer.settled_end, newer.settled_at, newer.position
    grown = older._replace(settled_end=end, settled_at=at, position=position)
    return newer == grown and end >= older.settled_end
