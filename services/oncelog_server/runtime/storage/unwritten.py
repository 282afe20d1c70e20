"""What a journal has in memory and its disk perhaps not: appended and not given to the disk yet, or
given and not confirmed.

    push, begin_epoch, note ─► take ─► the disk ─┬─► confirmed, in the order in which it was taken
                                                 └─► failed: all of these bytes are in doubt

Invariants: an epoch's entry goes to the disk in one commit with its EPOCH_START; of what is taken
at several times nothing is confirmed behind something that failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from oncelog_server.runtime.storage.epochs import (
    EPOCH_ENTRY_BYTES,
    EPOCHS_FILE,
    EpochEntry,
    EpochTable,
)
from oncelog_server.runtime.storage.identity import Bounds, SyncedEnd
from oncelog_server.runtime.storage.port import Disk, File, Write
from oncelog_server.runtime.storage.segment import Segment


class _Taken(NamedTuple):
    """By one commit."""

    # What the segments then have, bytes.
    sizes: dict[Segment, int]
    has_note: bool


class Unwritten:
    """Of one journal."""

    def __init__(
        self, disk: Disk, directory: str, epochs: EpochTable, synced_end: SyncedEnd
    ) -> None:
        self._disk = disk
        self._epochs_path = f"{directory}/{EPOCHS_FILE}"
        self._epochs_file: File | None = None
        self._epochs = epochs
        self._synced_end = synced_end
        # What the disk was not given yet: (segment, position, chunks), in order.
        self._frames: list[tuple[Segment, int, list[bytes | memoryview]]] = []
        self._new_epochs: list[EpochEntry] = []
        self._note: Write | None = None
        # Given and not confirmed.
        self._in_flight: deque[_Taken] = deque()

    @property
    def is_in_flight(self) -> bool:
        """Something was given to the disk, and is not confirmed."""
        return bool(self._in_flight)

    @property
    def note_is_in_flight(self) -> bool:
        """One was given to the disk, and is not confirmed."""
        return any(taken.has_note for taken in self._in_flight)

    @property
    def has_note(self) -> bool:
        """The next commit has one."""
        return self._note is not None

    # ------------------------------------------------------------------------------ what is added

    def push(self, segment: Segment, chunks: Sequence[bytes | memoryview]) -> None:
        """A frame, where the segment ends now."""
        if self._frames and self._frames[-1][0] is segment:
            self._frames[-1][2].extend(chunks)
        else:
            self._frames.append((segment, segment.size, list(chunks)))

    def begin_epoch(self, entry: EpochEntry) -> None:
        self._epochs.add(entry)
        self._new_epochs.append(entry)

    def note(self, bounds: Bounds) -> Write:
        """Of what is synced; the write goes with the next commit."""
        self._note = self._synced_end.note(bounds)
        return self._note

    # ----------------------------------------------------------------------- what the disk is given

    def take(self) -> list[Write]:
        """Everything. Raises OSError where a file cannot be made."""
        writes = [Write(segment.file, at, chunks) for segment, at, chunks in self._frames]
        if self._new_epochs:
            entries = [entry.encode() for entry in self._new_epochs]
            first = len(self._epochs.entries) - len(entries)
            writes.append(Write(self._epochs_handle(), first * EPOCH_ENTRY_BYTES, entries))
        if self._note is not None:
            writes.append(self._note)
        if writes:
            sizes = {segment: segment.size for segment, _, _ in self._frames}
            self._in_flight.append(_Taken(sizes, self._note is not None))
        self.drop()
        return writes

    def confirmed(self) -> None:
        """What was taken first, of what is not confirmed, is durable, if anything was."""
        if not self._in_flight:
            return
        taken = self._in_flight.popleft()
        for segment, size in taken.sizes.items():
            segment.synced = size
        if taken.has_note:
            self._synced_end.durable()

    def failed(self) -> None:
        """All that was taken and not confirmed is in doubt; the disk has answered."""
        self._in_flight.clear()

    def write_frames(self) -> None:
        """To the disk at once. Blocking. Raises OSError."""
        for segment, position, chunks in self._frames:
            self._disk.write_and_sync(segment.file, position, b"".join(chunks))
            segment.synced = segment.size

    def drop(self) -> None:
        """What was not taken yet, if anything."""
        self._frames, self._new_epochs, self._note = [], [], None

    def close(self) -> None:
        """Lets go of the file of epochs, which may be replaced."""
        if self._epochs_file is not None:
            self._epochs_file.close()
            self._epochs_file = None

    def _epochs_handle(self) -> File:
        if self._epochs_file is None:
            self._epochs_file = self._disk.open(self._epochs_path, create=True)
        return self._epochs_file
