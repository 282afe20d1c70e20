"""The data log on a disk that rots (I26): what is damaged is refused, and nothing else is; no byte
that was not written is served; and it is healed by what another replica has."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.block import Block, ColumnDamaged, unpack_units
from oncelog_server.runtime.storage.damage import UnknownFrame
from oncelog_server.runtime.storage.data_blocks import (
    BLOCK_HEADER_BYTES,
    BlockError,
    decode_block,
    encode_block,
)
from oncelog_server.runtime.storage.data_log import DataLog
from oncelogpb.errors import CorruptLog
from tests.simulation.disk import FakeDisk
from tests.unit.storage.data_logs import DIRECTORY, block, open_data, read, settle

SEGMENT_BYTES = 60_000
FIRST = f"{DIRECTORY}/{0:020d}.data"
BLOCKS = 120


def written() -> tuple[FakeDisk, list[Block]]:
    """Several files, each with several index entries between which stand many blocks."""
    disk, wanted = _written_once()
    return disk.copied(), list(wanted)


@functools.cache
def _written_once() -> tuple[FakeDisk, list[Block]]:
    disk, chance = FakeDisk(), random.Random(3)
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    wanted: list[Block] = []
    for number in range(BLOCKS):
        size = 20_000 if number % 30 == 7 else chance.randint(1, 1_500)
        wanted.append(block(3 * number, 1, 2, payload=chance.randbytes(size)))
    for at in range(0, BLOCKS, 10):
        settle(log, *wanted[at : at + 10])
    log.close()
    return disk, wanted


def flip(position: int, bit: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[position] ^= 1 << bit

    return change


def unread(log: DataLog, wanted: list[Block]) -> list[int]:
    """Numbers of the blocks that are refused. All others are as they were appended."""
    refused = []
    for number, it in enumerate(wanted):
        try:
            assert read(log, it.first_offset, 1) == [it], "nothing wrong is ever served"
            assert read(log, it.end_offset - 1, 1) == [it]
            assert log.damaged_at(it.first_offset) is None
        except CorruptLog:
            refused.append(number)
            first, end = log.damaged_at(it.first_offset) or (0, 0)
            assert first <= it.first_offset < it.end_offset <= end
    return refused


@settings(max_examples=80, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), reopened=st.booleans())
def test_i26_a_flipped_bit_in_a_block_refuses_that_block_alone(
    where: float, bit: int, reopened: bool
) -> None:
    disk, wanted = written()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    paths = [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith(".data")]
    sizes = [len(disk.bytes_of(path)) for path in paths]
    position = int(where * sum(sizes))
    path = next(it for it in paths if (position := position - len(disk.bytes_of(it))) < 0)
    position += len(disk.bytes_of(path))
    disk.damage(path, flip(position, bit))
    if reopened:
        log = open_data(disk.reopen(), segment_bytes=SEGMENT_BYTES)
    refused = unread(log, wanted)
    assert refused, "it was noticed"
    sizes = [sum(map(len, encode_block(it))) for it in wanted]
    base = next(number for number, it in enumerate(wanted) if f"{it.first_offset:020d}" in path)
    at = position - sum(sizes[base : refused[0]])
    assert 0 <= at < sizes[refused[0]], "it is the one"
    # Where the header does not say any more where the next one begins, the index does.
    assert len(refused) == 1 or at < BLOCK_HEADER_BYTES
    assert sum(sizes[refused[0] + 1 : refused[-1]]) <= 16 << 10


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), bits=st.integers(1, 40))
def test_i26_whatever_rots_of_index_and_note_every_block_is_served(seed: int, bits: int) -> None:
    disk, wanted = written()
    chance = random.Random(seed)
    for name in disk.list(DIRECTORY):
        if not name.endswith(".index"):
            continue
        path = f"{DIRECTORY}/{name}"
        if chance.random() < 0.2:
            disk.remove(path)
            continue
        for _ in range(bits):
            disk.damage(path, flip(chance.randrange(len(disk.bytes_of(path))), chance.randrange(8)))
    slot = 512 * chance.randrange(2)
    disk.damage(f"{DIRECTORY}/settled", flip(slot + chance.randrange(64), chance.randrange(8)))
    log = open_data(disk.reopen(), segment_bytes=SEGMENT_BYTES)
    assert log.settled_end == wanted[-1].end_offset
    assert log.settled_at == wanted[-1].exposed_below
    assert unread(log, wanted) == []
    settle(log, block(log.settled_end, 5))
    assert read(log, 3 * BLOCKS)[0].record_count == 5


@pytest.mark.parametrize("lost", ["rot", "gone"])
def test_i26_a_lost_note_is_made_again_from_the_files(lost: str) -> None:
    disk, wanted = written()
    if lost == "gone":
        disk.remove(f"{DIRECTORY}/settled")
    else:
        for slot in (0, 512):
            disk.damage(f"{DIRECTORY}/settled", flip(slot + 20, 1))
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    assert (log.begin, log.settled_end) == (0, wanted[-1].end_offset)
    assert log.settled_at == wanted[-1].exposed_below
    assert unread(log, wanted) == []
    log.close()
    assert open_data(disk.reopen(), segment_bytes=SEGMENT_BYTES).settled_end == log.settled_end


def lose_note(disk: FakeDisk) -> None:
    """Both slots stand in one sector."""
    for slot in (0, 512):
        disk.damage(f"{DIRECTORY}/settled", flip(slot + 20, 1))


@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES, 1 << 20])
def test_i26_without_a_note_a_damaged_block_is_refused_and_those_behind_it_stay(
    segment_bytes: int,
) -> None:
    disk = FakeDisk()
    log = open_data(disk, segment_bytes=segment_bytes)
    wanted = [block(3 * number, 1, 2, payload=b"." * 1_500) for number in range(BLOCKS)]
    settle(log, *wanted)
    bases = [file.base for file in log._files]
    log.close()
    number = bases[-1] // 3
    damage_block(disk, wanted, number)
    lose_note(disk)
    log = open_data(disk.reopen(), segment_bytes=segment_bytes)
    assert log.settled_end == wanted[-1].end_offset, "what stands behind damage was promised, too"
    assert log.settled_at == wanted[-1].exposed_below
    assert unread(log, wanted) == [number]
    wanted.append(block(log.settled_end, 3))
    settle(log, wanted[-1])
    log = open_data(disk.reopen(), segment_bytes=segment_bytes)
    assert unread(log, wanted) == [number]


def test_i26_without_a_note_what_is_damaged_at_the_end_stays_on_the_disk() -> None:
    disk = FakeDisk()
    wanted = [block(at, 3) for at in range(0, 30, 3)]
    settle(open_data(disk), *wanted)
    damage_block(disk, wanted, len(wanted) - 1)
    lose_note(disk)
    was = disk.bytes_of(FIRST)
    for _ in range(2):
        log = open_data(disk.reopen())
        assert (log.settled_end, log.settled_at) == (27, wanted[-2].exposed_below)
        assert disk.bytes_of(FIRST) == was, "nobody knows what was promised of it"
    settle(log, block(27, 5))
    log = open_data(disk.reopen())
    assert unread(log, [*wanted[:-1], block(27, 5)]) == []
    assert disk.bytes_of(FIRST) == was


def test_i26_without_a_note_a_file_of_which_nothing_is_intact_is_set_aside() -> None:
    disk, wanted = written()
    names = [name for name in disk.list(DIRECTORY) if name.endswith(".data")]
    path = f"{DIRECTORY}/{names[-1]}"
    base = int(names[-1].removesuffix(".data"))
    disk.damage(path, lambda content: content.__setitem__(slice(None), bytes(len(content))))
    was = disk.bytes_of(path)
    lose_note(disk)
    for _ in range(2):
        disk = disk.reopen()
        log = open_data(disk, segment_bytes=SEGMENT_BYTES)
        assert (log.begin, log.settled_end) == (0, base)
        assert log.settled_at == wanted[base // 3 - 1].exposed_below, "a cut takes it by that"
        assert disk.exists(path + ".damaged"), "it is set aside"
        assert disk.bytes_of(path + ".damaged") == was
    wanted = [*wanted[: base // 3], block(base, 5)]
    settle(log, wanted[-1])
    assert unread(open_data(disk.reopen(), segment_bytes=SEGMENT_BYTES), wanted) == []


@pytest.mark.parametrize("which", [0, 1, -1])
def test_i26_what_stood_in_a_file_that_is_gone_is_refused_and_healed(which: int) -> None:
    disk, wanted = written()
    names = [name for name in disk.list(DIRECTORY) if name.endswith(".data")]
    disk.remove(f"{DIRECTORY}/{names[which]}")
    log = open_data(disk.reopen(), segment_bytes=SEGMENT_BYTES)
    assert log.settled_end == wanted[-1].end_offset, "what was promised is not taken back"
    refused = unread(log, wanted)
    lacking = [wanted[number] for number in refused]
    assert lacking
    assert log.damaged_at(lacking[0].first_offset) == (
        lacking[0].first_offset,
        lacking[-1].end_offset,
    )
    settle(log, block(log.settled_end, 5))
    log.replace(lacking)
    assert unread(log, wanted) == []


@pytest.mark.parametrize("number", [0, 1, 7, 50, BLOCKS - 1])
def test_i26_a_damaged_block_is_healed_by_blocks_that_begin_and_end_elsewhere(number: int) -> None:
    disk, wanted = written()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    damage_block(disk, wanted, number)
    assert unread(log, wanted) == [number]
    first, end = wanted[number].first_offset, wanted[number].end_offset
    assert log.damaged_at(first) == (first, end)
    healed = [block(first, 1, payload=b"one"), block(first + 1, 1, 1, payload=b"and two" * 99)]
    for wrong in (healed[::-1], [block(first, 4)]):
        with pytest.raises(ValueError, match="offset"):
            log.replace(wrong)
    assert unread(log, wanted) == [number], "what does not fit changes nothing"
    log.replace(healed[:1])
    assert log.damaged_at(end - 1) == (first + 1, end), "a part of it may come first"
    log.replace(healed[1:])
    settle(log, block(log.settled_end, 5))
    now = [*wanted[:number], *healed, *wanted[number + 1 :]]
    assert unread(log, now) == []
    assert unread(open_data(disk.reopen(), segment_bytes=SEGMENT_BYTES), now) == []


def damage_block(disk: FakeDisk, wanted: list[Block], number: int) -> None:
    """In its payload."""
    raw = b"".join(encode_block(wanted[number]))
    for name in disk.list(DIRECTORY):
        path = f"{DIRECTORY}/{name}"
        if name.endswith(".data") and (at := disk.bytes_of(path).find(raw)) >= 0:
            disk.damage(path, flip(at + len(raw) - 1, 3))
            return
    raise AssertionError("the block is there")


def test_i26_a_reader_under_way_is_not_disturbed_by_what_is_replaced() -> None:
    disk, wanted = written()
    log = open_data(disk, segment_bytes=SEGMENT_BYTES)
    merged = block(0, 1, 2, 1, 2, payload=b"as one").units

    async def story() -> list[Block]:
        reading = asyncio.ensure_future(log.read(30, 1))
        await asyncio.sleep(0)
        one = block(0, *merged.record_count, payload=b"as one", exposed=wanted[1].exposed_below)
        log.replace([one])
        return await reading

    assert asyncio.run(story()) == [wanted[10]]
    assert read(log, 5, 1)[0].payload == b"as one"


def test_i26_bytes_that_look_like_a_block_in_a_record_are_none() -> None:
    """A header rots so that it points right at bytes of a record that are an intact block, with the
    very offsets that come next."""
    disk = FakeDisk()
    log = open_data(disk)
    forged, bit = b"".join(encode_block(block(3, 3, payload=b"forged"))), 13
    payload = bytes(100) + forged.ljust(1 << bit)
    settle(log, block(0, 3, payload=payload), *(block(at, 3) for at in range(3, 12, 3)))
    raw = disk.bytes_of(FIRST)
    length = int.from_bytes(raw[8:12], "little")
    assert raw[(length ^ 1 << bit) :].startswith(forged), "the bit would lead there"
    disk.damage(FIRST, flip(8 + bit // 8, bit % 8))
    for offset in (0, 3, 6):
        with pytest.raises(CorruptLog):
            read(log, offset)
    assert log.damaged_at(3) == (0, 12)


def test_i26_a_block_of_a_newer_version_stops_it() -> None:
    disk = FakeDisk()
    log = open_data(disk)
    settle(log, *(block(at, 3) for at in range(0, 12, 3)))
    newer = bytearray(b"".join(encode_block(block(12, 3))))
    newer[12] = 2
    seal(newer)
    disk.damage(FIRST, lambda content: content.extend(newer))
    with pytest.raises(UnknownFrame):
        open_data(disk.reopen())


def seal(raw: bytearray) -> None:
    """With the CRCs that make it intact."""
    raw[80:84] = crc32c(bytes(raw[8:80])).to_bytes(4, "little")
    raw[4:8] = crc32c(bytes(raw[8:])).to_bytes(4, "little")


@settings(max_examples=300, deadline=None)
@given(
    raw=st.binary(max_size=300),
    cut=st.integers(0, 400),
    flips=st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 7)), max_size=4),
    sealed=st.booleans(),
)
def test_i26_whatever_bytes_are_taken_for_a_block_it_is_one_or_refused(
    raw: bytes, cut: int, flips: list[tuple[int, int]], sealed: bool
) -> None:
    whole = bytearray(b"".join(encode_block(block(0, 2, 1, 7, payload=raw))))
    for position, bit in flips:
        whole[position % len(whole)] ^= 1 << bit
    if sealed:
        seal(whole)
    whole = whole[: len(whole) - cut % 50] if cut % 2 else whole
    try:
        found = decode_block(memoryview(bytes(whole)))
    except BlockError:
        return
    try:
        units = found.units
    except ColumnDamaged:
        assert sealed
        return
    assert {len(column) for column in units} == {found.unit_count}
    if not sealed and not flips:
        assert found == block(0, 2, 1, 7, payload=raw)


@settings(max_examples=200, deadline=None)
@given(packed=st.binary(max_size=200), count=st.integers(0, 50))
def test_whatever_bytes_are_taken_for_columns_they_are_or_are_refused(
    packed: bytes, count: int
) -> None:
    try:
        units = unpack_units(packed, count)
    except ColumnDamaged:
        return
    assert {len(column) for column in units} == {count}
