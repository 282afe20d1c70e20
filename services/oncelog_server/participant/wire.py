"""The gRPC service Participant and its questions: protobuf to commands and back. Everything that
needs no state is judged here. PURE.

Raises InvalidArgument (`field` says which).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from crc32c import crc32c

from oncelog_server.core.frame import Frame, FrameKind
from oncelog_server.core.ids import (
    CONTROL_PARTITIONS,
    Generation,
    JournalOffset,
    LeaderEpoch,
    PartitionId,
    ProducerId,
    TxId,
    Writer,
    can_be_tx_id,
)
from oncelog_server.core.wire import partition_message
from oncelog_server.participant.commands import (
    Heard,
    Marker,
    MarkerResult,
    MarkerStatus,
    MarkersWritten,
    Outcome,
    Question,
    Verdict,
    WriteMarkers,
    WriterPart,
)
from oncelogpb.errors import InvalidArgument, to_status
from oncelogpb.ids import show_id
from oncelogpb.v1 import coordinator_pb2, types_pb2
from oncelogpb.v1 import participant_pb2 as pb

_OUTCOMES: Final = {
    pb.MARKER_KIND_COMMITTED: Outcome.COMMITTED,
    pb.MARKER_KIND_ABORTED: Outcome.ABORTED,
}
_STATUSES: Final = {
    MarkerStatus.APPLIED: pb.MarkerResult.STATUS_APPLIED,
    MarkerStatus.DAMAGED: pb.MarkerResult.STATUS_DAMAGED,
}
# A verdict that this version does not know is as good as silence.
_VERDICTS: Final = {
    coordinator_pb2.Answer.VERDICT_LATER: Verdict.LATER,
    coordinator_pb2.Answer.VERDICT_ONGOING: Verdict.ONGOING,
    coordinator_pb2.Answer.VERDICT_COMMITTED_WITH_YOU: Verdict.COMMITTED_WITH_YOU,
    coordinator_pb2.Answer.VERDICT_COMMITTED_WITHOUT_YOU: Verdict.COMMITTED_WITHOUT_YOU,
    coordinator_pb2.Answer.VERDICT_ABORTED: Verdict.ABORTED,
    coordinator_pb2.Answer.VERDICT_EXPIRED: Verdict.EXPIRED,
    coordinator_pb2.Answer.VERDICT_NEVER: Verdict.NEVER,
}


# --------------------------------------------------------------------------------------- markers


def write_markers(group: pb.MarkerGroup) -> WriteMarkers:
    if group.journal_partition >= CONTROL_PARTITIONS:
        raise InvalidArgument(
            f"journal_partition must be below {CONTROL_PARTITIONS}", field="journal_partition"
        )
    return WriteMarkers(
        group.journal_partition,
        LeaderEpoch(group.coordinator_epoch),
        tuple(_marker(marker) for marker in group.markers),
    )


def _marker(marker: pb.Marker) -> Marker:
    outcome = _OUTCOMES.get(marker.kind)
    if outcome is None:
        raise InvalidArgument(f"marker kind {marker.kind} is not known here", field="markers.kind")
    if not can_be_tx_id(marker.tx_id):
        raise InvalidArgument(f"{show_id(marker.tx_id)} cannot be a TxId", field="markers.tx_id")
    return Marker(
        TxId(marker.tx_id),
        JournalOffset(marker.prepare_offset),
        outcome,
        ProducerId(marker.producer.producer_id),
        Generation(marker.producer.generation),
        tuple(WriterPart(Writer(part.writer), part.record_count) for part in marker.parts),
        _one_shot_batch(marker) if marker.HasField("batch") else None,
    )


def _one_shot_batch(marker: pb.Marker) -> Frame:
    """Judged by the coordinator; here only that it can stand in the journal."""
    batch = marker.batch
    if batch.encoding not in (types_pb2.ENCODING_ROWS, types_pb2.ENCODING_ARROW_V1):
        raise InvalidArgument(
            f"batch encoding {batch.encoding} is not known here", field="markers.batch.encoding"
        )
    if not batch.record_count or crc32c(batch.payload) != batch.crc32c:
        raise InvalidArgument(
            "a one-shot's batch holds records that match its CRC32C", field="markers.batch"
        )
    return Frame(
        FrameKind.ONE_SHOT,
        batch.payload,
        record_count=batch.record_count,
        producer_id=marker.producer.producer_id,
        generation=marker.producer.generation,
        tx_id=marker.tx_id,
        encoding=batch.encoding,
        max_timestamp_us=batch.max_timestamp_us,
        client_crc=batch.crc32c,
    )


def marker_group_result(
    partition: types_pb2.Partition, written: MarkersWritten, *, is_watched: bool
) -> pb.MarkerGroupResult:
    return pb.MarkerGroupResult(
        results=[_marker_result(partition, result) for result in written.results],
        error=to_status(written.refusal) if written.refusal is not None else None,
        unwatched=not is_watched,
    )


def _marker_result(partition: types_pb2.Partition, result: MarkerResult) -> pb.MarkerResult:
    return pb.MarkerResult(
        tx_id=result.tx_id,
        status=_STATUSES[result.status],
        exposed=[
            types_pb2.ExposedPart(
                partition=partition,
                writer=exposed.writer,
                first_offset=exposed.first_offset,
                record_count=exposed.record_count,
                surplus_records=exposed.surplus_records,
            )
            for exposed in result.exposed
        ],
    )


def gone_group_result(group: pb.MarkerGroup) -> pb.MarkerGroupResult:
    """The topic was deleted: all of it is done."""
    gone = pb.MarkerResult.STATUS_GONE
    return pb.MarkerGroupResult(
        results=[pb.MarkerResult(tx_id=marker.tx_id, status=gone) for marker in group.markers]
    )


# ------------------------------------------------------------------------------------- questions


def ask_request(
    partition: PartitionId, journal_partition: int, questions: Iterable[Question]
) -> coordinator_pb2.AskTransactionsRequest:
    asking = partition_message(partition)
    return coordinator_pb2.AskTransactionsRequest(
        journal_partition=journal_partition,
        questions=[
            coordinator_pb2.Question(
                tx_id=question.tx_id,
                producer=types_pb2.Producer(
                    producer_id=question.producer_id, generation=question.generation
                ),
                partition=asking,
                bytes_received=question.bytes_received,
            )
            for question in questions
        ],
    )


def verdicts(
    reply: coordinator_pb2.AskTransactionsReply,
    partition: PartitionId,
    questions: Iterable[Question],
    *,
    among: Collection[Verdict],
) -> tuple[Heard, ...]:
    """Of the answers to these questions of this partition."""
    asking = partition_message(partition)
    asked = {question.tx_id: question for question in questions}
    return tuple(
        Heard(question.tx_id, question.producer_id, question.generation, verdict)
        for answer in reply.answers
        if answer.partition == asking
        and (question := asked.get(TxId(answer.tx_id))) is not None
        and (verdict := _VERDICTS.get(answer.verdict)) is not None
        and verdict in among
    )
