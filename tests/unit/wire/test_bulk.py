"""Bytes joined by hand are the bytes that generated code writes and reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelogpb import bulk, errors, rpcs
from oncelogpb.v1 import coordinator_pb2 as coordinator
from oncelogpb.v1 import partition_leader_pb2 as leader
from oncelogpb.v1 import types_pb2 as types

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
PAYLOADS = st.lists(st.binary(max_size=300), max_size=4)


@given(U64)
def test_a_number(value: Any) -> None:
    # Field 2 of BeginNext's sibling would do as well: any uint64 field, 0 is not written.
    written = coordinator.CoordinatorCall(number=value).SerializeToString()
    assert written == (b"\x08" + bulk.varint(value) if value else b"")


@given(st.integers(1, 2**64 - 1), U32, st.text(max_size=300))
def test_a_call_and_its_answers(number: Any, timeout_ms: Any, name: Any) -> None:
    request = coordinator.InitProducerRequest(name=name)
    field = rpcs.stream_fields(rpcs.find("coordinator"))["init_producer"]
    chunks, size = bulk.frame_call(number, timeout_ms, field, request)
    call = coordinator.CoordinatorCall(number=number, timeout_ms=timeout_ms, init_producer=request)
    written = bulk.join(chunks)
    assert written == coordinator.CoordinatorCalls(calls=[call]).SerializeToString()
    assert size == len(written)

    reply = coordinator.InitProducerReply(max_timeout_ms=timeout_ms)
    chunks, size = bulk.frame_answer(number, field, reply)
    answer = coordinator.CoordinatorAnswer(number=number, init_producer=reply)
    written = bulk.join(chunks)
    assert written == coordinator.CoordinatorAnswers(answers=[answer]).SerializeToString()
    assert size == len(written)

    status = errors.to_status(errors.NotLeader(name))
    chunks, size = bulk.frame_error(number, status)
    answer = coordinator.CoordinatorAnswer(number=number, error=status)
    written = bulk.join(chunks)
    # The order of a map's entries is free, so the messages are compared.
    assert coordinator.CoordinatorAnswers.FromString(written).answers[0] == answer
    assert size == len(written)


@given(U64, U64, PAYLOADS)
def test_a_produce_request(tx_id: Any, sequence: Any, payloads: Any) -> None:
    head = leader.ProduceRequest(tx_id=tx_id, writer=sequence)
    batches = [
        types.Batch(base_sequence=sequence, record_count=n, crc32c=7) for n in range(len(payloads))
    ]
    joined = bulk.produce_request(
        head, [(b, memoryview(p)) for b, p in zip(batches, payloads, strict=True)]
    )
    written = bulk.join(joined.chunks)
    whole = leader.ProduceRequest(
        tx_id=tx_id,
        writer=sequence,
        batches=[
            types.Batch(base_sequence=sequence, record_count=n, crc32c=7, payload=payload)
            for n, payload in enumerate(payloads)
        ],
    )
    assert leader.ProduceRequest.FromString(written) == whole
    assert joined.size == len(written)


@given(U64, PAYLOADS)
def test_a_fetch_reply(offset: Any, payloads: Any) -> None:
    parts, expected = [], leader.FetchReply()
    for number in range(3):
        head = leader.FetchedPartition(
            partition=types.Partition(topic_id=b"t" * 16, number=number), end_offset=offset
        )
        units = leader.Units(tx_ids=[offset, 7], times_ms=[number])
        batches = [
            (leader.FetchedBatch(first_offset=offset, record_count=1, units=units), p)
            for p in payloads
        ]
        parts.append(bulk.fetched_partition(head, batches))
        whole = expected.partitions.add()
        whole.CopyFrom(head)
        for payload in payloads:
            whole.batches.add(first_offset=offset, record_count=1, payload=payload, units=units)
    failed = leader.FetchedPartition(error=errors.to_status(errors.UnknownTopic("gone")))
    expected.partitions.add().CopyFrom(failed)
    joined = bulk.fetch_reply([*parts, failed])
    written = bulk.join(joined.chunks)
    assert leader.FetchReply.FromString(written) == expected
    assert joined.size == len(written)


def test_the_size_of_a_payload_is_counted_in_bytes() -> None:
    wide = memoryview(b"\1" * 16).cast("Q")
    joined = bulk.produce_request(leader.ProduceRequest(), [(types.Batch(), wide)])
    assert len(bulk.join(joined.chunks)) == joined.size
    assert leader.ProduceRequest.FromString(bulk.join(joined.chunks)).batches[0].payload == bytes(
        wide
    )


def test_batches_must_come_beside_the_head() -> None:
    with pytest.raises(AssertionError, match="beside the head"):
        bulk.produce_request(leader.ProduceRequest(batches=[types.Batch()]), [])


def test_payload_is_the_last_field() -> None:
    """So that the joined bytes are those of generated code. What was merged has a field behind it:
    any order of fields is the same message."""
    fields = [f.number for f in types.Batch.DESCRIPTOR.fields]
    assert max(fields) == types.Batch.PAYLOAD_FIELD_NUMBER
    behind = [f.name for f in leader.FetchedBatch.DESCRIPTOR.fields if f.number > 15]
    assert behind == ["units", "offsets"]


@pytest.mark.parametrize("value", [0, 127, 128, 16_383, 16_384, 2**64 - 1])
def test_numbers_where_they_grow_by_a_byte(value: int) -> None:
    written = coordinator.CoordinatorCall(number=value).SerializeToString()
    assert written == (b"\x08" + bulk.varint(value) if value else b"")


@pytest.mark.parametrize("letters", [1, 200, 20_000])
def test_the_size_of_an_error_is_that_of_its_bytes(letters: int) -> None:
    chunks, size = bulk.frame_error(7, errors.to_status(errors.Internal("x" * letters)))
    assert size == len(bulk.join(chunks))
