"""Protobuf to commands and back. Everything that can be judged without state is judged here.

Raises InvalidArgument (`field` says which), TooLarge (`limit` says which). PURE.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from oncelog_server.core.ids import (
    Generation,
    PartitionId,
    ProducerId,
    TopicId,
    TxId,
    can_be_tx_id,
    is_plain,
)
from oncelog_server.core.topic_limits import TOPIC_NAME_BYTES_MAX
from oncelog_server.core.wire import partition_id, partition_message
from oncelog_server.offset_manager.assignors import require_assignor
from oncelog_server.offset_manager.commands import (
    FROM_ANY,
    FROM_NONE,
    Assigned,
    Claim,
    ClaimDescription,
    ClaimGroup,
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteGroup,
    DescribeGroup,
    FetchedOffset,
    FetchedOffsets,
    FetchOffsets,
    GroupDescription,
    GroupState,
    GroupSummary,
    Heartbeat,
    LeaveGroup,
    MemberDescription,
    MemberIdentity,
    OffsetCommit,
    Read,
    ReleaseGroup,
    RemoveMember,
    ResetOffsets,
    View,
)
from oncelog_server.offset_manager.config import OFFSETS_PER_CALL_MAX
from oncelog_server.offset_manager.listing import Page
from oncelog_server.participant import wire as participant_wire
from oncelog_server.participant.commands import WriteMarkers
from oncelogpb.errors import InvalidArgument, InvalidTimeout, TooLarge
from oncelogpb.ids import show_id
from oncelogpb.v1 import offset_manager_pb2 as pb
from oncelogpb.v1 import participant_pb2 as participant_pb
from oncelogpb.v1 import types_pb2

GROUP_NAME_BYTES_MAX: Final = 255
METADATA_BYTES_MAX: Final = 4 * 1024
MEMBER_ID_BYTES_MAX: Final = 64
INSTANCE_ID_BYTES_MAX: Final = 255
CLIENT_ID_BYTES_MAX: Final = 255
# Names of the topics that one member subscribes to, together.
SUBSCRIPTION_BYTES_MAX: Final = 1 << 20
RESET_ID_BYTES: Final = 16
# Where a member does not say how long it may be silent.
SESSION_MS: Final = 10_000
# How long a claim lasts that nobody renews, at most.
CLAIM_MS_MAX: Final = 10_000
# Groups of one ListGroups, and where the caller says nothing.
LISTED_MAX: Final = 5_000
LISTED_DEFAULT: Final = 1_000
# Offsets are signed 64-bit wherever Arrow and Spark hold them.
OFFSET_MAX: Final = (1 << 63) - 1

_STATES: Final[dict[GroupState, pb.GroupState.ValueType]] = {
    GroupState.EMPTY: pb.GROUP_STATE_EMPTY,
    GroupState.MOVING: pb.GROUP_STATE_MOVING,
    GroupState.STABLE: pb.GROUP_STATE_STABLE,
}
_VIEWS: Final[dict[int, View]] = {
    types_pb2.VIEW_UNSPECIFIED: View.COMMITTED,
    types_pb2.VIEW_COMMITTED: View.COMMITTED,
    types_pb2.VIEW_JOURNAL: View.JOURNAL,
}


# --------------------------------------------------------------------------- requests to commands


def commit_offsets(request: pb.CommitOffsetsRequest) -> CommitOffsets:
    steps = _steps(request.offsets)
    return CommitOffsets(
        request.offsets.group,
        steps,
        member=_member_of(request.offsets),
        from_metadata=_from_metadata(request.offsets),
    )


def commit_transaction_offsets(
    request: pb.CommitTransactionOffsetsRequest,
) -> CommitTransactionOffsets:
    offsets = _steps(request.offsets)
    member = _member_of(request.offsets)
    if is_plain(request.producer.producer_id) or request.producer.producer_id == 0:
        raise InvalidArgument(
            "producer.producer_id must come from InitProducer", field="producer.producer_id"
        )
    return CommitTransactionOffsets(
        _tx_id(request.tx_id),
        ProducerId(request.producer.producer_id),
        Generation(request.producer.generation),
        request.offsets.group,
        offsets,
        member=member,
        timeout_ms=request.timeout_ms,
        from_metadata=_from_metadata(request.offsets),
    )


def fetch_offsets(request: pb.FetchOffsetsRequest) -> FetchOffsets:
    _require_count(len(request.partitions))
    return FetchOffsets(
        group_name(request.group),
        tuple(partition_id(partition) for partition in request.partitions),
        Read.STABLE if request.stable else Read.LAST_COMMITTED,
        _view(request.view),
        request.with_last_commits,
    )


def heartbeat(request: pb.HeartbeatRequest, host: str) -> Heartbeat:
    """Without what this process sees of its topics."""
    group_name(request.group)
    if not request.HasField("member"):
        raise InvalidArgument("a heartbeat must say whose it is", field="member")
    _require_bytes("client_id", request.client_id, CLIENT_ID_BYTES_MAX)
    _require_bytes("replaces", request.replaces, MEMBER_ID_BYTES_MAX)
    _require_subscription(request.subscribed_topics)
    _require_count(len(request.owned))
    if request.assignor:
        require_assignor(request.assignor)
    return Heartbeat(
        request.group,
        _member(request.member),
        tuple(sorted(set(request.subscribed_topics))),
        frozenset(partition_id(partition) for partition in request.owned),
        (),
        assignor=request.assignor,
        session_timeout_ms=request.session_timeout_ms or SESSION_MS,
        client_id=request.client_id,
        host=host,
        replaces=request.replaces,
    )


def leave(heartbeat: Heartbeat) -> LeaveGroup:
    return LeaveGroup(heartbeat.group, heartbeat.member)


def claim_group(request: pb.ClaimGroupRequest) -> ClaimGroup | ReleaseGroup:
    group_name(request.group)
    if not request.claim_id:
        raise InvalidArgument("a claim has an id that is drawn at random", field="claim_id")
    _require_bytes("claim_id", request.claim_id, MEMBER_ID_BYTES_MAX)
    if request.release:
        return ReleaseGroup(request.group, request.claim_id)
    if not request.holder:
        raise InvalidArgument("a claim says whose it is", field="holder")
    _require_bytes("holder", request.holder, CLIENT_ID_BYTES_MAX)
    if request.timeout_ms > CLAIM_MS_MAX:
        raise InvalidTimeout(
            f"a claim lasts for {CLAIM_MS_MAX} ms at most, not {request.timeout_ms}: renew it",
            limit="claim_ms_max",
        )
    timeout_ms = request.timeout_ms or CLAIM_MS_MAX
    return ClaimGroup(request.group, Claim(request.claim_id, request.holder, timeout_ms))


def group_page(request: pb.ListGroupsRequest, sees: Callable[[str], bool]) -> Page:
    limit = min(request.limit or LISTED_DEFAULT, LISTED_MAX)
    return Page(request.prefix, request.after, limit, sees)


def describe_group(request: pb.DescribeGroupRequest) -> DescribeGroup:
    return DescribeGroup(group_name(request.group))


def remove_member(request: pb.RemoveMemberRequest) -> RemoveMember:
    if bool(request.member_id) == bool(request.instance_id):
        raise InvalidArgument("name a member_id or an instance_id", field="member_id")
    return RemoveMember(group_name(request.group), request.member_id, request.instance_id)


def delete_group(request: pb.DeleteGroupRequest) -> DeleteGroup:
    return DeleteGroup(group_name(request.group))


def reset_offsets(request: pb.ResetOffsetsRequest) -> ResetOffsets:
    steps = _steps(request.offsets)
    if request.offsets.HasField("member"):
        raise InvalidArgument("a reset is nobody's commit: leave out member", field="member")
    if any(step.after for step in steps):
        raise InvalidArgument("a reset chains on no transaction", field="after_tx_id")
    if len(request.reset_id) != RESET_ID_BYTES:
        raise InvalidArgument(
            f"reset_id has {RESET_ID_BYTES} bytes, drawn at random for each reset",
            field="reset_id",
        )
    return ResetOffsets(
        request.offsets.group,
        request.reset_id,
        steps,
        request.dry_run,
        from_metadata=_from_metadata(request.offsets),
    )


def write_markers(group: participant_pb.MarkerGroup) -> WriteMarkers:
    if any(marker.HasField("batch") for marker in group.markers):
        raise InvalidArgument(
            "a marker for __consumer_offsets carries no records: its offsets are pending here",
            field="markers.batch",
        )
    return participant_wire.write_markers(group)


def group_name(name: str) -> str:
    """Checked."""
    if not 1 <= len(name.encode()) <= GROUP_NAME_BYTES_MAX:
        raise InvalidArgument(
            f"the group's name must have 1 to {GROUP_NAME_BYTES_MAX} bytes", field="group"
        )
    return name


# ------------------------------------------------------------------------------ replies to the wire


def transaction_offsets_reply(participant: PartitionId) -> pb.CommitTransactionOffsetsReply:
    return pb.CommitTransactionOffsetsReply(participant=partition_message(participant))


def fetch_reply(fetched: FetchedOffsets, *, group_retention_ms: int) -> pb.FetchOffsetsReply:
    return pb.FetchOffsetsReply(
        offsets=[_fetched(offset) for offset in fetched.offsets],
        last_commits=[
            pb.LastCommit(producer_id=producer_id, tx_id=tx_id)
            for producer_id, tx_id in fetched.last_commits
        ],
        group_retention_ms=group_retention_ms,
    )


def heartbeat_reply(assigned: Assigned) -> pb.HeartbeatReply:
    member = assigned.member
    return pb.HeartbeatReply(
        member=pb.GroupMember(
            generation=member.generation,
            member_id=member.member_id,
            instance_id=member.instance_id,
        ),
        assignment=[partition_message(partition) for partition in assigned.partitions],
        topics=[
            pb.TopicName(topic_id=topic_id, name=name) for topic_id, name in assigned.topic_names
        ],
        heartbeat_interval_ms=assigned.heartbeat_interval_ms,
        session_timeout_ms=assigned.session_timeout_ms,
    )


def describe_reply(
    group: GroupDescription, topic_names: Iterable[tuple[TopicId, str]]
) -> pb.DescribeGroupReply:
    return pb.DescribeGroupReply(
        group=group.group,
        generation=group.generation,
        state=_STATES[group.state],
        assignor=group.assignor,
        members=[_described(member) for member in group.members],
        topics=[pb.TopicName(topic_id=topic_id, name=name) for topic_id, name in topic_names],
        outgrown=[pb.OutgrownTopic(**topic._asdict()) for topic in group.outgrown],
        claims=[_claimed(claim) for claim in group.claims],
    )


def list_reply(groups: Iterable[GroupSummary], *, more: bool) -> pb.ListGroupsReply:
    return pb.ListGroupsReply(
        more=more,
        groups=[
            pb.GroupListing(
                group=group.group,
                committed_partitions=group.committed_partitions,
                pending_partitions=group.pending_partitions,
                last_commit_time_ms=group.last_commit_time_ms,
                members=group.members,
                state=_STATES[group.state],
            )
            for group in groups
        ],
    )


# ------------------------------------------------------------------------------------------ leaves


def _steps(offsets: pb.GroupOffsets) -> tuple[OffsetCommit, ...]:
    group_name(offsets.group)
    if not offsets.offsets:
        raise InvalidArgument("offsets are empty: name at least one partition", field="offsets")
    _require_count(len(offsets.offsets))
    steps = tuple(_step(commit) for commit in offsets.offsets)
    _require_distinct([step.partition for step in steps])
    return steps


def _from_metadata(offsets: pb.GroupOffsets) -> dict[PartitionId, str]:
    told = [commit for commit in offsets.offsets if commit.HasField("from_metadata")]
    for commit in told:
        _require_metadata(commit.from_metadata)
        if commit.WhichOneof("from") == "from_any":
            raise InvalidArgument(
                "from_any is not checked, so leave out from_metadata", field="from_metadata"
            )
    return {partition_id(commit.partition): commit.from_metadata for commit in told}


def _member_of(offsets: pb.GroupOffsets) -> MemberIdentity | None:
    return _member(offsets.member) if offsets.HasField("member") else None


def _member(member: pb.GroupMember) -> MemberIdentity:
    if not member.member_id:
        raise InvalidArgument(
            "a member has an id that it draws at random when it joins", field="member_id"
        )
    _require_bytes("member_id", member.member_id, MEMBER_ID_BYTES_MAX)
    _require_bytes("instance_id", member.instance_id, INSTANCE_ID_BYTES_MAX)
    return MemberIdentity(member.generation, member.member_id, member.instance_id)


def _require_bytes(field: str, text: str, limit: int) -> None:
    if len(text.encode()) > limit:
        raise InvalidArgument(f"{field} has at most {limit} bytes of UTF-8", field=field)


def _require_subscription(names: Sequence[str]) -> None:
    """They stay in memory, and stand in a record of the group: also those of no topic."""
    _require_count(len(names))
    subscription_bytes = 0
    for name in names:
        _require_bytes("subscribed_topics", name, TOPIC_NAME_BYTES_MAX)
        subscription_bytes += len(name.encode())
    if subscription_bytes > SUBSCRIPTION_BYTES_MAX:
        raise TooLarge(
            f"the names of the topics that a member subscribes to have {subscription_bytes} bytes, "
            f"and {SUBSCRIPTION_BYTES_MAX} at most; use several groups",
            limit="subscription_bytes_max",
            maximum=SUBSCRIPTION_BYTES_MAX,
        )


def _step(commit: pb.OffsetCommit) -> OffsetCommit:
    _require_metadata(commit.metadata)
    if commit.to_offset > OFFSET_MAX:
        raise InvalidArgument(f"to_offset must be at most {OFFSET_MAX}", field="to_offset")
    return OffsetCommit(
        partition_id(commit.partition),
        _from(commit),
        commit.to_offset,
        _view(commit.view),
        commit.metadata,
        TxId(commit.after_tx_id),
    )


def _require_metadata(text: str) -> None:
    if len(text.encode()) > METADATA_BYTES_MAX:
        raise TooLarge(
            f"the metadata of an offset has at most {METADATA_BYTES_MAX} bytes of UTF-8",
            limit="metadata_bytes_max",
        )


def _from(commit: pb.OffsetCommit) -> int:
    match commit.WhichOneof("from"):
        case "from_offset":
            if commit.from_offset > OFFSET_MAX:
                raise InvalidArgument(
                    f"from_offset must be at most {OFFSET_MAX}", field="from_offset"
                )
            return commit.from_offset
        case "from_none":
            return FROM_NONE
        case "from_any":
            return FROM_ANY
    raise InvalidArgument(
        "an offset must say where its caller started: from_offset, from_none (nothing was "
        "committed) or from_any (not checked)",
        field="from",
    )


def _view(view: int) -> View:
    known = _VIEWS.get(view)
    if known is None:
        raise InvalidArgument(f"view {view} is not one of oncelogpb.v1.View", field="view")
    return known


def _tx_id(tx_id: int) -> TxId:
    if not can_be_tx_id(tx_id):
        raise InvalidArgument(
            f"{show_id(tx_id)} is not a TxId; it must come from BeginTransaction", field="tx_id"
        )
    return TxId(tx_id)


def _require_count(count: int) -> None:
    if count > OFFSETS_PER_CALL_MAX:
        raise TooLarge(
            f"a call names at most {OFFSETS_PER_CALL_MAX} partitions, this one {count}; split it",
            limit="offsets_per_call_max",
        )


def _require_distinct(partitions: Sequence[PartitionId]) -> None:
    counted = Counter(partitions)
    if len(counted) != len(partitions):
        twice, _ = counted.most_common(1)[0]
        raise InvalidArgument(f"partition {twice} stands twice in one call", field="offsets")


def _described(member: MemberDescription) -> pb.DescribedMember:
    return pb.DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        subscribed_topics=member.subscribed,
        assignor=member.assignor,
        owned=[partition_message(partition) for partition in member.owned],
        target=[partition_message(partition) for partition in member.target],
        session_timeout_ms=member.session_timeout_ms,
        silent_ms=member.silent_ms,
    )


def _claimed(described: ClaimDescription) -> pb.DescribedClaim:
    claim = described.claim
    return pb.DescribedClaim(
        claim_id=claim.claim_id,
        holder=claim.holder,
        timeout_ms=claim.timeout_ms,
        silent_ms=described.silent_ms,
    )


def _fetched(fetched: FetchedOffset) -> pb.CommittedOffset:
    return pb.CommittedOffset(
        partition=partition_message(fetched.partition),
        offset=fetched.offset,
        metadata=fetched.metadata,
        view=types_pb2.View.ValueType(fetched.view.value),
        commit_time_ms=fetched.commit_time_ms,
        pending_tx_id=fetched.pending_tx_id,
        moved_by_tx_id=fetched.moved_by,
    )
