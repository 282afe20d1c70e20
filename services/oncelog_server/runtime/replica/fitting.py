"""PURE, but for the time that taking blocks apart takes. Blocks of another replica are cut so that
they fit where blocks of this one are damaged: both have the same units, cut into blocks elsewhere.

    damaged here                first │           │ end
    blocks there          │     ┊ a   │     b     │   ┊    c
    what fits                   │ a'  │     b     │ c'│

Invariants:
  * what comes out has every record of these offsets that the other replica has, and no other;
  * it became readable by what this replica was settled from (`exposed_max`): where a block is taken
    apart, it is known of all of its units only when the last one did, perhaps later than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from oncelog_server.core.block import Block, Units, pack_column, pack_units
from oncelog_server.core.settling import Settler
from oncelogpb.records import ROWS

# Of a block of which no record is left.
NO_TIMESTAMP_US: Final = -(1 << 63)
_NO_UNITS: Final = Units(*[()] * len(Units._fields))


class DoesNotFit(Exception):
    """No unit begins or ends there where it should."""


def fitted(
    settler: Settler, blocks: Sequence[Block], *, first: int, end: int, begin: int, exposed_max: int
) -> list[Block]:
    """Of the offsets [first, end), of which those below `begin` were deleted. `blocks`: neighbours,
    which cover the rest. Raises DoesNotFit, CorruptBatch."""
    wanted_from = max(first, begin)
    found: list[Block] = []
    for block in blocks:
        inside = [
            piece
            for piece in _pieces(settler, block, wanted_from, end)
            if piece.end_offset > wanted_from and piece.first_offset < end
        ]
        if not inside:
            continue
        if len(inside) == 1 or inside[0] is block:
            found += inside
        else:
            found.append(settler.joined(inside))
    if not found or found[0].first_offset > wanted_from or found[-1].end_offset < end:
        raise DoesNotFit(f"offsets {wanted_from} to {end} are not all there")
    if any(one.end_offset != two.first_offset for one, two in pairwise(found)):
        raise DoesNotFit(f"blocks of offsets {first} to {end} do not follow each other")
    # What is only partly deleted comes whole, where nothing stands in front.
    lowest = found[0].first_offset if first == begin else first
    found[0] = _narrowed(found[0], lowest, found[0].end_offset)
    found[-1] = _narrowed(found[-1], found[-1].first_offset, end)
    return [it._replace(exposed_below=min(it.exposed_below, exposed_max)) for it in found]


def _pieces(settler: Settler, block: Block, first: int, end: int) -> Sequence[Block]:
    """Itself, or its units where some of them lie beyond."""
    if (first <= block.first_offset and block.end_offset <= end) or block.unit_count < 2:
        return [block]
    return settler.split(block)


def _narrowed(block: Block, first: int, end: int) -> Block:
    """Without offsets of which records were taken out."""
    first, end = max(first, block.first_offset), min(end, block.end_offset)
    if (first, end) == (block.first_offset, block.end_offset):
        return block
    offsets = block.offsets
    if offsets and (offsets[-1] < first or end <= offsets[0]):
        # All of it lies beyond, and of the rest nothing is left.
        block, offsets = _without_records(block), ()
    if offsets and not first <= offsets[0] <= offsets[-1] < end:
        raise DoesNotFit(f"a unit has offsets {offsets[0]} to {offsets[-1]}, not {first} to {end}")
    is_dense = block.record_count == end - first
    packed = b"" if is_dense else pack_column([it - first for it in offsets])
    return block._replace(first_offset=first, end_offset=end, packed_offsets=packed)


def _without_records(block: Block) -> Block:
    return block._replace(
        record_count=0,
        unit_count=0,
        packed_units=pack_units(_NO_UNITS),
        payload=b"",
        encoding=ROWS,
        client_crc=0,
        max_timestamp_us=NO_TIMESTAMP_US,
    )
