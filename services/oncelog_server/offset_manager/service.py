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
from oncelog_server.core.ports import Call
from oncelog_server.offset_manager import wire
from oncelog_server.offset_manager.access import group_need
from oncelog_server.offset_manager.config import OffsetManagerConfig
from oncelog_server.offset_manager.listing import list_page
from oncelog_server.offset_manager.ports import OffsetManagerEnv, OffsetManagerReplica
from oncelogpb.errors import DiskFull, Unsupported
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

    async def delete_group(self, request: pb.DeleteGroupRequest, call: Call) -> pb.DeleteGroupReply:
        command = wire.delete_group(request)
        await self._lead(command.group).submit(command)
        self._env.reporter.event("group deleted", group=command.group)
        return pb.DeleteGroupReply()

    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatReply:
        raise Unsupported(
            "group membership comes in a later version: assign partitions to each consumer instead"
        )

    def _lead(self, group: str) -> OffsetManagerReplica:
        return self._env.replicas.lead(control_partition(CONSUMER_OFFSETS_ID, group))


def _no_room(replica: OffsetManagerReplica) -> DiskFull | None:
    try:
        replica.require_room()
    except DiskFull as full:
        return full
    return None
