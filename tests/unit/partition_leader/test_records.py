"""The codec: records become frames and come back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_server.core.frame import ControlCode, Frame, FrameKind
from oncelog_server.core.ids import (
    Generation,
    JournalOffset,
    LeaderEpoch,
    ProducerId,
    TxId,
    Writer,
)
from oncelog_server.participant.commands import WriterPart
from oncelog_server.partition_leader.commands import Materialization, Resolution, Settings
from oncelog_server.partition_leader.records import (
    MarkerWritten,
    PartitionCodec,
    Record,
    Resolved,
    one_shot,
)

U64 = st.integers(0, (1 << 64) - 1)
U48 = st.integers(0, (1 << 48) - 1)
parts = st.lists(st.builds(WriterPart, U64.map(Writer), U48), max_size=5).map(tuple)
markers = st.builds(
    MarkerWritten,
    U64.map(TxId),
    U64.map(ProducerId),
    U64.map(Generation),
    st.sampled_from([ControlCode.COMMITTED, ControlCode.ABORTED, ControlCode.DAMAGED]),
    U48,
    U48,
    parts,
)
frames = st.builds(
    Frame,
    st.sampled_from([FrameKind.DATA, FrameKind.ONE_SHOT]),
    st.binary(max_size=20),
    st.integers(1, 99),
    U64,
    U64,
    U64,
    U64,
    U64,
)
resolved = st.builds(Resolved, U64.map(TxId), st.sampled_from(Resolution))
settings = st.builds(Settings, U48, U48, U48, st.sampled_from(Materialization))
CODEC = PartitionCodec()


@given(st.one_of(markers, frames, resolved, settings))
def test_i35_every_record_survives_the_journal(record: Record) -> None:
    frame = CODEC.encode(record)
    assert CODEC.decode(frame) == record
    assert CODEC.encode(CODEC.decode(frame)) == frame


def test_the_bytes_of_a_marker() -> None:
    marker = MarkerWritten(
        TxId(5),
        ProducerId(7),
        Generation(9),
        ControlCode.COMMITTED,
        JournalOffset(11),
        LeaderEpoch(3),
        (WriterPart(Writer(0xAB), 2), WriterPart(Writer(1), 1)),
    )
    frame = CODEC.encode(marker)
    assert frame.payload.hex() == (
        "ab00000000000000020000000000000001000000000000000100000000000000"
    )
    assert (frame.base_sequence, frame.writer, frame.span) == (11, 3, 1)


def test_a_one_shot_says_what_its_marker_says() -> None:
    batch = Frame(FrameKind.DATA, b"xy", record_count=2, producer_id=7, generation=9, tx_id=5)
    frame = one_shot(batch, prepare_offset=JournalOffset(11), coordinator_epoch=LeaderEpoch(3))
    assert (frame.kind, frame.control) == (FrameKind.ONE_SHOT, ControlCode.NONE), "the kind says it"
    assert (frame.base_sequence, frame.writer, frame.span) == (11, 3, 2)
    assert frame.payload is batch.payload, "passed on, not copied"


@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameKind.MARKER, b"short"),
        Frame(FrameKind.EPOCH_START),
        Frame(FrameKind.RECORD, b"\xc1"),
    ],
)
def test_a_frame_of_another_format_is_refused(frame: Frame) -> None:
    with pytest.raises(ValueError):
        CODEC.decode(frame)


def test_settings_of_a_version_before_have_the_default_of_what_they_lack() -> None:
    """As they were journaled before there was a choice."""
    before = Frame(FrameKind.RECORD, msgspec.msgpack.encode(["settings", 3, 60_000, -1]))
    assert PartitionCodec().decode(before) == Settings(3, 60_000, -1, Materialization.AUTO)
