"""Protobuf to commands and back. Everything that needs no state is judged here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from oncelogpb import records
from oncelogpb.errors import InvalidArgument, OncelogError, TooLarge, to_status
from oncelogpb.v1 import coordinator_pb2, participant_pb2, types_pb2
from oncelogpb.v1 import partition_leader_pb2 as pb
from services.core.frame import ControlCode, Frame, Kind
from services.core.ids import (
    CONTROL_PARTITIONS,
    Generation,
    LeaderEpoch,
    PartitionId,
    ProducerId,
    TopicId,
    TxId,
    Writer,
    is_plain,
    journal_offset_of,
    journal_partition_of,
)
from services.partition_leader.commands import (
    Marker,
    MarkerResult,
    MarkerStatus,
    MarkersWritten,
    Outcome,
    Placed,
    Question,
    Resolution,
    Resolve,
    Verdict,
    WriteMarkers,
    WriterPart,
)

TOPIC_ID_BYTES: Final = 16

_RESOLUTIONS: Final = {
    pb.ResolveTransactionRequest.ACTION_DROP: Resolution.DROP,
    pb.ResolveTransactionRequest.ACTION_EXPOSE: Resolution.EXPOSE,
}
_OUTCOMES: Final = {
    participant_pb2.MARKER_KIND_COMMITTED: Outcome.COMMITTED,
    participant_pb2.MARKER_KIND_ABORTED: Outcome.ABORTED,
}
_STATUSES: Final = {
    MarkerStatus.APPLIED: participant_pb2.MarkerResult.STATUS_APPLIED,
    MarkerStatus.DAMAGED: participant_pb2.MarkerResult.STATUS_DAMAGED,
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


def partition_id(partition: types_pb2.Partition) -> PartitionId:
    """Raises InvalidArgument."""
    topic_id = partition.topic_id
    if len(topic_id) != TOPIC_ID_BYTES:
        raise InvalidArgument(
            f"a topic id has {TOPIC_ID_BYTES} bytes, not {len(topic_id)}; DescribeTopics tells it",
            field="partition.topic_id",
        )
    return PartitionId(TopicId(topic_id), partition.number)


def partition_message(partition: PartitionId) -> types_pb2.Partition:
    return types_pb2.Partition(topic_id=partition.topic_id, number=partition.number)


def require_few(what: str, count: int, limit: str, maximum: int) -> None:
    """Raises TooLarge."""
    if count > maximum:
        raise TooLarge(
            f"{count} {what} are above {limit} = {maximum}; ask for less at once",
            limit=limit,
            maximum=maximum,
        )


# -------------------------------------------------------------------------------------- produce


def require_producer(request: pb.ProduceRequest) -> None:
    """Raises InvalidArgument where the head of the request contradicts itself."""
    producer = request.producer
    if not request.batches:
        raise InvalidArgument("a Produce carries at least one batch", field="batches")
    if not request.tx_id:
        if not is_plain(producer.producer_id):
            raise InvalidArgument(
                "a plain producer draws its id at random, with the top bit set; a named producer "
                "writes under the TxId that BeginTransaction returned",
                field="producer.producer_id",
            )
        if producer.generation or request.writer:
            raise InvalidArgument(
                "a plain producer has generation 0 and writer 0", field="producer.generation"
            )
        return
    if not producer.producer_id or is_plain(producer.producer_id):
        raise InvalidArgument(
            "only a producer from InitProducer writes in transactions", field="producer.producer_id"
        )
    in_range = journal_partition_of(request.tx_id) < CONTROL_PARTITIONS
    if not in_range or not journal_offset_of(request.tx_id):
        raise InvalidArgument(f"{request.tx_id:x} cannot be a TxId", field="tx_id")


def data_frame(request: pb.ProduceRequest, batch: types_pb2.Batch, payload: bytes) -> Frame:
    return Frame(
        Kind.DATA,
        payload,
        batch.record_count,
        request.producer.producer_id,
        request.producer.generation,
        request.writer,
        batch.base_sequence,
        request.tx_id,
        ControlCode.NONE,
        batch.encoding,
        batch.max_timestamp_us,
        batch.crc32c,
    )


def batch_result(partition: types_pb2.Partition, verdict: Placed | OncelogError) -> pb.BatchResult:
    if isinstance(verdict, OncelogError):
        return pb.BatchResult(partition=partition, error=to_status(verdict))
    return pb.BatchResult(
        partition=partition,
        journal_offset=verdict.journal_offset,
        offset=verdict.offset,
        duplicate=verdict.duplicate,
    )


# -------------------------------------------------------------------------------------- markers


def write_markers(group: participant_pb2.MarkerGroup) -> WriteMarkers:
    """Raises InvalidArgument."""
    return WriteMarkers(
        group.journal_partition,
        LeaderEpoch(group.coordinator_epoch),
        tuple(_marker(marker) for marker in group.markers),
    )


def _marker(marker: participant_pb2.Marker) -> Marker:
    outcome = _OUTCOMES.get(marker.kind)
    if outcome is None:
        raise InvalidArgument(f"marker kind {marker.kind} is not known here", field="markers.kind")
    return Marker(
        TxId(marker.tx_id),
        marker.prepare_offset,
        outcome,
        ProducerId(marker.producer.producer_id),
        Generation(marker.producer.generation),
        tuple(WriterPart(Writer(part.writer), part.record_count) for part in marker.parts),
        _one_shot_batch(marker) if marker.HasField("batch") else None,
    )


def _one_shot_batch(marker: participant_pb2.Marker) -> Frame:
    """Judged by the coordinator; here only that it can stand in the journal. Raises
    InvalidArgument."""
    batch = marker.batch
    if batch.encoding not in (types_pb2.ENCODING_ROWS, types_pb2.ENCODING_ARROW_V1):
        raise InvalidArgument(
            f"batch encoding {batch.encoding} is not known here", field="markers.batch.encoding"
        )
    if not batch.record_count or records.checksum(batch.payload) != batch.crc32c:
        raise InvalidArgument(
            "a one-shot's batch holds records that match its CRC32C", field="markers.batch"
        )
    return Frame(
        Kind.ONE_SHOT,
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
    partition: types_pb2.Partition, written: MarkersWritten
) -> participant_pb2.MarkerGroupResult:
    return participant_pb2.MarkerGroupResult(
        results=[_marker_result(partition, result) for result in written.results],
        error=to_status(written.refusal) if written.refusal is not None else None,
    )


def _marker_result(
    partition: types_pb2.Partition, result: MarkerResult
) -> participant_pb2.MarkerResult:
    return participant_pb2.MarkerResult(
        tx_id=result.tx_id,
        status=_STATUSES[result.status],
        exposed=[
            types_pb2.ExposedPart(
                partition=partition,
                writer=exposed.writer,
                first_offset=exposed.first_offset,
                record_count=exposed.record_count,
            )
            for exposed in result.exposed
        ],
    )


def gone_group_result(group: participant_pb2.MarkerGroup) -> participant_pb2.MarkerGroupResult:
    """The topic was deleted: all of it is done."""
    return participant_pb2.MarkerGroupResult(
        results=[
            participant_pb2.MarkerResult(
                tx_id=marker.tx_id, status=participant_pb2.MarkerResult.STATUS_GONE
            )
            for marker in group.markers
        ]
    )


# ------------------------------------------------------------------------ questions, resolutions


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
    reply: coordinator_pb2.AskTransactionsReply, partition: PartitionId
) -> tuple[tuple[TxId, Verdict], ...]:
    """Of the answers that are about this partition."""
    asking = partition_message(partition)
    return tuple(
        (TxId(answer.tx_id), _VERDICTS[answer.verdict])
        for answer in reply.answers
        if answer.partition == asking and answer.verdict in _VERDICTS
    )


def resolve(request: pb.ResolveTransactionRequest) -> Resolve:
    """Raises InvalidArgument."""
    resolution = _RESOLUTIONS.get(request.action)
    if resolution is None:
        raise InvalidArgument("say what to do: ACTION_DROP or ACTION_EXPOSE", field="action")
    return Resolve(TxId(request.tx_id), resolution)
