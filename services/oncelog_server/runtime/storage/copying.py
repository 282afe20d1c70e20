"""Frames that a leader sent: are they what it wrote, and what comes next in this journal?

A follower keeps them as they came, byte by byte, under the CRC that the leader gave them: so what
stands on its disk is what stood on the leader's, whatever lay between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from oncelog_server.core.frame import StoredFrame
from oncelog_server.runtime.storage.damage import UnknownFrame
from oncelog_server.runtime.storage.frames import (
    FrameDamaged,
    FrameIncomplete,
    FrameTooNew,
    decode,
)
from oncelog_server.runtime.storage.scan import Place, misplaced


class CopyRefused(Exception):
    """These frames do not belong here, or are damaged. Nothing was appended: the follower ends its
    stream and asks again where the logs part."""


class Copied(NamedTuple):
    """A frame, and the bytes that it takes among those that came: half-open."""

    stored: StoredFrame
    begin: int
    end: int


def copied_frames(frames: bytes, place: Place, *, epoch: int) -> Iterator[Copied]:
    """Each frame, verified: intact, next at `place`, of an epoch that never goes back and is not
    above the one in which it was sent. Raises CopyRefused, UnknownFrame."""
    view = memoryview(frames)
    # Bytes are counted from the first one that came.
    place = place._replace(position=0)
    while place.position < len(view):
        try:
            stored = decode(view, place.position)
        except FrameTooNew as error:
            raise UnknownFrame("what the leader sent", place.position, str(error)) from error
        except (FrameDamaged, FrameIncomplete) as error:
            raise CopyRefused(f"the frame for journal offset {place.offset}: {error}") from error
        why = misplaced(stored, place)
        if stored.at.epoch > epoch:
            why = f"leader epoch {stored.at.epoch} was sent in epoch {epoch}"
        if why is not None:
            raise CopyRefused(why)
        begin, place = place.position, place.after(stored)
        yield Copied(stored, begin, place.position)
