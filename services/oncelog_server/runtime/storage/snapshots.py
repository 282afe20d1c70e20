"""Snapshots of a machine, beside its journal: the state in one file, tables of rows that only grow
in files of their own (`tables`), so that a snapshot stays small.

    snapshot-00000000000000004711         (little-endian)
    byte  size  field
       0     4  magic "OSN4"              its digit is the format version
       4     4  CRC32C                    of bytes 8 to the end of the file
       8     8  journal offset            the state is what every frame below it made
      16     8  state length
      24     4  number of tables
      28     4  leader epoch              of the last frame below it
      32     8  needed from               what the state says of the front of the log, as journal
      40     8  wanted from               offsets (`Machine`)
      48     8  slots from
      56     8  time                     of the last frame below it, in ms; 0: not known
      64     8  begin of the committed log   its start, its end, and from which journal offset on
      72     8  end of it                    frames are needed for what is not readable yet
      80     8  pending from                 (`Machine.settled`); 0 where there is no committed log
      88     4  flags                     1: there is a committed log; 2: it is to be settled;
                                          4: it is to be compacted; 8: it is settled where
                                          that is worth it; 16: it is deleted soon
      92     4  zero
      96     8  least age of what is compacted, in ms
     104     8  compacted below              offsets of the committed log, 0 where nothing is
     112     8  tombstones below             (`Machine.settled`)
     120     -  tables, by name: row bytes (4), number of chunks (4), begin row (8), name length
                (2), name (UTF-8); per chunk: first row (8), row count (8), CRC32C of its rows (4)
       -     -  state

Of earlier versions, which are read, and never written: in "OSN3" the tables begin at byte 96, in
"OSN2" at byte 64. In "OSN1" byte 28 is 0, and tables begin at byte 32, with row bytes (4), CRC32C
of all rows (4), row count (8), name length (2), name; all rows stand in the chunk of row 0.

Invariants:
  * rows are synced before the snapshot that counts them stands (write-temp, sync, rename,
    sync-directory), so a crash leaves the old one or the new one, whole;
  * the two newest are kept: where the newest is damaged, in its file or in its rows, the older
    one serves, and the journal replays the rest;
  * that of the log start is kept too, where a log begins above 0: nothing else tells what was
    before, and a replica that ends below gets it (`snapshot_parts`); and some where it may begin
    later (`keeping`);
  * a chunk of rows goes when no snapshot that is kept counts it, and never while one of these
    cannot be read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from oncelog_server.core.machine import Compaction, Needs, Settled, Snapshot
from oncelog_server.runtime.storage.keeping import kept_snapshots
from oncelog_server.runtime.storage.port import Disk, read_all
from oncelog_server.runtime.storage.snapshot_rows import SnapshotRows
from oncelog_server.runtime.storage.tables import Chunk, TableEnd, TableFiles, chunk_names
from oncelogpb.errors import CorruptLog

SNAPSHOT_PREFIX: Final = "snapshot-"

_MAGIC: Final = b"OSN4"
_SEAL: Final = struct.Struct("<4sI")
_HEAD: Final = struct.Struct("<QQIIQQQQ")
_TABLE: Final = struct.Struct("<IIQH")
_CHUNK: Final = struct.Struct("<QQI")
_SETTLED: Final = struct.Struct("<QQQI4x")
_COMPACTION: Final = struct.Struct("<QQQ")
_IS_SETTLED: Final = 1
_IS_WANTED: Final = 2
_IS_COMPACTED: Final = 4
_IS_AUTO: Final = 8
_IS_SHORT_LIVED: Final = 16
_MAGIC_3: Final = b"OSN3"
_MAGIC_2: Final = b"OSN2"
_MAGIC_1: Final = b"OSN1"
_MAGICS: Final = (_MAGIC, _MAGIC_3, _MAGIC_2, _MAGIC_1)
_HEAD_1: Final = struct.Struct("<QQII")
_TABLE_1: Final = struct.Struct("<IIQH")


class SnapshotFile(NamedTuple):
    """What a snapshot file holds."""

    offset: int
    state: bytes
    tables: dict[str, TableEnd]
    # Of the last frame below; 0: not known, as in files of an earlier version.
    epoch: int = 0
    needs: Needs = Needs()
    # Of that frame; 0: not known, as there.
    time_ms: int = 0
    # None: there is no committed log, or the file is of an earlier version.
    settled: Settled | None = None


def encode_snapshot(snapshot: SnapshotFile) -> bytes:
    head = (snapshot.offset, len(snapshot.state), len(snapshot.tables), snapshot.epoch)
    parts = [_HEAD.pack(*head, *snapshot.needs, snapshot.time_ms), _encode_settled(snapshot)]
    for name, table in sorted(snapshot.tables.items()):
        raw = name.encode()
        parts.append(_TABLE.pack(table.row_bytes, len(table.chunks), table.begin_row, len(raw)))
        parts += [raw, *(_CHUNK.pack(*chunk) for chunk in table.chunks)]
    body = b"".join([*parts, snapshot.state])
    return _SEAL.pack(_MAGIC, crc32c(body)) + body


def _encode_settled(snapshot: SnapshotFile) -> bytes:
    if snapshot.settled is None:
        return bytes(_SETTLED.size + _COMPACTION.size)
    begin, end, pending_from, wanted, compaction, auto, short_lived = snapshot.settled
    flags = _IS_SETTLED | _IS_WANTED * wanted | _IS_COMPACTED * compaction.wanted
    flags |= _IS_AUTO * auto | _IS_SHORT_LIVED * short_lived
    packed = _SETTLED.pack(begin, end, pending_from, flags)
    return packed + _COMPACTION.pack(*compaction[1:])


def decode_snapshot(data: bytes) -> SnapshotFile | None:
    """None unless every byte is as written."""
    if len(data) < _SEAL.size + _HEAD_1.size:
        return None
    magic, crc = _SEAL.unpack_from(data)
    if magic not in _MAGICS or crc32c(memoryview(data)[_SEAL.size :]) != crc:
        return None
    if magic == _MAGIC_1:
        return _decode_1(data)
    at = _SEAL.size + _HEAD.size
    if magic == _MAGIC_2:
        return _decode(data, at, None)
    begin, end, pending_from, flags = _SETTLED.unpack_from(data, at)
    at += _SETTLED.size
    compaction = Compaction()
    if magic == _MAGIC:
        compaction = Compaction(bool(flags & _IS_COMPACTED), *_COMPACTION.unpack_from(data, at))
        at += _COMPACTION.size
    settled = Settled(
        begin,
        end,
        pending_from,
        wanted=bool(flags & _IS_WANTED),
        compaction=compaction,
        auto=bool(flags & _IS_AUTO),
        short_lived=bool(flags & _IS_SHORT_LIVED),
    )
    return _decode(data, at, settled if flags & _IS_SETTLED else None)


def _decode(data: bytes, at: int, settled: Settled | None) -> SnapshotFile:
    """`at`: where its tables begin."""
    offset, state_bytes, table_count, epoch, *needs, time_ms = _HEAD.unpack_from(data, _SEAL.size)
    tables: dict[str, TableEnd] = {}
    for _ in range(table_count):
        row_bytes, chunk_count, begin_row, name_bytes = _TABLE.unpack_from(data, at)
        at += _TABLE.size
        name, at = data[at : at + name_bytes].decode(), at + name_bytes
        end = at + chunk_count * _CHUNK.size
        chunks = tuple(Chunk(*raw) for raw in _CHUNK.iter_unpack(data[at:end]))
        tables[name], at = TableEnd(row_bytes, begin_row, chunks), end
    assert at + state_bytes == len(data), "the CRC holds what the writer wrote"
    return SnapshotFile(offset, data[at:], tables, epoch, Needs(*needs), time_ms, settled)


def _decode_1(data: bytes) -> SnapshotFile:
    offset, state_bytes, table_count, _ = _HEAD_1.unpack_from(data, _SEAL.size)
    at = _SEAL.size + _HEAD_1.size
    tables: dict[str, TableEnd] = {}
    for _ in range(table_count):
        row_bytes, rows_crc, row_count, name_bytes = _TABLE_1.unpack_from(data, at)
        at += _TABLE_1.size
        chunks = (Chunk(0, row_count, rows_crc),) if row_count else ()
        tables[data[at : at + name_bytes].decode()] = TableEnd(row_bytes, 0, chunks)
        at += name_bytes
    assert at + state_bytes == len(data), "the CRC holds what the writer wrote"
    return SnapshotFile(offset, data[at:], tables)


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{SNAPSHOT_PREFIX}{offset:020d}"


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Of all snapshots among these files, ascending."""
    numbers = [
        name.removeprefix(SNAPSHOT_PREFIX) for name in names if name.startswith(SNAPSHOT_PREFIX)
    ]
    # A write-temp that a crash left behind is no number.
    return sorted(int(number) for number in numbers if number.isdigit())


def read_snapshot(disk: Disk, directory: str, offset: int) -> SnapshotFile | None:
    """None where it is not there, or not as it was written. Blocking. Raises OSError."""
    found = decode_snapshot(read_all(disk, snapshot_path(directory, offset)))
    return None if found is None or found.offset != offset else found


class SnapshotFiles:
    """The snapshots of one journal."""

    def __init__(
        self, disk: Disk, directory: str, *, log_start: int = 0, log_end: int | None = None
    ) -> None:
        """`log_end`: durably removes what speaks of more. Blocking. Raises OSError."""
        self._disk = disk
        self._directory = directory
        self.log_start = log_start
        # Where the log will begin, once its front is removed.
        self._next_start = log_start
        self._rows = TableFiles(disk, directory)
        # Tables as the last snapshot, saved or loaded, left them: the CRC goes on from there.
        self._tables: dict[str, TableEnd] = {}
        # By offset, what was read or written of those that stand.
        self._known: dict[int, SnapshotFile] = {}
        # Of those that stand, as far as their names say, ascending.
        self.offsets = self._listed()
        # Offset of the newest one, as far as its name says; 0 where there is none.
        self.newest = max(self.offsets, default=0)
        if log_end is not None and self.newest > log_end:
            # One of what the log lost must not become the newest when the log has grown again.
            self.drop_above(log_end)

    @property
    def rows_saved(self) -> dict[str, int]:
        """By table, the number behind the last row that the last snapshot counts that was saved or
        loaded."""
        return {name: table.end_row for name, table in self._tables.items()}

    def save(
        self, offset: int, snapshot: Snapshot, *, epoch: int = 0, bases: Sequence[int] = ()
    ) -> None:
        """Blocking. `epoch`: of the last frame below. `bases`: where segments begin. Raises
        OSError: the older snapshots then stand as before."""
        tables = {
            name: self._rows.append(name, table, self._tables.get(name))
            for name, table in sorted(snapshot.tables.items())
        }
        _, _, needs, time_ms, settled = snapshot
        file = SnapshotFile(offset, snapshot.state, tables, epoch, needs, time_ms, settled)
        self._disk.replace_file(self._path(offset), encode_snapshot(file))
        self._tables, self.newest = tables, offset
        self._known[offset] = file._replace(state=b"")
        self.offsets = self._listed()
        self.sweep(bases)

    def load(self) -> tuple[int, bytes, dict[str, bytes]] | None:
        """The newest that is whole, with all rows of each table. Blocking. Raises OSError."""
        self._tables, self.newest = {}, 0
        self.offsets = self._listed()
        for offset in reversed(self.offsets):
            found = self.read(offset)
            whole = None if found is None else self._whole_rows(found)
            if found is not None and whole is not None:
                self._tables, self.newest = found.tables, offset
                return offset, found.state, whole
        return None

    def read(self, offset: int) -> SnapshotFile | None:
        """None where it is not there, or not as it was written. Blocking. Raises OSError."""
        found = read_snapshot(self._disk, self._directory, offset)
        if found is None:
            return None
        self._known[offset] = found._replace(state=b"")
        return found

    def is_whole(self, offset: int) -> bool:
        """Its file and all of its rows are as they were written. Blocking. Raises OSError."""
        found = self.read(offset)
        return found is not None and self._whole_rows(found) is not None

    def needs(self) -> tuple[int, Needs]:
        """What the newest one says that can be read, and its offset. Blocking. Raises OSError."""
        for offset in reversed(self.offsets):
            found = self._known.get(offset) or self.read(offset)
            if found is not None:
                return offset, found.needs
        return 0, Needs()

    def settled(self, *, has_data: bool) -> list[tuple[int, Settled]]:
        """What those say of their committed logs that can be read, ascending; without data the
        newest one only, unless that wants some. Blocking. Raises OSError."""
        found: list[tuple[int, Settled]] = []
        for offset in reversed(self.offsets):
            file = self._known.get(offset) or self.read(offset)
            if file is None or file.settled is None:
                continue
            found.insert(0, (offset, file.settled))
            if not (has_data or file.settled.wanted):
                break
        return found

    def begins_by(self, begin: int) -> int | None:
        """Offset of the oldest whose committed log begins at an offset or behind; None: of none
        that can be read. Blocking. Raises OSError."""
        said = self.settled(has_data=True)
        return next((offset for offset, settled in said if settled.begin >= begin), None)

    def rows(self, table: str, end: TableEnd) -> SnapshotRows:
        """Of one that stands."""
        return SnapshotRows(self._disk, self._directory, table, end)

    def tables(self, offset: int) -> dict[str, TableEnd]:
        """What one counts that stands. Blocking. Raises CorruptLog (it cannot be read), OSError."""
        found = self._known.get(offset) or self.read(offset)
        if found is None:
            raise CorruptLog(f"the snapshot of {offset} cannot be read")
        return found.tables

    def begin_next(self, start: int) -> None:
        """The log begins there once that is noted: which of the two snapshots a crash needs is not
        known before, so both are kept until `begin`."""
        self._next_start = start

    def begin(self) -> None:
        """What is before it is not listed from now on, and the next sweep removes it."""
        self.log_start = self._next_start

    def drop_above(self, end: int) -> None:
        """Durably removes what speaks of frames that the log does not have."""
        listed = self._listed()
        for offset in reversed(listed):
            if offset > end:
                # What stands in its tables may be of frames that are cut: all is handed in again.
                self._tables = {}
                self._remove(offset)
        self.offsets = [offset for offset in listed if offset <= end]
        self.newest = max(self.offsets, default=0)

    def sweep(self, bases: Sequence[int]) -> None:
        """Durably removes those that are not kept, then chunks of rows that none counts. Blocking.
        Raises OSError: then something is left, for the next time."""
        listed = snapshot_offsets(self._disk.list(self._directory))
        kept = kept_snapshots(listed, log_start=self.log_start, bases=bases) | {self._next_start}
        for offset in listed:
            if offset not in kept:
                self._remove(offset)
        self.offsets = self._listed()
        files = [self._known.get(offset) or self.read(offset) for offset in self.offsets]
        counted: set[str] = set(chunk_names(self._tables.items()))
        for file in files:
            if file is None:
                # Nobody knows what it counts.
                return
            counted |= chunk_names(file.tables.items())
        for chunk in self._rows.names():
            if chunk not in counted:
                self._rows.remove(chunk)

    def _remove(self, offset: int) -> None:
        self._known.pop(offset, None)
        self._disk.remove(self._path(offset))

    def _whole_rows(self, file: SnapshotFile) -> dict[str, bytes] | None:
        rows = {name: self._rows.load(name, end) for name, end in file.tables.items()}
        whole = {name: data for name, data in rows.items() if data is not None}
        return whole if len(whole) == len(rows) else None

    def _listed(self) -> list[int]:
        """Those before the log start are left out: what is behind them is gone in part."""
        found = snapshot_offsets(self._disk.list(self._directory))
        return [offset for offset in found if offset >= self.log_start]

    def _path(self, offset: int) -> str:
        return snapshot_path(self._directory, offset)
