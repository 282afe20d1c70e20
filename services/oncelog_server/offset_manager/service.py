"""Handlers of the gRPC service OffsetManager: decode, submit, encode.

A request finds its partition of `__consumer_offsets` by its group's name.
Decisions are the machine's; everything that needs no state is judged in `wire`.
"""

from __future__ import annotations

from msgspec.structs import replace

from oncelog_server.core.access import Verb
from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    control_partition,
)
from oncelog_server.core.ports import Call, led_machine
from oncelog_server.offset_manager import wire
from oncelog_server.offset_manager.access import group_need
from oncelog_server.offset_manager.commands import (
    ClaimHeard,
    Heartbeat,
    MemberHeard,
    ReleaseGroup,
    TopicsSeen,
)
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.listing import list_page
from oncelog_server.offset_manager.ports import OffsetManagerEnv, OffsetManagerReplica
from oncelog_server.offset_manager.subscribing import host_of, topic_names, with_topics
from oncelogpb.errors import DiskFull
from oncelogpb.v1 import offset_manager_pb2 as pb


class OffsetManagerService:
    """See the module."""

    def __init__(self, env: OffsetManagerEnv, config: OffsetManagerConfig) -> None:
        self._env = env
        self._config = config

    async def commit_offsets(
        self, request: pb.CommitOffsetsRequest, call: Call
    ) -> pb.CommitOffsetsReply:
        command = wire.commit_offsets(request)
        replica = self._lead(command.group)
        await replica.submit(replace(command, unfit=_no_room(replica)))
        self._env.reporter.count("offsets_committed", len(command.offsets))
        return pb.CommitOffsetsReply()

    async def commit_transaction_offsets(
        self, request: pb.CommitTransactionOffsetsRequest, call: Call
    ) -> pb.CommitTransactionOffsetsReply:
        command = wire.commit_transaction_offsets(request)
        replica = self._lead(command.group)
        await replica.submit(replace(command, unfit=_no_room(replica)))
        self._env.reporter.count("offsets_pending", len(command.offsets))
        return wire.transaction_offsets_reply(replica.partition)

    async def fetch_offsets(
        self, request: pb.FetchOffsetsRequest, call: Call
    ) -> pb.FetchOffsetsReply:
        command = wire.fetch_offsets(request)
        fetched = await self._lead(command.group).submit(command)
        return wire.fetch_reply(fetched, group_retention_ms=self._config.group_retention_ms)

    async def list_groups(self, request: pb.ListGroupsRequest, call: Call) -> pb.ListGroupsReply:
        """Of the partitions that this process leads, what the caller may see: merging over
        processes is the caller's."""

        def sees(group: str) -> bool:
            return call.sees(group_need(Verb.DESCRIBE, group))

        groups, more = await list_page(self._env, wire.group_page(request, sees))
        return wire.list_reply(groups, more=more)

    async def describe_group(
        self, request: pb.DescribeGroupRequest, call: Call
    ) -> pb.DescribeGroupReply:
        command = wire.describe_group(request)
        group = await self._lead(command.group).submit(command)
        return wire.describe_reply(group, topic_names(self._env.metadata, group))

    async def remove_member(
        self, request: pb.RemoveMemberRequest, call: Call
    ) -> pb.RemoveMemberReply:
        command = wire.remove_member(request)
        member_id = await self._lead(command.group).submit(command)
        self._env.reporter.event("member removed", group=command.group, member_id=member_id)
        return pb.RemoveMemberReply(member_id=member_id)

    async def delete_group(self, request: pb.DeleteGroupRequest, call: Call) -> pb.DeleteGroupReply:
        command = wire.delete_group(request)
        await self._lead(command.group).submit(command)
        self._env.reporter.event("group deleted", group=command.group)
        return pb.DeleteGroupReply()

    async def reset_offsets(
        self, request: pb.ResetOffsetsRequest, call: Call
    ) -> pb.ResetOffsetsReply:
        command = wire.reset_offsets(request)
        replica = self._lead(command.group)
        reset = await replica.submit(replace(command, unfit=_no_room(replica)))
        if not command.dry_run:
            self._env.reporter.event(
                "offsets reset", group=command.group, partitions=len(command.offsets)
            )
        return pb.ResetOffsetsReply(duplicate=reset.duplicate)

    async def claim_group(self, request: pb.ClaimGroupRequest, call: Call) -> pb.ClaimGroupReply:
        command = wire.claim_group(request)
        replica = self._lead(command.group)
        if isinstance(command, ReleaseGroup):
            await replica.submit(command)
            return pb.ClaimGroupReply()
        submitted = replica.submit(replace(command, unfit=_no_room(replica)))
        replica.signal(ClaimHeard(command.group, command.claim.claim_id))
        claim = await submitted
        return pb.ClaimGroupReply(timeout_ms=claim.timeout_ms)

    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatReply:
        command = wire.heartbeat(request, host_of(call.peer))
        if request.leaving:
            left = await self._lead(command.group).submit(wire.leave(command))
            return wire.heartbeat_reply(left)
        known = led_machine(self._lead(command.group)).membership(command.group).topics
        command = await with_topics(self._env.metadata, known, command)
        replica = self._lead(command.group)
        try:
            submitted = replica.submit(replace(command, unfit=_no_room(replica)))
        finally:
            # It lives, whatever it is told.
            replica.signal(MemberHeard(command.group, command.member.member_id))
        told = await submitted
        self._look_for_outgrown(replica, command)
        return wire.heartbeat_reply(told)

    def _look_for_outgrown(self, replica: OffsetManagerReplica, command: Heartbeat) -> None:
        """After what it changed: what the group does not share out now it must not."""
        machine = replica.machine
        if machine is None:
            return
        before = machine.outgrown(command.group)
        there = tuple(topic for topic in command.topics if topic.topic_id not in command.gone)
        replica.signal(TopicsSeen(command.group, command.subscribed, there))
        for topic in machine.outgrown(command.group):
            if topic not in before:
                self._env.reporter.event(
                    "a topic outgrew its group",
                    level="warning",
                    group=command.group,
                    topic=topic.name,
                    partitions=topic.partitions,
                    shared_out=topic.shared_out,
                    limit="partitions_per_group_max",
                )

    def _lead(self, group: str) -> OffsetManagerReplica:
        return self._env.replicas.lead(control_partition(CONSUMER_OFFSETS_ID, group))


def _no_room(replica: OffsetManagerReplica) -> DiskFull | None:
    try:
        replica.require_room()
    except DiskFull as full:
        return full
    return None
