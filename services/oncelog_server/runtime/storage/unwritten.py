"""What a journal has in memory and its disk perhaps not: appended and not given to the disk yet, or
given and not confirmed.

    push, begin_epoch, note ─► take ─► the disk ─┬─► confirmed
                                                 └─► failed: these bytes are in doubt

Invariants: one commit is under way at a time; an epoch's entry goes to the disk in one commit with
its EPOCH_START.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncelog_server.runtime.storage.epochs import (
    EPOCH_ENTRY_BYTES,
    EPOCHS_FILE,
    EpochEntry,
    EpochTable,
)
from oncelog_server.runtime.storage.identity import Bounds, SyncedEnd
from oncelog_server.runtime.storage.port import Disk, File, Write
from oncelog_server.runtime.storage.segment import Segment


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
        # Given and not confirmed: the sizes that the segments then have.
        self._in_flight: dict[Segment, int] = {}
        self._note_in_flight = False

    @property
    def is_in_flight(self) -> bool:
        """Frames were given to the disk, and are not confirmed."""
        return bool(self._in_flight)

    @property
    def note_is_in_flight(self) -> bool:
        """One was given to the disk, and is not confirmed."""
        return self._note_in_flight

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
        assert not self._in_flight, "one commit at a time"
        writes = [Write(segment.file, at, chunks) for segment, at, chunks in self._frames]
        if self._new_epochs:
            entries = [entry.encode() for entry in self._new_epochs]
            first = len(self._epochs.entries) - len(entries)
            writes.append(Write(self._epochs_handle(), first * EPOCH_ENTRY_BYTES, entries))
        if self._note is not None:
            writes.append(self._note)
        self._in_flight = {segment: segment.size for segment, _, _ in self._frames}
        self._note_in_flight = self._note is not None
        self.drop()
        return writes

    def confirmed(self) -> None:
        """What was taken is durable."""
        for segment, size in self._in_flight.items():
            segment.synced = size
        self._in_flight = {}
        if self._note_in_flight:
            self._synced_end.durable()
            self._note_in_flight = False

    def failed(self) -> None:
        """What was taken is in doubt."""
        self._in_flight = {}
        self._note_in_flight = False

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
