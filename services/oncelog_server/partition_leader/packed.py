"""A column of 64-bit integers of which all but the last ones are packed: the index of a committed
log stays in memory as long as its records are there. PURE.

    pages, packed (PAGE_ROWS values each)                        tail: an array, which grows
    ┌───────────────────────────┐
    │ plane 3  1 value          │  bits 48-63: the same of all, so it stands once
    │ plane 2  1 value          │  bits 32-47
    │ plane 1  PAGE_ROWS values │  bits 16-31
    │ plane 0  PAGE_ROWS values │  bits 0-15
    └───────────────────────────┘

Neighbours in an index differ little: offsets, times and sizes take 14 of 56 bytes a row so.

Invariant: what is packed is what was there, value by value; packing changes nothing that anybody
can see, so when it is done is nobody's matter but memory's.

Left out: which values are final, and when to pack (`committed_log`).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, overload

# Values of a page: a power of two.
PAGE_ROWS: Final = 4_096
_SHIFT: Final = PAGE_ROWS.bit_length() - 1
_MASK: Final = PAGE_ROWS - 1
_VALUE_BYTES: Final = 8
_PLANES: Final = 4
_PLANE_BITS: Final = 16
_PLANE_BYTES: Final = 2
# Of a page, beside its values: tuples, and the heads of its arrays.
_HEAD_BYTES: Final = 200

# What all values of a page have in common, and planes with the place of their lowest bit.
_Page = tuple[int, tuple[tuple["array[int]", int], ...]]

assert sys.byteorder == "little", "planes are cut as they stand in memory"


class Column(Sequence[int]):
    """Grows behind, in `tail`, and is let go of in front."""

    __slots__ = ("_packed", "_pages", "_skipped", "tail")

    def __init__(self) -> None:
        self.tail = array("q")
        self._pages: list[_Page] = []
        # Values of the first page that were let go of.
        self._skipped = 0
        # How many are in pages, and were not let go of.
        self._packed = 0

    def __len__(self) -> int:
        return self._packed + len(self.tail)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> array[int]: ...
    def __getitem__(self, at: int | slice) -> int | array[int]:
        """Of a slice: a copy; it has no step."""
        if isinstance(at, slice):
            first, behind, step = at.indices(len(self))
            assert step == 1, "values stand side by side"
            return self._between(first, behind)
        if at < 0:
            at += len(self)
        if at >= self._packed:
            return self.tail[at - self._packed]
        if at < 0:
            raise IndexError(at)
        page, place = divmod(at + self._skipped, PAGE_ROWS)
        value, planes = self._pages[page]
        for plane, shift in planes:
            value += plane[place] << shift
        return value

    def __iter__(self) -> Iterator[int]:
        return self.behind(0)

    def behind(self, first: int) -> Iterator[int]:
        """From that one on. Not while it changes."""
        while first < self._packed:
            behind = min(first + PAGE_ROWS, self._packed)
            yield from self._between(first, behind)
            first = behind
        yield from self.tail[first - self._packed :]

    def _between(self, first: int, behind: int) -> array[int]:
        found = array("q")
        at, packed_to = first + self._skipped, min(behind, self._packed) + self._skipped
        while at < packed_to:
            number, place = at >> _SHIFT, at & _MASK
            to = min(packed_to - (number << _SHIFT), PAGE_ROWS)
            found.extend(_unpacked(self._pages[number], place, to))
            at += to - place
        found.extend(self.tail[max(first - self._packed, 0) : max(behind - self._packed, 0)])
        return found

    @property
    def memory_bytes(self) -> int:
        planes = sum(len(planes) for _, planes in self._pages)
        packed = planes * PAGE_ROWS * _PLANE_BYTES + len(self._pages) * _HEAD_BYTES
        return packed + len(self.tail) * _VALUE_BYTES

    # ------------------------------------------------------------------------------------ changes

    def load(self, table: bytes, place: int, columns: int) -> None:
        """Of a table of so many columns, row by row, the one in that place: packed as far as it
        fills pages. Only into an empty one."""
        assert not len(self), "load comes first"
        whole = len(table) // _VALUE_BYTES // columns // PAGE_ROWS * PAGE_ROWS * columns
        self._pack(memoryview(table)[: whole * _VALUE_BYTES], place, columns)
        values = memoryview(table)[whole * _VALUE_BYTES :].cast("q")
        self.tail.frombytes(values[place::columns].tobytes())

    def pack(self, pages: int) -> None:
        """So many, of the oldest values in the tail."""
        count = pages * PAGE_ROWS
        with memoryview(self.tail) as tail:
            self._pack(tail[:count].cast("B"), 0, 1)
        del self.tail[:count]

    def _pack(self, table: memoryview, place: int, columns: int) -> None:
        """Whole pages."""
        page_words = PAGE_ROWS * columns * _PLANES
        with table.cast("H") as words:
            for first in range(0, len(words), page_words):
                page = words[first + place * _PLANES : first + page_words]
                self._pages.append(_packed(page, columns * _PLANES))
                self._packed += PAGE_ROWS

    def drop(self, count: int) -> None:
        """Lets go of so many in front."""
        of_pages = min(count, self._packed)
        self._packed -= of_pages
        self._skipped += of_pages
        gone = len(self._pages) if not self._packed else self._skipped >> _SHIFT
        del self._pages[:gone]
        self._skipped = self._skipped & _MASK if self._packed else 0
        del self.tail[: count - of_pages]


def _packed(words: memoryview, step: int) -> _Page:
    """Of values that are so many words apart."""
    common, planes = 0, []
    for number in range(_PLANES):
        shift = number * _PLANE_BITS
        plane = words[number::step].tobytes()
        one = plane[:_PLANE_BYTES]
        # The highest plane has the sign.
        is_signed = number == _PLANES - 1
        if plane == one * PAGE_ROWS:
            common += int.from_bytes(one, "little", signed=is_signed) << shift
        else:
            planes.append((array("h" if is_signed else "H", plane), shift))
    return common, tuple(planes)


def _unpacked(page: _Page, first: int, behind: int) -> array[int]:
    common, planes = page
    count = behind - first
    found = array("q", (common,)) * count
    with memoryview(found).cast("B") as raw, raw.cast("H") as words:
        for plane, shift in planes:
            words[shift // _PLANE_BITS :: _PLANES] = (
                memoryview(plane[first:behind]).cast("B").cast("H")
            )
    return found
