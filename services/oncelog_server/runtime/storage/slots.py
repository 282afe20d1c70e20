"""Fixed-size slots addressed by journal offset: outcomes of ended transactions, beside the journal
and not in a machine's memory.

    slots/<name>/00000000000001048576.slots     journal offsets from this number, 2^20 of them;
                                                sparse: what was not written takes no space
    byte  size  field                           (at (offset - number) * (slot bytes + 4))
       0     4  CRC32C                          of the offset (8 bytes) and the slot; never 0
       4     -  slot

    write ─► held in memory ─flush─► file, synced ─► let go of
                  ▲                     │ OSError
                  └─── all of them ◄────┘

Invariants:
  * `write` touches no disk, so it cannot fail, and nobody who waits for an answer waits for it;
  * a slot is held until a sync of it returned. After a failed one all that was in it is written
    again: a disk takes for clean what it could not write, and no later sync tells;
  * what a crash takes is written again by replay, for a flush comes before each snapshot;
  * what was let go of is not read, whether its file is still there or not; a file goes when every
    slot in it was let go of. (A crash may leave it, and a replay may write into it again: it goes
    the next time.)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from itertools import groupby
from typing import Final

from crc32c import crc32c

from oncelog_server.runtime.storage.port import Disk, File
from oncelogpb.errors import CorruptLog

SLOT_RANGE_OFFSETS: Final = 1 << 20
# Files of one name that stay open for reading.
SLOT_FILES_OPEN_MAX: Final = 64
# So many that are held are worth a flush, also where no snapshot asks for one.
SLOTS_WORTH_A_FLUSH: Final = 4_096
# Slots of one journal that memory holds because the disk does not take them: about 100 MB.
SLOTS_HELD_MAX: Final = 500_000
_CRC_BYTES: Final = 4


def encode_slot(offset: int, slot: bytes) -> bytes:
    """With the CRC in front. 0 would say that nothing was written, so it becomes 1."""
    crc = crc32c(slot, crc32c(offset.to_bytes(8, "little"))) or 1
    return crc.to_bytes(_CRC_BYTES, "little") + slot


class SlotFiles:
    """The Slots port. `write` and `read` belong to the loop; `flush` may run in a thread beside
    them, one at a time."""

    def __init__(self, disk: Disk, directory: str, slot_bytes: int) -> None:
        assert slot_bytes > 0
        self.slot_bytes = slot_bytes
        self._disk = disk
        self._directory = directory
        # Not known to be durable, by journal offset. The lock is for its writers.
        self._held: dict[int, bytes] = {}
        self._lock = threading.Lock()
        # For reading, by first offset; the one used longest ago comes first.
        self._files: OrderedDict[int, File] = OrderedDict()
        self._has_directory = False
        # What is below was let go of, and what is below that was removed by this run.
        self._begin = self._removed_below = 0

    @property
    def held(self) -> int:
        """How many slots memory has and the disk perhaps not."""
        return len(self._held)

    def write(self, offset: int, slot: bytes) -> None:
        assert len(slot) == self.slot_bytes, f"a slot has {self.slot_bytes} bytes"
        if offset < self._begin:
            return
        with self._lock:
            self._held[offset] = slot

    def read(self, offset: int) -> bytes | None:
        """None where nothing was written, or it was let go of. Raises CorruptLog, OSError."""
        if offset < self._begin:
            return None
        held = self._held.get(offset)
        return held if held is not None else self._read_stored(offset)

    def _read_stored(self, offset: int) -> bytes | None:
        file = self._file(offset)
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

    def stored(self, start: int, end: int, *, max_bytes: int) -> tuple[bytes, int]:
        """All that was written from `start` on, below `end`: each slot under its CRC, behind its
        journal offset (8 bytes, little-endian); and where to go on, after about `max_bytes` of
        files. Blocking; may run in a thread. What is damaged is given as it stands. Raises OSError.
        """
        start = max(start, self._begin)
        if start >= end:
            return b"", end
        first = _first_of(start)
        stop = min(end, first + SLOT_RANGE_OFFSETS, start + max_bytes // self._stride)
        # Before the file: a flush beside this lets go of them once they are there.
        with self._lock:
            held = [(at, slot) for at, slot in self._held.items() if start <= at < stop]
        found = self._in_file(first, start, stop)
        found.update((at, encode_slot(at, slot)) for at, slot in held)
        data = b"".join(at.to_bytes(8, "little") + found[at] for at in sorted(found))
        return data, stop if found else self._next_written(stop, end)

    def _in_file(self, first: int, start: int, stop: int) -> dict[int, bytes]:
        if not self._disk.exists(self._path(first)):
            return {}
        file = self._disk.open(self._path(first))
        try:
            block = file.read(self._position(start), (stop - start) * self._stride)
        finally:
            file.close()
        if not block.strip(b"\0"):
            return {}
        each = (block[at : at + self._stride] for at in range(0, len(block), self._stride))
        return {start + number: slot for number, slot in enumerate(each) if slot.strip(b"\0")}

    def _next_written(self, start: int, end: int) -> int:
        """From where on there may be some: files are left out that are not there."""
        firsts = self._stored_firsts()
        with self._lock:
            firsts += [_first_of(offset) for offset in self._held]
        return min((max(start, at) for at in firsts if at >= _first_of(start)), default=end)

    def _stored_firsts(self) -> list[int]:
        """Of the files that there are, ascending."""
        names = self._disk.list(self._directory)
        return [int(name.removesuffix(".slots")) for name in names if name.endswith(".slots")]

    def write_stored(self, data: bytes) -> None:
        """What `stored` gave, as `write` does. Raises CorruptLog where it is not as it was written;
        what stood before is written then."""
        record = 8 + self._stride
        for at in range(0, len(data), record):
            offset = int.from_bytes(data[at : at + 8], "little")
            stored = data[at + 8 : at + record]
            slot = stored[_CRC_BYTES:]
            if len(slot) != self.slot_bytes or encode_slot(offset, slot) != stored:
                raise CorruptLog(f"the slot of journal offset {offset} is damaged where it was")
            self.write(offset, slot)

    @property
    def _stride(self) -> int:
        return _CRC_BYTES + self.slot_bytes

    def flush(self) -> None:
        """Writes and syncs what is held. Blocking. Raises OSError: then all of it stays held."""
        with self._lock:
            batch = dict(self._held)
        for first, offsets in groupby(sorted(batch), key=_first_of):
            self._write_file(first, [(offset, batch[offset]) for offset in offsets])
        with self._lock:
            for offset, slot in batch.items():
                if self._held.get(offset) is slot:
                    del self._held[offset]

    def let_go_below(self, offset: int) -> None:
        """Nobody asks for slots below any more. Then call `remove_gone`."""
        if offset <= self._begin:
            return
        self._begin = offset
        with self._lock:
            for gone in [at for at in self._held if at < offset]:
                del self._held[gone]
        for first in [at for at in self._files if at < _first_of(offset)]:
            self._files.pop(first).close()

    def remove_gone(self) -> int:
        """Removes files in which every slot was let go of, front to back. Blocking; may run in a
        thread beside reads and writes, not beside `flush`. Returns how many. Raises OSError: it may
        be tried again."""
        begin = _first_of(self._begin)
        gone = [first for first in self._stored_firsts() if first < begin]
        for first in gone:
            self._disk.remove(self._path(first))
        self._removed_below = begin
        return len(gone)

    @property
    def has_gone(self) -> bool:
        """`remove_gone` may have something to do: at most every SLOT_RANGE_OFFSETS offsets."""
        return _first_of(self._begin) > self._removed_below

    def cut(self, end: int) -> None:
        """Frames from there on are gone, and with them what they said of slots below: that stands
        for what an unclean election left, and may be written anew."""
        if end < self._begin:
            self._begin = self._removed_below = 0

    def close(self) -> None:
        """What is still held is lost: no snapshot stands over it, so replay writes it again."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _write_file(self, first: int, slots: list[tuple[int, bytes]]) -> None:
        if not self._has_directory:
            self._disk.make_directory(self._directory)
            self._has_directory = True
        file = self._disk.open(self._path(first), create=True)
        try:
            for offset, slot in slots:
                self._disk.write_unsynced(file, self._position(offset), encode_slot(offset, slot))
            self._disk.sync(file)
        finally:
            file.close()

    def _position(self, offset: int) -> int:
        return offset % SLOT_RANGE_OFFSETS * self._stride

    def _path(self, first: int) -> str:
        return f"{self._directory}/{first:020d}.slots"

    def _file(self, offset: int) -> File | None:
        first = _first_of(offset)
        file = self._files.get(first)
        if file is not None:
            self._files.move_to_end(first)
            return file
        if not self._disk.exists(self._path(first)):
            return None
        file = self._files[first] = self._disk.open(self._path(first))
        if len(self._files) > SLOT_FILES_OPEN_MAX:
            _, oldest = self._files.popitem(last=False)
            oldest.close()
        return file


def _first_of(offset: int) -> int:
    """The first journal offset of the file that `offset` belongs to."""
    return offset - offset % SLOT_RANGE_OFFSETS
