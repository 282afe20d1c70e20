"""What is settled is what was committed: the same records, units and order, however they were sent,
however they are merged, split and joined again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.block import Block, Units
from oncelog_server.core.frame import At, StoredFrame
from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.core.settling import BLOCK_BYTES, RUN, Stretch
from oncelog_server.partition_leader import settling
from oncelogpb import records
from tests.unit.partition_leader.settled import (
    PAYLOADS,
    SETTLER,
    Record,
    frame_of,
    records_of,
)

Given = tuple[Sequence[Record], int, bytes]


def frames(
    payloads: Sequence[Given], *, gap: int = 1, exposed_at: int = RUN
) -> list[tuple[Stretch, StoredFrame]]:
    """Each as a stretch of its own, neighbours in the committed log."""
    found: list[tuple[Stretch, StoredFrame]] = []
    offset, journal_offset = 0, 1
    for number, payload in enumerate(payloads):
        frame = frame_of(
            payload,
            producer_id=2**64 - 1 - number,
            generation=7 << 32 | number,
            tx_id=number * 2**40,
            writer=2**63 + number,
            base_sequence=number,
        )
        time_ms = RUN if exposed_at == RUN else 70
        stretch = Stretch(offset, journal_offset, frame.record_count, time_ms, exposed_at)
        at = At(JournalOffset(journal_offset), LeaderEpoch(1), 1_000 + number)
        found.append((stretch, StoredFrame(frame, at)))
        offset += frame.record_count
        journal_offset += frame.record_count + gap
    return found


def rows_of(units: Units) -> list[tuple[int, ...]]:
    return list(zip(*units, strict=True))


def all_records(blocks: Sequence[Block]) -> list[Record]:
    return [one for block in blocks for one in records_of(block.encoding, block.payload)]


def require_sound(blocks: Sequence[Block]) -> None:
    for block in blocks:
        found = records_of(block.encoding, block.payload)
        assert len(found) == block.record_count == block.end_offset - block.first_offset
        assert block.client_crc == records.checksum(block.payload)
        assert block.max_timestamp_us == max(record.timestamp_us for record in found)
        assert block.time_ms == block.units.time_ms[-1]
        limits = records.BatchLimits()
        records.validate(
            block.encoding,
            block.payload,
            block.record_count,
            block.client_crc,
            limits=limits,
            max_timestamp_us=block.max_timestamp_us,
        )
    for before, block in pairwise(blocks):
        assert before.end_offset == block.first_offset
        assert before.exposed_below <= block.exposed_below


@settings(max_examples=150)
@given(st.lists(PAYLOADS, min_size=1, max_size=12), st.sampled_from([300, 1_500, BLOCK_BYTES]))
def test_blocks_hold_the_records_of_each_frame(payloads: list[Given], block_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settling, "BLOCK_BYTES", block_bytes)
        blocks = list(SETTLER.blocks(frames(payloads)))
    require_sound(blocks)
    assert all_records(blocks) == [record for given_, _, _ in payloads for record in given_]
    assert [row for block in blocks for row in rows_of(block.units)] == [
        (
            stored.frame.record_count,
            stored.frame.tx_id,
            stored.frame.producer_id,
            stored.frame.generation,
            stored.frame.writer,
            stored.frame.base_sequence,
            stored.at.offset,
            stored.at.time_ms,
        )
        for _, stored in frames(payloads)
    ]
    assert blocks[-1].exposed_below == frames(payloads)[-1][1].end


@settings(max_examples=100)
@given(st.lists(PAYLOADS, min_size=1, max_size=12), st.data())
def test_what_is_split_and_joined_is_what_it_was(payloads: list[Given], data: Any) -> None:
    blocks = list(SETTLER.blocks(frames(payloads)))
    split = [unit for block in blocks for unit in SETTLER.split(block)]
    require_sound(split)
    assert [records_of(one.encoding, one.payload) for one in split] == [
        list(given_) for given_, _, _ in payloads
    ]
    first = data.draw(st.integers(0, len(split) - 1))
    behind = data.draw(st.integers(first + 1, len(split)))
    joined = SETTLER.joined(split[first:behind])
    require_sound([joined])
    assert all_records([joined]) == all_records(split[first:behind])
    assert rows_of(joined.units) == [
        row for one in split[first:behind] for row in rows_of(one.units)
    ]
    assert (joined.first_offset, joined.end_offset) == (
        split[first].first_offset,
        split[behind - 1].end_offset,
    )
