"""Bad input by hand: each gets its named error, and the services go on.

What is wrong stands in the name of the test; the calls are the bare protos, as a client in another
language could send them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncelog_server.runtime.storage.disk import RealDisk
from oncelogpb import records
from oncelogpb.v1 import coordinator_pb2 as tx_pb
from oncelogpb.v1 import offset_manager_pb2 as offsets_pb
from oncelogpb.v1 import partition_leader_pb2 as log_pb
from oncelogpb.v1 import types_pb2 as pb
from tests.fuzz.hand import Hand, Refused, rows, story

MIB = 1024 * 1024
TIME_US = 1_700_000_000_000_000


# ------------------------------------------------------------------------------------------ batches


def sealed(payload: bytes, record_count: int = 20) -> pb.Batch:
    """With a CRC that is right: whoever lies has one."""
    return pb.Batch(
        encoding=pb.ENCODING_ARROW_V1,
        record_count=record_count,
        crc32c=records.checksum(payload),
        max_timestamp_us=TIME_US,
        payload=payload,
    )


def arrow(compression: records.Compression = records.Compression.NONE, size: int = 10) -> bytes:
    made = records.make_batch([None] * 20, [b"x" * size] * 20, TIME_US)
    return bytes(records.encode_arrow(made, compression).to_pybytes())


def _with_wrong_schema() -> bytes:
    return bytes(pa.record_batch({"value": pa.array([1] * 20)}).serialize().to_pybytes())


def _with_nulls_as_timestamps() -> bytes:
    columns = [pa.nulls(20, field.type) for field in records.SCHEMA_V1]
    return bytes(pa.record_batch(columns, names=records.SCHEMA_V1.names).serialize().to_pybytes())


def _with_first_value_offset(offset: int) -> bytes:
    """Where the first value begins, in the offsets buffer of the column `value`."""
    payload = bytearray(arrow())
    offsets = struct.pack("<21i", *(10 * number for number in range(21)))
    position = bytes(payload).index(offsets)
    payload[position + 4 : position + 8] = struct.pack("<i", offset)
    return bytes(payload)


def _claiming(uncompressed_bytes: int) -> bytes:
    """A compressed message whose largest buffer says that it becomes so large."""
    payload = bytearray(arrow(records.Compression.ZSTD, size=1_000))
    position = bytes(payload).index(struct.pack("<q", 20_000))
    payload[position : position + 8] = struct.pack("<q", uncompressed_bytes)
    return bytes(payload)


BATCHES: dict[str, tuple[Callable[[], pb.Batch], str]] = {
    "no Arrow at all": (lambda: sealed(b"hello" * 20), "CORRUPT_BATCH"),
    "empty": (lambda: sealed(b""), "CORRUPT_BATCH"),
    "cut": (lambda: sealed(arrow()[:-16]), "CORRUPT_BATCH"),
    "with a tail": (lambda: sealed(arrow() + bytes(64)), "CORRUPT_BATCH"),
    "a schema message": (lambda: sealed(pa.schema([]).serialize().to_pybytes()), "CORRUPT_BATCH"),
    "another schema": (lambda: sealed(_with_wrong_schema()), "CORRUPT_BATCH"),
    "null timestamps": (lambda: sealed(_with_nulls_as_timestamps()), "CORRUPT_BATCH"),
    "fewer rows than it says": (lambda: sealed(arrow(), record_count=21), "CORRUPT_BATCH"),
    "more rows than it says": (lambda: sealed(arrow(), record_count=19), "CORRUPT_BATCH"),
    "four billion rows": (lambda: sealed(arrow(), record_count=(1 << 32) - 1), "CORRUPT_BATCH"),
    "no rows": (lambda: sealed(arrow(), record_count=0), "INVALID_ARGUMENT"),
    "a value that begins before its buffer": (
        lambda: sealed(_with_first_value_offset(-1)),
        "CORRUPT_BATCH",
    ),
    "a value that ends behind its buffer": (
        lambda: sealed(_with_first_value_offset(1 << 30)),
        "CORRUPT_BATCH",
    ),
    "a bomb that says so": (lambda: sealed(_claiming(1 << 40)), "TOO_LARGE"),
    "a bomb that lies": (lambda: sealed(_claiming(100)), "CORRUPT_BATCH"),
    "a bomb with a negative size": (lambda: sealed(_claiming(-2)), "CORRUPT_BATCH"),
    "a real bomb": (
        lambda: sealed(arrow(records.Compression.ZSTD, size=4 * MIB)),
        "TOO_LARGE",
    ),
    "above max_batch_bytes": (lambda: sealed(bytes(16 * MIB + 1)), "TOO_LARGE"),
    "rows of garbage": (
        lambda: _changed(
            rows(None, b"a"), payload=b"\xff" * 9, crc32c=records.checksum(b"\xff" * 9)
        ),
        "CORRUPT_BATCH",
    ),
    "another CRC": (lambda: _changed(rows(None, b"a"), crc32c=1), "CORRUPT_BATCH"),
    "another highest time": (
        lambda: _changed(rows(None, b"a"), max_timestamp_us=9),
        "CORRUPT_BATCH",
    ),
    "an encoding of the future": (
        lambda: _changed(rows(None, b"a"), encoding=99),
        "INVALID_ARGUMENT",
    ),
    "no encoding": (lambda: _changed(rows(None, b"a"), encoding=0), "INVALID_ARGUMENT"),
}


def _changed(batch: pb.Batch, **fields: Any) -> pb.Batch:
    for name, value in fields.items():
        setattr(batch, name, value)
    return batch


def test_every_bad_batch_is_refused_by_name_alone_and_its_neighbour_is_written(
    tmp_path: Path,
) -> None:
    async def tell(hand: Hand) -> None:
        where = await hand.topic("bad")
        producer = hand.plain_producer()
        for number, (what, (make, reason)) in enumerate(BATCHES.items()):
            bad, good = make(), rows(where, b"good")
            bad.partition.CopyFrom(where)
            bad.base_sequence = good.base_sequence = number
            request = log_pb.ProduceRequest(producer=producer, batches=[bad, good])
            reply = await hand.call("partition_leader.produce", request)
            refused, written = reply.results
            assert hand.reason_of(refused.error) == reason, what
            assert not written.HasField("error"), what
        assert await hand.values(where) == [b"good"] * len(BATCHES)

    story(tmp_path, tell)


# --------------------------------------------------------------------------- topics and positions


def test_unknown_and_old_topics_and_partitions_are_told_apart(tmp_path: Path) -> None:
    async def tell(hand: Hand) -> None:
        old = await hand.topic("comes-and-goes")
        await hand.produce(old, b"a")
        await hand.call(
            "partition_leader.delete_topic", log_pb.DeleteTopicRequest(name="comes-and-goes")
        )
        new = await hand.topic("comes-and-goes")
        beyond = pb.Partition(topic_id=new.topic_id, number=7)
        nobody = pb.Partition(topic_id=os.urandom(16))
        short = pb.Partition(topic_id=b"abc")
        for where, reason in (
            (old, "UNKNOWN_TOPIC"),
            (nobody, "UNKNOWN_TOPIC"),
            (beyond, "UNKNOWN_PARTITION"),
            (short, "INVALID_ARGUMENT"),
        ):
            assert await hand.why(hand.produce(where, b"b")) == reason
            assert await hand.why(hand.fetch(where, 0)) == reason
            assert await hand.why(hand.list_offsets(where)) == reason
            assert await hand.why(hand.transact(where, b"b")) == reason
        assert await hand.values(new) == []

    story(tmp_path, tell)


def test_topics_deleted_while_they_are_written_cost_nobody_else_a_leadership(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes of all partitions go to the disk together, new names with them. The disk is slow, so
    that a topic is gone before its first write is down."""
    fast = RealDisk._sync_all

    def slow(disk: RealDisk, fds: Sequence[int]) -> None:
        time.sleep(0.02)
        fast(disk, fds)

    async def tell(hand: Hand) -> None:
        steady = await hand.topic("steady")
        monkeypatch.setattr(RealDisk, "_sync_all", slow)

        async def write_on() -> None:
            producer = hand.plain_producer()
            for sequence in itertools.count():
                await hand.produce(steady, b"x", producer=producer, sequence=sequence)

        writing = asyncio.create_task(write_on())
        for number in range(12):
            name = f"short-lived-{number}"
            create = log_pb.CreateTopicRequest(name=name, partitions=2)
            await hand.call("partition_leader.create_topic", create)
            await asyncio.sleep(0.004 * number)
            await hand.call("partition_leader.delete_topic", log_pb.DeleteTopicRequest(name=name))
        assert not writing.done(), "nothing was refused"
        writing.cancel()
        described = await hand.call(
            "partition_leader.describe_topics", log_pb.DescribeTopicsRequest(names=["steady"])
        )
        assert described.topics[0].partitions[0].epoch == 1, "nobody had to be elected again"

    story(tmp_path, tell)


@pytest.mark.parametrize("offset", [2, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_an_offset_of_the_future_is_out_of_range_and_says_what_is_in_it(
    tmp_path: Path, offset: int
) -> None:
    async def tell(hand: Hand) -> None:
        where = await hand.topic("short")
        await hand.produce(where, b"a")
        for isolation in (log_pb.ISOLATION_COMMITTED, log_pb.ISOLATION_RAW):
            # The journal has an EPOCH_START before the record.
            at = offset if isolation == log_pb.ISOLATION_COMMITTED else offset + 1
            refused = await hand.refusal(hand.fetch(where, min(at, (1 << 64) - 1), isolation))
            assert refused.reason == "OFFSET_OUT_OF_RANGE"
            assert refused.metadata["start"] == "0"

    story(tmp_path, tell)


def test_times_of_any_sign_find_a_position(tmp_path: Path) -> None:
    async def tell(hand: Hand) -> None:
        where = await hand.topic("times")
        await hand.produce(where, b"a")
        for time_us, offset in ((-(1 << 63), 0), (-1, 0), (0, 0), ((1 << 63) - 1, 1)):
            assert await hand.list_offsets(where, timestamp_us=time_us) == offset

    story(tmp_path, tell)


def test_committed_offsets_of_any_size_are_checked(tmp_path: Path) -> None:
    async def tell(hand: Hand) -> None:
        where = await hand.topic("read")

        def commit(**fields: Any) -> Awaitable[Any]:
            step = offsets_pb.OffsetCommit(partition=where, **fields)
            offsets = offsets_pb.GroupOffsets(group="g", offsets=[step])
            request = offsets_pb.CommitOffsetsRequest(offsets=offsets)
            return hand.call("offset_manager.commit_offsets", request)

        huge = (1 << 64) - 1
        assert await hand.why(commit(to_offset=1)) == "INVALID_ARGUMENT"
        assert await hand.why(commit(from_any=True, to_offset=huge)) == "INVALID_ARGUMENT"
        assert await hand.why(commit(from_offset=huge, to_offset=1)) == "INVALID_ARGUMENT"
        assert await hand.why(commit(from_offset=5, to_offset=6)) == "STALE_POSITION"
        large = await hand.refusal(commit(from_none=True, to_offset=1, metadata="x" * 5_000))
        assert (large.reason, large.metadata["limit"]) == ("TOO_LARGE", "metadata_bytes_max")
        await commit(from_none=True, to_offset=1)

    story(tmp_path, tell)


# ------------------------------------------------------------------------------------ transactions


def test_an_empty_transaction_and_an_empty_manifest_commit(tmp_path: Path) -> None:
    """What the manifest does not name is dropped: it is what a failed attempt left."""

    async def tell(hand: Hand) -> None:
        where = await hand.topic("empty")
        producer = await hand.named_producer("p")
        nothing = await hand.begin(producer)
        await hand.commit(producer, nothing)
        left = await hand.begin(producer)
        await hand.produce(where, b"left behind", producer=producer, tx_id=left)
        await hand.commit(producer, left)
        full = await hand.begin(producer)
        await hand.produce(where, b"kept", producer=producer, tx_id=full)
        await hand.commit(producer, full, (where, 0, 1), wait=pb.WAIT_VISIBLE)
        assert await hand.values(where) == [b"kept"]

    story(tmp_path, tell)


def test_i4_a_transaction_ends_once_whatever_is_asked_afterwards(tmp_path: Path) -> None:
    async def tell(hand: Hand) -> None:
        where = await hand.topic("once")
        producer, other = await hand.named_producer("p"), await hand.named_producer("q")
        tx_id = await hand.begin(producer)
        await hand.produce(where, b"a", producer=producer, tx_id=tx_id)
        part = (where, 0, 1)
        assert await hand.why(hand.commit(other, tx_id, part)) == "PRODUCER_MISMATCH"
        assert await hand.why(hand.abort(other, tx_id)) == "PRODUCER_MISMATCH"
        first = await hand.commit(producer, tx_id, part, wait=pb.WAIT_VISIBLE)
        assert first.visible
        assert not (await hand.commit(producer, tx_id, part)).already_committed
        twice = await hand.refusal(hand.commit(producer, tx_id, (where, 0, 2)))
        assert twice.reason == "MANIFEST_MISMATCH"
        refused = await hand.refusal(hand.abort(producer, tx_id))
        assert (refused.reason, refused.metadata["outcome"]) == ("TRANSACTION_ENDED", "committed")
        late = hand.produce(where, b"b", producer=producer, tx_id=tx_id, sequence=1)
        assert await hand.why(late) == "TRANSACTION_ENDED"
        foreign = hand.produce(where, b"b", producer=other, tx_id=tx_id)
        assert await hand.why(foreign) == "TRANSACTION_ENDED"
        aborted = await hand.begin(producer)
        await hand.abort(producer, aborted)
        await hand.abort(producer, aborted)
        refused = await hand.refusal(hand.commit(producer, aborted))
        assert (refused.reason, refused.metadata["outcome"]) == ("TRANSACTION_ENDED", "aborted")
        assert await hand.why(hand.commit(producer, 5 << 48 | 7)) in (
            "UNKNOWN_TRANSACTION",
            "UNAVAILABLE",
        )
        assert await hand.why(hand.commit(producer, (1 << 64) - 1)) == "INVALID_ARGUMENT"
        assert await hand.values(where) == [b"a"]

    story(tmp_path, tell)


def test_gaps_and_repeats_of_sequences_say_what_was_next(tmp_path: Path) -> None:
    async def tell(hand: Hand) -> None:
        where = await hand.topic("gaps")
        plain = hand.plain_producer()

        def send(sequence: int, *values: bytes) -> Awaitable[Any]:
            return hand.produce(where, *values, producer=plain, sequence=sequence)

        assert await hand.why(send(3, b"x")) == "UNKNOWN_PRODUCER"
        await send(0, b"a", b"b")
        gap = await hand.refusal(send(3, b"x"))
        assert (gap.reason, gap.metadata["expected"]) == ("OUT_OF_ORDER_SEQUENCE", "2")
        assert await hand.why(send((1 << 64) - 1, b"x")) == "OUT_OF_ORDER_SEQUENCE"
        assert await hand.why(send(0, b"a")) == "DUPLICATE_SEQUENCE"
        repeat = await send(0, b"a", b"b")
        assert repeat.duplicate
        named = await hand.named_producer("p")
        assert await hand.why(hand.transact(where, b"x", producer=named, number=2)) == (
            "OUT_OF_ORDER_SEQUENCE"
        )
        assert await hand.values(where) == [b"a", b"b"]

    story(tmp_path, tell)


@pytest.mark.parametrize("parts", [100_000, 1_000_000])
def test_a_manifest_of_very_many_parts(tmp_path: Path, parts: int) -> None:
    """A hundred thousand are taken, and damaged, for nobody wrote them; a million are above the
    limit. The loop goes on: nobody loses a lease over it."""

    async def tell(hand: Hand) -> None:
        where = await hand.topic("wide", partitions=4)
        producer = await hand.named_producer("p")
        tx_id = await hand.begin(producer)
        manifest = pb.Manifest()
        column = manifest.topics.add(topic_id=where.topic_id)
        column.partition.extend(number % 4 for number in range(parts))
        column.writer.extend(range(parts))
        column.record_count.extend(itertools.repeat(1, parts))
        request = tx_pb.CommitTransactionRequest(
            tx_id=tx_id, producer=producer, manifest=manifest, wait=pb.WAIT_VISIBLE
        )
        refused = await hand.refusal(hand.call("coordinator.commit_transaction", request, 60))
        if parts > 100_000:
            assert (refused.reason, refused.metadata["limit"]) == (
                "TOO_LARGE",
                "manifest_parts_max",
            )
        else:
            assert refused.reason == "DAMAGED"

    story(tmp_path, tell)


def test_refusals_raise(tmp_path: Path) -> None:
    """The tests above would hold nothing if a refusal went unseen."""

    async def tell(hand: Hand) -> None:
        with pytest.raises(Refused, match="UNKNOWN_TOPIC"):
            await hand.produce(pb.Partition(topic_id=bytes(16)), b"a")
        with pytest.raises(AssertionError, match="was not refused"):
            await hand.refusal(asyncio.sleep(0))

    story(tmp_path, tell)
