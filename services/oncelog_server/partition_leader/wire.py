"""Protobuf to commands and back. Everything that needs no state is judged here."""

from __future__ import annotations

from typing import Final

from oncelog_server.core.frame import ControlCode, Frame, FrameKind
from oncelog_server.core.ids import (
    PartitionId,
    TxId,
    can_be_tx_id,
    is_plain,
)
from oncelog_server.core.roles import PARTITION_LEADER, role_of
from oncelog_server.core.wire import partition_id, require_known
from oncelog_server.partition_leader.commands import Placed, Resolution, Resolve
from oncelogpb.errors import InvalidArgument, OncelogError, TooLarge, to_status
from oncelogpb.ids import show_id
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2

_RESOLUTIONS: Final = {
    pb.ResolveTransactionRequest.ACTION_DROP: Resolution.DROP,
    pb.ResolveTransactionRequest.ACTION_EXPOSE: Resolution.EXPOSE,
}
_ISOLATIONS: Final = frozenset(pb.Isolation.values())
_FORMATS: Final = frozenset(pb.Format.values())


def require_few(what: str, count: int, limit: str, maximum: int) -> None:
    """Raises TooLarge."""
    if count > maximum:
        raise TooLarge(
            f"{count} {what} are above {limit} = {maximum}; ask for less at once",
            limit=limit,
            maximum=maximum,
        )


def topic_partition(message: types_pb2.Partition) -> PartitionId:
    """Raises InvalidArgument, also for the cluster's own topics: their leaders answer no call of
    this service, so NOT_LEADER would send its caller round for ever."""
    partition = partition_id(message)
    if role_of(partition.topic_id) != PARTITION_LEADER:
        raise InvalidArgument(
            f"{partition}: the cluster's own topics are neither written nor read by clients; see "
            "`oncelog tx` and `oncelog group`",
            field="partition.topic_id",
        )
    return partition


# ----------------------------------------------------------------------------------------- read


def require_reading(request: pb.FetchRequest | pb.SubscribeRequest) -> None:
    """Raises InvalidArgument."""
    require_isolation(request.isolation)
    require_known("format", request.format, _FORMATS)


def require_isolation(isolation: int) -> None:
    """Raises InvalidArgument."""
    require_known("isolation", isolation, _ISOLATIONS)


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
    if not can_be_tx_id(request.tx_id):
        raise InvalidArgument(f"{show_id(request.tx_id)} cannot be a TxId", field="tx_id")


def data_frame(
    request: pb.ProduceRequest, batch: types_pb2.Batch, payload: bytes | memoryview
) -> Frame:
    return Frame(
        FrameKind.DATA,
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


def batch_result(
    partition: types_pb2.Partition, verdict: Placed | OncelogError, epoch: int
) -> pb.BatchResult:
    """`epoch` is the one in which it was decided."""
    if isinstance(verdict, OncelogError):
        return pb.BatchResult(partition=partition, error=to_status(verdict))
    return pb.BatchResult(
        partition=partition,
        journal_offset=verdict.journal_offset,
        offset=verdict.offset,
        duplicate=verdict.duplicate,
        leader_epoch=epoch,
    )


# ---------------------------------------------------------------------------------- resolutions


def resolve(request: pb.ResolveTransactionRequest) -> Resolve:
    """Raises InvalidArgument."""
    resolution = _RESOLUTIONS.get(request.action)
    if resolution is None:
        raise InvalidArgument("say what to do: ACTION_DROP or ACTION_EXPOSE", field="action")
    return Resolve(TxId(request.tx_id), resolution)
