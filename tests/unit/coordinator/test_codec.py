"""Every record survives its frame, and nothing else is taken for one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog_server.coordinator import records
from oncelog_server.coordinator.values import (
    AbortCause,
    CommitSeq,
    Manifest,
    OneShotBatch,
    OneShotOffsets,
    Refusal,
    TopicParts,
)
from oncelog_server.core.age import TimePassed
from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.core.ids import Generation, PartitionId, ProducerId, TopicId, TxId

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
ids = st.integers(1, 2**52).map(TxId)
producer_ids = st.integers(1, 2**52).map(ProducerId)
generations = u64.map(Generation)
topic_ids = st.binary(min_size=16, max_size=16).map(TopicId)
partitions = st.builds(PartitionId, topic_ids, u32)
names = st.text(max_size=12)
seqs = st.none() | st.builds(CommitSeq, names, u64)


@st.composite
def topic_parts(draw: st.DrawFn) -> TopicParts:
    rows = draw(st.lists(st.tuples(u32, u64, u64), max_size=4))
    columns = [tuple(row[i] for row in rows) for i in range(3)]
    return TopicParts(draw(topic_ids), *columns)


manifests = st.builds(Manifest, st.lists(topic_parts(), max_size=3).map(tuple))
batches = st.lists(
    st.builds(OneShotBatch, partitions, u32, u32, u32, st.integers(-(2**40), 2**40), st.binary()),
    max_size=2,
).map(tuple)
offsets = st.none() | st.builds(OneShotOffsets, names, st.binary())
refusals = st.none() | st.builds(Refusal, names, names, st.dictionaries(names, names, max_size=2))
parts = st.lists(partitions, max_size=3).map(tuple)

any_record = st.one_of(
    st.builds(records.ProducerInitialized, producer_ids, generations, names, names, st.binary()),
    st.builds(records.Begun, ids, producer_ids, generations, u64, u32, seqs, parts),
    st.builds(records.PreparedCommit, ids, producer_ids, generations, u64, u32, seqs, manifests),
    st.builds(
        records.PreparedAbort,
        ids,
        producer_ids,
        generations,
        u64,
        u32,
        st.sampled_from(AbortCause),
        parts,
        refusals,
    ),
    st.builds(records.OneShotStaged, ids, producer_ids, generations, u64, seqs, batches, offsets),
    st.builds(records.OneShotPrepared, ids, producer_ids, generations, u64, seqs, batches),
    st.builds(records.OneShotSkipped, producer_ids, generations, u64),
    st.builds(records.Committed, ids, parts),
    st.builds(records.Aborted, ids),
    st.builds(records.ProducersForgotten, st.lists(producer_ids, max_size=3).map(tuple)),
    st.builds(records.LogEndProved),
    st.builds(TimePassed),
)
codec = records.CODEC


@settings(max_examples=300, deadline=None)
@given(any_record)
def test_i35_a_record_survives_its_frame(record: records.Record) -> None:
    frame = codec.encode(record)
    assert codec.decode(frame) == record
    assert codec.encode(codec.decode(frame)) == frame
    assert frame.span == 1


def test_tags_are_stable() -> None:
    """A tag in a journal is for ever: this list only grows."""
    kinds = msgspec.inspect.type_info(records.Record)
    assert isinstance(kinds, msgspec.inspect.UnionType)
    tags = [kind.tag for kind in kinds.types if isinstance(kind, msgspec.inspect.StructType)]
    assert sorted(map(str, tags)) == [
        "aborted",
        "begin",
        "committed",
        "forget",
        "init",
        "one-shot",
        "prepare-abort",
        "prepare-commit",
        "prove",
        "skip",
        "stage",
        "time",
    ]


@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameKind.DATA, b"x", record_count=1),
        Frame(FrameKind.RECORD, b""),
        Frame(FrameKind.RECORD, msgspec.msgpack.encode(["from-a-later-version", 1])),
        Frame(FrameKind.RECORD, msgspec.msgpack.encode(["aborted", "not a number"])),
    ],
)
def test_what_is_not_a_record_is_refused(frame: Frame) -> None:
    with pytest.raises(ValueError):
        codec.decode(frame)


def test_a_record_of_an_earlier_version_lacks_the_last_fields() -> None:
    old = Frame(FrameKind.RECORD, msgspec.msgpack.encode(["committed", 7]))
    assert codec.decode(old) == records.Committed(TxId(7), ())
