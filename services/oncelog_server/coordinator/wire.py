"""Protobuf to commands and back. A request of the wrong shape is refused here, naming the field.

Order: shape first (INVALID_ARGUMENT, TOO_LARGE, MANIFEST_MISMATCH), then the machine decides what
depends on state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

from oncelog_server.coordinator.commands import (
    AbortTransaction,
    BeginAnswer,
    BeginResult,
    BeginTransaction,
    CommitAnswer,
    CommitTransaction,
    Exposure,
    FindOneShot,
    InitProducer,
    ProducerGranted,
    ProducerIdentity,
    Transact,
)
from oncelog_server.coordinator.config import CoordinatorConfig
from oncelog_server.coordinator.values import (
    CommitSeq,
    Manifest,
    OneShotBatch,
    OneShotOffsets,
    TopicParts,
)
from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    TRANSACTION_CONTROL_ID,
    Generation,
    PartitionId,
    ProducerId,
    TopicId,
    TxId,
)
from oncelog_server.core.wire import partition_id, partition_message, require_known
from oncelogpb.errors import (
    InvalidArgument,
    ManifestMismatch,
    OncelogError,
    TooLarge,
    to_status,
)
from oncelogpb.v1 import coordinator_pb2 as pb
from oncelogpb.v1 import types_pb2 as types

NAME_BYTES_MAX: Final = 255
SCOPE_BYTES_MAX: Final = 255
UUID_BYTES: Final = 16
_WAITS: Final = frozenset(types.Wait.values())
_STATES: Final = frozenset(types.TransactionState.values())

# ------------------------------------------------------------------------------------- requests


def init_producer(request: pb.InitProducerRequest, owner: str) -> InitProducer:
    """`owner`: identity of the caller."""
    _require_name(request.name, "name")
    _require_name(request.group, "group")
    group = request.group or request.name
    if not group:
        _invalid("group", "an unnamed producer needs a transaction group; choose one at random")
    if len(request.instance_id) != UUID_BYTES:
        _invalid("instance_id", "instance_id must be a UUID of 16 bytes")
    held = Generation(request.held_generation)
    return InitProducer(group, request.name, request.instance_id, owner, held)


def begin_transaction(
    request: pb.BeginTransactionRequest, config: CoordinatorConfig
) -> BeginTransaction:
    return BeginTransaction(
        identity(request.producer),
        request.request_id,
        request.timeout_ms,
        _commit_seq(request),
        _parts(request.parts, config),
    )


def commit_transaction(
    request: pb.CommitTransactionRequest, config: CoordinatorConfig
) -> CommitTransaction:
    require_known("wait", request.wait, _WAITS)
    producer = identity(request.producer)
    following = request.begin_next if request.HasField("begin_next") else None
    return CommitTransaction(
        tx_id(request.tx_id),
        producer,
        manifest(request.manifest, config),
        _commit_seq(request),
        None if following is None else _begin_next(following, producer, config),
    )


def _begin_next(
    request: pb.BeginNext, producer: ProducerIdentity, config: CoordinatorConfig
) -> BeginTransaction:
    """One of a wrong shape is refused beside the commit, like any that cannot begin."""
    try:
        return BeginTransaction(
            producer,
            request.request_id,
            request.timeout_ms,
            _commit_seq(request),
            _parts(request.parts, config),
        )
    except OncelogError as refusal:
        return BeginTransaction(producer, request.request_id, unfit=refusal)


def abort_transaction(
    request: pb.AbortTransactionRequest, config: CoordinatorConfig
) -> AbortTransaction:
    producer = None if request.operator else identity(request.producer)
    return AbortTransaction(tx_id(request.tx_id), producer, _parts(request.parts, config))


def transact(request: pb.TransactRequest) -> Transact:
    """Without a look at what is in the batches, how large they are, nor whether their topics exist
    (`fitness`)."""
    require_known("wait", request.wait, _WAITS)
    if request.request_number < 1:
        _invalid("request_number", "request numbers begin at 1")
    offsets = None
    if request.HasField("offsets"):
        _require_name(request.offsets.group, "offsets.group")
        if not request.offsets.group:
            _invalid("offsets.group", "offsets need the name of their consumer group")
        offsets = OneShotOffsets(request.offsets.group, request.offsets.SerializeToString())
    if not request.batches and offsets is None:
        _invalid("batches", "a transaction needs a batch or offsets")
    if request.chain_first > request.request_number:
        _invalid("chain_first", "a chain begins with this request number, or with an earlier one")
    return Transact(
        identity(request.producer),
        request.request_number,
        _batches(request.batches),
        offsets,
        _commit_seq(request),
        chain_first=request.chain_first,
    )


def require_states(request: pb.ListTransactionsRequest) -> None:
    """Raises InvalidArgument."""
    for state in request.states:
        require_known("states", state, _STATES)


def find_one_shot(request: pb.GetTransactionRequest) -> FindOneShot:
    if not request.HasField("producer"):
        _invalid("tx_id", "ask by tx_id, or by the producer and request number of a Transact")
    if request.request_number < 1:
        _invalid("request_number", "request numbers begin at 1")
    return FindOneShot(identity(request.producer), request.request_number)


def manifest(message: types.Manifest, config: CoordinatorConfig) -> Manifest:
    """Names each (partition, writer) once: else records would be exposed twice."""
    count = sum(len(topic.partition) for topic in message.topics)
    if count > config.manifest_parts_max:
        _too_large("manifest_parts_max", count, config.manifest_parts_max)
    if message.ByteSize() > config.manifest_bytes_max:
        _too_large("manifest_bytes_max", message.ByteSize(), config.manifest_bytes_max)
    manifest = Manifest(tuple(_topic_parts(topic) for topic in message.topics))
    if not manifest.names_each_once:
        raise ManifestMismatch("the manifest names a (partition, writer) twice")
    return manifest


def identity(message: types.Producer) -> ProducerIdentity:
    if not message.producer_id:
        _invalid("producer", "the producer that InitProducer granted is required")
    return ProducerIdentity(ProducerId(message.producer_id), Generation(message.generation))


def tx_id(number: int) -> TxId:
    if not number:
        _invalid("tx_id", "tx_id is required")
    return TxId(number)


# -------------------------------------------------------------------------------------- replies


def granted(answer: ProducerGranted, config: CoordinatorConfig) -> pb.InitProducerReply:
    return pb.InitProducerReply(
        producer=producer_message(answer.producer),
        last_committed_tx_id=answer.last_committed,
        last_commit_seq=commit_seq_message(answer.last_commit_seq),
        last_committed_visible=answer.last_committed_visible,
        default_timeout_ms=config.transaction_timeout_ms,
        max_timeout_ms=config.transaction_timeout_ms_max,
    )


_RESULTS: Final = {
    BeginResult.OPEN: (
        pb.BeginTransactionReply.RESULT_OPEN,
        types.TRANSACTION_STATE_ONGOING,
    ),
    BeginResult.COMMITTED: (
        pb.BeginTransactionReply.RESULT_ENDED,
        types.TRANSACTION_STATE_COMMITTED,
    ),
    BeginResult.ABORTED: (
        pb.BeginTransactionReply.RESULT_ENDED,
        types.TRANSACTION_STATE_ABORTED,
    ),
    BeginResult.ALREADY_COMMITTED: (
        pb.BeginTransactionReply.RESULT_ALREADY_COMMITTED,
        types.TRANSACTION_STATE_UNSPECIFIED,
    ),
}


def begun(answer: BeginAnswer) -> pb.BeginTransactionReply:
    result, state = _RESULTS[answer.result]
    return pb.BeginTransactionReply(
        result=result,
        tx_id=answer.tx_id,
        state=state,
        cause=types.AbortCause.ValueType(answer.cause),
    )


def committed(
    answer: CommitAnswer, *, visible: bool, exposed: Sequence[Exposure]
) -> pb.CommitTransactionReply:
    return pb.CommitTransactionReply(
        already_committed=answer.already_committed,
        visible=visible,
        exposed=[exposed_message(part) for part in exposed],
        next=None if answer.next is None else begun(answer.next),
        next_error=None if answer.next_refusal is None else to_status(answer.next_refusal),
    )


def producer_message(producer: ProducerIdentity) -> types.Producer:
    return types.Producer(producer_id=producer.producer_id, generation=producer.generation)


def commit_seq_message(seq: CommitSeq | None) -> types.CommitSeq | None:
    return None if seq is None else types.CommitSeq(scope=seq.scope, number=seq.number)


def exposed_message(part: Exposure) -> types.ExposedPart:
    return types.ExposedPart(
        partition=partition_message(part.partition),
        writer=part.writer,
        first_offset=part.first_offset,
        record_count=part.record_count,
        damaged=part.damaged,
        surplus_records=part.surplus_records,
    )


def manifest_message(of: Manifest) -> types.Manifest:
    return types.Manifest(
        topics=[
            types.Manifest.Topic(
                topic_id=topic.topic_id,
                partition=topic.partitions,
                writer=topic.writers,
                record_count=topic.counts,
            )
            for topic in of.topics
        ]
    )


def batch_message(batch: OneShotBatch) -> types.Batch:
    return types.Batch(
        partition=partition_message(batch.partition),
        encoding=types.Encoding.ValueType(batch.encoding),
        record_count=batch.record_count,
        crc32c=batch.crc32c,
        max_timestamp_us=batch.max_timestamp_us,
        payload=batch.payload,
    )


# ---------------------------------------------------------------------------------------- parts


def _topic_parts(topic: types.Manifest.Topic) -> TopicParts:
    if len(topic.topic_id) != UUID_BYTES:
        _invalid("manifest", "manifest: topic_id must be a UUID of 16 bytes")
    if topic.topic_id == TRANSACTION_CONTROL_ID:
        _invalid("manifest", "manifest: the transaction journal is not written by producers")
    if not len(topic.partition) == len(topic.writer) == len(topic.record_count):
        _invalid("manifest", "manifest: the columns of a topic must have the same length")
    return TopicParts(
        TopicId(topic.topic_id),
        tuple(topic.partition),
        tuple(topic.writer),
        tuple(topic.record_count),
    )


def _batches(messages: Sequence[types.Batch]) -> tuple[OneShotBatch, ...]:
    batches = tuple(_batch(message) for message in messages)
    if len({batch.partition for batch in batches}) != len(batches):
        _invalid("batches", "a one-shot takes one batch per partition; join them")
    return batches


def _batch(message: types.Batch) -> OneShotBatch:
    where = partition_id(message.partition, "batches.partition")
    if where.topic_id in (TRANSACTION_CONTROL_ID, CONSUMER_OFFSETS_ID):
        _invalid("batches.partition", "control topics are not written by producers")
    return OneShotBatch(
        where,
        message.encoding,
        message.record_count,
        message.crc32c,
        message.max_timestamp_us,
        message.payload,
    )


def _parts(
    messages: Sequence[types.Partition], config: CoordinatorConfig
) -> tuple[PartitionId, ...]:
    if len(messages) > config.parts_max:
        _too_large("parts_max", len(messages), config.parts_max)
    parts = {partition_id(message, "parts") for message in messages}
    if any(part.topic_id == TRANSACTION_CONTROL_ID for part in parts):
        _invalid("parts", "parts: the transaction journal takes part in no transaction")
    return tuple(sorted(parts))


def _commit_seq(
    request: pb.BeginTransactionRequest
    | pb.CommitTransactionRequest
    | pb.BeginNext
    | pb.TransactRequest,
) -> CommitSeq | None:
    if not request.HasField("commit_seq"):
        return None
    scope = request.commit_seq.scope
    if len(scope.encode()) > SCOPE_BYTES_MAX:
        _invalid("commit_seq.scope", f"a scope has at most {SCOPE_BYTES_MAX} bytes")
    return CommitSeq(scope, request.commit_seq.number)


def _require_name(name: str, field: str) -> None:
    if len(name.encode()) > NAME_BYTES_MAX:
        _invalid(field, f"{field} has at most {NAME_BYTES_MAX} bytes")


def _invalid(field: str, message: str) -> NoReturn:
    raise InvalidArgument(message, field=field)


def _too_large(limit: str, size: int, maximum: int) -> NoReturn:
    raise TooLarge(f"{size} is above {limit} ({maximum}); send less at once", limit=limit)
