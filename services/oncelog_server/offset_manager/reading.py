"""What readers are told of groups: FetchOffsets, ListGroups, DescribeGroup. Nothing is changed; the
replies wait for the high watermark. PURE."""

from __future__ import annotations

from collections.abc import Iterable

from oncelog_server.core.ids import PartitionId
from oncelog_server.core.machine import Instant
from oncelog_server.offset_manager.commands import (
    ClaimDescription,
    FetchedOffset,
    FetchedOffsets,
    FetchOffsets,
    GroupDescription,
    GroupSummary,
    MemberDescription,
    OffsetCommit,
    Read,
    View,
)
from oncelog_server.offset_manager.decide_membership import assignor_of
from oncelog_server.offset_manager.group import Group
from oncelog_server.offset_manager.liveness import Liveness
from oncelog_server.offset_manager.membership import Membership, MemberState
from oncelog_server.offset_manager.state import State
from oncelogpb.errors import InvalidArgument, NotFound, PendingTransaction
from oncelogpb.ids import show_id


def fetch(state: State, command: FetchOffsets) -> FetchedOffsets:
    """Raises InvalidArgument (another view), PendingTransaction (stable)."""
    group = state.groups.get(command.group, Group())
    partitions = command.partitions or tuple(group.partitions())
    offsets = [_fetched(group, partition, command) for partition in partitions]
    last_commits = sorted(group.last_commits.items()) if command.with_last_commits else ()
    return FetchedOffsets(offsets, last_commits)


def list_groups(state: State, names: Iterable[str]) -> tuple[GroupSummary, ...]:
    """Those of them that there are, by name."""
    return tuple(
        GroupSummary(
            name,
            len(group.committed),
            len(group.pending),
            max((committed.time_ms for committed in group.committed.values()), default=0),
            len(group.members()),
            (group.membership or Membership()).state,
        )
        for name in sorted(names)
        if (group := state.groups.get(name)) is not None
    )


def _fetched(group: Group, partition: PartitionId, command: FetchOffsets) -> FetchedOffset:
    """Raises InvalidArgument (another view), then PendingTransaction (stable)."""
    stored = group.view_of(partition)
    if stored is not None and stored is not command.view:
        raise InvalidArgument(
            f"the offset of partition {partition} is of the {stored.name} view; ask for that",
            field="view",
            stored=stored.name,
        )
    holder = group.holder(partition)
    if holder and command.read is Read.STABLE:
        raise PendingTransaction(
            f"transaction {show_id(holder)} holds a pending offset of partition {partition}; "
            "try again when it has ended",
            tx_id=holder,
            topic_id=partition.topic_id.hex(),
            partition=partition.number,
        )
    committed = group.committed.get(partition)
    if committed is None:
        return FetchedOffset(partition, None, stored or View.COMMITTED, "", 0, holder)
    step: OffsetCommit = committed.step
    return FetchedOffset(
        partition,
        step.to,
        step.view,
        step.metadata,
        committed.time_ms,
        holder,
        committed.mover,
    )


def describe(
    state: State, liveness: Liveness, claims: Liveness, name: str, now: Instant
) -> GroupDescription:
    """Of a group that never had members: an empty one. Raises NotFound."""
    group = state.groups.get(name)
    if group is None:
        raise NotFound(f"there is no group {name!r} here; `oncelog group list` shows all")
    membership = group.membership or Membership()
    members = tuple(
        _member(member_state, liveness.silent_ms(name, member_id, now.monotonic_ms))
        for member_id, member_state in membership.member_states.items()
    )
    assignor = assignor_of(membership.members()) if members else ""
    claimed = tuple(
        ClaimDescription(claim, claims.silent_ms(name, claim.claim_id, now.monotonic_ms))
        for claim in group.claims.values()
    )
    return GroupDescription(
        name, membership.generation, membership.state, assignor, members, claims=claimed
    )


def _member(member_state: MemberState, silent_ms: int | None) -> MemberDescription:
    member = member_state.member
    return MemberDescription(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.host,
        member.subscribed,
        member.assignor,
        tuple(sorted(member_state.owned)),
        tuple(sorted(member_state.targeted)),
        member.session_timeout_ms,
        silent_ms,
    )
