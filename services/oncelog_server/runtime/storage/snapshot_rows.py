"""What a snapshot that stands says to whoever settles it: its state, and rows of one of its tables,
in pieces, for a table may be larger than memory should hold of it.

Invariant: a chunk is compared with its CRC32C before anything of it is given.

Left out: what rows say (the roles' settlers).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

from crc32c import crc32c

from oncelog_server.runtime.storage.port import Disk
from oncelog_server.runtime.storage.tables import Chunk, TableEnd, chunk_name, chunk_path
from oncelogpb.errors import CorruptLog

# One read of a chunk.
PIECE_BYTES: Final = 256 << 10


class SnapshotRows:
    """Of one table. Blocking. Raises CorruptLog, OSError."""

    def __init__(self, disk: Disk, directory: str, name: str, end: TableEnd) -> None:
        self._disk = disk
        self._directory = directory
        self._name = name
        self._row_bytes = end.row_bytes
        self._chunks = [chunk for chunk in end.chunks if chunk.row_count]

    def around(self, offset: int, offset_of: Callable[[bytes], int]) -> Iterator[bytes]:
        """Pieces of whole rows, from the last one on that begins at `offset` or before; from the
        first one where none does. `offset_of` says where a row begins; that ascends."""
        number = bisect_right(self._chunks, offset, key=lambda it: offset_of(self._row(it, 0)))
        held = self._chunks[max(number - 1, 0) :]
        for chunk in held:
            self._verify(chunk)
            first = 0
            if chunk is held[0]:
                rows = range(chunk.row_count)
                behind = bisect_right(rows, offset, key=lambda it: offset_of(self._row(chunk, it)))
                first = max(behind - 1, 0)
            yield from self._pieces(chunk, first)

    def behind(self, row: int) -> Iterator[bytes]:
        """Pieces of whole rows, from the one of that number on."""
        for chunk in self._chunks:
            if chunk.end_row > row:
                self._verify(chunk)
                yield from self._pieces(chunk, max(row - chunk.first_row, 0))

    def _row(self, chunk: Chunk, place: int) -> bytes:
        return self._read(chunk, place * self._row_bytes, self._row_bytes)

    def _verify(self, chunk: Chunk) -> None:
        crc = 0
        for piece in self._pieces(chunk, 0):
            crc = crc32c(piece, crc)
        if crc != chunk.crc:
            raise self._corrupt(chunk)

    def _pieces(self, chunk: Chunk, first: int) -> Iterator[bytes]:
        end = chunk.row_count * self._row_bytes
        step = max(PIECE_BYTES // self._row_bytes, 1) * self._row_bytes
        for position in range(first * self._row_bytes, end, step):
            yield self._read(chunk, position, min(step, end - position))

    def _read(self, chunk: Chunk, position: int, length: int) -> bytes:
        path = self._path(chunk)
        if not self._disk.exists(path):
            raise self._corrupt(chunk)
        with closing(self._disk.open(path)) as file:
            data = file.read(position, length)
            is_whole = len(data) == length and not file.has_unreadable
        if not is_whole:
            raise self._corrupt(chunk)
        return data

    def _corrupt(self, chunk: Chunk) -> CorruptLog:
        path = self._path(chunk)
        return CorruptLog(f"{path} is not what a snapshot counts of it", file=path)

    def _path(self, chunk: Chunk) -> str:
        return chunk_path(self._directory, chunk_name(self._name, chunk.first_row))
