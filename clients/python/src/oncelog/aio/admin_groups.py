"""Consumer groups, as operators see them: the part of `log.admin` that concerns them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from oncelog._core.requests import made
from oncelog._core.routing import PartitionKey
from oncelog.aio import group_commits, group_resetting, group_standing
from oncelog.aio.group_standing import Standing
from oncelog.aio.listing import all_pages
from oncelog.batch import TopicPartition
from oncelog.groups import (
    GroupClaim,
    GroupDescription,
    GroupInfo,
    GroupOffset,
    LastCommit,
    MemberInfo,
    OffsetReset,
    OutgrownTopic,
    Rows,
    Where,
    Wheres,
)
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2 as pb
from oncelogpb.v1 import types_pb2

STATES: Final[dict[pb.GroupState.ValueType, str]] = {
    # Of an offset manager that knows no members.
    pb.GROUP_STATE_UNSPECIFIED: "",
    pb.GROUP_STATE_EMPTY: "empty",
    pb.GROUP_STATE_MOVING: "moving",
    pb.GROUP_STATE_STABLE: "stable",
}


class GroupAdmin:
    """Groups, of `log.admin`."""

    def __init__(self, protocol: AsyncProtocol) -> None:
        self._protocol = protocol

    async def groups(self, prefix: str = "") -> list[GroupInfo]:
        """By name."""
        request = made(pb.ListGroupsRequest, prefix=prefix)
        return [
            GroupInfo(
                item.group,
                item.committed_partitions,
                item.pending_partitions,
                item.last_commit_time_ms,
                item.members,
                STATES[item.state],
            )
            for item in await all_pages(self._protocol, "offset_manager.list_groups", request)
        ]

    async def describe_group(self, group: str) -> GroupDescription:
        """Its members, who has what, where it stands in every partition of the topics that it has
        offsets of, or members for, and which transaction of each producer committed last for it.
        Raises NotFound where it has neither offsets nor members."""
        described: pb.DescribeGroupReply = await self._protocol.call(
            "offset_manager.describe_group", made(pb.DescribeGroupRequest, group=group)
        )
        topics = await group_standing.topics_of(
            self._protocol, [topic.topic_id for topic in described.topics]
        )
        found = await group_standing.ask(
            self._protocol, group, topics.values(), with_last_commits=True
        )
        if not (found.offsets or described.members or described.claims):
            raise errors.NotFound(f"group {group!r} has neither offsets nor members", group=group)
        owners = {
            PartitionKey.of(partition): member.member_id
            for member in described.members
            for partition in member.owned
        }
        return GroupDescription(
            group,
            STATES[described.state],
            described.generation,
            described.assignor or None,
            tuple(_member(member, found) for member in described.members),
            Rows(GroupOffset, found.rows(owners)),
            tuple(LastCommit(last.producer_id, last.tx_id) for last in found.last_commits),
            tuple(
                OutgrownTopic(topic.name, topic.partitions, topic.shared_out)
                for topic in described.outgrown
            ),
            tuple(
                GroupClaim(
                    claim.holder,
                    claim.timeout_ms,
                    claim.silent_ms if claim.HasField("silent_ms") else None,
                )
                for claim in described.claims
            ),
        )

    async def group_offsets(self, group: str) -> Rows[GroupOffset]:
        """Where the group stands in every partition of the topics that it has offsets of; pending
        offsets are named, not waited for. Empty for a group that has none."""
        found = await group_standing.ask(self._protocol, group)
        return Rows(GroupOffset, found.rows({}))

    async def wait_for_commit(
        self,
        group: str,
        transaction: int | str | errors.OncelogError,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        """Waits until the group has committed this transaction: from its return on, whoever asks
        for the group's offsets is told those of it, or later ones. `transaction`: as in
        `describe_transaction`, a `tx_id` say.

        Raises PendingTransaction where it has not within that time, TransactionEnded where it was
        aborted, NotFound where it is committed and has no offsets of this group
        (not seen any more once its producer has committed later ones of the group: then this
        returns), UnknownTransaction where there never was one, or nobody knows any more."""
        await group_commits.wait_for_commit(self._protocol, group, transaction, timeout_s)

    async def reset_offsets(
        self, group: str, to: Where | Wheres, *, dry_run: bool = False
    ) -> Rows[OffsetReset]:
        """Has the group go on from somewhere else, and says from where to where. `to`: "earliest",
        "latest", an offset, a datetime with its zone (the first record of that time or later) or
        Shift(so many records on, or back) for all partitions of the topics that it has offsets of;
        or a dict of these by topic, or by (topic, partition), of a group that need not have any. An
        offset that a partition does not have becomes the nearest that it has. All or none are
        changed; nothing is with `dry_run`, which raises what the reset would.

        Stop its consumers first. Raises UnknownMember while it has members, PendingTransaction
        while a transaction holds any of its offsets, StalePosition where it has moved meanwhile,
        NotFound where it has no offsets and no topic is named, UnknownTopic, UnknownPartition,
        Unavailable, UnknownOutcome."""
        plan = await group_resetting.plan(self._protocol, group, to)
        await group_resetting.execute(self._protocol, plan, dry_run=dry_run)
        return plan.rows()

    async def remove_member(self, group: str, member_id: str = "", *, instance_id: str = "") -> str:
        """Takes a member out of its group, by its id or its instance id: what it owns is free at
        once, and what it commits from now on is refused. If its process lives it joins again: stop
        it first. Returns its member id. Raises NotFound, UnknownOutcome (look whether it is
        there)."""
        if bool(member_id) == bool(instance_id):
            raise errors.InvalidArgument(
                "name a member by its member_id or by its instance_id", field="member_id"
            )
        named = {"member_id": member_id} if member_id else {"instance_id": instance_id}
        request = made(pb.RemoveMemberRequest, group=group, **named)
        reply = await self._protocol.call("offset_manager.remove_member", request)
        return str(reply.member_id)

    async def delete_group(self, group: str) -> None:
        """Forgets its offsets. Raises PendingTransaction, UnknownMember while it has members,
        NotFound."""
        request = made(pb.DeleteGroupRequest, group=group)
        await self._protocol.call("offset_manager.delete_group", request)


def _member(member: pb.DescribedMember, found: Standing) -> MemberInfo:
    def places(partitions: Iterable[types_pb2.Partition]) -> tuple[TopicPartition, ...]:
        return tuple(sorted(found.place(partition) for partition in partitions))

    return MemberInfo(
        member.member_id,
        member.instance_id or None,
        member.client_id,
        member.host,
        tuple(member.subscribed_topics),
        member.assignor or None,
        places(member.owned),
        places(member.target),
        member.session_timeout_ms,
        member.silent_ms if member.HasField("silent_ms") else None,
    )
