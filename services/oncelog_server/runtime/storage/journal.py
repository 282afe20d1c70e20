"""One replica's log: segments, index, epoch table, memory tail, identity, snapshots and slots.

    append ─► memory ─take_writes─► GroupCommit ─► Disk.commit ─mark_synced─► synced_end
                                         └─ OSError ─mark_failed─► abandon_unsynced

Invariants:
  * offset 0 is an EPOCH_START; offsets follow each other, and only an EPOCH_START jumps ahead;
    epochs never go down; frame times never go back (`scan.misplaced` holds it when reading);
  * only what is synced is read from files; what is not, is in the memory tail;
  * after a failed write nothing is appended until the unsynced frames are abandoned: their bytes
    are in doubt, and reading them back proves nothing;
  * a journal belongs to one event loop. `open`, `cut` and `save_snapshot` block;
  * nothing in front of the log is removed before a durable note says where the log begins.

A log begins at 0, or at one of its own snapshots, and that moves forward in steps (`keeping`).

Left out: who says what may go, and when (`replica/trimming`); compaction. Its files of frames are
`segments`, what they were not given yet is `unwritten`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from errno import EIO
from typing import Final, Self

from oncelog_server.core.frame import At, Frame, FrameKind, StoredFrame
from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.core.machine import Needs, Snapshot
from oncelog_server.runtime.storage.copying import copied_frames
from oncelog_server.runtime.storage.cutting import place_in
from oncelog_server.runtime.storage.damage import JournalDamaged, UnknownFrame
from oncelog_server.runtime.storage.data_file import OpenDataFiles
from oncelog_server.runtime.storage.data_log import DATA_DIRECTORY, DataLog
from oncelog_server.runtime.storage.data_note import NOT_KNOWN
from oncelog_server.runtime.storage.disk_use import DiskUse, disk_use
from oncelog_server.runtime.storage.epochs import EpochEntry
from oncelog_server.runtime.storage.frames import HEADER_BYTES, encode, encoded_bytes
from oncelog_server.runtime.storage.identity import Bounds, take_incarnation
from oncelog_server.runtime.storage.keeping import Allowance, next_log_start
from oncelog_server.runtime.storage.port import Disk, Write
from oncelog_server.runtime.storage.reading import require_within
from oncelog_server.runtime.storage.recovery import Recovered, recover, save_epochs
from oncelog_server.runtime.storage.scan import Place, require_order
from oncelog_server.runtime.storage.segment import SEGMENT_BYTES, Segment
from oncelog_server.runtime.storage.segments import Segments
from oncelog_server.runtime.storage.slot_sets import SlotSets
from oncelog_server.runtime.storage.snapshot_parts import SnapshotParts
from oncelog_server.runtime.storage.snapshots import SnapshotFiles, snapshot_path
from oncelog_server.runtime.storage.tail import Copies, MemoryTail, TailBudget
from oncelog_server.runtime.storage.unwritten import Unwritten
from oncelogpb.errors import CorruptLog

__all__ = ["SEGMENT_BYTES", "Journal", "JournalDamaged", "UnknownFrame"]

# Written over the first block of the file that follows a failed one: proof that this file works.
_PROOF: Final = bytes(4096)


class Journal:
    """See the module. Made by `Journal.open`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segment_bytes: int,
        recovered: Recovered,
        random_bytes: Callable[[int], bytes],
        data: DataLog,
        tails: TailBudget | None = None,
    ) -> None:
        end = recovered.end
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.incarnation = recovered.incarnation
        self.log_start = recovered.log_start
        # What that rests on; and what the note of it has to say at least.
        self.allowed = self._least_noted = recovered.allowed
        # Exclusive. Frames below are appended, at least in memory.
        self.log_end = end.offset
        # Exclusive. Frames below survive a loss of power.
        self.synced_end = end.offset
        # Epoch and time of the last frame; 0 in an empty journal.
        self.last_epoch = end.epoch
        self.last_time_ms = end.time_ms
        self._disk = disk
        self._random_bytes = random_bytes
        self._segments = Segments(disk, directory, segment_bytes, recovered.segments)
        self._epochs = recovered.epochs
        self._synced_end_file = recovered.synced_end
        self._unwritten = Unwritten(disk, directory, recovered.epochs, recovered.synced_end)
        self._tail = MemoryTail(end.offset, budget=tails)
        self._frames_before_snapshot = 0
        self._failed = False
        self._closed = False
        self.slots = SlotSets(disk, directory)
        # In front of the log, and not removed yet.
        self._retired: list[Segment] = []
        self._has_old_front = False
        self._snapshots = SnapshotFiles(
            disk, directory, log_start=recovered.log_start, log_end=end.offset
        )
        if recovered.log_start:
            # What a crash has left of it.
            self._snapshots.sweep(self._segments.bases)
        # What was settled of its committed log. Of what the log lost nothing is read.
        self.data = data
        data.learn_begin(self._snapshots.begins_by, max(end.offset, self.allowed.at))
        self.rest_on_data()
        data.cut(max(end.offset, self.allowed.at), journal_start=self.log_start)

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        random_bytes: Callable[[int], bytes] = os.urandom,
        tails: TailBudget | None = None,
        open_data: OpenDataFiles | None = None,
    ) -> Self:
        """Creates or recovers it. Blocking. `random_bytes` draws incarnations; `tails` bounds what
        the node keeps of new frames in memory, `open_data` which of its files of data are open.
        Raises JournalDamaged (UnknownFrame too): refused, and nothing of it is served. OSError.
        """
        recovered = recover(disk, directory, segment_bytes, random_bytes)
        path = f"{directory}/{DATA_DIRECTORY}"
        data = DataLog.open(disk, path, segment_bytes=segment_bytes, open_files=open_data)
        return cls(disk, directory, segment_bytes, recovered, random_bytes, data, tails)

    # ------------------------------------------------------------------------------------ append

    @property
    def takes_frames(self) -> bool:
        return not (self._failed or self._closed)

    def append(self, frame: Frame, *, epoch: int, time_ms: int, skip_to: int | None = None) -> At:
        """Gives the frame its place, in memory. Call GroupCommit.wrote next. `skip_to`: the offset
        that an EPOCH_START jumps ahead to. Raises TooLarge, or OSError when a write failed."""
        if not self.takes_frames:
            raise OSError(EIO, "the journal takes no frames: a write failed, or it is closed")
        offset = self.log_end if skip_to is None else skip_to
        require_order(frame, epoch, offset, last_epoch=self.last_epoch, log_end=self.log_end)
        at = At(JournalOffset(offset), LeaderEpoch(epoch), max(self.last_time_ms, time_ms))
        chunks = encode(frame, at)
        size = encoded_bytes(frame)
        segment = self._segments.taking(size, log_end=self.log_end)
        if frame.kind is FrameKind.EPOCH_START:
            self._unwritten.begin_epoch(EpochEntry(epoch, offset, self.log_end))
        else:
            segment.index.saw(offset, segment.size)
        self._unwritten.push(segment, chunks)
        segment.size += size
        self._appended(StoredFrame(frame, at), chunks[0])
        return at

    def append_copied(self, frames: bytes, *, epoch: int) -> int:
        """Frames as the leader of `epoch` sent them, with its offsets, epochs and times; they go to
        the disk as they are. All are appended, in memory, or none. Returns their bytes, for
        GroupCommit.wrote.

        Raises CopyRefused where they are not what comes next here, or not what was sent,
        UnknownFrame, and OSError when an earlier write failed.
        """
        if not self.takes_frames:
            raise OSError(EIO, "the journal takes no frames: a write failed, or it is closed")
        place = Place(0, self.log_end, self.last_epoch, self.last_time_ms)
        copied = list(copied_frames(frames, place, epoch=epoch))
        view = memoryview(frames)
        for stored, begin, end in copied:
            self._append_copy(stored, view[begin : begin + HEADER_BYTES], end - begin)
        return len(frames)

    def _append_copy(self, stored: StoredFrame, header: memoryview, size: int) -> None:
        segment = self._segments.taking(size, log_end=self.log_end)
        if stored.frame.kind is FrameKind.EPOCH_START:
            self._unwritten.begin_epoch(EpochEntry(stored.at.epoch, stored.at.offset, self.log_end))
        else:
            segment.index.saw(stored.at.offset, segment.size)
        payload = stored.frame.payload
        self._unwritten.push(segment, (header, payload) if payload else (header,))
        segment.size += size
        self._appended(stored, bytes(header))

    def _appended(self, stored: StoredFrame, header: bytes | memoryview) -> None:
        self.log_end = stored.end
        self.last_epoch, self.last_time_ms = stored.at.epoch, stored.at.time_ms
        self._tail.append(stored, header, synced_end=self.synced_end)

    # ------------------------------------------------------------------- what GroupCommit asks for

    def take_writes(self) -> tuple[list[Write], int]:
        """What the disk was not given yet, and the log end that it leads to; mark_synced, or
        mark_failed, follows in the same order. Raises OSError where a file cannot be made."""
        if not self.takes_frames:
            return [], self.log_end
        return self._unwritten.take(), self.log_end

    def mark_synced(self, end: int) -> None:
        """The commit that leads to `end` is durable."""
        self._unwritten.confirmed()
        self.synced_end = max(self.synced_end, end)
        self._tail.trim(self.synced_end)

    def mark_failed(self) -> None:
        """What is not synced is in doubt, but for what the disk still has. Reads go on."""
        self._failed = True

    @property
    def is_noted(self) -> bool:
        """What is synced is noted; or this journal notes nothing any more."""
        return self._failed or self._closed or self._synced_end_file.says(self._bounds)

    @property
    def _bounds(self) -> Bounds:
        return Bounds(self.log_start, self.synced_end, self.allowed)

    def note_synced_end(self) -> bool:
        """About every second: notes for recovery what is synced. Note and index go to the page
        cache now, so they outlive the process; the note outlives a loss of power after the next
        commit, which is GroupCommit.wrote's to make. False: there is nothing to note."""
        if self.is_noted or self._unwritten.note_is_in_flight:
            return False
        file, position, chunks = self._unwritten.note(self._bounds)
        # A disk that fails here fails the commit too, and that is where it counts.
        with contextlib.suppress(OSError):
            self._disk.write_unsynced(file, position, b"".join(chunks))
        self._segments.save_indexes(self.synced_end)
        return True

    # -------------------------------------------------------------------------------------- reads

    async def read(self, from_offset: int, max_bytes: int, *, below: int) -> list[StoredFrame]:
        """Frames from the one that holds `from_offset`, whole, as far as they end at or before
        `below`: up to `max_bytes`, and at least one if there is one; often fewer than there are.
        Raises OffsetOutOfRange before the log start, CorruptLog, OSError."""
        require_within(from_offset, self.log_start)
        if from_offset >= self._tail.start:
            return self._tail.read(from_offset, max_bytes, below=below)
        return await self._segments.read(from_offset, max_bytes, below=below)

    def bytes_between(self, start: int, end: int) -> int:
        """About how many bytes of frames stand there, by the indexes."""
        return self._segments.bytes_between(start, end)

    def bytes_from(self, start: int) -> int:
        """About how many bytes of frames stand there and behind; more rather than fewer."""
        return self._segments.bytes_from(start) if start < self.log_end else 0

    @property
    def frames_since_snapshot(self) -> int:
        """Appended since one was written, or the journal was opened."""
        return self._tail.appended - self._frames_before_snapshot

    @property
    def tail_start(self) -> int:
        """From here on, memory has everything."""
        return self._tail.start

    async def copies(self, from_offset: int, max_bytes: int) -> Copies:
        """Frames for a follower, from the one that begins at `from_offset` up to the log end,
        whether they are synced here or not: whole, as they stand on the disk or will, up to
        `max_bytes`, and at least one if there is one. Raises OffsetOutOfRange before the log start,
        CorruptLog, OSError."""
        require_within(from_offset, self.log_start)
        if from_offset >= self._tail.start:
            return self.copies_of_tail(from_offset, max_bytes)
        return await self._segments.copies(from_offset, max_bytes, below=self._tail.start)

    def copies_of_tail(self, from_offset: int, max_bytes: int) -> Copies:
        """The same, from `tail_start` on."""
        return self._tail.copies(from_offset, max_bytes)

    async def read_frames(self, offsets: Sequence[int]) -> list[StoredFrame]:
        """The frames that begin at these offsets, in this order. Neighbours share a disk read.
        Raises OffsetOutOfRange where no frame begins, CorruptLog, OSError."""
        found: dict[int, StoredFrame] = {}
        missing: set[int] = set()
        for offset in offsets:
            stored = self._tail.get(offset)
            if stored is not None:
                found[offset] = stored
            else:
                require_within(offset, self.log_start, self.log_end)
                missing.add(offset)
        if missing:
            found.update(await self._segments.read_frames(missing))
        return [found[offset] for offset in offsets]

    def replay(self, from_offset: int) -> Iterator[StoredFrame]:
        """Every frame from the one that holds `from_offset` to the log end. Blocking.

        Raises JournalDamaged (with a new incarnation taken) at damage that opening did not see.
        """
        position = from_offset
        # What memory has of it may be less each time this goes on: others need the room.
        while (end := self._tail.start) > position:
            try:
                yield from self._segments.replay(self._epochs, position, end=end)
            except JournalDamaged:
                self._take_incarnation()
                raise
            position = end
        yield from self._tail.frames_from(position)

    def _take_incarnation(self) -> None:
        self.incarnation = take_incarnation(self._disk, self.directory, self._random_bytes)

    # ------------------------------------------------------------------------------ epochs and cuts

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch at or below `epoch`, and the offset after its last frame."""
        return self._epochs.end_of(epoch, self.log_end)

    def cut(self, end: int) -> None:
        """Drops every frame at or above `end`, which must be where a frame ends. Blocking, within
        `without_budget`; durable when it returns. No commit may be under way. One that has failed
        may be cut to what is synced. Raises OSError: then the journal has failed."""
        if self._failed:
            self._unwritten.failed()
            if end > self.synced_end:
                raise OSError(EIO, "a write failed: what is not synced is in doubt")
        assert not self._unwritten.is_in_flight, "await GroupCommit.flush() first"
        assert self.log_start <= end, "nothing is before the log start"
        if end >= self.log_end and not self._failed:
            return
        was_failed, self._failed = self._failed, True
        if not was_failed:
            # It looks for its place in the files, so what only memory has goes there first.
            self._unwritten.write_frames()
        self._unwritten.drop()
        # What a crash leaves of it must not be of frames that are gone.
        self.data.cut(max(end, self.allowed.at), journal_start=self.log_start)
        place = Place(0, end, self._epochs.epoch_at(end - 1))
        if end > self.log_start:
            place = place_in(self._segments.holding(end - 1), end, self._epochs)
        self._lower_promise(end)
        # Where it fails from here on, what is abandoned goes, and no more than that is left.
        self.synced_end = min(self.synced_end, end)
        if end == self.log_start:
            # The first segment may begin below, and then has nothing that is left: its name would
            # be wrong for the next frame.
            self._segments.remove_from(0)
        self._segments.cut(place, keep_bytes=was_failed)
        if was_failed:
            segment = self._segments.begin(end)
            self._disk.write_and_sync(segment.file, 0, _PROOF)
        self._tail.cut(end)
        self.slots.cut(end)
        self._epochs.cut(end)
        self._unwritten.close()
        save_epochs(self._disk, self.directory, self._epochs)
        self.log_end, self.last_epoch = end, place.epoch
        self.synced_end = min(self.synced_end, end) if was_failed else end
        self._failed = False

    def begin_at(
        self,
        offset: int,
        snapshot: Snapshot,
        epochs: Sequence[EpochEntry],
        *,
        time_ms: int,
        allowed: Allowance,
    ) -> None:
        """Gives up every frame and begins in the middle, with a leader's snapshot of `offset`, its
        tables whole, the leader's epochs below it, and what its beginning rests on. Blocking;
        durable when it returns. Slots of frames below were written before. No commit may be under
        way. Raises OSError: then it has to be opened anew, and is empty, or begins at `offset`.

        Whoever had frames takes a new incarnation first: it holds less than it said.
        """
        assert epochs, "a journal begins with an epoch"
        assert self.log_end <= offset, "what is here already needs no snapshot"
        if self.log_end > 0:
            self._take_incarnation()
        # First: blocks became readable by frames that go, and all of them are below that state.
        self.allowed = self._least_noted = max(self.allowed, allowed)
        self.cut(self.log_start)
        self._failed = True
        # One without frames would take the next ones under the name of where the log began.
        self._segments.remove_from(0)
        self.slots.flush()
        self._snapshots.save(offset, snapshot, epoch=epochs[-1].epoch)
        self._epochs.entries[:] = epochs
        save_epochs(self._disk, self.directory, self._epochs)
        # Up to here a crash leaves an empty journal, and recovery drops what speaks of more.
        self._synced_end_file.note_in_both(Bounds(offset, offset, self.allowed))
        self._snapshots.begin_next(offset)
        self._snapshots.begin()
        self._has_old_front = True
        self.log_start = self.log_end = self.synced_end = offset
        self.last_epoch, self.last_time_ms = epochs[-1].epoch, time_ms
        self.rest_on_data()
        self._tail.begin_at(offset)
        self._failed = False

    def abandon_unsynced(self) -> None:
        """After a failed write: goes back to the last good sync and on in a new file. Blocking.
        Raises OSError where that cannot be written and synced either: the journal stays failed."""
        self.cut(self.synced_end)

    def _lower_promise(self, end: int) -> None:
        """Before anything is cut: whoever crashes in the middle must not look damaged."""
        # The note may say a later start, which could not be synced: its snapshot goes after it.
        lower = self._bounds._replace(synced_end=min(end, self.synced_end))
        self._synced_end_file.note_and_sync(lower)
        self._snapshots.drop_above(end)

    # -------------------------------------------------------------------------- where it begins

    def next_log_start(self, needs: Needs, *, wanted_bytes_max: int) -> int | None:
        """Where it should begin, of the snapshots that it has; None: where it does. What is wanted
        and not needed stays while it is no more than `wanted_bytes_max`."""
        return next_log_start(
            self._snapshots.offsets,
            needs,
            log_start=self.log_start,
            bases=self._segments.bases,
            bytes_between=self.bytes_between,
            wanted_bytes_max=wanted_bytes_max,
        )

    def index_before_start(self, start: int) -> Segment:
        """The segment that will be the first one; its index goes to the page cache."""
        segment = self._segments.holding(start)
        segment.save_index(self.synced_end)
        return segment

    def prepare_start(self, start: int, first: Segment) -> None:
        """The first step; `first` is what `index_before_start` gave. Blocking; may run in a thread
        beside appends. Raises CorruptLog where the snapshot or its rows are damaged, OSError: the
        log then begins where it did."""
        if not self._snapshots.is_whole(start):
            path = snapshot_path(self.directory, start)
            raise CorruptLog(f"{path}, or a table that it counts, is damaged", file=path)
        first.sync_index()

    def move_start(self, start: int, *, allowed_at: int) -> bool:
        """The second step: nothing before it is read from now on, and the next note says so.
        `allowed_at`: where the state stood that needs nothing before it. False: a write failed, or
        it is closed."""
        if self._failed or self._closed:
            return False
        assert self.log_start < start <= allowed_at, "a state speaks of what was before it"
        assert allowed_at <= self.synced_end, "a log begins at what it has"
        self.log_start, self._has_old_front = start, True
        self.allowed = self._least_noted = self.allowance_at(allowed_at)
        self.rest_on_data()
        self._snapshots.begin_next(start)
        return True

    @property
    def may_lack_front(self) -> bool:
        """The log lacks frames of the state that allowed it to begin where it does: it is a copy
        that is not that far, or lost its end. What is before it may be needed."""
        return not self.allowed.is_of(*self.end_of_epoch(self.allowed.epoch))

    def allow_start(self) -> None:
        """Who leads says what was: its log begins where it does, whatever it may lack."""
        self.allowed = self._least_noted = self.allowance_at(self.log_end)

    def rest_on(self, allowed: Allowance) -> None:
        """The data log gets a leader's blocks, which became readable by these frames there."""
        self.allowed = self._least_noted = max(self.allowed, allowed)

    def rest_on_data(self) -> None:
        """What the data log has deleted is in no journal that begins above 0: that one rests on the
        state which deleted it, too. (What the data log says of it is durable, and lasts.)"""
        if self.log_start and self.allowed.at < self.data.begun_at < NOT_KNOWN:
            self.allowed = self.allowance_at(self.data.begun_at)

    def allowance_at(self, end: int) -> Allowance:
        """Of a state that had all frames below."""
        return Allowance(end, self._epochs.epoch_at(end - 1)) if end else Allowance()

    @property
    def has_old_front(self) -> bool:
        """Something in front of the log may be left to remove."""
        return self._has_old_front

    @property
    def start_is_durable(self) -> bool:
        """And what it rests on: in both slots of the note."""
        return self._synced_end_file.keeps(self.log_start, self._is_enough)

    def _is_enough(self, noted: Allowance) -> bool:
        """What the data log deletes raises `allowed`, perhaps before each note. It tells that."""
        is_of_this = noted.is_of(*self.end_of_epoch(noted.epoch))
        return noted == self.allowed or (is_of_this and noted >= self._least_noted)

    def retire_front(self) -> None:
        """Then `remove_front`: what is removed is nobody's any more."""
        assert self.start_is_durable, "else a loss of power finds a log without its front"
        self._retired += self._segments.take_before(self.log_start)

    def remove_front(self) -> None:
        """The third step. Blocking; may run in a thread beside appends. Raises OSError: then it is
        done again, here or by recovery."""
        self._snapshots.begin()
        while self._retired:
            self._retired[0].remove()
            self._retired.pop(0)
        self._snapshots.sweep(self._segments.bases)
        self._has_old_front = False

    def roll(self) -> None:
        """The next frame begins another segment, so that the one before it can go one day."""
        if self._segments.all and self._segments.bases[-1] < self.log_end and not self._failed:
            self._segments.begin(self.log_end)

    @property
    def first_offset_of_active(self) -> int:
        """Of the segment that takes the next frame."""
        return self._segments.bases[-1] if self._segments.all else self.log_end

    # ----------------------------------------------------------------------------------- snapshots

    def save_snapshot(self, offset: int, snapshot: Snapshot) -> None:
        """Makes the state at `offset` durable, and the slots before it. Blocking; may run in a
        thread beside appends. Only what is synced may be in it. Raises OSError: it may be tried
        again as it is."""
        assert offset <= self.synced_end, "a snapshot never runs ahead of the log"
        self.slots.flush()
        epoch = self._epochs.epoch_at(offset - 1)
        self._snapshots.save(offset, snapshot, epoch=epoch, bases=self._segments.bases)
        self._frames_before_snapshot = self._tail.appended

    @property
    def rows_saved(self) -> Mapping[str, int]:
        """By table, how many of its rows the newest snapshot on disk counts, and a next one may
        leave out."""
        return self._snapshots.rows_saved

    def disk_use(self) -> DiskUse:
        """For operators. Blocking; may run in a thread. Raises OSError."""
        return disk_use(self._disk, self.directory)

    @property
    def snapshots(self) -> SnapshotFiles:
        """To be read."""
        return self._snapshots

    @property
    def snapshot_offset(self) -> int:
        """Of the newest snapshot; the log start where there is none."""
        return max(self._snapshots.newest, self.log_start)

    def load_snapshot(self) -> tuple[int, bytes, dict[str, bytes]] | None:
        """The newest one that is intact: its offset, the state, and the rows of each table. Raises
        JournalDamaged (with a new incarnation taken) where nothing else tells what was before the
        log start, OSError."""
        found = self._snapshots.load()
        if found is None and self.log_start > 0:
            self._take_incarnation()
            path = snapshot_path(self.directory, self.log_start)
            raise JournalDamaged(path, 0, "no snapshot is intact, and the log begins behind it")
        return found

    def snapshot_parts(self) -> SnapshotParts:
        """What was before the log start, for a replica that ends there or below."""
        return SnapshotParts(
            self._disk,
            self.directory,
            self.log_start,
            self.allowed,
            self._epochs,
            self.slots.by_name,
            self.data,
        )

    def close(self) -> None:
        """Notes the synced end durably and closes every file. What was not synced is dropped."""
        if self._closed:
            return
        # A disk that fails now must not keep a process from stopping; the older note holds too.
        with contextlib.suppress(OSError):
            if not self._failed:
                if self._synced_end_file.noted != self._bounds or self._unwritten.has_note:
                    self._synced_end_file.note_and_sync(self._bounds)
                self._segments.save_indexes(self.synced_end)
        self._closed = True
        self.data.close()
        self._segments.close()
        self.slots.close()
        self._synced_end_file.close()
        self._unwritten.close()

    def without_budget(self) -> AbstractContextManager[None]:
        """On the loop, while a thread runs what cuts it (`cut`, `begin_at`, `abandon_unsynced`)."""
        return self._tail.apart()

    def forget_tail(self) -> None:
        """Gives back what it holds of the node's budget. On the loop, once it is closed."""
        self._tail.clear()
