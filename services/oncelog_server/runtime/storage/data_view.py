"""What readers have of a data log: where it begins and ends, its blocks, and what is damaged of
them (docs/log_format.md).

    read(offset) ─► the file that holds it ─► a walk ─┬─► blocks
                                                      └─► damage: refused, and known from now on

Invariants:
  * nothing here changes files or the note: `data_log` does, beside readers;
  * only what the note says is read;
  * damage refuses the block that it is in, and nothing else (I26).

`read` belongs to the event loop. All else that reads blocks, and may run in a thread.

Left out: what is written, replaced, cut and removed (`data_log`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from oncelog_server.core.block import Block
from oncelog_server.core.cleaning import Cleanness
from oncelog_server.runtime.storage.data_damage import DamagedRange, KnownDamage
from oncelog_server.runtime.storage.data_file import DataFile, OpenDataFiles
from oncelog_server.runtime.storage.data_note import NOT_KNOWN, DataNote
from oncelog_server.runtime.storage.data_walk import (
    Checked,
    Damage,
    Extent,
    at_once,
    blocks_from,
    bytes_from,
    check_from,
    find_block,
    off_the_loop,
)
from oncelog_server.runtime.storage.port import Disk
from oncelogpb.errors import CorruptLog, OffsetOutOfRange


class DataView:
    """See the module. A `DataLog` is one."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        settled: DataNote,
        files: tuple[DataFile, ...],
        open_files: OpenDataFiles | None,
    ) -> None:
        self.directory = directory
        self.disk = disk
        # What the note says.
        self._settled = settled
        # Ascending; never changed, but replaced, for readers hold it.
        self._files = files
        self._open_files = open_files or OpenDataFiles()
        self._known_damage = KnownDamage(directory)
        self._history = 0

    @property
    def begin(self) -> int:
        """Offset. What is below was deleted."""
        return self._settled.begin

    @property
    def settled_end(self) -> int:
        """Offset. What is below, and not deleted, is read here."""
        return self._settled.settled_end

    @property
    def settled_at(self) -> int:
        """Journal offset of the snapshot that the newest block was settled from, or above."""
        return self._settled.settled_at

    @property
    def begun_at(self) -> int:
        """Journal offset of a state that begins at `begin`, or behind: without it nobody says that
        what is below was deleted. NOT_KNOWN: it stood somewhere in this journal."""
        return self._settled.begun_at

    @property
    def dropped_at(self) -> int:
        """Journal offset of a state by which tombstones may be gone; 0: none are. NOT_KNOWN: it
        stood somewhere in this journal."""
        return self._settled.dropped_at

    @property
    def compacted_to(self) -> int:
        """Offset, at most the settled end: what a record below supersedes is gone."""
        return max(self.begin, min(self._settled.compacted_to, self.settled_end))

    @property
    def holes_end(self) -> int:
        """Offset, at most the settled end: what a record below supersedes may be gone. 0: nothing
        is, or nobody knows."""
        holes_below = self._settled.holes_below
        return 0 if holes_below == NOT_KNOWN else min(holes_below, self.settled_end)

    @property
    def cleanness(self) -> Cleanness:
        """What was taken out."""
        said = self._settled
        return Cleanness(said.compacted_to, said.tombstones_to, said.holes_below, said.dropped_to)

    @property
    def damaged(self) -> Sequence[DamagedRange]:
        """What whoever read it has found so far, ascending; it may be intact again: `look_at`."""
        return self._known_damage.between(self.begin, self.settled_end)

    @property
    def history(self) -> int:
        """Another one whenever files were changed otherwise than by what is appended."""
        return self._history

    # -------------------------------------------------------------------------------------- reads

    async def read(
        self, from_offset: int, max_bytes: int, *, below: int | None = None
    ) -> list[Block]:
        """Blocks from the one that holds `from_offset`, as far as they end at or before `below`
        (None: the settled end): up to `max_bytes`, and at least one if there is one; often fewer
        than there are.

        Raises OffsetOutOfRange below `begin`; CorruptLog, which names file and byte; OSError.
        """
        end = self.settled_end if below is None else min(below, self.settled_end)
        if from_offset < self.begin:
            raise self._deleted(from_offset)
        if from_offset >= end:
            return []
        while True:
            file, extent = self._holding(from_offset)
            try:
                opened = file.file
                self._open_files.use(file)
                walk = blocks_from(extent, from_offset, max_bytes, below=end)
                found = await off_the_loop(walk, self.disk, opened)
            except OffsetOutOfRange:
                found = None
            if isinstance(found, list):
                return found
            if from_offset < self.begin:
                raise self._deleted(from_offset)
            if file in self._files:
                assert found is not None, "only a file that went is refused"
                raise self.found_damaged(file, found)
            # It was replaced, or cut, meanwhile.
            end = min(end, self.settled_end)
            if from_offset >= end:
                return []

    def parts_from(self, offset: int, max_bytes: int) -> bytes:
        """The same blocks as they stand on the disk, for `append_copied` of another replica; b""
        at the settled end. Blocking; may run in a thread. Raises as `read` does."""
        if offset >= self.settled_end:
            return b""
        if offset < self.begin:
            raise self._deleted(offset)
        file, extent = self._holding(offset)
        found = at_once(bytes_from(extent, offset, max_bytes), file.file)
        if isinstance(found, Damage):
            raise self.found_damaged(file, found)
        return found

    def found_damaged(self, file: DataFile, damage: Damage) -> CorruptLog:
        """By a walk through a file of it: it is known from now on."""
        return self._known_damage.found(file.path, damage).corrupt()

    def check(self, offset: int, max_bytes: int) -> Checked | DamagedRange:
        """Verifies blocks from the one that holds an offset on: up to `max_bytes`, and at least
        one. Or what is damaged there. Blocking; may run in a thread. Raises as `read` does."""
        if offset < self.begin:
            raise self._deleted(offset)
        try:
            file, extent = self._holding(offset)
        except CorruptLog:
            return self._lacking()
        found = at_once(check_from(extent, offset, max_bytes), file.file)
        return self._known_damage.found(file.path, found) if isinstance(found, Damage) else found

    def look_at(self, offset: int) -> DamagedRange | None:
        """What is damaged around this offset; None: an intact block serves it, or nobody asks for
        it any more. What was known of it is forgotten. Blocking; may run in a thread. Raises
        OSError."""
        self._known_damage.forget(offset, offset + 1)
        if not self.begin <= offset < self.settled_end:
            return None
        try:
            file, extent = self._holding(offset)
        except CorruptLog:
            return self._lacking()
        found = at_once(find_block(extent, offset), file.file)
        return self._known_damage.found(file.path, found) if isinstance(found, Damage) else None

    def damaged_at(self, offset: int) -> tuple[int, int] | None:
        """The offsets around this one that no block serves that is intact: half-open. See
        `look_at`."""
        found = self.look_at(offset)
        return None if found is None else (found.first_offset, found.end_offset)

    def _lacking(self) -> DamagedRange:
        """What stood in front of the first file."""
        return self._known_damage.lacks(self.begin, min(self._first_base, self.settled_end))

    def is_damaged(self, error: CorruptLog) -> bool:
        """It tells of a file of this data log."""
        return self._known_damage.is_in(error)

    @property
    def files(self) -> list[tuple[int, str]]:
        """Where each begins, and its path."""
        return [(file.base, file.path) for file in self._files]

    def _deleted(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"the data log begins at {self.begin}, not at {offset}", start=self.begin
        )

    def _holding(self, offset: int) -> tuple[DataFile, Extent]:
        """The file that has a block of an offset below the settled end, and what of it counts."""
        files = self._files
        number = bisect_right(files, offset, key=lambda file: file.base) - 1
        if number < 0:
            raise self._lacking().corrupt()
        file = files[number]
        end = self.settled_end
        if number + 1 < len(files):
            end = min(end, files[number + 1].base)
        return file, Extent(file.base, end, file.size, file.index)

    def spans(self) -> Sequence[tuple[DataFile, int]]:
        """All files that have blocks below the settled end, ascending, and where each ends. Raises
        CorruptLog where the first one lacks."""
        if self.begin < self.settled_end:
            self._holding(self.begin)
        files, end = self._files, self.settled_end
        # Of a log of which all was deleted there is none.
        ends = [*(file.base for file in files[1:]), end][: len(files)]
        spans = zip(files, ends, strict=True)
        return [(file, min(behind, end)) for file, behind in spans if file.base < end]

    @property
    def _first_base(self) -> int:
        return self._files[0].base if self._files else self.settled_end

    def disk_bytes(self) -> int:
        """What its files take. Blocking. Raises OSError."""
        names = self.disk.list(self.directory)
        return sum(self.disk.taken_bytes(f"{self.directory}/{name}") for name in names)
