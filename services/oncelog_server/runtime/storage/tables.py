"""Rows of fixed size beside the snapshots, in chunks, so that those in front can go.

    tables/<name>.rows                          the chunk that begins with row 0
    tables/<name>-00000000000000074898.rows     the chunk that begins with this row

A chunk that has CHUNK_BYTES takes no more, and the next rows begin another one. Which chunks belong
to a snapshot, and how many rows of each, it says itself, with a CRC32C for each: rows behind that
do not belong to it.

Invariants:
  * a row keeps its number, and the place that its chunk gives it, for ever: written again, after a
    crash or a cut, it is what an older snapshot counts already;
  * rows in front go with whole chunks, once no snapshot that is kept counts them.

Left out: which snapshots are kept (`snapshots`), and what rows say (the roles' machines).
"""

from __future__ import annotations

from collections.abc import Iterable
from errno import EIO
from typing import Final, NamedTuple

from crc32c import crc32c

from oncelog_server.core.machine import Table
from oncelog_server.runtime.storage.port import Disk

TABLES_DIRECTORY: Final = "tables"
ROWS_SUFFIX: Final = ".rows"
# A chunk that has so much takes no more rows: what is let go of is that much late at most.
CHUNK_BYTES: Final = 4 << 20


class Chunk(NamedTuple):
    """The rows of one file that belong to a snapshot."""

    first_row: int
    row_count: int
    # CRC32C of these rows.
    crc: int

    @property
    def end_row(self) -> int:
        return self.first_row + self.row_count


class TableEnd(NamedTuple):
    """How much of a table belongs to a snapshot."""

    row_bytes: int
    # Rows before this one are nothing to the state, though the first chunk may have some.
    begin_row: int
    # Each begins where the one before it ends.
    chunks: tuple[Chunk, ...]

    @property
    def first_row(self) -> int:
        """Of the first chunk."""
        return self.chunks[0].first_row if self.chunks else self.begin_row

    @property
    def end_row(self) -> int:
        """Behind the last row."""
        return self.chunks[-1].end_row if self.chunks else self.begin_row

    def without(self, begin_row: int) -> TableEnd:
        """Chunks that are wholly before `begin_row` do not belong to it any more."""
        kept = tuple(chunk for chunk in self.chunks if chunk.end_row > begin_row)
        return TableEnd(self.row_bytes, begin_row, kept)


def chunk_name(table: str, first_row: int) -> str:
    """Of its file, without the suffix."""
    return f"{table}-{first_row:020d}" if first_row else table


def chunk_path(directory: str, chunk: str) -> str:
    return f"{directory}/{TABLES_DIRECTORY}/{chunk}{ROWS_SUFFIX}"


def chunk_names(tables: Iterable[tuple[str, TableEnd]]) -> set[str]:
    return {chunk_name(name, it.first_row) for name, end in tables for it in end.chunks}


class TableFiles:
    """The chunks of all tables of one journal."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def append(self, name: str, table: Table, known: TableEnd | None) -> TableEnd:
        """Makes rows durable behind those that are known; rows that come again are written again.
        Blocking. Raises OSError."""
        assert len(table.rows) % table.row_bytes == 0, f"table {name}: whole rows only"
        assert "/" not in name, "a table's name is a file's"
        chunks = self._before(name, table, known)
        self._disk.make_directory(f"{self._directory}/{TABLES_DIRECTORY}")
        row, view = table.first_row, memoryview(table.rows)
        chunk_rows = max(1, CHUNK_BYTES // table.row_bytes)
        while len(view):
            if not chunks or chunks[-1].row_count >= chunk_rows:
                chunks.append(Chunk(row, 0, 0))
            last = chunks[-1]
            count = min(len(view) // table.row_bytes, chunk_rows - last.row_count)
            taken = view[: count * table.row_bytes]
            self._write(name, last, taken, table.row_bytes)
            chunks[-1] = Chunk(last.first_row, last.row_count + count, crc32c(taken, last.crc))
            row, view = row + count, view[len(taken) :]
        return TableEnd(table.row_bytes, table.begin_row, tuple(chunks)).without(table.begin_row)

    def _before(self, name: str, table: Table, known: TableEnd | None) -> list[Chunk]:
        """The chunks as they stand before the first row that comes."""
        first_row = table.first_row
        if known is None or not known.first_row <= first_row <= known.end_row:
            # Nothing before it belongs to the state any more, so it begins a chunk.
            assert first_row <= table.begin_row, f"table {name}: rows before {first_row} lack"
            return []
        chunks = [chunk for chunk in known.chunks if chunk.first_row < first_row]
        if chunks and chunks[-1].end_row > first_row:
            last = chunks[-1]
            count = first_row - last.first_row
            chunk = chunk_name(name, last.first_row)
            rows = self._read(chunk, count * known.row_bytes)
            if len(rows) != count * known.row_bytes:
                path = chunk_path(self._directory, chunk)
                raise OSError(EIO, "the rows before cannot be read", path)
            chunks[-1] = Chunk(last.first_row, count, crc32c(rows))
        return chunks

    def _write(self, name: str, chunk: Chunk, rows: memoryview, row_bytes: int) -> None:
        path = chunk_path(self._directory, chunk_name(name, chunk.first_row))
        file = self._disk.open(path, create=True)
        try:
            self._disk.write_unsynced(file, chunk.row_count * row_bytes, bytes(rows))
            self._disk.sync(file)
        finally:
            file.close()

    def load(self, name: str, end: TableEnd) -> bytes | None:
        """All rows from `begin_row` on; None where a chunk is not as it was written. Blocking.
        Raises OSError."""
        parts: list[bytes] = []
        for chunk in end.chunks:
            wanted = chunk.row_count * end.row_bytes
            rows = self._read(chunk_name(name, chunk.first_row), wanted)
            if len(rows) != wanted or crc32c(rows) != chunk.crc:
                return None
            parts.append(rows)
        return b"".join(parts)[(end.begin_row - end.first_row) * end.row_bytes :]

    def names(self) -> list[str]:
        """Of all chunks that there are."""
        found = self._disk.list(f"{self._directory}/{TABLES_DIRECTORY}")
        return [it.removesuffix(ROWS_SUFFIX) for it in found if it.endswith(ROWS_SUFFIX)]

    def remove(self, chunk: str) -> None:
        """Durably. Raises OSError."""
        self._disk.remove(chunk_path(self._directory, chunk))

    def _read(self, chunk: str, length: int) -> bytes:
        """Fewer bytes where there are no more, or the disk does not give back all of them."""
        path = chunk_path(self._directory, chunk)
        if not self._disk.exists(path):
            return b""
        file = self._disk.open(path)
        try:
            rows = file.read(0, length)
            return b"" if file.has_unreadable else rows
        finally:
            file.close()
