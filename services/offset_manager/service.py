"""Handlers of the gRPC services OffsetManager and Participant: decode, submit, encode.

A request finds its partition of `__consumer_offsets` by its group's name; a marker group names it.
Decisions are the machine's; everything that needs no state is judged in `wire`.
"""

from __future__ import annotations

from collections.abc import Awaitable

from oncelogpb.errors import OncelogError, Unsupported, to_status
from oncelogpb.v1 import offset_manager_pb2 as pb
from oncelogpb.v1 import participant_pb2 as participant_pb
from services.core.ids import (
    CONSUMER_OFFSETS_ID,
    control_partition,
)
from services.core.ports import Call, Replica
from services.core.role import RoleEnv
from services.offset_manager import wire
from services.offset_manager.commands import GroupSummary, MarkersWritten
from services.participant.senders import require_boot, require_granted


class OffsetManagerService:
    """Handlers of `OffsetManager`."""

    def __init__(self, env: RoleEnv) -> None:
        self._env = env

    async def commit_offsets(
        self, request: pb.CommitOffsetsRequest, call: Call
    ) -> pb.CommitOffsetsReply:
        command = wire.commit_offsets(request)
        replica = self._lead(command.group)
        replica.require_room()
        await replica.submit(command)
        self._env.reporter.count("offsets_committed", len(command.offsets))
        return pb.CommitOffsetsReply()

    async def commit_transaction_offsets(
        self, request: pb.CommitTransactionOffsetsRequest, call: Call
    ) -> pb.CommitTransactionOffsetsReply:
        command = wire.commit_transaction_offsets(request)
        replica = self._lead(command.group)
        replica.require_room()
        await replica.submit(command)
        self._env.reporter.count("offsets_pending", len(command.offsets))
        return wire.transaction_offsets_reply(replica.partition)

    async def fetch_offsets(
        self, request: pb.FetchOffsetsRequest, call: Call
    ) -> pb.FetchOffsetsReply:
        command = wire.fetch_offsets(request)
        return wire.fetch_reply(await self._lead(command.group).submit(command))

    async def list_groups(self, request: pb.ListGroupsRequest, call: Call) -> pb.ListGroupsReply:
        """Of the partitions that this process leads: merging over processes is the caller's."""
        command = wire.list_groups(request)
        groups: list[GroupSummary] = []
        for replica in self._env.replicas.led():
            groups.extend(await replica.submit(command))
        return wire.list_reply(sorted(groups))

    async def delete_group(self, request: pb.DeleteGroupRequest, call: Call) -> pb.DeleteGroupReply:
        command = wire.delete_group(request)
        await self._lead(command.group).submit(command)
        self._env.reporter.event("group deleted", group=command.group)
        return pb.DeleteGroupReply()

    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatReply:
        raise Unsupported(
            "group membership comes in a later version: assign partitions to each consumer instead"
        )

    def _lead(self, group: str) -> Replica:
        return self._env.replicas.lead(control_partition(CONSUMER_OFFSETS_ID, group))


class OffsetParticipant:
    """Handlers of `Participant` for the partitions of `__consumer_offsets`."""

    def __init__(self, env: RoleEnv) -> None:
        self._env = env

    async def write_markers(
        self, request: participant_pb.WriteMarkersRequest, call: Call
    ) -> participant_pb.WriteMarkersReply:
        """All groups are submitted in one loop turn, so one sync makes them durable together."""
        submitted = [self._submit(group) for group in request.groups]
        return participant_pb.WriteMarkersReply(
            groups=[await _result(outcome) for outcome in submitted]
        )

    def _submit(
        self, group: participant_pb.MarkerGroup
    ) -> Awaitable[MarkersWritten] | OncelogError:
        try:
            partition = wire.partition_id(group.partition)
            replica = self._env.replicas.lead(partition)
            directory = self._env.directory
            require_boot(directory, partition, group.leader_boot_id)
            require_granted(directory, group.journal_partition, group.coordinator_epoch)
            return replica.submit(wire.write_markers(group))
        except OncelogError as refusal:
            return refusal


async def _result(
    outcome: Awaitable[MarkersWritten] | OncelogError,
) -> participant_pb.MarkerGroupResult:
    try:
        if isinstance(outcome, OncelogError):
            raise outcome
        return wire.marker_group_result(await outcome)
    except OncelogError as refusal:
        return participant_pb.MarkerGroupResult(error=to_status(refusal))
