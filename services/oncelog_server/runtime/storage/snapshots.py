"""Snapshots of a machine, beside its journal: the state in one file, tables of rows that only grow
in files of their own, so that a snapshot stays small.

    snapshot-00000000000000004711         (little-endian)
    byte  size  field
       0     4  magic "OSN1"              its digit is the format version
       4     4  CRC32C                    of bytes 8 to the end of the file
       8     8  journal offset            the state is what every frame below it made
      16     8  state length
      24     4  number of tables
      28     4  reserved                  0
      32     -  tables, by name: row bytes (4), CRC32C of all rows (4), row count (8),
                name length (2), name (UTF-8)
       -     -  state

    tables/<name>.rows                    rows of fixed size, from row 0; rows behind the count that
                                          a snapshot names do not belong to it

Invariants:
  * rows are synced before the snapshot that counts them stands (write-temp, sync, rename,
    sync-directory), so a crash leaves the old one or the new one, whole;
  * the two newest are kept: where the newest is damaged, in its file or in its rows, the older
    one serves, and the journal replays the rest;
  * that of the log start is kept too, where a log begins above 0: nothing else tells what was
    before, and a replica that ends below gets it (`snapshot_parts`).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from oncelog_server.core.machine import Snapshot, Table
from oncelog_server.runtime.storage.port import Disk

SNAPSHOTS_KEPT: Final = 2
SNAPSHOT_PREFIX: Final = "snapshot-"
TABLES_DIRECTORY: Final = "tables"

_MAGIC: Final = b"OSN1"
_SEAL: Final = struct.Struct("<4sI")
_HEAD: Final = struct.Struct("<QQII")
_TABLE: Final = struct.Struct("<IIQH")


class TableEnd(NamedTuple):
    """How much of a table belongs to a snapshot."""

    row_bytes: int
    # CRC32C of rows 0 to row_count.
    crc: int
    row_count: int


class SnapshotFile(NamedTuple):
    """What a snapshot file holds."""

    offset: int
    state: bytes
    tables: dict[str, TableEnd]


def encode_snapshot(snapshot: SnapshotFile) -> bytes:
    parts = [_HEAD.pack(snapshot.offset, len(snapshot.state), len(snapshot.tables), 0)]
    for name, table in sorted(snapshot.tables.items()):
        raw = name.encode()
        parts += [_TABLE.pack(*table, len(raw)), raw]
    body = b"".join([*parts, snapshot.state])
    return _SEAL.pack(_MAGIC, crc32c(body)) + body


def decode_snapshot(data: bytes) -> SnapshotFile | None:
    """None unless every byte is as written."""
    if len(data) < _SEAL.size + _HEAD.size:
        return None
    magic, crc = _SEAL.unpack_from(data)
    if magic != _MAGIC or crc32c(memoryview(data)[_SEAL.size :]) != crc:
        return None
    offset, state_bytes, table_count, _ = _HEAD.unpack_from(data, _SEAL.size)
    at = _SEAL.size + _HEAD.size
    tables: dict[str, TableEnd] = {}
    for _ in range(table_count):
        row_bytes, rows_crc, row_count, name_bytes = _TABLE.unpack_from(data, at)
        at += _TABLE.size
        tables[data[at : at + name_bytes].decode()] = TableEnd(row_bytes, rows_crc, row_count)
        at += name_bytes
    assert at + state_bytes == len(data), "the CRC holds what the writer wrote"
    return SnapshotFile(offset, data[at:], tables)


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{SNAPSHOT_PREFIX}{offset:020d}"


def table_path(directory: str, name: str) -> str:
    return f"{directory}/{TABLES_DIRECTORY}/{name}.rows"


class SnapshotFiles:
    """The snapshots of one journal."""

    def __init__(self, disk: Disk, directory: str, *, log_start: int = 0) -> None:
        self._disk = disk
        self._directory = directory
        self.log_start = log_start
        # Tables as the last snapshot, saved or loaded, left them: the CRC goes on from there.
        self._tables: dict[str, TableEnd] = {}
        # Offset of the newest one, as far as its name says; 0 where there is none.
        self.newest = 0

    @property
    def rows_saved(self) -> dict[str, int]:
        """By table, how many rows the last snapshot counts that was saved or loaded."""
        return {name: table.row_count for name, table in self._tables.items()}

    def save(self, offset: int, snapshot: Snapshot) -> None:
        """Blocking. Raises OSError: the older snapshots then stand as before."""
        tables = {
            name: self._append_rows(name, table) for name, table in sorted(snapshot.tables.items())
        }
        file = SnapshotFile(offset, snapshot.state, tables)
        self._disk.replace_file(self._path(offset), encode_snapshot(file))
        self._tables, self.newest = tables, offset
        for old in self._offsets()[:-SNAPSHOTS_KEPT]:
            if old != self.log_start:
                self._disk.remove(self._path(old))

    def load(self) -> tuple[int, bytes, dict[str, bytes]] | None:
        """The newest that is whole, with all rows of each table. Blocking. Raises OSError."""
        self._tables = {}
        self.newest = 0
        for offset in reversed(self._offsets()):
            found = decode_snapshot(self._read_all(self._path(offset)))
            if found is None or found.offset != offset:
                continue
            rows = {name: self._rows(name, end) for name, end in found.tables.items()}
            whole = {name: data for name, data in rows.items() if data is not None}
            if len(whole) == len(rows):
                self._tables, self.newest = found.tables, offset
                return offset, found.state, whole
        return None

    def drop_above(self, end: int) -> None:
        """Durably removes what speaks of frames that the log does not have."""
        for offset in reversed(self._offsets()):
            if offset > end:
                # What stands in its tables may be of frames that are cut: all is handed in again.
                self._tables = {}
                self._disk.remove(self._path(offset))
        self.newest = max(self._offsets(), default=0)

    def _append_rows(self, name: str, table: Table) -> TableEnd:
        assert len(table.rows) % table.row_bytes == 0, f"table {name}: whole rows only"
        assert "/" not in name, "a table's name is a file's"
        row_count = table.first_row + len(table.rows) // table.row_bytes
        self._disk.make_directory(f"{self._directory}/{TABLES_DIRECTORY}")
        file = self._disk.open(self._table_path(name), create=True)
        try:
            start = table.first_row * table.row_bytes
            known = self._tables.get(name)
            if known is not None and known.row_count == table.first_row:
                before = known.crc
            else:
                # Nothing is known of them, or they come again, after a cut.
                earlier = file.read(0, start)
                assert len(earlier) == start, f"table {name}: rows before {table.first_row} lack"
                before = crc32c(earlier)
            if table.rows:
                self._disk.write_unsynced(file, start, table.rows)
            self._disk.sync(file)
        finally:
            file.close()
        return TableEnd(table.row_bytes, crc32c(table.rows, before), row_count)

    def _rows(self, name: str, end: TableEnd) -> bytes | None:
        wanted = end.row_bytes * end.row_count
        if not self._disk.exists(self._table_path(name)):
            return None
        file = self._disk.open(self._table_path(name))
        try:
            rows = file.read(0, wanted)
        finally:
            file.close()
        return rows if len(rows) == wanted and crc32c(rows) == end.crc else None

    def _offsets(self) -> list[int]:
        numbers = [
            name.removeprefix(SNAPSHOT_PREFIX)
            for name in self._disk.list(self._directory)
            if name.startswith(SNAPSHOT_PREFIX)
        ]
        # A write-temp that a crash left behind is no number.
        return sorted(int(number) for number in numbers if number.isdigit())

    def _path(self, offset: int) -> str:
        return snapshot_path(self._directory, offset)

    def _table_path(self, name: str) -> str:
        return table_path(self._directory, name)

    def _read_all(self, path: str) -> bytes:
        file = self._disk.open(path)
        try:
            return file.read(0, file.size())
        finally:
            file.close()
