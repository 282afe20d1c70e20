"""Dialogs of replicas (`replica/dialog`) as protobuf, and back. PURE."""

from __future__ import annotations

from typing import Final, NamedTuple

from oncelog_server.core.cleaning import Cleanness
from oncelog_server.core.ids import Incarnation, JournalOffset, LeaderEpoch, PartitionId
from oncelog_server.core.wire import partition_id, partition_message
from oncelog_server.runtime.replica.dialog import Said, SettledThere, SnapshotPart, Told
from oncelog_server.runtime.replica.follower import SendSnapshot
from oncelog_server.runtime.replica.following import Acknowledge, Answer, Ask
from oncelog_server.runtime.storage.keeping import Allowance
from oncelog_server.runtime.storage.snapshot_parts import Content, Part, PartOf
from oncelogpb.errors import InvalidArgument, from_status, to_status
from oncelogpb.v1 import replication_pb2 as pb

_CONTENTS: Final = {
    Content.FILE: pb.SNAPSHOT_CONTENT_FILE,
    Content.EPOCHS: pb.SNAPSHOT_CONTENT_EPOCHS,
    Content.TABLE: pb.SNAPSHOT_CONTENT_TABLE,
    Content.SLOTS: pb.SNAPSHOT_CONTENT_SLOTS,
    Content.DATA: pb.SNAPSHOT_CONTENT_DATA,
    Content.BLOCKS: pb.SNAPSHOT_CONTENT_BLOCKS,
}
_CONTENT_OF: Final = {number: content for content, number in _CONTENTS.items()}


class Heard(NamedTuple):
    """A message of a follower. `said` is None: it follows no more."""

    partition: PartitionId
    incarnation: Incarnation
    epoch: int
    said: Said | None
    # The follower's number of it.
    dialog: int


def follower_message(
    partition: PartitionId,
    incarnation: Incarnation,
    epoch: int,
    said: Said | None,
    *,
    dialog: int,
) -> pb.FollowerMessage:
    message = pb.FollowerMessage(
        partition=partition_message(partition),
        incarnation=incarnation,
        epoch=epoch,
        dialog=dialog,
    )
    match said:
        case Ask():
            message.log_end.last_epoch = said.last_epoch
            message.log_end.log_end = said.log_end
            message.log_end.SetInParent()
        case Acknowledge():
            message.acknowledgement.synced_end = said.synced_end
            message.acknowledgement.log_end = said.log_end
            message.acknowledgement.SetInParent()
        case None:
            message.stop.SetInParent()
    return message


def heard(message: pb.FollowerMessage) -> Heard:
    """Raises InvalidArgument."""
    epoch = LeaderEpoch(message.epoch)
    said: Said | None
    match message.WhichOneof("said"):
        case "log_end":
            asked = message.log_end
            said = Ask(epoch, LeaderEpoch(asked.last_epoch), JournalOffset(asked.log_end))
        case "acknowledgement":
            ack = message.acknowledgement
            said = Acknowledge(epoch, JournalOffset(ack.synced_end), JournalOffset(ack.log_end))
        case "stop":
            said = None
        case _:
            raise InvalidArgument("a follower says nothing that this version understands")
    incarnation = Incarnation(message.incarnation)
    return Heard(partition_id(message.partition), incarnation, epoch, said, message.dialog)


def leader_message(to: Heard, told: Told, *, log_start: int) -> pb.LeaderMessage:
    """`to`: the follower's word with which its dialog began here."""
    message = pb.LeaderMessage(
        partition=partition_message(to.partition),
        incarnation=to.incarnation,
        dialog=to.dialog,
        epoch=told.epoch,
        high_watermark=told.high_watermark,
    )
    match told.what:
        case Answer() as answer:
            message.epoch_end.epoch = answer.answered_epoch
            message.epoch_end.end = answer.answered_end
            message.epoch_end.follower_may_rest = answer.may_rest
            message.epoch_end.SetInParent()
        case bytes() as frames:
            message.frames = frames
        case SendSnapshot():
            message.snapshot.log_start = log_start
            message.snapshot.SetInParent()
        case None:
            pass
        case error:
            message.error.CopyFrom(to_status(error))
    return message


def told(message: pb.LeaderMessage) -> Told:
    epoch, high_watermark = LeaderEpoch(message.epoch), message.high_watermark
    match message.WhichOneof("said"):
        case "epoch_end":
            end = message.epoch_end
            answer = Answer(
                epoch, LeaderEpoch(end.epoch), JournalOffset(end.end), end.follower_may_rest
            )
            return Told(epoch, high_watermark, answer)
        case "frames":
            return Told(epoch, high_watermark, message.frames)
        case "snapshot":
            # Where this log ends the follower knows itself.
            return Told(epoch, high_watermark, SendSnapshot(JournalOffset(0)))
        case "error":
            return Told(epoch, high_watermark, from_status(message.error))
        case _:
            return Told(epoch, high_watermark)


def snapshot_request(
    partition: PartitionId, epoch: int, wanted: PartOf, *, cluster_id: bytes, leader_boot_id: bytes
) -> pb.FetchSnapshotRequest:
    return pb.FetchSnapshotRequest(
        cluster_id=cluster_id,
        leader_boot_id=leader_boot_id,
        partition=partition_message(partition),
        epoch=epoch,
        content=_CONTENTS[wanted.content],
        name=wanted.name,
        position=wanted.position,
    )


def wanted_part(request: pb.FetchSnapshotRequest) -> PartOf:
    """Raises InvalidArgument."""
    content = _CONTENT_OF.get(request.content)
    if content is None:
        raise InvalidArgument(
            "a part is asked for that this version does not know", field="content"
        )
    return PartOf(content, request.name, request.position)


def snapshot_reply(
    sent: SnapshotPart, *, cluster_id: bytes, leader_boot_id: bytes
) -> pb.FetchSnapshotReply:
    return pb.FetchSnapshotReply(
        cluster_id=cluster_id,
        leader_boot_id=leader_boot_id,
        journal_offset=sent.offset,
        part=sent.part.data,
        next_position=sent.part.next_position,
        time_ms=sent.time_ms,
        slots=sent.slot_names,
        allowed_at=sent.allowed.at,
        allowed_epoch=sent.allowed.epoch,
        settled_begin=sent.settled.begin,
        settled_end=sent.settled.end,
        settled_at=sent.settled.allowed.at,
        settled_epoch=sent.settled.allowed.epoch,
        compacted_to=sent.settled.cleanness.compacted_to,
        tombstones_to=sent.settled.cleanness.tombstones_to,
        holes_below=sent.settled.cleanness.holes_below,
        dropped_to=sent.settled.cleanness.dropped_to,
    )


def snapshot_part(reply: pb.FetchSnapshotReply) -> SnapshotPart:
    following = reply.next_position if reply.HasField("next_position") else None
    part = Part(reply.part, following)
    return SnapshotPart(
        JournalOffset(reply.journal_offset),
        part,
        reply.time_ms,
        tuple(reply.slots),
        Allowance(reply.allowed_at, reply.allowed_epoch),
        SettledThere(
            reply.settled_begin,
            reply.settled_end,
            Allowance(reply.settled_at, reply.settled_epoch),
            Cleanness(reply.compacted_to, reply.tombstones_to, reply.holes_below, reply.dropped_to),
        ),
    )
