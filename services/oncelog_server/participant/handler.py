"""Handler of the gRPC service Participant: markers from coordinators, for every role that takes
part in transactions.

Markers of one group are one command, so they are applied in order up to the first refusal; groups
of a request are submitted in one loop turn, so one sync makes them durable together. Nobody waits
for what etcd says of another group's topic. Where several roles run in the same process, the
composition splits requests by topic id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, NamedTuple

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.ports import Call, Replica
from oncelog_server.core.role import RoleEnv
from oncelog_server.core.wire import partition_id
from oncelog_server.participant import wire
from oncelog_server.participant.commands import Marker, MarkersWritten, WriteMarkers
from oncelog_server.participant.senders import require_boot, require_granted
from oncelogpb.errors import (
    DiskFull,
    OncelogError,
    UnknownPartition,
    UnknownTopic,
    to_status,
)
from oncelogpb.v1 import participant_pb2 as pb

# What a role tells its operators about markers that are written, applied now or before.
MarkersReport = Callable[[PartitionId, WriteMarkers, MarkersWritten], None]

# How long the other groups of a request wait for what etcd says of a topic that is unknown here. A
# group without an answer is refused, and its coordinator asks etcd itself.
GONE_WAIT_MS: Final = 100


class Submitted(NamedTuple):
    """A group on its way to disk."""

    command: WriteMarkers
    written: Awaitable[Any]
    # Why the markers behind those of the command wait.
    no_room: DiskFull | None
    # Somebody looked for what they bring, before they came.
    is_watched: bool


class Unheard(NamedTuple):
    """A group for a partition that is not known here: its topic may have been deleted."""

    topic_id: TopicId
    why: OncelogError


class ParticipantHandler:
    """See the module."""

    def __init__(
        self,
        env: RoleEnv[object],
        *,
        decode: Callable[[pb.MarkerGroup], WriteMarkers] = wire.write_markers,
        told: MarkersReport = lambda partition, command, written: None,
        is_watched: Callable[[Any], bool] = lambda replica: False,
    ) -> None:
        """`is_watched`, of a replica: markers for it should not come late, for somebody looks for
        what they bring (docs/adr/0097)."""
        self._env = env
        self._decode = decode
        self._told = told
        self._is_watched = is_watched

    async def write_markers(
        self, request: pb.WriteMarkersRequest, call: Call
    ) -> pb.WriteMarkersReply:
        submitted = [self._submit(group) for group in request.groups]
        results = [
            await self._result(group, outcome)
            for group, outcome in zip(request.groups, submitted, strict=True)
        ]
        unheard = {outcome.topic_id for outcome in submitted if isinstance(outcome, Unheard)}
        gone = await self._env.metadata.gone(unheard, timeout_ms=GONE_WAIT_MS)
        return pb.WriteMarkersReply(
            groups=[
                wire.gone_group_result(group) if _went_with_its_topic(outcome, gone) else result
                for group, outcome, result in zip(request.groups, submitted, results, strict=True)
            ]
        )

    def _submit(self, group: pb.MarkerGroup) -> Submitted | Unheard | OncelogError:
        try:
            partition = partition_id(group.partition)
            try:
                replica = self._env.replicas.lead(partition)
            except (UnknownTopic, UnknownPartition) as unknown:
                return Unheard(partition.topic_id, unknown)
            metadata = self._env.metadata
            require_boot(metadata, partition, group.leader_boot_id)
            require_granted(metadata, group.journal_partition, group.coordinator_epoch)
            command, no_room = _with_room(replica, self._decode(group))
            is_watched = self._is_watched(replica)
            return Submitted(command, replica.submit(command), no_room, is_watched)
        except OncelogError as refusal:
            return refusal

    async def _result(
        self, group: pb.MarkerGroup, outcome: Submitted | Unheard | OncelogError
    ) -> pb.MarkerGroupResult:
        try:
            if isinstance(outcome, Unheard):
                raise outcome.why
            if isinstance(outcome, OncelogError):
                raise outcome
            written: MarkersWritten = await outcome.written
        except OncelogError as refusal:
            return pb.MarkerGroupResult(error=to_status(refusal))
        self._told(partition_id(group.partition), outcome.command, written)
        if outcome.no_room is not None and written.refusal is None:
            written = written._replace(refusal=outcome.no_room)
        return wire.marker_group_result(group.partition, written, is_watched=outcome.is_watched)


def _went_with_its_topic(
    outcome: Submitted | Unheard | OncelogError, gone: Collection[TopicId]
) -> bool:
    return isinstance(outcome, Unheard) and outcome.topic_id in gone


def _with_room(
    replica: Replica[object], command: WriteMarkers
) -> tuple[WriteMarkers, DiskFull | None]:
    """On a full disk, markers that carry records wait, and those behind them; others use the
    reserve."""
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
