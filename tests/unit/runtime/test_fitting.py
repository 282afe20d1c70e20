"""Blocks of one replica are cut so that they fit where those of another one are damaged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.block import Block, Units, pack_column, pack_units
from oncelog_server.runtime.replica.fitting import DoesNotFit, fitted
from oncelog_server.runtime.storage.data_blocks import decode_block, encode_block
from tests.unit.partition_leader.settled import records_of
from tests.unit.runtime.test_receiving_data import SETTLER, unit, units_of


def blocks_of(start: int, end: int, *, units_each: int) -> list[Block]:
    units = [unit(first) for first in range(start, end, 2)]
    return [
        SETTLER.joined(units[number : number + units_each])
        for number in range(0, len(units), units_each)
    ]


def fit(
    blocks: Sequence[Block], first: int, end: int, *, begin: int = 0, exposed_max: int = 1_000
) -> list[Block]:
    return fitted(SETTLER, blocks, first=first, end=end, begin=begin, exposed_max=exposed_max)


def holding(blocks: Sequence[Block], first: int, end: int) -> list[Block]:
    return [it for it in blocks if it.end_offset > first and it.first_offset < end]


def shown(blocks: Sequence[Block]) -> list[tuple[int, list[bytes | None], bytes]]:
    """Of each unit its first offset, its values, and whose it is; however they are encoded."""
    return [
        (
            it.first_offset,
            [record.value for record in records_of(it.encoding, it.payload)],
            it.packed_units,
        )
        for it in units_of(blocks)
    ]


@settings(max_examples=60, deadline=None)
@given(units_each=st.integers(1, 12), first=st.integers(0, 28), count=st.integers(1, 29))
def test_i26_what_fits_has_every_record_of_these_offsets_and_no_other(
    units_each: int, first: int, count: int
) -> None:
    first, end = 2 * first, min(2 * (first + count), 60)
    there = blocks_of(0, 60, units_each=units_each)
    found = fit(holding(there, first, end), first, end)
    assert (found[0].first_offset, found[-1].end_offset) == (first, end)
    assert shown(found) == shown([unit(at) for at in range(first, end, 2)])


def test_i26_what_is_taken_out_of_a_block_became_readable_by_what_is_known_here() -> None:
    there = blocks_of(0, 60, units_each=20)
    assert [it.exposed_below for it in there] == [50, 70]
    found = fit(there[:1], 10, 20, exposed_max=45)
    assert [it.exposed_below for it in found] == [45]
    assert [it.exposed_below for it in fit(there[:1], 10, 20, exposed_max=90)] == [50]


@pytest.mark.parametrize(("first", "end"), [(11, 20), (10, 21), (10, 62), (38, 42)])
def test_i26_nothing_is_cut_within_a_unit_and_nothing_is_left_out(first: int, end: int) -> None:
    there = [it for it in blocks_of(0, 60, units_each=5) if it.first_offset != 40]
    with pytest.raises(DoesNotFit):
        fit(there, first, end)


def test_what_is_partly_deleted_comes_whole_where_nothing_is_in_front() -> None:
    there = blocks_of(0, 60, units_each=5)
    found = fit(there[:1], 3, 10, begin=3)
    assert (found[0].first_offset, found[-1].end_offset) == (2, 10)


def test_what_is_wholly_deleted_need_not_come() -> None:
    there = blocks_of(10, 60, units_each=5)
    found = fit(there[:1], 6, 20, begin=10)
    assert (found[0].first_offset, found[-1].end_offset) == (10, 20)


def compacted(first: int, end: int, offset: int) -> Block:
    """One unit is left of these offsets, of one record."""
    piece = unit(offset)
    units = Units(*([column[0]] for column in piece.units))._replace(record_count=[1])
    return piece._replace(
        first_offset=first,
        end_offset=end,
        record_count=1,
        packed_units=pack_units(units),
        packed_offsets=pack_column([offset - first]),
    )


def test_a_block_with_holes_is_narrowed_to_offsets_that_were_taken_out() -> None:
    block = compacted(10, 40, 25)
    (found,) = fit([block], 20, 30)
    assert (found.first_offset, found.end_offset, list(found.offsets)) == (20, 30, [25])
    assert found.payload == block.payload
    for first, end in ((26, 30), (20, 25)):
        (found,) = fit([block], first, end)
        assert (found.first_offset, found.end_offset, list(found.offsets)) == (first, end, [])
        assert (found.record_count, found.unit_count, found.payload) == (0, 0, b"")
        assert decode_block(memoryview(b"".join(encode_block(found)))) == found, "it can be kept"
