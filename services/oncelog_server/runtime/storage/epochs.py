"""The epoch table: where each leader epoch of a journal begins, and where the one before it ended.

    epochs: entries of 24 bytes
    byte  size  field            (little-endian)
       0     4  CRC32C           of bytes 4 to 23
       4     4  leader epoch
       8     8  first offset     of its EPOCH_START
      16     8  previous end     log end before it; lower than first offset where it jumped ahead

An entry goes to the disk in one commit with its EPOCH_START. A table that is missing or damaged is
made again from the journal; of epochs whose EPOCH_START is before the log start only the table
tells, and never of later ones alone. Two tables answer where two logs part (KIP-101, KIP-279).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import Final, NamedTuple

from crc32c import crc32c

EPOCHS_FILE: Final = "epochs"
EPOCH_ENTRY_BYTES: Final = 24

_ENTRY: Final = struct.Struct("<IQQ")

assert _ENTRY.size + 4 == EPOCH_ENTRY_BYTES


class EpochEntry(NamedTuple):
    """One leader epoch of a journal."""

    epoch: int
    first_offset: int
    previous_end: int

    def encode(self) -> bytes:
        body = _ENTRY.pack(*self)
        return crc32c(body).to_bytes(4, "little") + body


class EpochTable:
    """Ascending in every column."""

    def __init__(self) -> None:
        self.entries: list[EpochEntry] = []

    @classmethod
    def decode(cls, data: bytes) -> EpochTable | None:
        """None unless every byte is as written, and the entries ascend."""
        table = cls.decode_intact(data)
        return table if len(table.entries) * EPOCH_ENTRY_BYTES == len(data) else None

    @classmethod
    def decode_intact(cls, data: bytes) -> EpochTable:
        """The entries before the first that is not as written."""
        table = cls()
        for at in range(0, len(data) - EPOCH_ENTRY_BYTES + 1, EPOCH_ENTRY_BYTES):
            crc = int.from_bytes(data[at : at + 4], "little")
            body = data[at + 4 : at + EPOCH_ENTRY_BYTES]
            if crc32c(body) != crc:
                break
            entry = EpochEntry(*_ENTRY.unpack(body))
            if table.entries and entry <= table.entries[-1]:
                break
            table.entries.append(entry)
        return table

    def encode(self) -> bytes:
        return b"".join(entry.encode() for entry in self.entries)

    def add(self, entry: EpochEntry) -> None:
        """An entry that is known already is left out: recovery sees an EPOCH_START again."""
        last = self.entries[-1] if self.entries else EpochEntry(0, -1, 0)
        if entry.epoch > last.epoch:
            assert entry.first_offset > last.first_offset, "epochs and offsets grow together"
            self.entries.append(entry)

    def epoch_at(self, offset: int) -> int:
        """Epoch of the frame at `offset`; 0 where there is none."""
        number = bisect_right(self.entries, offset, key=lambda entry: entry.first_offset)
        return self.entries[number - 1].epoch if number else 0

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest epoch at or below the one asked for, and its end; (0, 0) if there is none."""
        number = bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        if number == 0:
            return 0, 0
        is_last = number == len(self.entries)
        end = log_end if is_last else self.entries[number].previous_end
        return self.entries[number - 1].epoch, end

    def cut(self, end: int) -> bool:
        """Drops the epochs that begin at or above `end`. True where there was one."""
        keep = bisect_right(self.entries, end - 1, key=lambda entry: entry.first_offset)
        dropped = keep < len(self.entries)
        del self.entries[keep:]
        return dropped
