"""What is judged before the machine is asked, in order of precedence."""

from __future__ import annotations

import pytest

from oncelog_server.core.ids import PartitionId, ProducerId, TopicId, TxId, compose_tx_id
from oncelog_server.offset_manager import wire
from oncelog_server.offset_manager.commands import (
    FROM_ANY,
    FROM_NONE,
    CommitOffsets,
    FetchedOffset,
    FetchedOffsets,
    OffsetCommit,
    View,
)
from oncelogpb.errors import InvalidArgument, InvalidTimeout, OncelogError, TooLarge
from oncelogpb.v1 import offset_manager_pb2 as pb
from oncelogpb.v1 import participant_pb2, types_pb2

TOPIC = TopicId(b"0123456789abcdef")
P0 = types_pb2.Partition(topic_id=TOPIC, number=0)
TX = compose_tx_id(3, 5)


def _offset(**fields: object) -> pb.OffsetCommit:
    return pb.OffsetCommit(**{"partition": P0, "from_none": True, "to_offset": 5} | fields)  # type: ignore[arg-type]


def _offsets(*offsets: pb.OffsetCommit, group: str = "g", **fields: object) -> pb.GroupOffsets:
    return pb.GroupOffsets(group=group, offsets=offsets or [_offset()], **fields)  # type: ignore[arg-type]


# Each row breaks one rule and all later ones that it can: the first broken rule answers.
REFUSALS: list[tuple[str, pb.GroupOffsets, type[OncelogError], str]] = [
    ("no group", pb.GroupOffsets(member=pb.GroupMember()), InvalidArgument, "group"),
    ("long group", _offsets(group="é" * 128), InvalidArgument, "group"),
    ("nothing", pb.GroupOffsets(group="g"), InvalidArgument, "offsets"),
    ("metadata", _offsets(_offset(metadata="é" * 2049)), TooLarge, "metadata_bytes_max"),
    ("to", _offsets(_offset(to_offset=1 << 63)), InvalidArgument, "to_offset"),
    (
        "a topic by name",
        _offsets(_offset(partition=types_pb2.Partition(topic_id=b"orders"))),
        InvalidArgument,
        "partition.topic_id",
    ),
    ("from", _offsets(_offset(from_offset=1 << 63)), InvalidArgument, "from_offset"),
    (
        "no from",
        _offsets(pb.OffsetCommit(partition=P0, to_offset=1)),
        InvalidArgument,
        "from",
    ),
    (
        "from_metadata",
        _offsets(_offset(from_metadata="é" * 2049)),
        TooLarge,
        "metadata_bytes_max",
    ),
    (
        "unchecked, and from_metadata",
        _offsets(pb.OffsetCommit(partition=P0, from_any=True, from_metadata="")),
        InvalidArgument,
        "from_metadata",
    ),
    ("view", _offsets(_offset(view=9)), InvalidArgument, "view"),
    ("no member id", _offsets(member=pb.GroupMember()), InvalidArgument, "member_id"),
    (
        "long member id",
        _offsets(member=pb.GroupMember(member_id="m" * 65)),
        InvalidArgument,
        "member_id",
    ),
    (
        "long instance id",
        _offsets(member=pb.GroupMember(member_id="m", instance_id="é" * 128)),
        InvalidArgument,
        "instance_id",
    ),
    ("twice", _offsets(_offset(), _offset(to_offset=6)), InvalidArgument, "offsets"),
]


@pytest.mark.parametrize(
    ("offsets", "kind", "named"),
    [row[1:] for row in REFUSALS],
    ids=[row[0] for row in REFUSALS],
)
def test_a_broken_rule_is_named(
    offsets: pb.GroupOffsets, kind: type[OncelogError], named: str
) -> None:
    with pytest.raises(kind) as refusal:
        wire.commit_offsets(pb.CommitOffsetsRequest(offsets=offsets))
    assert named in refusal.value.metadata.values()


def test_too_many_partitions_are_refused_by_the_limits_name() -> None:
    partitions = [types_pb2.Partition(topic_id=TOPIC, number=n) for n in range(10_001)]
    with pytest.raises(TooLarge) as refusal:
        wire.fetch_offsets(pb.FetchOffsetsRequest(group="g", partitions=partitions))
    assert refusal.value.metadata["limit"] == "offsets_per_call_max"


@pytest.mark.parametrize(
    ("start", "from_"),
    [
        ({"from_offset": 0}, 0),
        ({"from_offset": (1 << 63) - 1}, (1 << 63) - 1),
        ({"from_none": True}, FROM_NONE),
        ({"from_any": True}, FROM_ANY),
    ],
)
def test_every_form_of_from(start: dict[str, int], from_: int) -> None:
    commit = pb.OffsetCommit(partition=P0, to_offset=7, after_tx_id=TX, metadata="m", **start)  # type: ignore[arg-type]
    command = wire.commit_offsets(pb.CommitOffsetsRequest(offsets=_offsets(commit)))
    step = OffsetCommit(PartitionId(TOPIC, 0), from_, 7, View.COMMITTED, "m", TX)
    assert command == CommitOffsets("g", (step,))


def test_from_metadata_that_are_absent_are_not_empty() -> None:
    commits = _offsets(
        _offset(),
        _offset(partition=types_pb2.Partition(topic_id=TOPIC, number=1), from_metadata=""),
    )
    command = wire.commit_offsets(pb.CommitOffsetsRequest(offsets=commits))
    assert command.from_metadata == {PartitionId(TOPIC, 1): ""}


@pytest.mark.parametrize(
    ("tx_id", "producer_id", "field"),
    [
        (TX, 0, "producer.producer_id"),
        (TX, 1 << 63, "producer.producer_id"),
        (0, 7, "tx_id"),
        (3 << 48, 7, "tx_id"),
        (16 << 48 | 5, 7, "tx_id"),
    ],
)
def test_a_transaction_needs_a_named_producer_and_a_txid(
    tx_id: int, producer_id: int, field: str
) -> None:
    request = pb.CommitTransactionOffsetsRequest(
        tx_id=tx_id, producer=types_pb2.Producer(producer_id=producer_id), offsets=_offsets()
    )
    with pytest.raises(InvalidArgument) as refusal:
        wire.commit_transaction_offsets(request)
    assert refusal.value.metadata["field"] == field


def test_a_marker_that_carries_records_is_refused() -> None:
    marker = participant_pb2.Marker(
        tx_id=TX,
        prepare_offset=9,
        kind=participant_pb2.MARKER_KIND_COMMITTED,
        batch=types_pb2.Batch(partition=P0),
    )
    with pytest.raises(InvalidArgument) as refusal:
        wire.write_markers(participant_pb2.MarkerGroup(journal_partition=3, markers=[marker]))
    assert refusal.value.metadata["field"] == "markers.batch"


def test_absent_and_zero_differ_in_a_fetch_reply() -> None:
    nothing = FetchedOffset(PartitionId(TOPIC, 0), None, View.COMMITTED, "", 0, TxId(0))
    zero = FetchedOffset(PartitionId(TOPIC, 1), 0, View.JOURNAL, "m", 77, TX)
    reply = wire.fetch_reply(
        FetchedOffsets([nothing, zero], [(ProducerId(7), TX)]), group_retention_ms=1
    )
    assert [offset.HasField("offset") for offset in reply.offsets] == [False, True]
    assert reply.offsets[1].view == types_pb2.VIEW_JOURNAL
    assert (reply.offsets[1].pending_tx_id, reply.offsets[1].commit_time_ms) == (TX, 77)
    assert [(last.producer_id, last.tx_id) for last in reply.last_commits] == [(7, TX)]


RESET_ID = b"r" * 16
RESETS: list[tuple[str, pb.ResetOffsetsRequest, str]] = [
    ("no id", pb.ResetOffsetsRequest(offsets=_offsets()), "reset_id"),
    ("short id", pb.ResetOffsetsRequest(offsets=_offsets(), reset_id=b"r"), "reset_id"),
    (
        "a member's",
        pb.ResetOffsetsRequest(
            offsets=_offsets(member=pb.GroupMember(member_id="m")), reset_id=RESET_ID
        ),
        "member",
    ),
    (
        "chained",
        pb.ResetOffsetsRequest(offsets=_offsets(_offset(after_tx_id=TX)), reset_id=RESET_ID),
        "after_tx_id",
    ),
    ("nothing", pb.ResetOffsetsRequest(offsets=pb.GroupOffsets(group="g")), "offsets"),
]


@pytest.mark.parametrize(
    ("request_", "field"), [row[1:] for row in RESETS], ids=[row[0] for row in RESETS]
)
def test_a_reset_of_the_wrong_shape_says_what_is_wrong(
    request_: pb.ResetOffsetsRequest, field: str
) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        wire.reset_offsets(request_)
    assert refusal.value.metadata["field"] == field


def _heartbeat(*subscribed: str) -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(
        group="g", member=pb.GroupMember(member_id="m"), subscribed_topics=subscribed
    )


def test_a_member_subscribes_to_names_that_a_topic_can_have() -> None:
    """One of 32 MiB was a record that no frame takes, and ended the offset manager's process."""
    longest = "t" * 249
    assert wire.heartbeat(_heartbeat(longest), "").subscribed == (longest,)
    with pytest.raises(InvalidArgument) as refusal:
        wire.heartbeat(_heartbeat("t", longest + "t"), "")
    assert refusal.value.metadata["field"] == "subscribed_topics"


def test_what_a_member_subscribes_to_has_a_limit_in_all() -> None:
    names = [f"{number:0249}" for number in range(wire.SUBSCRIPTION_BYTES_MAX // 249)]
    assert len(wire.heartbeat(_heartbeat(*names), "").subscribed) == len(names)
    with pytest.raises(TooLarge) as refusal:
        wire.heartbeat(_heartbeat(*names, "t" * 249), "")
    assert refusal.value.metadata["limit"] == "subscription_bytes_max"


CLAIMS: list[tuple[str, pb.ClaimGroupRequest, type[OncelogError], str]] = [
    ("no group", pb.ClaimGroupRequest(claim_id="c"), InvalidArgument, "group"),
    ("no id", pb.ClaimGroupRequest(group="g", holder="h"), InvalidArgument, "claim_id"),
    ("nobody", pb.ClaimGroupRequest(group="g", claim_id="c"), InvalidArgument, "holder"),
    (
        "long words",
        pb.ClaimGroupRequest(group="g", claim_id="c", holder="h" * 256),
        InvalidArgument,
        "holder",
    ),
    (
        "for long",
        pb.ClaimGroupRequest(group="g", claim_id="c", holder="h", timeout_ms=10_001),
        InvalidTimeout,
        "claim_ms_max",
    ),
]


@pytest.mark.parametrize(
    ("request_", "error", "what"), [row[1:] for row in CLAIMS], ids=[row[0] for row in CLAIMS]
)
def test_a_claim_of_the_wrong_shape_says_what_is_wrong(
    request_: pb.ClaimGroupRequest, error: type[OncelogError], what: str
) -> None:
    with pytest.raises(error) as refusal:
        wire.claim_group(request_)
    assert what in refusal.value.metadata.values()
