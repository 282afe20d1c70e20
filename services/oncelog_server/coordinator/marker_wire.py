"""Markers as protobuf, and the participants' answers back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oncelog_server.coordinator import wire
from oncelog_server.coordinator.commands import (
    Exposure,
    MarkerAnswer,
    MarkerStatus,
    OwedMarker,
    OweMarkers,
)
from oncelog_server.core.ids import PartitionId, TopicId, TxId
from oncelog_server.core.ports import Address
from oncelog_server.core.wire import partition_message
from oncelogpb.errors import Internal, OncelogError, from_status
from oncelogpb.v1 import participant_pb2 as pb


class GroupAnswer(NamedTuple):
    """What a participant said to one group."""

    # Of the markers up to the first refusal.
    results: Sequence[MarkerAnswer]
    # Of the next one; None: all are applied.
    refusal: OncelogError | None
    # Nobody looks for what the markers bring: more of them may come later, together.
    is_unwatched: bool = False


def group_message(
    group: OweMarkers, journal_partition: int, epoch: int, leader: Address
) -> pb.MarkerGroup:
    return pb.MarkerGroup(
        journal_partition=journal_partition,
        coordinator_epoch=epoch,
        partition=partition_message(group.participant),
        leader_boot_id=leader.boot_id,
        markers=[_marker(marker) for marker in group.markers],
    )


def answers_of(reply: pb.WriteMarkersReply, groups: Sequence[OweMarkers]) -> list[GroupAnswer]:
    """One per group. Raises Internal where the participant's reply makes no sense."""
    if len(reply.groups) != len(groups):
        raise Internal("a participant answered other groups than it was sent")
    return [_answer(answer, group) for answer, group in zip(reply.groups, groups, strict=True)]


def _answer(answer: pb.MarkerGroupResult, group: OweMarkers) -> GroupAnswer:
    try:
        results = _results(answer)
    except ValueError:
        return GroupAnswer((), Internal("a participant answered with an unknown marker status"))
    if answer.HasField("error"):
        return GroupAnswer(results, from_status(answer.error))
    if len(results) != len(group.markers):
        return GroupAnswer(results, Internal("a participant left markers unanswered"))
    return GroupAnswer(results, None, answer.unwatched)


def _results(answer: pb.MarkerGroupResult) -> list[MarkerAnswer]:
    return [
        MarkerAnswer(
            TxId(result.tx_id),
            MarkerStatus(result.status),
            tuple(
                Exposure(
                    PartitionId(TopicId(part.partition.topic_id), part.partition.number),
                    part.writer,
                    part.first_offset,
                    part.record_count,
                    part.damaged,
                    part.surplus_records,
                )
                for part in result.exposed
            ),
        )
        for result in answer.results
    ]


def _marker(marker: OwedMarker) -> pb.Marker:
    return pb.Marker(
        tx_id=marker.tx_id,
        prepare_offset=marker.prepare_offset,
        kind=pb.MARKER_KIND_COMMITTED if marker.committed else pb.MARKER_KIND_ABORTED,
        producer=wire.producer_message(marker.producer),
        parts=[pb.WriterPart(writer=writer, record_count=count) for writer, count in marker.parts]
        if marker.committed and marker.batch is None
        else [],
        batch=None if marker.batch is None else wire.batch_message(marker.batch),
    )
