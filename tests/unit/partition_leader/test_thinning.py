"""Records are taken out of blocks, of either encoding: what is left is what was there, at the same
offsets, of the same units."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.block import NO_TIMESTAMP_US, Block
from oncelog_server.core.settling import BLOCK_BYTES
from oncelog_server.partition_leader.settling import PartitionSettler
from oncelogpb import records
from oncelogpb.records import Compression
from tests.unit.partition_leader.settled import Record, records_of
from tests.unit.storage.cleaned_logs import blocks_of, unit_of

SETTLER = PartitionSettler()
RECORDS = st.lists(
    st.tuples(st.none() | st.binary(max_size=4), st.none() | st.binary(max_size=9)),
    min_size=1,
    max_size=40,
)


def rows_of(blocks: Sequence[Block]) -> dict[int, tuple[Record, int]]:
    """By offset: a record, and the place of its unit in the journal."""
    found: dict[int, tuple[Record, int]] = {}
    for block in blocks:
        units = block.units
        places = [
            place
            for place, count in zip(units.journal_offset, units.record_count, strict=True)
            for _ in range(count)
        ]
        rows = records_of(block.encoding, block.payload)
        found |= dict(zip(block.offsets, zip(rows, places, strict=True), strict=True))
    return found


@settings(max_examples=150, deadline=None)
@given(RECORDS, st.randoms(use_true_random=False))
def test_what_stays_is_as_it_was(
    records_: list[tuple[bytes | None, bytes | None]], chance: random.Random
) -> None:
    blocks = blocks_of(records_, chance)
    share = chance.random()
    stay = [
        chance.choice(
            [None, sorted(it for it in range(block.record_count) if chance.random() < share)]
        )
        for block in blocks
    ]
    thin = list(SETTLER.thinned(zip(blocks, stay, strict=True)))
    left = {
        block.offsets[number]
        for block, numbers in zip(blocks, stay, strict=True)
        for number in (range(block.record_count) if numbers is None else numbers)
    }
    was = rows_of(blocks)
    assert rows_of(thin) == {offset: was[offset] for offset in sorted(left)}
    assert thin[0].first_offset == blocks[0].first_offset
    assert thin[-1].end_offset == blocks[-1].end_offset, "they cover the same offsets"
    assert thin[-1].time_ms == blocks[-1].time_ms
    assert thin[-1].exposed_below == blocks[-1].exposed_below
    for block in thin:
        found = records_of(block.encoding, block.payload)
        highest = max((row.timestamp_us for row in found), default=NO_TIMESTAMP_US)
        assert block.max_timestamp_us == highest
        assert block.client_crc == records.checksum(block.payload)
        parts = SETTLER.split(block)
        assert [it.unit_count for it in parts] == [1] * block.unit_count or not block.unit_count
        assert rows_of(parts) == rows_of([block]), "split is what it was"
        assert SETTLER.joined(parts).offsets == block.offsets


@settings(max_examples=150, deadline=None)
@given(RECORDS, st.randoms(use_true_random=False))
def test_keys_and_tombstones_are_those_of_its_records(
    records_: list[tuple[bytes | None, bytes | None]], chance: random.Random
) -> None:
    for block in blocks_of(records_, chance):
        keyed = SETTLER.keyed(block)
        some = records_[block.first_offset : block.end_offset]
        assert list(keyed.keys) == [key for key, _ in some]
        gone = [it for it, (key, value) in enumerate(some) if key is not None and value is None]
        assert list(keyed.tombstones) == gone


def test_where_nothing_is_left_a_block_of_no_record_covers_it() -> None:
    blocks = [unit_of(0, [(b"a", b"1")] * 2), unit_of(2, [(b"a", None)])]
    [block] = SETTLER.thinned([(blocks[0], []), (blocks[1], [])])
    assert (block.first_offset, block.end_offset, block.record_count) == (0, 3, 0)
    assert (block.unit_count, block.max_timestamp_us, bytes(block.payload)) == (0, -(1 << 63), b"")
    assert list(SETTLER.keyed(block).keys) == []
    assert SETTLER.split(block) == [block]


def test_a_block_of_which_nothing_goes_keeps_its_payload() -> None:
    large = unit_of(0, [(b"a", b"x" * BLOCK_BYTES)], Compression.NONE)
    [block] = SETTLER.thinned([(large, None)])
    assert block == large


def test_a_tail_begins_where_a_unit_does() -> None:
    block = SETTLER.joined([unit_of(0, [(b"a", b"1")] * 3), unit_of(3, [(b"b", b"2")] * 3)])
    tail = SETTLER.tail(block, 3)
    assert tail is not None
    assert rows_of([tail]) == {at: row for at, row in rows_of([block]).items() if at >= 3}
    assert SETTLER.tail(block, 4) is None, "within a unit"
    [thin] = SETTLER.thinned([(block, [0, 4, 5])])
    for at in (1, 2, 3, 4):
        tail = SETTLER.tail(thin, at)
        assert tail is not None, "all of the first unit is below, as far as it is left"
        assert (tail.first_offset, tail.end_offset, list(tail.offsets)) == (at, 6, [4, 5])
