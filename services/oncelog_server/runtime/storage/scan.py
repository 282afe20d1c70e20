"""Walks the frames of one segment file from front to end and judges each: does it belong here?

Used by recovery, replay and cut, which block; `require_order` judges what is appended. Invariants
of a journal that a scan holds against every frame:
  * journal offsets follow each other; only an EPOCH_START may jump ahead;
  * the first frame of a journal is an EPOCH_START;
  * leader epochs never go down, and only an EPOCH_START begins one.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from oncelog_server.core.frame import OCCUPY_RECORDS, Frame, FrameKind, StoredFrame
from oncelog_server.runtime.storage.damage import UnknownFrame
from oncelog_server.runtime.storage.frames import (
    FrameDamaged,
    FrameIncomplete,
    FrameTooNew,
    decode,
    encoded_bytes,
    is_blank,
)
from oncelog_server.runtime.storage.port import File

SCAN_BYTES: Final = 4 << 20
# What is read first, and by how much more each time after: a start looks at the end of every log,
# where few frames lie behind the last index entry, and up to 16 MiB of zeros behind these.
SCAN_BYTES_FIRST: Final = 64 << 10
SCAN_GROWTH: Final = 4


class Place(NamedTuple):
    """A boundary between two frames."""

    # Byte in the segment file.
    position: int
    # Journal offset that is next.
    offset: int
    # Epoch and time of the frame before; 0 where there is none.
    epoch: int = 0
    time_ms: int = 0

    def after(self, stored: StoredFrame) -> Place:
        """The place behind a frame that begins here."""
        return Place(
            self.position + encoded_bytes(stored.frame),
            stored.end,
            stored.at.epoch,
            stored.at.time_ms,
        )


class Ending(Enum):
    """Why a scan ended."""

    # End of file, or zeros: nothing was written behind.
    BLANK = "blank"
    # The journal offset that the scan was told to end at.
    REACHED = "reached"
    # What stands there is no frame of this journal.
    BAD = "bad"


class Scan:
    """Iterate it; then `place`, `ending` and `why` say where and why it ended.

    Raises UnknownFrame at an intact frame that this version cannot read.
    """

    def __init__(self, file: File, start: Place, *, until: int | None = None) -> None:
        self.place = start
        self.ending = Ending.BLANK
        self.why = ""
        self._file = file
        self._until = until
        # Bytes that the next frame needs and the block does not have; 0 when the scan has ended.
        self._short_of = 0

    def __iter__(self) -> Iterator[StoredFrame]:
        wanted = SCAN_BYTES_FIRST
        while True:
            base = self.place.position
            block = memoryview(self._file.read(base, wanted))
            at_end_of_file = len(block) < wanted
            while (stored := self._take(block, self.place.position - base)) is not None:
                yield stored
                self.place = self.place.after(stored)
            if self._short_of == 0:
                return
            if at_end_of_file:
                left = block[self.place.position - base :]
                if len(left) and not is_blank(left, 0):
                    self.ending, self.why = Ending.BAD, "the file ends inside a frame"
                return
            wanted = max(min(wanted * SCAN_GROWTH, SCAN_BYTES), self._short_of)

    def _take(self, block: memoryview, at: int) -> StoredFrame | None:
        """The next frame, or None: the scan ended, or `_short_of` bytes are needed to go on."""
        self._short_of = 0
        place = self.place
        if self._until is not None and place.offset == self._until:
            self.ending = Ending.REACHED
            return None
        try:
            stored = decode(block, at)
        except FrameIncomplete as short:
            self._short_of = short.needed
            return None
        except FrameTooNew as error:
            raise UnknownFrame(self._file.path, place.position, str(error)) from error
        except FrameDamaged as error:
            if not is_blank(block, at):
                self.ending, self.why = Ending.BAD, str(error)
            return None
        why = misplaced(stored, place)
        if why is None and self._until is not None and stored.end > self._until:
            why = f"it runs past journal offset {self._until}, where the next file begins"
        if why is not None:
            self.ending, self.why = Ending.BAD, why
            return None
        return stored


def misplaced(stored: StoredFrame, place: Place) -> str | None:
    """Why an intact frame does not belong at `place`; None where it does."""
    kind, at = stored.frame.kind, stored.at
    begins_epoch = kind is FrameKind.EPOCH_START
    if at.offset != place.offset and not (begins_epoch and at.offset > place.offset):
        return f"journal offset {at.offset} stands where {place.offset} is next"
    if at.epoch < place.epoch or (begins_epoch and at.epoch == place.epoch):
        return f"leader epoch {at.epoch} follows {place.epoch}"
    if at.epoch > place.epoch and not begins_epoch:
        return f"leader epoch {at.epoch} begins without an EPOCH_START"
    if stored.end <= at.offset:
        return "a frame of records holds none"
    return None


def require_order(frame: Frame, epoch: int, offset: int, *, last_epoch: int, log_end: int) -> None:
    """Of a frame that is about to be appended here: another place is a bug of whoever gives it."""
    if frame.kind is FrameKind.EPOCH_START:
        assert epoch > last_epoch, f"epoch {epoch} begins after {last_epoch}"
        assert offset >= log_end, "a journal never goes back"
        return
    assert epoch == last_epoch, f"epoch {epoch} has no EPOCH_START"
    assert offset == log_end, "only an EPOCH_START jumps ahead"
    assert frame.kind not in OCCUPY_RECORDS or frame.record_count > 0, "no records to place"
