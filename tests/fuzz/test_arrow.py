"""Arrow messages whose numbers lie, with a CRC that is right: refused by name, or they decode to
exactly what they say, for ever. PyArrow reads what nobody judged, so this must hold before it."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from oncelogpb import records
from oncelogpb.errors import CorruptBatch, InvalidArgument, OncelogError, TooLarge
from oncelogpb.records import Compression

TIME_US = 1_700_000_000_000_000
LIES = (0, 1, -1, 2, 7, 63, 64, (1 << 31) - 1, -(1 << 31), 1 << 31, 1 << 62, -(1 << 63))
NAMED = (CorruptBatch, InvalidArgument, TooLarge)


def _message(compression: Compression, count: int) -> bytes:
    headers = [[("k", b"v"), ("none", None)] if n % 2 else None for n in range(count)]
    keys = [None if n % 3 else b"key" for n in range(count)]
    made = records.make_batch(keys, [b"value"] * count, TIME_US, headers)
    return bytes(records.encode_arrow(made, compression).to_pybytes())


MESSAGES = {
    (compression, count): _message(compression, count)
    for compression in Compression
    for count in (1, 3, 20)
}

# Where (as a share of the message), how many bytes of it, and what they say instead.
words = st.tuples(
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(["<i", "<q"]),
    st.one_of(st.sampled_from(LIES), st.integers(-200, 2_000)),
)
bits = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
cuts = st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([-64, -8, -1, 1, 8, 64]))


@given(
    st.sampled_from(sorted(MESSAGES)),
    st.lists(words, max_size=3),
    st.lists(bits, max_size=2),
    st.lists(cuts, max_size=1),
    st.sampled_from([0, 0, 0, 1]),
)
@settings(max_examples=1_500, deadline=None)
def test_i26_a_message_that_lies_is_refused_by_name_or_harmless(
    which: tuple[Compression, int],
    words: list[tuple[float, str, int]],
    bits: list[tuple[float, int]],
    cuts: list[tuple[float, int]],
    more: int,
) -> None:
    payload = bytearray(MESSAGES[which])
    for share, form, value in words:
        size = struct.calcsize(form)
        at = int(share * len(payload)) // size * size
        fits = -(1 << (8 * size - 1)) <= value < 1 << (8 * size - 1)
        if fits and at + size <= len(payload):
            struct.pack_into(form, payload, at, value)
    for share, bit in bits:
        payload[int(share * len(payload))] ^= 1 << bit
    for share, change in cuts:
        at = int(share * len(payload))
        payload[at : at + max(0, -change)] = bytes(max(0, change))
    _require_named_or_harmless(bytes(payload), which[1] + more)


def _require_named_or_harmless(payload: bytes, count: int) -> None:
    crc = records.checksum(payload)
    try:
        records.validate(records.ARROW_V1, payload, count, crc)
    except OncelogError as refusal:
        if not isinstance(refusal, NAMED):
            raise
        return
    decoded = records.decode_arrow(payload)
    assert decoded.num_rows == count
    records.max_timestamp(decoded)
    assert len(records.decode_rows(records.as_rows(records.ARROW_V1, payload)).rows) == count
