"""How blocks are found in a file of the data log. Here nothing is read: each walk asks for bytes
and is given them, so that one walk serves who may block and who may not.

    walk = blocks_from(...)                 yields (position, length), is sent the bytes
    found = at_once(walk, file)             blocking
    found = await off_the_loop(walk, disk, file)

Invariants:
  * what is given was verified, block by block (I26);
  * of blocks that are stepped over the header is;
  * behind a damaged header it goes on at an index entry: never at bytes that only look like a
    block, for a record may hold such.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple, TypeVar

from oncelog_server.core.block import Block
from oncelog_server.runtime.storage.data_blocks import (
    BLOCK_HEADER_BYTES,
    BlockError,
    BlockTooNew,
    Step,
    decode_block,
    step_block,
    verify_block,
)
from oncelog_server.runtime.storage.port import Disk, File
from oncelog_server.runtime.storage.segment import OffsetIndex

T = TypeVar("T")
# Asks for (position, length); is sent the bytes, fewer only at the end of the file.
Walk = Generator[tuple[int, int], bytes, T]

# The least that is read at once.
READ_BYTES_MIN: Final = 16 << 10


def at_once(walk: Walk[T], file: File) -> T:
    """Blocking. Raises OSError."""
    try:
        position, length = next(walk)
        while True:
            position, length = walk.send(file.read(position, length))
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]


async def off_the_loop(walk: Walk[T], disk: Disk, file: File) -> T:
    """Raises OSError."""
    try:
        position, length = next(walk)
        while True:
            position, length = walk.send(await disk.read(file, position, length))
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]


class Damage(NamedTuple):
    """No block of these offsets can be read: half-open."""

    position: int
    first_offset: int
    end_offset: int
    why: str


class Stored(NamedTuple):
    """An intact block, and where it stands."""

    position: int
    step: Step

    @property
    def end(self) -> int:
        return self.position + self.step.length


class Extent(NamedTuple):
    """The part of a file that counts."""

    # Offset of its first block.
    base: int
    # Offset behind its last one.
    end_offset: int
    # Bytes; more than these are not looked at.
    size: int
    offset_index: OffsetIndex


class _Window:
    """What was read of a file last."""

    def __init__(self, size: int, read_bytes: int) -> None:
        self.size = size
        self._read_bytes = max(read_bytes, READ_BYTES_MIN)
        self._at = 0
        self._bytes = memoryview(b"")

    def have(self, position: int, length: int) -> Walk[memoryview]:
        """The bytes from a position on: so many at least, if there are."""
        length = min(length, self.size - position)
        if not self._at <= position or position + length > self._at + len(self._bytes):
            wanted = min(max(length, self._read_bytes), self.size - position)
            self._bytes = memoryview((yield position, wanted))
            self._at = position
        return self._bytes[position - self._at :]

    def step(self, position: int) -> Walk[Step]:
        """Raises BlockError."""
        return step_block((yield from self.have(position, BLOCK_HEADER_BYTES)), 0)

    def whole(self, position: int) -> Walk[memoryview]:
        """The bytes of the block there, and perhaps more. Raises BlockError."""
        step = yield from self.step(position)
        return (yield from self.have(position, step.length))


def blocks_from(
    extent: Extent, from_offset: int, max_bytes: int, *, below: int
) -> Walk[list[Block] | Damage]:
    """Blocks from the one that holds `from_offset`, as far as they end at or before `below`: up to
    `max_bytes`, and at least one if there is one. Raises BlockTooNew."""
    window = _Window(extent.size, max_bytes)
    position = yield from _find(extent, window, from_offset)
    if isinstance(position, Damage):
        return position
    blocks: list[Block] = []
    left, following = max_bytes, from_offset
    while position < extent.size and following < min(below, extent.end_offset):
        try:
            step = yield from window.step(position)
            if step.end_offset > below or (blocks and step.length > left):
                break
            block = decode_block((yield from window.whole(position)))
            if blocks and block.first_offset != following:
                break
        except BlockTooNew:
            if not blocks:
                raise
            break
        except BlockError:
            # Of the first one it is known that it is intact. The next read says what is wrong.
            break
        extent.offset_index.saw(block.first_offset, position)
        blocks.append(block)
        position, left, following = position + step.length, left - step.length, block.end_offset
    return blocks


def bytes_from(extent: Extent, from_offset: int, max_bytes: int) -> Walk[bytes | Damage]:
    """As `blocks_from`, as the bytes that stand there."""
    window = _Window(extent.size, max_bytes)
    position = yield from _find(extent, window, from_offset)
    if isinstance(position, Damage):
        return position
    parts: list[bytes] = []
    left, following = max_bytes, from_offset
    while position < extent.size and following < extent.end_offset:
        try:
            step = yield from window.step(position)
            if parts and (step.length > left or step.first_offset != following):
                break
            verify_block((yield from window.whole(position)), 0)
        except BlockError:
            break
        parts.append(bytes((yield from window.have(position, step.length))[: step.length]))
        position, left, following = position + step.length, left - step.length, step.end_offset
    return b"".join(parts)


class Checked(NamedTuple):
    """Blocks that are intact."""

    # Of the last one.
    end_offset: int
    # All of them, bytes.
    size: int


def check_from(extent: Extent, from_offset: int, max_bytes: int) -> Walk[Checked | Damage]:
    """Verifies blocks from the one that holds `from_offset` on: up to `max_bytes`, and at least
    one. Raises BlockTooNew."""
    window = _Window(extent.size, max_bytes)
    position = yield from _find(extent, window, from_offset)
    if isinstance(position, Damage):
        return position
    begin, following = position, from_offset
    while following < extent.end_offset and position - begin < max_bytes:
        step = yield from _verified(window, position)
        if step is None or (position > begin and step.first_offset != following):
            # The next one looks around it.
            break
        position, following = position + step.length, step.end_offset
    return Checked(following, position - begin)


def find_block(extent: Extent, offset: int) -> Walk[Stored | Damage]:
    """The intact block that holds an offset, or what lacks around it. Raises BlockTooNew."""
    window = _Window(extent.size, READ_BYTES_MIN)
    position = yield from _find(extent, window, offset)
    if isinstance(position, Damage):
        return position
    return Stored(position, (yield from window.step(position)))


def intact_from(size: int, position: int, offset: int) -> Walk[list[Stored]]:
    """Every block from a byte on, where that of `offset` is next; each verified, up to the first
    that is not intact or not the next one. Raises BlockTooNew."""
    window = _Window(size, READ_BYTES_MIN)
    found: list[Stored] = []
    while position < size:
        step = yield from _verified(window, position)
        if step is None or step.first_offset != offset:
            break
        found.append(Stored(position, step))
        position, offset = position + step.length, step.end_offset
    return found


class Cut(NamedTuple):
    """Where a file ends when it is cut: in offsets and in bytes."""

    offset: int
    position: int


def find_exposed_above(extent: Extent, journal_end: int) -> Walk[Cut | None]:
    """Where the first block begins that became readable at or above a journal offset, or the damage
    in front of it: nobody can tell of that; None: there is none. Raises BlockTooNew."""
    window = _Window(extent.size, READ_BYTES_MIN)
    position, good_end = 0, extent.base
    while good_end < extent.end_offset:
        stored = yield from _next_intact(extent, window, position, good_end)
        if stored is None:
            return Cut(good_end, position)
        if stored.step.exposed_below > journal_end:
            is_next = stored.step.first_offset == good_end
            return Cut(good_end, stored.position if is_next else position)
        position, good_end = stored.end, stored.step.end_offset
    return None


def all_intact(extent: Extent) -> Walk[list[Stored]]:
    """Every block that counts and is intact. Raises BlockTooNew."""
    window = _Window(extent.size, READ_BYTES_MIN)
    found: list[Stored] = []
    position, good_end = 0, extent.base
    while good_end < extent.end_offset:
        stored = yield from _next_intact(extent, window, position, good_end)
        if stored is None or stored.step.first_offset >= extent.end_offset:
            break
        found.append(stored)
        position, good_end = stored.end, stored.step.end_offset
    return found


def _find(extent: Extent, window: _Window, offset: int) -> Walk[int | Damage]:
    """Where the block stands that holds an offset; it is intact."""
    entry, _ = extent.offset_index.around(offset)
    position, following = (0, extent.base) if entry is None else (entry.position, entry.offset)
    passed: list[tuple[int, int]] = []
    try:
        while position < extent.size:
            step = yield from window.step(position)
            if step.first_offset != following:
                break
            if step.end_offset > offset:
                verify_block((yield from window.whole(position)), 0)
                for at in passed:
                    extent.offset_index.saw(*at)
                return position
            passed.append((step.first_offset, position))
            position, following = position + step.length, step.end_offset
    except BlockTooNew:
        raise
    except BlockError:
        pass
    return (yield from _search(extent, window, offset))


def _search(extent: Extent, window: _Window, offset: int) -> Walk[int | Damage]:
    """As `_find`, around damage: each block is verified."""
    position, good_end = yield from _known_before(extent, window, offset)
    while True:
        stored = yield from _next_intact(extent, window, position, good_end)
        first = extent.end_offset if stored is None else stored.step.first_offset
        if stored is None or first > offset:
            why = "no intact block has what stood here"
            return Damage(position, good_end, min(first, extent.end_offset), why)
        if stored.step.end_offset > offset:
            return stored.position
        position, good_end = stored.end, stored.step.end_offset


def _known_before(extent: Extent, window: _Window, offset: int) -> Walk[tuple[int, int]]:
    """The last place at or before an offset where the index has an intact block, and its offset."""
    entry, _ = extent.offset_index.around(offset)
    while entry is not None:
        step = yield from _verified(window, entry.position)
        if step is not None and step.first_offset == entry.offset:
            return entry.position, entry.offset
        entry, _ = extent.offset_index.around(entry.offset - 1)
    return 0, extent.base


def _next_intact(
    extent: Extent, window: _Window, position: int, good_end: int
) -> Walk[Stored | None]:
    """The first block from here on that is intact: here, or behind damage. `good_end`: the offset
    that is next here."""
    while position < extent.size:
        step = yield from _verified(window, position)
        if step is not None and step.first_offset >= good_end:
            return Stored(position, step)
        position = yield from _behind_damage(extent, window, position)
    return None


def _behind_damage(extent: Extent, window: _Window, position: int) -> Walk[int]:
    """Where to go on, if not here. The end of what counts, where nobody can tell."""
    try:
        return position + (yield from window.step(position)).length
    except BlockError:
        pass
    for entry in extent.offset_index.entries_behind(position):
        there = yield from _verified(window, entry.position)
        if there is not None and there.first_offset == entry.offset:
            return entry.position
    return extent.size


def _verified(window: _Window, position: int) -> Walk[Step | None]:
    """None where no intact block stands. Raises BlockTooNew."""
    if position >= window.size:
        return None
    try:
        return verify_block((yield from window.whole(position)), 0)
    except BlockTooNew:
        raise
    except BlockError:
        return None
