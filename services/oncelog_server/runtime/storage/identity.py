"""What a replica says of itself: its incarnation, and the end of what it promised to hold.

    incarnation (24 bytes)                synced_end: two slots, at bytes 0 and 512
    byte  size  field                     byte  size  field
       0     4  magic "OIN1"                 0     4  magic "OSE2"
       4     4  CRC32C of bytes 8 to 23      4     4  CRC32C of bytes 8 to 47
       8    16  UUID                         8     8  sequence: the higher slot counts
                                            16     8  log start
                                            24     8  synced end
                                            32     8  allowed at: end of the frames that the state
                                                      had which allowed that start; 0 at 0
                                            40     8  leader epoch of the last of these

Of an earlier version, "OSE1": 32 bytes. Its synced end stands for what allowed its start. It is
read, and never written.

Invariants (docs/leadership.md, "Disks"):
  * `synced_end` is never above what this replica has synced: it may lag, about a second;
  * a note goes to the slot that does not hold the last durable one, so a torn one leaves that one;
    one that failed is followed by another in the same slot;
  * it is lowered, durably, before the journal is cut below it;
  * both slots say where the log begins before anything in front of that goes: one that rots must
    not leave one that says a start of which nothing is left.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from oncelog_server.runtime.storage.keeping import Allowance
from oncelog_server.runtime.storage.port import Disk, File, Write, read_all, set_aside

INCARNATION_FILE: Final = "incarnation"
SYNCED_END_FILE: Final = "synced_end"
UUID_BYTES: Final = 16
# One sector each: a torn write of one leaves the other.
SLOT_SPACING_BYTES: Final = 512

_INCARNATION: Final = struct.Struct("<4sI16s")
_INCARNATION_MAGIC: Final = b"OIN1"
_SLOT: Final = struct.Struct("<4sIQQQQQ")
_SLOT_MAGIC: Final = b"OSE2"
_SLOT_1: Final = struct.Struct("<4sIQQQ")
_SLOT_1_MAGIC: Final = b"OSE1"
_SEALED: Final = 8


def encode_incarnation(uuid: bytes) -> bytes:
    assert len(uuid) == UUID_BYTES
    return _INCARNATION.pack(_INCARNATION_MAGIC, crc32c(uuid), uuid)


def read_incarnation(disk: Disk, directory: str) -> bytes | None:
    """None where there is none, or none that is intact."""
    data = read_all(disk, f"{directory}/{INCARNATION_FILE}")
    if len(data) != _INCARNATION.size:
        return None
    magic, crc, uuid = _INCARNATION.unpack(data)
    return bytes(uuid) if magic == _INCARNATION_MAGIC and crc == crc32c(uuid) else None


def take_incarnation(disk: Disk, directory: str, random_bytes: Callable[[int], bytes]) -> bytes:
    """A fresh one, durable. "A fresh UUID at every damage": a second one reuses no trusted name."""
    fresh = fresh_incarnation(random_bytes)
    save_incarnation(disk, directory, fresh)
    return fresh


def fresh_incarnation(random_bytes: Callable[[int], bytes]) -> bytes:
    raw = bytearray(random_bytes(UUID_BYTES))
    # RFC 9562: version 4, variant 10.
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)


def save_incarnation(disk: Disk, directory: str, uuid: bytes) -> None:
    """Durable at return. Raises OSError."""
    disk.replace_file(f"{directory}/{INCARNATION_FILE}", encode_incarnation(uuid))


def sealed(slot: bytes) -> bytes:
    """With its CRC, for which bytes 4 to 7 are left."""
    return slot[:4] + crc32c(slot[_SEALED:]).to_bytes(4, "little") + slot[_SEALED:]


def is_sealed(slot: bytes) -> bool:
    """Every byte behind the CRC is as written."""
    return crc32c(slot[_SEALED:]) == int.from_bytes(slot[4:_SEALED], "little")


class Bounds(NamedTuple):
    """What a replica promises to hold: [log start, synced end)."""

    log_start: int
    synced_end: int
    # Of the log start.
    allowed: Allowance = Allowance()


def encode_slot(sequence: int, bounds: Bounds) -> bytes:
    log_start, synced_end, allowed = bounds
    return sealed(_SLOT.pack(_SLOT_MAGIC, 0, sequence, log_start, synced_end, *allowed))


def decode_slot(slot: bytes) -> tuple[int, Bounds] | None:
    """And its sequence. None unless every byte is as written."""
    if slot[:4] == _SLOT_1_MAGIC:
        slot = slot[: _SLOT_1.size]
    if len(slot) < _SLOT_1.size or not is_sealed(slot):
        return None
    if slot[:4] == _SLOT_1_MAGIC:
        _, _, sequence, log_start, synced_end = _SLOT_1.unpack(slot)
        return sequence, Bounds(log_start, synced_end, Allowance(synced_end if log_start else 0))
    if slot[:4] != _SLOT_MAGIC or len(slot) != _SLOT.size:
        return None
    _, _, sequence, log_start, synced_end, *allowed = _SLOT.unpack(slot)
    return sequence, Bounds(log_start, synced_end, Allowance(*allowed))


class SyncedEnd:
    """The `synced_end` file."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{SYNCED_END_FILE}"
        self._file: File | None = None
        # Of the last note that is durable.
        self._sequence = 0
        # What the file says, or will say once the note under way is written.
        self.noted: Bounds | None = None
        # What it says after a loss of power; and what the other slot does.
        self.kept: Bounds | None = None
        self._other: Bounds | None = None
        if disk.exists(self._path):
            self._load()

    def _load(self) -> None:
        file = self._open()
        for at in (0, SLOT_SPACING_BYTES):
            found = decode_slot(file.read(at, _SLOT.size))
            if found is None:
                continue
            sequence, bounds = found
            other: Bounds | None = bounds
            if self.noted is None or sequence > self._sequence:
                self._sequence, self.noted, other = sequence, bounds, self.noted
            self._other = other
        if file.has_unreadable:
            self._begin_file_anew()
        # Recovery writes it again where only the page cache may hold it.
        self.kept = self.noted

    def _begin_file_anew(self) -> None:
        """One slot may still say something; until it is written, a crash finds a note that is
        lost."""
        self.close()
        set_aside(self._disk, self._path)
        if self.noted is not None:
            self.note_in_both(self.noted)

    def note(self, bounds: Bounds) -> Write:
        """The write that makes the file say so; the caller hands it to the disk, and says `durable`
        when it is, before the next note."""
        self.noted = bounds
        sequence = self._sequence + 1
        at = SLOT_SPACING_BYTES * (sequence % 2)
        return Write(self._open(), at, (encode_slot(sequence, bounds),))

    def durable(self) -> None:
        """The last note is: the next one goes to the other slot."""
        self._sequence += 1
        self._other, self.kept = self.kept, self.noted

    def says(self, bounds: Bounds) -> bool:
        """Or will; and in both slots a start above 0, and what it rests on."""
        log_start, _, allowed = bounds
        both = (log_start, allowed) == (0, Allowance()) or self.keeps(log_start, allowed.__eq__)
        return both and self.noted == bounds

    def keeps(self, log_start: int, is_enough: Callable[[Allowance], bool]) -> bool:
        """That start, and what is enough for it to rest on, after a loss of power and whichever
        slot rots."""
        slots = (self.kept, self._other)
        return all(it and it.log_start == log_start and is_enough(it.allowed) for it in slots)

    def note_and_sync(self, bounds: Bounds) -> None:
        """Blocking. Raises OSError."""
        write = self.note(bounds)
        self._disk.write_and_sync(write.file, write.position, b"".join(write.chunks))
        self.durable()

    def note_in_both(self, bounds: Bounds) -> None:
        """Blocking. Raises OSError."""
        self.note_and_sync(bounds)
        self.note_and_sync(bounds)

    def write_again(self) -> None:
        """The last note, which only the page cache may hold. Blocking. Raises OSError."""
        if self.noted is not None:
            at = SLOT_SPACING_BYTES * (self._sequence % 2)
            self._disk.write_and_sync(self._open(), at, encode_slot(self._sequence, self.noted))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self._path, create=True)
        return self._file
