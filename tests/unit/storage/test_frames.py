"""Frames as bytes: what goes in comes out, and nothing else does."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.core.frame import At, ControlCode, Frame, FrameKind, StoredFrame
from oncelog_server.core.ids import JournalOffset, LeaderEpoch
from oncelog_server.runtime.storage import frames
from oncelog_server.runtime.storage.frames import (
    FRAME_PAYLOAD_BYTES_MAX,
    HEADER_BYTES,
    FrameDamaged,
    FrameError,
    FrameIncomplete,
    FrameTooNew,
    decode,
    encode,
    encoded_bytes,
    is_blank,
    step,
)
from oncelogpb.errors import TooLarge

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
FRAMES = st.builds(
    Frame,
    kind=st.sampled_from(FrameKind),
    payload=st.binary(max_size=300),
    record_count=U32,
    producer_id=U64,
    generation=U64,
    writer=U64,
    base_sequence=U64,
    tx_id=U64,
    control=st.sampled_from(ControlCode),
    encoding=st.integers(0, 255),
    max_timestamp_us=st.integers(-(2**63), 2**63 - 1),
    client_crc=U32,
)
PLACES = st.builds(At, offset=U64, epoch=U32, time_ms=U64)
SAMPLE = Frame(FrameKind.DATA, b"payload", 3, producer_id=5, tx_id=9)
SAMPLE_AT = At(JournalOffset(17), LeaderEpoch(4), 1_234)


def bytes_of(frame: Frame, at: At) -> bytes:
    return b"".join(encode(frame, at))


def resealed(data: bytes) -> bytes:
    """With a CRC that fits what a test has changed."""
    return data[:4] + crc32c(data[8:]).to_bytes(4, "little") + data[8:]


@given(FRAMES, PLACES, st.binary(max_size=50))
def test_a_frame_survives_the_round_trip(frame: Frame, at: At, before: bytes) -> None:
    data = bytes_of(frame, at)
    assert len(data) == encoded_bytes(frame)
    assert decode(memoryview(before + data), len(before)) == StoredFrame(frame, at)


@given(FRAMES, PLACES)
def test_step_says_what_decode_says(frame: Frame, at: At) -> None:
    data = memoryview(bytes_of(frame, at))
    assert step(data, 0) == (at.offset, decode(data).end, len(data))


@settings(max_examples=20)
@given(FRAMES, PLACES)
def test_i26_every_flipped_bit_is_noticed(frame: Frame, at: At) -> None:
    data = bytearray(bytes_of(frame, at))
    for position in range(len(data)):
        bit = 1 << position % 8
        data[position] ^= bit
        with pytest.raises(FrameError):
            decode(memoryview(data))
        data[position] ^= bit


def test_i26_every_cut_is_noticed() -> None:
    data = bytes_of(SAMPLE, SAMPLE_AT)
    for length in range(len(data)):
        with pytest.raises(FrameIncomplete) as caught:
            decode(memoryview(data)[:length])
        assert caught.value.needed == (len(data) if length >= HEADER_BYTES else HEADER_BYTES)


def test_the_payload_is_not_copied_to_be_encoded() -> None:
    assert encode(SAMPLE, SAMPLE_AT)[1] is SAMPLE.payload
    assert len(encode(Frame(FrameKind.EPOCH_START), SAMPLE_AT)) == 1


def test_a_payload_may_be_a_view_of_a_message() -> None:
    view = SAMPLE._replace(payload=memoryview(SAMPLE.payload))
    assert b"".join(encode(view, SAMPLE_AT)) == bytes_of(SAMPLE, SAMPLE_AT)


@pytest.mark.parametrize(
    ("position", "value", "said"),
    [
        (8, 2, "format version 2"),
        (9, 6, "frame kind 6"),
        (9, 0, "frame kind 0"),
        (10, 4, "control code 4"),
        (14, 1, "format version 1"),
    ],
)
def test_an_intact_frame_of_an_unknown_kind_is_named(position: int, value: int, said: str) -> None:
    data = bytearray(bytes_of(SAMPLE, SAMPLE_AT))
    data[position] = value
    with pytest.raises(FrameTooNew, match=said):
        decode(memoryview(resealed(bytes(data))))


def test_a_longer_header_of_a_newer_version_is_no_damage() -> None:
    data = bytearray(bytes_of(SAMPLE, SAMPLE_AT))
    data[8] = 2
    data[12] += 8
    data[HEADER_BYTES:HEADER_BYTES] = bytes(8)
    with pytest.raises(FrameTooNew, match="format version 2"):
        decode(memoryview(resealed(bytes(data))))


def test_lengths_that_cannot_be_are_damage_even_under_a_good_crc() -> None:
    data = bytearray(bytes_of(SAMPLE, SAMPLE_AT))
    data[16:20] = (FRAME_PAYLOAD_BYTES_MAX + 1).to_bytes(4, "little")
    with pytest.raises(FrameDamaged, match="cannot be"):
        decode(memoryview(resealed(bytes(data))))


def test_a_frame_above_the_limit_is_refused_by_the_name_of_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "FRAME_PAYLOAD_BYTES_MAX", 6)
    with pytest.raises(TooLarge, match="frame_payload_bytes_max"):
        encode(SAMPLE, SAMPLE_AT)


def test_zeros_are_blank_and_a_frame_is_not() -> None:
    assert is_blank(memoryview(bytes(200)), 0)
    assert is_blank(memoryview(bytes(10)), 0)
    assert not is_blank(memoryview(bytes_of(SAMPLE, SAMPLE_AT)), 0)
    assert not is_blank(memoryview(bytes(50) + b"\1" + bytes(50)), 0)
