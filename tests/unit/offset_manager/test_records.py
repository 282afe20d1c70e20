"""The codec loses nothing, and refuses what is not an offset manager's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog_server.core.age import TimePassed
from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.core.ids import (
    Generation,
    LeaderEpoch,
    PartitionId,
    ProducerId,
    TopicId,
    TxId,
)
from oncelog_server.offset_manager.commands import (
    FROM_ANY,
    FROM_NONE,
    GroupTopic,
    OffsetCommit,
    View,
)
from oncelog_server.offset_manager.records import (
    CODEC,
    GroupsAlive,
    GroupsForgotten,
    Member,
    MemberGone,
    MembershipChanged,
    OffsetsCommitted,
    OffsetsPending,
    Parting,
    PartitionsReleased,
    ProducersForgotten,
    Record,
    Share,
    TransactionDropped,
    TransactionMarked,
    Why,
)
from oncelog_server.participant.commands import Outcome

U64 = st.integers(0, (1 << 64) - 1)
OFFSETS = st.integers(0, (1 << 63) - 1)
TOPIC_IDS = st.binary(min_size=16, max_size=16).map(TopicId)
PARTITIONS = st.builds(PartitionId, TOPIC_IDS, st.integers(0, (1 << 32) - 1))
STEPS = st.lists(
    st.builds(
        OffsetCommit,
        PARTITIONS,
        OFFSETS | st.sampled_from([FROM_NONE, FROM_ANY]),
        OFFSETS,
        st.sampled_from(View),
        st.text(max_size=20),
        U64.map(TxId),
    ),
    min_size=1,
    max_size=4,
).map(tuple)
NAMES = st.text(min_size=1, max_size=20)
SHARES = st.lists(
    st.builds(
        Share,
        NAMES,
        TOPIC_IDS,
        st.lists(st.integers(0, 1 << 31), min_size=1, max_size=3).map(tuple),
    ),
    max_size=3,
).map(tuple)
TX_IDS, PRODUCERS = U64.map(TxId), U64.map(ProducerId)
GENERATIONS, EPOCHS = U64.map(Generation), U64.map(LeaderEpoch)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(OffsetsCommitted, NAMES, STEPS, st.text(max_size=9)),
    st.builds(OffsetsPending, TX_IDS, PRODUCERS, GENERATIONS, NAMES, STEPS),
    st.builds(
        TransactionMarked, TX_IDS, PRODUCERS, GENERATIONS, st.sampled_from(Outcome), U64, EPOCHS
    ),
    st.builds(TransactionDropped, TX_IDS, NAMES),
    st.builds(GroupsForgotten, st.lists(NAMES, max_size=3).map(tuple), st.sampled_from(Why)),
    st.builds(ProducersForgotten, st.lists(PRODUCERS, max_size=3).map(tuple)),
    st.builds(
        MembershipChanged,
        NAMES,
        st.lists(
            st.builds(
                Member,
                NAMES,
                st.text(max_size=9),
                st.lists(NAMES, max_size=3).map(tuple),
                st.sampled_from(["", "range"]),
                st.integers(0, 1 << 32),
                st.text(max_size=9),
                st.text(max_size=9),
            ),
            max_size=3,
        ).map(tuple),
        st.lists(
            st.builds(MemberGone, NAMES, st.sampled_from(Parting), st.text(max_size=9)), max_size=3
        ).map(tuple),
        st.lists(st.builds(GroupTopic, NAMES, TOPIC_IDS, st.integers(0, 99)), max_size=3).map(
            tuple
        ),
        SHARES,
    ),
    st.builds(PartitionsReleased, NAMES, SHARES),
    st.builds(GroupsAlive, st.lists(NAMES, max_size=3).map(tuple)),
    st.builds(TimePassed),
)


@given(RECORDS)
def test_a_record_survives_its_frame(record: Record) -> None:
    codec = CODEC
    frame = codec.encode(record)
    assert frame.kind is FrameKind.RECORD
    assert frame.span == 1
    assert codec.decode(frame) == record


def test_a_known_record_keeps_its_bytes() -> None:
    """Journals outlive versions: these bytes are for ever."""
    step = OffsetCommit(PartitionId(TopicId(b"0123456789abcdef"), 2), FROM_NONE, 10)
    record, payload = (
        OffsetsCommitted("g", (step,), "m"),
        (b"\x94\xa6commit\xa1g\x91\x96\x92\xc4\x100123456789abcdef\x02\xff\x0a\x01\xa0\x00\xa1m"),
    )
    assert CODEC.encode(record).payload == payload
    of_before_there_were_members = Frame(FrameKind.RECORD, b"\x93" + payload[1:-2])
    assert CODEC.decode(of_before_there_were_members) == OffsetsCommitted("g", (step,))


@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameKind.MARKER),
        Frame(FrameKind.RECORD, b"\x91\xa7unknown"),
        Frame(FrameKind.RECORD, b""),
    ],
)
def test_a_strange_frame_is_refused(frame: Frame) -> None:
    with pytest.raises(ValueError):
        CODEC.decode(frame)
