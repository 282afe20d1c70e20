"""A topic that is compacted takes no record without a key: nothing of its batch, told by name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from oncelog_server.core.ids import PartitionId
from oncelogpb import errors, records
from oncelogpb.records import Compression
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2
from tests.unit.partition_leader.fakes import FIRST, SECOND, TOPIC, World
from tests.unit.partition_leader.messages import partition_of, plain, send
from tests.unit.partition_leader.test_produce import produce, reasons

Keys = Sequence[bytes | None]


def keyed(
    keys: Keys,
    compression: Compression | None = None,
    *,
    sequence: int = 0,
    partition: PartitionId = FIRST,
) -> types_pb2.Batch:
    """None: as rows."""
    values = [b"v"] * len(keys)
    if compression is None:
        content = records.make_rows(list(keys), values, 5)
        payload = content.SerializeToString()
        sealed = types_pb2.Batch(
            encoding=records.ROWS,
            payload=payload,
            record_count=len(keys),
            crc32c=records.checksum(payload),
            max_timestamp_us=5,
        )
    else:
        payload = records.encode_arrow(records.make_batch(list(keys), values, 5), compression)
        sealed = types_pb2.Batch(
            encoding=records.ARROW_V1,
            payload=payload.to_pybytes(),
            record_count=len(keys),
            crc32c=records.checksum(payload),
            max_timestamp_us=5,
        )
    sealed.partition.CopyFrom(partition_of(partition))
    sealed.base_sequence = sequence
    return sealed


def compacted(policy: str = "compact") -> World:
    world = World()
    topic = TOPIC._replace(configs={"cleanup.policy": policy})
    world.metadata.by_name[TOPIC.name] = topic
    return world


ENCODINGS = [None, Compression.NONE, Compression.LZ4]


@pytest.mark.parametrize("compression", ENCODINGS)
@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_a_record_without_a_key_is_refused_by_name(
    policy: str, compression: Compression | None
) -> None:
    world = compacted(policy)
    request = plain(keyed([b"a", b"", None, b"d", None], compression))
    (reply,) = produce(world, request)
    error = errors.from_status(reply.results[0].error)
    assert isinstance(error, errors.InvalidArgument)
    assert error.metadata["field"] == "key"
    assert not error.retriable
    for word in ("record 2 ", "'payments'", "cleanup.policy", "give each record a key"):
        assert word in str(error)
    assert len(world.first.frames) == 1, "nothing of the batch is written"


@pytest.mark.parametrize("compression", ENCODINGS)
def test_an_empty_key_is_a_key(compression: Compression | None) -> None:
    (reply,) = produce(compacted(), plain(keyed([b"", b"\0\0\0\0", b"x"], compression)))
    assert reasons(reply) == ["ok"]


@pytest.mark.parametrize("compression", ENCODINGS)
@pytest.mark.parametrize("policy", ["", "delete"])
def test_elsewhere_a_record_needs_no_key(policy: str, compression: Compression | None) -> None:
    (reply,) = produce(compacted(policy), plain(keyed([None], compression)))
    assert reasons(reply) == ["ok"]


def test_a_batch_is_refused_alone() -> None:
    world = compacted()
    good = keyed([b"a"], partition=SECOND)
    (reply,) = produce(world, send(5, keyed([b"a"]), keyed([None], sequence=1), good))
    assert reasons(reply) == ["ok", "INVALID_ARGUMENT", "ok"]
    assert [it.frame.record_count for it in world.first.frames[1:]] == [1]


def test_i6_what_was_written_before_it_was_compacted_is_acknowledged_again() -> None:
    world = World()
    request: pb.ProduceRequest = plain(keyed([None]))
    (before,) = produce(world, request)
    world.metadata.by_name[TOPIC.name] = TOPIC._replace(configs={"cleanup.policy": "compact"})
    again, another = produce(world, request, plain(keyed([None], sequence=1)))
    assert again.results[0].journal_offset == before.results[0].journal_offset
    assert again.results[0].duplicate
    assert reasons(another) == ["INVALID_ARGUMENT"]


def test_a_topic_that_is_compacted_from_now_on_refuses_from_now_on() -> None:
    world = World()
    first, second = plain(keyed([b"a"])), plain(keyed([None], sequence=1))
    assert [reasons(it) for it in produce(world, first)] == [["ok"]]
    world.metadata.by_name[TOPIC.name] = TOPIC._replace(configs={"cleanup.policy": "compact"})
    assert [reasons(it) for it in produce(world, second)] == [["INVALID_ARGUMENT"]]
    world.metadata.by_name[TOPIC.name] = TOPIC
    assert [reasons(it) for it in produce(world, second)] == [["ok"]]
