"""Payloads that are left in the message: what comes out is what generated code reads, whatever the
bytes are."""

from __future__ import annotations

from typing import Final

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from oncelogpb import bulk, in_place
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2

LARGE: Final = in_place.MESSAGE_BYTES_MIN
SIZES: Final = st.sampled_from([0, 1, 300, LARGE // 2, LARGE])


def produce(*sizes: int) -> pb.ProduceRequest:
    batches = [
        types_pb2.Batch(
            partition=types_pb2.Partition(topic_id=b"t" * 16, number=number),
            record_count=number + 1,
            base_sequence=1 << 40,
            max_timestamp_us=-5,
            payload=bytes([number % 256]) * size,
        )
        for number, size in enumerate(sizes)
    ]
    return pb.ProduceRequest(tx_id=7, writer=9, batches=batches)


def calls_of(*requests: pb.ProduceRequest | pb.FetchRequest) -> pb.PartitionLeaderCalls:
    calls = pb.PartitionLeaderCalls()
    for number, request in enumerate(requests):
        field = "produce" if isinstance(request, pb.ProduceRequest) else "fetch"
        getattr(calls.calls.add(number=number, timeout_ms=30_000), field).CopyFrom(request)
    return calls


def read(data: bytes) -> pb.PartitionLeaderCalls | None:
    """The calls, put together again from the two parts; None where they were not lifted."""
    lifted = in_place.lift(data)
    if lifted is None:
        return None
    rest, payloads = lifted
    calls = pb.PartitionLeaderCalls.FromString(rest)
    paired = in_place.pair(calls.calls, payloads)
    if paired is None:
        return None
    for call, request in paired:
        assert (request is None) == (call.WhichOneof("request") != "produce")
        for place, batch in enumerate([] if request is None else call.produce.batches):
            assert request is not None
            assert not batch.payload
            batch.payload = bytes(in_place.payload_of(request, place))
    return calls


@given(st.lists(st.lists(SIZES, max_size=4), min_size=1, max_size=3), SIZES)
def test_what_is_lifted_and_what_is_left_are_the_message(sent: list[list[int]], size: int) -> None:
    plain = [produce(*sizes) for sizes in sent]
    calls = calls_of(*plain, pb.FetchRequest(max_bytes=1), produce(size), produce(LARGE))
    assert read(calls.SerializeToString()) == calls


def test_what_the_client_joins_by_hand_is_read() -> None:
    request = produce(LARGE)
    batch = types_pb2.Batch.FromString(request.batches[0].SerializeToString())
    batch.payload = b""
    head = pb.ProduceRequest(tx_id=7, writer=9)
    encoded = bulk.produce_request(head, [(batch, request.batches[0].payload)])
    field = pb.PartitionLeaderCall.PRODUCE_FIELD_NUMBER
    chunks, _ = bulk.frame_call(0, 30_000, field, encoded)
    assert read(bulk.join(chunks)) == calls_of(request)


def test_a_large_payload_is_a_view_and_one_that_would_hold_the_message_is_a_copy() -> None:
    data = calls_of(produce(LARGE, LARGE // 8)).SerializeToString()
    lifted = in_place.lift(data)
    assert lifted is not None
    view, copy = lifted[1]
    assert isinstance(view, memoryview)
    assert view.obj is data
    assert isinstance(copy, bytes)


@pytest.mark.parametrize(
    "data",
    [
        calls_of(produce(LARGE // 2)).SerializeToString(),
        calls_of(produce(*[20] * 4_000)).SerializeToString(),
        calls_of(produce(LARGE)).SerializeToString()[:-1],
        b"\x0b" + bytes(LARGE),
        b"\xff" * LARGE,
    ],
    ids=["small", "many small batches", "cut", "a group", "endless"],
)
def test_the_rest_is_left_to_generated_code(data: bytes) -> None:
    assert in_place.lift(data) is None


def test_a_request_that_comes_in_two_parts_is_left_to_generated_code() -> None:
    """The second takes the place of the first, unless it is of the same kind: then they merge."""
    produced = calls_of(produce(LARGE)).calls[0].SerializeToString()
    fetched = calls_of(pb.FetchRequest(max_bytes=1)).calls[0].SerializeToString()
    for parts in (produced + fetched, fetched + produced, produced + produced):
        data = b"".join(bulk.nested(1, bulk.Encoded((parts,), len(parts))).chunks)
        expected = pb.PartitionLeaderCalls.FromString(data)
        got = read(data)
        assert got is None or got == expected


@given(st.data())
def test_damaged_bytes_are_read_as_generated_code_reads_them(data: st.DataObject) -> None:
    good = bytearray(calls_of(produce(LARGE, 5), pb.FetchRequest()).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.one_of(st.integers(0, 90), st.integers(-90, -1)))
        good[place] = data.draw(st.integers(0, 255))
    damaged = bytes(good)
    try:
        expected: pb.PartitionLeaderCalls | None = pb.PartitionLeaderCalls.FromString(damaged)
    except DecodeError:
        expected = None
    try:
        got = read(damaged)
    except DecodeError:
        assert expected is None
    else:
        assert got is None or got == expected


def joined(*batches: bytes) -> bytes:
    """One call with one Produce of these bytes."""
    encoded = bulk.Encoded((), 0)
    for batch in batches:
        item = bulk.nested(
            pb.ProduceRequest.BATCHES_FIELD_NUMBER, bulk.Encoded((batch,), len(batch))
        )
        encoded = bulk.Encoded((*encoded.chunks, *item.chunks), encoded.size + item.size)
    chunks, _ = bulk.frame_call(1, 30_000, pb.PartitionLeaderCall.PRODUCE_FIELD_NUMBER, encoded)
    return bulk.join(chunks)


def payloads_of(calls: pb.PartitionLeaderCalls | None) -> list[bytes]:
    assert calls is not None
    return [batch.payload for call in calls.calls for batch in call.produce.batches]


def test_of_a_payload_that_comes_twice_the_last_one_counts() -> None:
    first, last = (types_pb2.Batch(payload=letter * LARGE) for letter in (b"a", b"b"))
    data = joined(first.SerializeToString() + last.SerializeToString())
    assert payloads_of(read(data)) == [b"b" * LARGE]


def test_a_field_of_the_payloads_number_and_another_type_is_none() -> None:
    batch = types_pb2.Batch(payload=b"a" * LARGE).SerializeToString()
    number = bulk.varint(types_pb2.Batch.PAYLOAD_FIELD_NUMBER << 3) + bulk.varint(300)
    assert payloads_of(read(joined(batch + number))) == [b"a" * LARGE]


def test_a_call_that_turns_into_another_gives_its_payloads_to_nobody() -> None:
    """Of the requests of a call the last one counts: else the next call got what is left over."""
    turned = pb.PartitionLeaderCall(produce=produce(LARGE)).SerializeToString()
    turned += pb.PartitionLeaderCall(fetch=pb.FetchRequest(max_bytes=1)).SerializeToString()
    item = bulk.nested(
        pb.PartitionLeaderCalls.CALLS_FIELD_NUMBER, bulk.Encoded((turned,), len(turned))
    )
    data = bulk.join(item.chunks) + calls_of(produce(300)).SerializeToString()
    assert pb.PartitionLeaderCalls.FromString(data).calls[0].WhichOneof("request") == "fetch"
    assert read(data) is None, "left to generated code"


# ------------------------------------------------------------------------------ what was fetched


def reply_of(*partitions: list[int]) -> pb.FetchReply:
    reply = pb.FetchReply()
    for number, sizes in enumerate(partitions):
        part = reply.partitions.add(start_offset=number, end_offset=1 << 40)
        part.partition.number = number
        for place, size in enumerate(sizes):
            payload = bytes([place % 256]) * size
            batch = part.batches.add(first_offset=place, crc32c=7, payload=payload)
            batch.producer.producer_id = 1 << 60
    return reply


def fetched_again(data: bytes) -> pb.FetchReply:
    """The reply, put together again from what `fetched` tells of it."""
    reply = pb.FetchReply()
    for part, batches in in_place.fetched(in_place.parse_fetched(data)):
        assert len(part.batches) == len(batches)
        copy = reply.partitions.add()
        copy.CopyFrom(part)
        for batch, (told, payload) in zip(copy.batches, batches, strict=True):
            assert batch == told
            batch.payload = bytes(payload)
    return reply


@given(st.lists(st.lists(SIZES, max_size=4), max_size=3))
def test_of_a_reply_each_batch_has_its_own_payload(sent: list[list[int]]) -> None:
    for reply in (reply_of(*sent), reply_of(*sent, [LARGE, 0, 3])):
        assert fetched_again(reply.SerializeToString()) == reply


def test_what_the_leader_joins_by_hand_is_read() -> None:
    reply = reply_of([LARGE, 5], [], [LARGE])
    parts = []
    for part in reply.partitions:
        head, batches = pb.FetchedPartition(), []
        head.CopyFrom(part)
        del head.batches[:]
        for batch in part.batches:
            bare = pb.FetchedBatch()
            bare.CopyFrom(batch)
            bare.payload = b""
            batches.append((bare, memoryview(batch.payload)))
        parts.append(bulk.fetched_partition(head, batches))
    data = bulk.join(bulk.fetch_reply(parts).chunks)
    assert isinstance(in_place.parse_fetched(data), in_place.LiftedFetch)
    assert fetched_again(data) == reply


def test_large_payloads_of_a_reply_are_views_of_its_message() -> None:
    data = reply_of([LARGE, LARGE]).SerializeToString()
    [(_, batches)] = in_place.fetched(in_place.parse_fetched(data))
    for batch, payload in batches:
        assert isinstance(payload, memoryview)
        assert payload.obj is data
        assert not batch.payload


def test_a_partition_that_comes_without_batches_takes_no_payload_of_the_next() -> None:
    error = reply_of([], [LARGE])
    error.partitions[0].error.code = 5
    (first, none), (second, one) = in_place.fetched(
        in_place.parse_fetched(error.SerializeToString())
    )
    assert (first.error.code, none) == (5, [])
    assert second.partition.number == 1
    assert [len(payload) for _, payload in one] == [LARGE]


@given(st.data())
def test_a_damaged_reply_is_read_as_generated_code_reads_it(data: st.DataObject) -> None:
    good = bytearray(reply_of([LARGE, 5], [9]).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.one_of(st.integers(0, 60), st.integers(-60, -1)))
        good[place] = data.draw(st.integers(0, 255))
    damaged = bytes(good)
    try:
        expected: pb.FetchReply | None = pb.FetchReply.FromString(damaged)
    except DecodeError:
        expected = None
    try:
        got = fetched_again(damaged)
    except DecodeError:
        assert expected is None
    else:
        # What nobody knows of the reply itself, `fetched` does not tell.
        assert expected is not None
        assert list(got.partitions) == list(expected.partitions)
