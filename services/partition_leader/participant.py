"""Handler of Participant for the partitions of topics: markers from coordinators.

Markers of one group are one command, so they are applied in order up to the first refusal; groups
of a request are submitted in one loop turn, so one sync makes them durable together. Where offset
managers run in the same process, the composition splits requests by topic id.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from oncelogpb.errors import (
    DiskFull,
    OncelogError,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
    to_status,
)
from oncelogpb.v1 import participant_pb2 as pb
from services.core.ports import Call, Replica
from services.core.role import RoleEnv
from services.participant.senders import require_boot, require_granted
from services.partition_leader import wire
from services.partition_leader.commands import Marker, MarkerStatus, MarkersWritten, WriteMarkers


class ParticipantHandler:
    """See the module."""

    def __init__(self, env: RoleEnv) -> None:
        self._env = env

    async def write_markers(
        self, request: pb.WriteMarkersRequest, call: Call
    ) -> pb.WriteMarkersReply:
        submitted = [self._submit(group) for group in request.groups]
        return pb.WriteMarkersReply(
            groups=[
                await self._result(group, outcome)
                for group, outcome in zip(request.groups, submitted, strict=True)
            ]
        )

    def _submit(
        self, group: pb.MarkerGroup
    ) -> tuple[Awaitable[Any], DiskFull | None] | OncelogError:
        try:
            partition = wire.partition_id(group.partition)
            replica = self._env.replicas.lead(partition)
            directory = self._env.directory
            require_boot(directory, partition, group.leader_boot_id)
            require_granted(directory, group.journal_partition, group.coordinator_epoch)
            command, no_room = _with_room(replica, wire.write_markers(group))
            return replica.submit(command), no_room
        except OncelogError as refusal:
            return refusal

    async def _result(
        self,
        group: pb.MarkerGroup,
        outcome: tuple[Awaitable[Any], DiskFull | None] | OncelogError,
    ) -> pb.MarkerGroupResult:
        try:
            if isinstance(outcome, OncelogError):
                raise outcome
            reply, no_room = outcome
            written: MarkersWritten = await reply
        except (UnknownTopic, UnknownPartition) as unknown:
            if await self._is_gone(group):
                return wire.gone_group_result(group)
            return pb.MarkerGroupResult(error=to_status(unknown))
        except OncelogError as refusal:
            return pb.MarkerGroupResult(error=to_status(refusal))
        self._count(group, written)
        if no_room is not None and written.refusal is None:
            written = written._replace(refusal=no_room)
        return wire.marker_group_result(group.partition, written)

    async def _is_gone(self, group: pb.MarkerGroup) -> bool:
        """Only etcd may say that there is nobody left to tell; this process may be behind it."""
        try:
            return await self._env.directory.is_gone(wire.partition_id(group.partition).topic_id)
        except Unavailable:
            return False

    def _count(self, group: pb.MarkerGroup, written: MarkersWritten) -> None:
        reporter = self._env.reporter
        for marker, result in zip(group.markers, written.results, strict=False):
            if result.status is MarkerStatus.APPLIED:
                committed = marker.kind == pb.MARKER_KIND_COMMITTED
                reporter.count("transactions_exposed" if committed else "transactions_dropped")
            else:
                reporter.count("transactions_damaged")
                reporter.event(
                    "damaged part",
                    tx_id=f"{result.tx_id:x}",
                    partition=str(wire.partition_id(group.partition)),
                )


def _with_room(replica: Replica, command: WriteMarkers) -> tuple[WriteMarkers, DiskFull | None]:
    """On a full disk, markers that carry records wait, and those behind them; others use the
    reserve (design §4)."""
    try:
        replica.require_room()
    except DiskFull as no_room:
        bare: list[Marker] = []
        for marker in command.markers:
            if marker.batch is not None:
                shortened = WriteMarkers(
                    command.journal_partition, command.coordinator_epoch, tuple(bare)
                )
                return shortened, no_room
            bare.append(marker)
    return command, None
