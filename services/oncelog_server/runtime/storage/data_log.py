"""A replica's data log: what was settled of its committed log, in blocks (docs/log_format.md).

    append(blocks) ─► page cache ─sync_and_note(settled_at)─► settled_end: read from here below
                          └─ OSError, or what is not the next block ─► given up; a new file

Invariants:
  * blocks follow each other: each begins where the one before it ends;
  * only what the note says is read: it is synced, and so is the note;
  * after a failed write or sync the bytes are in doubt: the log goes on in a new file, at
    `settled_end`. A file ends, for every reader, at the offset that names the next one;
  * nothing in front goes before a durable note says where the log begins.

All that changes it blocks, raises OSError, and may run in a thread beside reads, one at a time. A
log that nothing was ever appended to has no directory and costs nothing.

Left out: how it is read (`data_view`); what is settled, when, and from what
(`runtime/replica/settling`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from errno import EBADF
from itertools import chain, pairwise
from typing import Final

from oncelog_server.core.block import Block
from oncelog_server.core.cleaning import Cleanness
from oncelog_server.runtime.storage.copying import CopyRefused
from oncelog_server.runtime.storage.data_blocks import (
    BlockError,
    Step,
    encode_block,
    verify_block,
)
from oncelog_server.runtime.storage.data_cutting import emptied, noted_cut
from oncelog_server.runtime.storage.data_file import (
    DataFile,
    OpenDataFiles,
    RewrittenFile,
)
from oncelog_server.runtime.storage.data_note import NOT_KNOWN, DataNote
from oncelog_server.runtime.storage.data_recovery import RecoveredData, recover_data
from oncelog_server.runtime.storage.data_view import DataView
from oncelog_server.runtime.storage.data_walk import (
    all_intact,
    at_once,
)
from oncelog_server.runtime.storage.port import Disk
from oncelog_server.runtime.storage.segment import SEGMENT_BYTES

# In a replica's directory.
DATA_DIRECTORY: Final = "data"


class DataLog(DataView):
    """See the module. Made by `DataLog.open`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segment_bytes: int,
        recovered: RecoveredData,
        open_files: OpenDataFiles | None = None,
    ) -> None:
        super().__init__(disk, directory, recovered.settled, recovered.files, open_files)
        # What a file has at most, but for one of a single block.
        self.segment_bytes = segment_bytes
        self._note = recovered.note
        # Where the next block begins: what is appended and not noted included.
        self._end = recovered.settled.settled_end
        self._unsynced: list[DataFile] = []
        # Removed as soon as that can be done.
        self._gone: list[DataFile] = []
        self._front: list[DataFile] = []
        # What stands in the place of these, and has not got its name yet.
        self._joined: tuple[DataFile, list[DataFile]] | None = None
        self._in_doubt = self._closed = False
        self._has_directory = bool(recovered.files) or recovered.note.kept is not None

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        open_files: OpenDataFiles | None = None,
    ) -> DataLog:
        """Recovers it, or says that there is none yet. Blocking; reads the note, and what stands
        beyond. Raises UnknownFrame where a newer version wrote it, OSError."""
        return cls(disk, directory, segment_bytes, recover_data(disk, directory), open_files)

    def note_cleanness(
        self, cleanness: Cleanness, *, dropped_at: int = 0, settled_at: int = 0
    ) -> None:
        """Durably, whichever slot of the note rots. What is not noted is given up. Raises OSError.

        Journal offsets: `dropped_at`: of a state by which tombstones go, or are gone of what
        comes; 0: none are. `settled_at`: of the one that another data log was settled from, where
        blocks of it come."""
        self._settle_doubts()
        self._make_directory()
        self._note_cleanness(cleanness, dropped_at, settled_at)

    def _note_cleanness(
        self, cleanness: Cleanness, dropped_at: int = 0, settled_at: int = 0
    ) -> None:
        settled = self._settled._replace(
            dropped_at=max(self.dropped_at, dropped_at),
            settled_at=max(self.settled_at, settled_at),
            **cleanness._asdict(),
        )
        if settled != self._settled:
            self._note.save_in_both(settled)
            self._settled = settled

    # ------------------------------------------------------------------------------------ growing

    def append(self, blocks: Iterable[Block]) -> None:
        """Each behind the one before, the first one behind what was appended last, or at
        `settled_end`: then what is not noted is given up, as it is where this raises. Of a log that
        has nothing, anywhere behind that."""
        self._begin_to_append()
        try:
            for number, block in enumerate(blocks):
                if number == 0:
                    self._begin_with(block.first_offset)
                    self._require_not_compacted(block.first_offset)
                step = Step(block.first_offset, block.end_offset, block.exposed_below, 0)
                self._append(step, b"".join(encode_block(block)))
        except BaseException:
            self._in_doubt = True
            raise

    def _require_not_compacted(self, offset: int) -> None:
        """What comes has all of its records, whatever was in parts of other replicas."""
        self._note_cleanness(self.cleanness.with_records(offset))

    def append_copied(self, data: bytes) -> int:
        """Blocks as another replica's `parts_from` gave them; all of them or none. Returns where
        the next one begins. Raises CopyRefused where they are not what was sent, or not next."""
        self._begin_to_append()
        view, at = memoryview(data), 0
        steps: list[tuple[Step, int]] = []
        while at < len(data):
            try:
                step = verify_block(view, at)
            except BlockError as error:
                raise CopyRefused(f"byte {at} of what came: {error}") from error
            following = steps[-1][0].end_offset if steps else None
            if following is None:
                self._begin_again(step.first_offset)
            if not (self._is_next(step) if following is None else step.first_offset == following):
                raise CopyRefused(f"a block of offset {step.first_offset} is not next here")
            steps.append((step, at))
            at += step.length
        try:
            for step, at in steps:
                self._append(step, bytes(view[at : at + step.length]))
        except BaseException:
            self._in_doubt = True
            raise
        return self._end

    def sync_and_note(self, settled_at: int) -> None:
        """All that was appended is durable, and is read from now on; it was settled from the
        snapshot at this journal offset. Raises OSError: then it is given up."""
        self._require_usable()
        try:
            for file in self._unsynced:
                file.sync()
            last = self._unsynced[-1] if self._unsynced else None
            settled = self._settled._replace(
                settled_end=self._end, settled_at=max(self.settled_at, settled_at)
            )
            if settled.begun_at == NOT_KNOWN:
                # Of a log that had nothing: that snapshot has nothing before its first block.
                settled = settled._replace(begun_at=settled.settled_at)
            if last is not None:
                settled = settled._replace(base=last.base, position=last.size)
            if settled != self._settled:
                self._save(settled)
        except BaseException:
            self._in_doubt = True
            raise
        for file in self._unsynced:
            file.rest()
        self._unsynced = []

    def _begin_to_append(self) -> None:
        self._require_usable()
        if self._in_doubt or self._settled.beyond_goes:
            self._settle_doubts()
        self._make_directory()

    def _make_directory(self) -> None:
        """With a note before the first file: without one, files are taken for all that is left."""
        if not self._has_directory:
            self.disk.make_directory(self.directory)
            self._note.save(self._settled)
            self._has_directory = True

    def _begin_with(self, first_offset: int) -> None:
        """A log that has nothing begins where its first block does."""
        self._begin_again(first_offset)
        if not self._files and first_offset > self._end:
            self.begin_at(first_offset, begun_at=NOT_KNOWN)

    def _begin_again(self, first_offset: int) -> None:
        """Whoever appended what is not noted is gone, perhaps in the middle of a step."""
        if first_offset != self._end != self.settled_end:
            self._give_up()

    def _is_next(self, step: Step) -> bool:
        if step.first_offset == self._end:
            return True
        # The first one of all may begin with what was deleted since.
        is_first = not self._files and self._end == self.begin
        return is_first and step.first_offset <= self.begin < step.end_offset

    def _append(self, step: Step, data: bytes) -> None:
        assert self._is_next(step), f"{step.first_offset} is not what follows {self._end}"
        self._taking(step.first_offset, len(data)).add(step.first_offset, data)
        self._end = step.end_offset

    def _taking(self, offset: int, size: int) -> DataFile:
        """The file that takes the next block."""
        last = self._files[-1] if self._files else None
        if last is not None and self._grows(last) and last.size + size <= self.segment_bytes:
            if last not in self._unsynced:
                self._unsynced.append(last)
            return last
        file = DataFile(self.disk, self.directory, offset, size=0)
        self._files = (*self._files, file)
        self._unsynced.append(file)
        return file

    def _grows(self, last: DataFile) -> bool:
        return last in self._unsynced or last.base == self._settled.base

    def _give_up(self) -> None:
        """What is not noted: its bytes are in doubt, and so is the note that was to speak of it.
        What is behind the noted ones in their file stays there, and is read by nobody."""
        if self._has_directory:
            self._shorten(self._settled._replace(base=self.settled_end, position=0))
        self._in_doubt = False

    def _settle_doubts(self) -> None:
        """Before anything else is changed."""
        self._require_usable()
        self._finish_join()
        if self._in_doubt or self._end != self.settled_end:
            self._give_up()
        elif self._settled.beyond_goes:
            self._remove_beyond()

    def replace(
        self, blocks: Sequence[Block], *, donor: Cleanness | None = None, dropped_at: int = 0
    ) -> None:
        """Puts these in the place of what stands in one file of the offsets that they cover: damage
        (`damaged_at`) or a part of it, or whole blocks. Durable when it returns; readers have what
        was or what is. What is not noted is given up. Blocking. Raises ValueError where they do not
        fit there, OSError: then nothing that is read changes.

        `donor`: what was taken out of the data log that they are of, where that is another one's;
        `dropped_at`: as in `note_cleanness`. Both are noted before they are there."""
        self._settle_doubts()
        first, end = blocks[0].first_offset, blocks[-1].end_offset
        if any(one.end_offset != two.first_offset for one, two in pairwise(blocks)):
            raise ValueError("each block begins at the offset where the one before it ends")
        if not (first < end <= self.settled_end):
            raise ValueError(f"offsets {first} to {end} are not in the data log")
        new = [(block.first_offset, b"".join(encode_block(block))) for block in blocks]
        if not self._files or first < self._first_base:
            self._put_in_front(first, end, new, self._cleanness_with(donor, first, end), dropped_at)
            return
        file, extent = self._holding(first)
        kept = at_once(all_intact(extent), file.file)
        before = [it for it in kept if it.step.end_offset <= first]
        behind = [it for it in kept if it.step.first_offset >= end]
        replaced = kept[len(before) : len(kept) - len(behind)]
        fits = all(first <= it.step.first_offset and it.step.end_offset <= end for it in replaced)
        if not fits or end > extent.end_offset:
            raise ValueError(f"offsets {first} to {end} are no whole blocks of {file.path}")
        self._note_cleanness(self._cleanness_with(donor, first, end), dropped_at)
        if self._grows(file):
            # It takes no more: the note speaks of a place in it that will be another.
            self._forget_position()
        old = file.file
        parts = chain(
            ((it.step.first_offset, old.read(it.position, it.step.length)) for it in before),
            new,
            ((it.step.first_offset, old.read(it.position, it.step.length)) for it in behind),
        )
        anew = DataFile.written_anew(self.disk, self.directory, file.base, parts)
        self._files = tuple(anew if it is file else it for it in self._files)
        self._history += 1
        file.retire()
        self._known_damage.forget(first, end)

    def _put_in_front(
        self,
        first: int,
        end: int,
        new: list[tuple[int, bytes]],
        noted: Cleanness,
        dropped_at: int,
    ) -> None:
        """Of a file that is gone: from its begin on, so that what is left of it is in one piece."""
        lost_to = self._first_base
        if end > lost_to or first > self.begin:
            raise ValueError(f"what lacks are the offsets {self.begin} to {lost_to}")
        self._note_cleanness(noted, dropped_at)
        anew = DataFile.written_anew(self.disk, self.directory, first, new)
        self._files = (anew, *self._files)
        self._history += 1
        self._known_damage.forget(self.begin, lost_to)

    def _cleanness_with(self, donor: Cleanness | None, first: int, end: int) -> Cleanness:
        """Once these offsets are as the donor has them. Raises ValueError where that must not
        be."""
        if donor is None:
            return self.cleanness
        noted = self.cleanness.with_part_inside(donor, first=first, end=end)
        if noted is None:
            raise ValueError(f"offsets {first} to {end} of {donor} do not fit {self.cleanness}")
        return noted

    # ------------------------------------------------------------------------- rewritten as a whole

    def seal(self) -> None:
        """No file that is there takes another block. What is not noted is given up. Raises
        OSError."""
        self._settle_doubts()
        if self._settled.position:
            self._forget_position()

    def _forget_position(self) -> None:
        """Before a file is written anew: whichever slot rots, none says where the next block goes
        in it as it was."""
        settled = self._settled._replace(base=self.settled_end, position=0)
        self._note.save_in_both(settled)
        self._settled = settled

    def join(self, anew: RewrittenFile, count: int) -> None:
        """Puts a file that is written and synced in the place of so many neighbours, which it
        covers. Raises OSError: what it began is done before anything else is changed."""
        self._settle_doubts()
        first = bisect_left(self._files, anew.base, key=lambda file: file.base)
        old = self._files[first : first + count]
        end = self._files[first + count].base if first + count < len(self._files) else anew.end
        assert end == anew.end, "it covers what they do"
        assert not any(self._grows(file) for file in old), "`seal` first"
        joined = anew.stand_beside(is_joined=count > 1)
        # It was written from what is intact.
        self._known_damage.forget(anew.base, anew.end)
        self._files = (*self._files[:first], joined, *self._files[first + count :])
        self._joined = (joined, list(old))
        self._finish_join()

    def _finish_join(self) -> None:
        if self._joined is not None:
            joined, old = self._joined
            joined.take_place_of(old)
            self._joined = None

    # -------------------------------------------------------------------------- what goes of it

    def cut(self, journal_end: int, *, journal_start: int) -> None:
        """Drops blocks that became readable by what stands at or above this journal offset: it is
        gone from the journal, which begins at `journal_start`. Whoever calls it has not cut the
        journal yet. Raises CorruptLog where that cannot be: see `noted_cut`."""
        self._settle_doubts()
        cut = noted_cut(self._settled, self._files, journal_end, journal_start=journal_start)
        if self.begun_at > journal_end:
            self.take_back_begin(journal_start=journal_start)
        if cut is None or max(self.settled_at, self.dropped_at) <= journal_end:
            return
        cut = cut._replace(begin=self.begin, begun_at=self.begun_at)
        if cut.settled_end <= max(self.begin, self._first_base):
            cut = emptied(cut)
        self._shorten(cut)

    def take_back_begin(self, *, journal_start: int) -> None:
        """What is below `begin` was not deleted after all. All is given up, to be settled anew from
        a journal that has every frame; where that begins at `journal_start` above 0, nothing else
        may have what is here, so it stays: what lacks before it is damage from now on."""
        self._settle_doubts()
        if journal_start == 0 or not self._files:
            self._shorten(DataNote())
            return
        # Whichever slot rots, none says again that it was deleted.
        settled = self._settled._replace(begin=0, begun_at=0)
        self._note.save_in_both(settled)
        self._settled = settled

    def learn_begin(self, begins_by: Callable[[int], int | None], journal_end: int) -> None:
        """Where no note says by which state it begins: the oldest that begins there or behind
        (`begins_by`: its journal offset), or one at the end of the journal. By which tombstones
        are gone: one at that end."""
        if self.begun_at == NOT_KNOWN:
            known = begins_by(self.begin)
            self._save(self._settled._replace(begun_at=journal_end if known is None else known))
        if self.dropped_at == NOT_KNOWN:
            self._note.save_in_both(self._settled._replace(dropped_at=journal_end))
            assert self._note.kept is not None, "it was saved"
            self._settled = self._note.kept

    def begin_at(self, offset: int, *, begun_at: int) -> None:
        """Gives up every block, and begins at an offset: what is below was deleted, as the state at
        the journal offset `begun_at` says, or comes with `append_copied`."""
        self._require_usable()
        self._finish_join()
        self._make_directory()
        self._shorten(DataNote(offset, offset, 0, offset, 0, begun_at=begun_at if offset else 0))

    def _shorten(self, settled: DataNote) -> None:
        """The note first; then files, from the last one back."""
        self._save(settled._replace(beyond_goes=1))
        end = settled.settled_end
        for file in self._unsynced:
            file.give_up_unsynced()
        self._end, self._in_doubt, self._unsynced = end, False, []
        kept = tuple(file for file in self._files if max(settled.begin, file.base) < end)
        self._gone += self._files[len(kept) :]
        self._files = kept
        self._history += 1
        self._remove_beyond()

    def _remove_beyond(self) -> None:
        """What stands beyond the note. Until it is done the note says so, and nothing is added."""
        while self._gone:
            self._gone[-1].remove()
            self._gone.pop()
        settled = self._settled
        if self._files:
            last = self._files[-1]
            if last.base == settled.base and last.size > settled.position:
                last.truncate(settled.position, end_offset=settled.settled_end)
        self._save(settled._replace(beyond_goes=0))

    def goes_before(self, offset: int) -> bool:
        """Whether `remove_before` would change anything."""
        end = min(offset, self.settled_end)
        is_first_below = len(self._files) > 1 and self._files[1].base <= end
        if is_first_below or self._front or self._is_wholly_below(offset):
            return True
        return self._lacks_before(offset)

    def _is_wholly_below(self, offset: int) -> bool:
        """All that is noted is."""
        return self.begin < self.settled_end <= offset

    def _lacks_before(self, offset: int) -> bool:
        """What is deleted is not here, and no note says that it was."""
        return self.begin < min(offset, self._first_base)

    def remove_before(self, offset: int, *, begun_at: int) -> None:
        """What is below was deleted, as the state at the journal offset `begun_at` says: files that
        are wholly below go, front to back. Where even the settled end is below, all go, and the
        next block begins at `offset` or behind."""
        self._require_usable()
        self._finish_join()
        if self._is_wholly_below(offset):
            self.begin_at(offset, begun_at=begun_at)
        count = sum(file.base <= offset for file in self._files[1:])
        if count or self._lacks_before(offset):
            # Whichever slot rots, none says a begin of which nothing is left.
            settled = self._settled._replace(begin=offset, begun_at=begun_at)
            self._note.save_in_both(settled)
            self._settled = settled
            self._front += self._files[:count]
            self._files = self._files[count:]
            self._history += 1
        while self._front:
            self._front[0].remove()
            self._front.pop(0)

    # ------------------------------------------------------------------------------------- its end

    def close(self) -> None:
        """What was not noted is given up by the next start."""
        self._closed = True
        for file in self._files:
            file.close()

    def _save(self, settled: DataNote) -> None:
        self._note.save(settled)
        self._settled = settled

    def _require_usable(self) -> None:
        if self._closed:
            raise OSError(EBADF, "the data log is closed", self.directory)
