"""One pass over a data log that takes out what is superseded (`core/cleaning`), piece by piece.

    1  keys of what was not looked at yet ──► the last offset of each, in bounded memory
    2  noted: holes below X, dropped at           (a cut below would lack what is taken out now)
    3  file by file, from the front: written anew beside the old ones, synced
    4  it stands: as "<base>-<end>.joined" where it is in the place of several, which go then;
       and under the name of the first one
    5  noted: compacted to X, tombstones to T

Where memory does not hold all keys, X is as far as it came, and another pass goes on from there.

Invariants:
  * whatever comes between two steps, each offset is in one file, and each file is whole;
  * a record goes only where a later one below X has its key: nothing above was looked at;
  * what is noted as compacted was rewritten, all of it, before;
  * damage ends a pass, and nothing is guessed around it (I26);
  * memory holds the map, and PIECE_BYTES of blocks.

Blocking; one piece at a time, in a thread. Between two pieces blocks may be appended, and readers
read; where files were changed otherwise, the pass is over (`Overtaken`).

Left out: when it is done, and how often (`runtime/replica/compacting`).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from typing import Final

from oncelog_server.core.block import Block
from oncelog_server.core.cleaning import LastOffsets
from oncelog_server.core.settling import Settler
from oncelog_server.runtime.storage.data_blocks import encode_block
from oncelog_server.runtime.storage.data_file import (
    REWRITTEN_SUFFIX,
    DataFile,
    RewrittenFile,
)
from oncelog_server.runtime.storage.data_log import DataLog
from oncelog_server.runtime.storage.data_walk import Damage, Extent, at_once, blocks_from
from oncelogpb.errors import CorruptBatch, CorruptLog

# Of blocks, as they stand on the disk: one piece reads so many.
PIECE_BYTES: Final = 4 << 20
READ_BYTES: Final = 1 << 20
# The interpreter is given away after so many records.
SLICE_RECORDS: Final = 2_048
# The durable steps, as the places are called where a test may strike.
HOLES, WRITE, JOIN, NOTE = "compact_holes", "compact_write", "compact_join", "compact_note"

_File = tuple[DataFile, Extent]
_Kept = tuple[Block, Sequence[int] | None]


class Overtaken(Exception):
    """Files were cut, deleted or replaced since: what was found says nothing of them."""


class DataCleaning:
    """See the module."""

    def __init__(
        self,
        log: DataLog,
        settler: Settler,
        *,
        below: int,
        tombstones_below: int,
        said_at: int = 0,
        map_bytes_max: int,
        at_least: int = 0,
        visible_until_ms: int | None = None,
    ) -> None:
        """`below`: X at most, where memory holds all keys. `said_at`: journal offset of the state
        that says `tombstones_below`. `visible_until_ms`: what became readable
        later is not looked at, but below `at_least`. Its first piece takes its memory."""
        self._log = log
        self._settler = settler
        self._history = log.history
        self._from = log.compacted_to
        # What a pass that was cut off, or another replica's, has taken out is superseded below
        # there: an X before that would leave what the missing records superseded.
        self._at_least = max(at_least, log.holes_end)
        # X. Final once the keys were looked at.
        self.below = max(min(below, log.settled_end), log.holes_end)
        self._visible_until_ms = visible_until_ms
        self._tombstones_below = tombstones_below
        self._said_at = said_at
        self._map_bytes_max = map_bytes_max
        self._last = LastOffsets(max_bytes=0, keys_wanted=0)
        self._file: RewrittenFile | None = None
        self._steps = self._all_steps()
        # The durable step that is next; "": none is.
        self.next_step = ""
        self.is_over = False
        # What it did.
        self.has_noted = False
        # Of the first block that became readable too late; None: it met none.
        self.late_ms: int | None = None
        # Memory took no more keys: what is behind X is for the next pass.
        self.was_full = False
        self.records_looked_at = self.records_taken_out = 0

    def piece(self) -> None:
        """The next one. Raises Overtaken, CorruptLog, OSError: then it is over."""
        try:
            if self._log.history != self._history:
                raise Overtaken
            self.next_step = next(self._steps)
        except StopIteration:
            self.is_over = True
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """What it wrote, and does not stand yet, goes with the next pass or start. Not beside
        `piece`."""
        self.is_over = True
        self._steps.close()
        file, self._file = self._file, None
        if file is not None:
            file.abandon()

    @property
    def keys(self) -> int:
        """That its map has."""
        return len(self._last)

    @property
    def tombstones_below(self) -> int:
        """T: none that a later pass could need for a record above X."""
        return min(self._tombstones_below, self.below)

    def _all_steps(self) -> Generator[str, None, None]:
        log = self._log
        self._last = LastOffsets(
            max_bytes=self._map_bytes_max, keys_wanted=max(self.below - self._from, 0)
        )
        _sweep_rewritten(log)
        yield from self._look_at_keys()
        if self.below <= self._from and self.tombstones_below <= log.cleanness.dropped_to:
            return
        yield HOLES
        said = log.cleanness
        log.note_cleanness(
            said._replace(holes_below=max(said.holes_below, self.below)),
            dropped_at=self._said_at if self.tombstones_below else 0,
        )
        if any(file.base < self.below for file, _ in log.spans()[-1:]):
            log.seal()
        for group in self._groups():
            yield from self._clean(group)
        yield NOTE
        said = log.cleanness
        log.note_cleanness(
            said._replace(
                compacted_to=max(said.compacted_to, self.below),
                tombstones_to=max(said.tombstones_to, self.tombstones_below),
                dropped_to=max(said.dropped_to, self.tombstones_below),
            )
        )
        self.has_noted = True

    # -------------------------------------------------------------------------------- which go

    def _look_at_keys(self) -> Iterator[str]:
        for file in _extents(self._log):
            for blocks in self._pieces(file, self._from):
                yield ""
                for block in blocks:
                    if not self._add(block):
                        return

    def _add(self, block: Block) -> bool:
        """False: no more is looked at."""
        until_ms = self._visible_until_ms
        if until_ms is not None and block.time_ms > until_ms:
            # Of a block that an earlier pass has joined, some may have to be looked at.
            least = max(block.first_offset, self._at_least, self._from)
            self.below, self.late_ms = min(self.below, least), block.time_ms
            if block.first_offset >= self.below:
                return False
        offsets = block.offsets
        first = bisect_left(offsets, self._from)
        end = bisect_left(offsets, self.below)
        keys = self._settler.keyed(block).keys
        for begin in range(first, end, SLICE_RECORDS):
            behind = min(begin + SLICE_RECORDS, end)
            some = offsets[begin:behind]
            count = self._last.add(keys[begin:behind], some)
            if count < len(some):
                self.was_full = True
                self.below = some[count]
                return False
            time.sleep(0)
        return block.end_offset < self.below

    def _staying(self, block: Block) -> Sequence[int] | None:
        """Numbers of its records; None: of all of them."""
        if not block.record_count or block.first_offset >= self.below:
            return None
        keyed, offsets = self._settler.keyed(block), block.offsets
        if len(keyed.keys) != block.record_count:
            raise CorruptBatch(
                f"the block of offset {block.first_offset} has {len(keyed.keys)} records, and not "
                f"{block.record_count}"
            )
        stay: list[int] = []
        for begin in range(0, block.record_count, SLICE_RECORDS):
            numbers = range(begin, min(begin + SLICE_RECORDS, block.record_count))
            stay += self._last.staying(
                keyed, offsets, numbers, tombstones_below=self.tombstones_below
            )
            time.sleep(0)
        return None if len(stay) == block.record_count else stay

    # ----------------------------------------------------------------------------- file by file

    def _groups(self) -> list[list[_File]]:
        """Neighbours that become one file each, as large as a file may be."""
        groups: list[list[_File]] = []
        size = 0
        for it in _extents(self._log):
            if it[0].base >= self.below:
                break
            size += it[1].size
            if groups and size <= self._log.segment_bytes:
                groups[-1].append(it)
            else:
                groups.append([it])
                size = it[1].size
        return groups

    def _clean(self, group: Sequence[_File]) -> Iterator[str]:
        goes: list[bool] = []
        yield from self._look_whether_any_goes(group, goes)
        sizes = [extent.size for _, extent in group]
        if not goes and 2 * max(sizes) >= sum(sizes):
            return
        log = self._log
        self._file = RewrittenFile(
            log.disk, log.directory, group[0][0].base, group[-1][1].end_offset
        )
        yield from self._write(group, self._file)
        yield WRITE
        self._file.sync()
        yield JOIN
        log.join(self._file, len(group))
        self._file = None

    def _look_whether_any_goes(self, group: Sequence[_File], goes: list[bool]) -> Iterator[str]:
        for file in group:
            for blocks in self._pieces(file, file[0].base):
                yield ""
                if any(self._staying(block) is not None for block in blocks):
                    goes.append(True)
                    return

    def _write(self, group: Sequence[_File], anew: RewrittenFile) -> Iterator[str]:
        # The last block of a piece, which may grow.
        last: list[_Kept] = []
        for file in group:
            for blocks in self._pieces(file, file[0].base):
                yield ""
                kept: list[_Kept] = [(block, self._staying(block)) for block in blocks]
                self.records_looked_at += sum(block.record_count for block in blocks)
                self.records_taken_out += sum(
                    block.record_count - len(stay) for block, stay in kept if stay is not None
                )
                merged = list(self._settler.thinned([*last, *kept]))
                for block in merged[:-1]:
                    anew.add(block.first_offset, b"".join(encode_block(block)))
                last = [(merged[-1], None)]
        for block, _ in last:
            anew.add(block.first_offset, b"".join(encode_block(block)))

    def _pieces(self, of: _File, from_offset: int) -> Iterator[list[Block]]:
        """All blocks of a file from an offset on. Raises CorruptLog, OSError."""
        file, extent = of
        offset = max(from_offset, extent.base)
        blocks: list[Block] = []
        size = 0
        while offset < extent.end_offset:
            walk = blocks_from(extent, offset, READ_BYTES, below=extent.end_offset)
            found = at_once(walk, file.file)
            if isinstance(found, Damage):
                raise self._log.found_damaged(file, found)
            if not found:
                raise CorruptLog(f"{file.path} ends at offset {offset}", file=file.path, position=0)
            blocks += found
            size += sum(len(block.payload) for block in found)
            offset = found[-1].end_offset
            if size >= PIECE_BYTES:
                yield blocks
                blocks, size = [], 0
        if blocks:
            yield blocks
        file.rest()


def _extents(log: DataLog) -> list[_File]:
    """All files, and what of each counts."""
    return [(file, Extent(file.base, end, file.size, file.index)) for file, end in log.spans()]


def _sweep_rewritten(log: DataLog) -> None:
    """What a pass began to write, and does not stand, goes. Raises OSError."""
    # What stands, and has not got its name yet, gets it.
    log.note_cleanness(log.cleanness)
    for name in log.disk.list(log.directory):
        if name.endswith(REWRITTEN_SUFFIX):
            log.disk.remove(f"{log.directory}/{name}")


def dirty_bytes(log: DataLog) -> tuple[int, int]:
    """About how many bytes were not compacted yet, and how many there are in all. Blocking. Raises
    CorruptLog, OSError."""
    clean = log.compacted_to
    dirty = total = 0
    for file, end in log.spans():
        size, covered = file.measure(), end - file.base
        dirty += size * min(max(end - clean, 0), covered) // covered
        total += size
    return dirty, total
