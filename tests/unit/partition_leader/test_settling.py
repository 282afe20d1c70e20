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
from oncelog_server.core.frame import At, FrameKind, StoredFrame
from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.core.settling import BLOCK_BYTES, LARGE_UNIT_BYTES, RUN, Stretch
from oncelog_server.partition_leader import settling
from oncelogpb import records
from oncelogpb.arrow_message import read_head
from oncelogpb.errors import CorruptBatch
from oncelogpb.records import ARROW_V1, ROWS, Compression
from tests.unit.partition_leader.settled import (
    PAYLOADS,
    SETTLER,
    Record,
    encoded,
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


def test_what_is_sent_in_two_encodings_keeps_its_order() -> None:
    payloads = [
        ([Record(None, value, 1, ())], *encoded([Record(None, value, 1, ())], compression))
        for value, compression in [(b"1", None), (b"2", Compression.NONE), (b"3", None)]
    ]
    assert [one.value for one in all_records(list(SETTLER.blocks(frames(payloads))))] == [
        b"1",
        b"2",
        b"3",
    ]


def test_empty_is_not_null_once_it_is_merged() -> None:
    given_ = [Record(b"", b"", 1, (("", b""),)), Record(None, None, 1, (("", None),))]
    payloads = [(given_, *encoded(given_, None))] * 10
    assert all_records(list(SETTLER.blocks(frames(payloads)))) == given_ * 10


def test_the_records_of_a_transaction_are_of_its_commit() -> None:
    payload = ([Record(None, b"v", 5, ())], *encoded([Record(None, b"v", 5, ())], None))
    (block,) = SETTLER.blocks(frames([payload] * 3, exposed_at=40))
    assert list(block.units.time_ms) == [70, 70, 70]
    assert (block.time_ms, block.exposed_below) == (70, 41)


def test_a_one_shot_tells_nothing_of_its_marker() -> None:
    """Two fields of such a frame hold what the marker says."""
    given_ = [Record(None, b"v", 5, ())]
    frame = frame_of((given_, *encoded(given_, None)), writer=3, base_sequence=99, tx_id=7)
    stored = StoredFrame(
        frame._replace(kind=FrameKind.ONE_SHOT), At(JournalOffset(4), LeaderEpoch(1), 60)
    )
    (block,) = SETTLER.blocks([(Stretch(0, 4, 1, RUN, RUN), stored)])
    assert rows_of(block.units) == [(1, 7, 0, 0, 0, 0, 4, 60)]


def test_what_is_large_is_a_block_as_it_was_sent() -> None:
    small = [Record(None, b"small", 1, ())]
    large = [Record(None, b"l" * LARGE_UNIT_BYTES, 2, ())]
    payloads = [
        (given_, *encoded(given_, None)) for given_ in (small, small, large, small, large, large)
    ]
    blocks = list(SETTLER.blocks(frames(payloads)))
    require_sound(blocks)
    assert [block.record_count for block in blocks] == [2, 1, 1, 1, 1]
    assert blocks[1].payload is payloads[2][2]
    assert blocks[1].encoding == ROWS


def test_small_units_are_merged_towards_a_mebibyte() -> None:
    given_ = [Record(b"k" * 10, b"v" * 990, 1, ())]
    payloads = [(given_, *encoded(given_, None))] * 3_000
    blocks = list(SETTLER.blocks(frames(payloads)))
    require_sound(blocks)
    assert len(blocks) == 3
    assert all(0.95 * BLOCK_BYTES < len(block.payload) < 1.05 * BLOCK_BYTES for block in blocks[:2])
    assert {block.encoding for block in blocks} == {ARROW_V1}


def test_few_rows_stay_rows() -> None:
    """As they are smaller; whatever else comes in makes Arrow of them."""
    given_ = [Record(b"k", None, 1, ())]
    rows, arrow = (given_, *encoded(given_, None)), (given_, *encoded(given_, Compression.NONE))
    (block,) = SETTLER.blocks(frames([rows] * 15))
    assert block.encoding == ROWS
    (block,) = SETTLER.blocks(frames([rows] * 16))
    assert block.encoding == ARROW_V1
    (block,) = SETTLER.blocks(frames([rows, arrow]))
    assert block.encoding == ARROW_V1


@pytest.mark.parametrize("codec", [Compression.LZ4, Compression.ZSTD])
def test_what_was_mostly_compressed_stays_so_and_counts_as_it_is_loaded(codec: Compression) -> None:
    wide = [Record(None, b"v" * 10_000, 1, ())] * 20
    payloads = [(wide, *encoded(wide, codec))] * 10
    plain = ([wide[0]], *encoded(wide[:1], None))
    blocks = list(SETTLER.blocks(frames([*payloads, plain])))
    require_sound(blocks)
    assert [block.record_count for block in blocks] == [100, 101], "five times 200,000 bytes"
    assert all(len(block.payload) < 100_000 for block in blocks)
    assert all(read_head(memoryview(block.payload)).compressed for block in blocks)
    assert all(read_head(memoryview(one.payload)).compressed for one in SETTLER.split(blocks[0]))


def test_what_is_no_neighbour_begins_a_block() -> None:
    given_ = [Record(None, b"v", 1, ())]
    one, other = frames([(given_, *encoded(given_, None))] * 2)
    later = (other[0]._replace(first_offset=5), other[1])
    blocks = list(SETTLER.blocks([one, later]))
    assert [(block.first_offset, block.end_offset) for block in blocks] == [(0, 1), (5, 6)]


@pytest.mark.parametrize("compression", [None, *Compression])
def test_i26_what_is_no_batch_is_refused(compression: Compression | None) -> None:
    given_ = [Record(None, b"v", 1, ())] * 20
    encoding, payload = encoded(given_, compression)
    short: Given = (given_, encoding, payload[: len(payload) // 2])
    with pytest.raises(CorruptBatch):
        list(SETTLER.blocks(frames([(given_, encoding, payload), short])))
    (one, (stretch, stored)) = frames([(given_, encoding, payload)] * 2)
    more = StoredFrame(stored.frame._replace(record_count=21), stored.at)
    with pytest.raises(CorruptBatch, match="41 records were announced, 40 are there"):
        list(SETTLER.blocks([one, (stretch, more)]))
