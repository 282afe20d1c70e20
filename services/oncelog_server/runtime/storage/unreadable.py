"""What a disk does not give back: a bad sector, or a block whose checksum a file system found
wrong. To who reads it is damage, as bytes are that have changed: in its place bytes are given of
which no CRC is right.

    asked for   │ 4 KiB │ 4 KiB │ EIO   │ 4 KiB │
    given       │ as it stands  │ FF FF │ as it │

Invariants:
  * all that can be read is: one bad sector hides no frame beside it;
  * only what says that the bytes are lost is taken for that. Too many open files, no memory, a file
    that is closed are errors, which another attempt may not meet.

Left out: what is damaged then, and what becomes of it. Who reads compares CRCs anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import EBADMSG, EIO, EUCLEAN
from typing import Final

# EUCLEAN and EBADMSG: structures, or checksums, of a file system are wrong.
_UNREADABLE: Final = frozenset({EIO, EUCLEAN, EBADMSG})
# What is lost at once: a page, which a file system reads as one.
PIECE_BYTES: Final = 4096
_FILLED: Final = b"\xff"


def is_unreadable(error: OSError) -> bool:
    """The bytes are lost, as far as the system knows."""
    return error.errno in _UNREADABLE


def read_around(
    read: Callable[[int, int], bytes], position: int, length: int, *, size: int
) -> tuple[bytes, bool]:
    """Of a file of that size, of which `read(position, length)` has met an error: piece by piece,
    and whether one of these was filled. What failed once is asked for again. Raises OSError."""
    end = min(position + length, size)
    parts: list[bytes] = []
    is_filled = False
    while position < end:
        wanted = min(PIECE_BYTES - position % PIECE_BYTES, end - position)
        try:
            part = read(position, wanted)
        except OSError as error:
            if not is_unreadable(error):
                raise
            part, is_filled = _FILLED * wanted, True
        parts.append(part)
        position += wanted
    return b"".join(parts), is_filled
