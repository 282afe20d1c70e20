"""Messages for tests of the handlers, short to write."""

from __future__ import annotations

from collections.abc import Sequence

from oncelog_server.core.ids import PLAIN_PRODUCER_BIT, PartitionId, compose_generation
from oncelogpb import records
from oncelogpb.v1 import participant_pb2, types_pb2
from oncelogpb.v1 import partition_leader_pb2 as pb
from tests.unit.partition_leader.fakes import FIRST

PLAIN_ID = PLAIN_PRODUCER_BIT | 7
NAMED = types_pb2.Producer(producer_id=77, generation=compose_generation(1, 1))


def partition_of(partition: PartitionId) -> types_pb2.Partition:
    return types_pb2.Partition(topic_id=partition.topic_id, number=partition.number)


def batch(
    values: Sequence[bytes],
    *,
    sequence: int = 0,
    partition: PartitionId = FIRST,
    timestamp_us: int | Sequence[int] = 1_000,
    compression: records.Compression = records.Compression.NONE,
) -> types_pb2.Batch:
    count = len(values)
    arrow = records.make_batch([None] * count, list(values), timestamp_us)
    sealed = records.seal(arrow, compression)
    sealed.partition.CopyFrom(partition_of(partition))
    sealed.base_sequence = sequence
    return sealed


def plain(*batches: types_pb2.Batch) -> pb.ProduceRequest:
    producer = types_pb2.Producer(producer_id=PLAIN_ID)
    return pb.ProduceRequest(producer=producer, batches=batches)


def send(tx_id: int, *batches: types_pb2.Batch, writer: int = 0) -> pb.ProduceRequest:
    return pb.ProduceRequest(tx_id=tx_id, producer=NAMED, writer=writer, batches=batches)


def commit(
    tx_id: int,
    prepare_offset: int,
    *counts: int,
    partition: PartitionId = FIRST,
    one_shot: types_pb2.Batch | None = None,
) -> participant_pb2.WriteMarkersRequest:
    parts = [participant_pb2.WriterPart(writer=w, record_count=c) for w, c in enumerate(counts)]
    marker = participant_pb2.Marker(
        tx_id=tx_id,
        prepare_offset=prepare_offset,
        kind=participant_pb2.MARKER_KIND_COMMITTED,
        producer=NAMED,
        parts=parts,
        batch=one_shot,
    )
    return participant_pb2.WriteMarkersRequest(groups=[group(marker, partition=partition)])


def abort(tx_id: int) -> participant_pb2.WriteMarkersRequest:
    marker = participant_pb2.Marker(
        tx_id=tx_id,
        prepare_offset=tx_id,
        kind=participant_pb2.MARKER_KIND_ABORTED,
        producer=NAMED,
    )
    return participant_pb2.WriteMarkersRequest(groups=[group(marker)])


def group(
    *markers: participant_pb2.Marker, partition: PartitionId = FIRST, boot_id: bytes = b"b" * 16
) -> participant_pb2.MarkerGroup:
    return participant_pb2.MarkerGroup(
        journal_partition=0,
        coordinator_epoch=1,
        partition=partition_of(partition),
        leader_boot_id=boot_id,
        markers=markers,
    )


def fetch(
    offset: int = 0,
    *,
    partition: PartitionId = FIRST,
    isolation: pb.Isolation.ValueType = pb.ISOLATION_COMMITTED,
    format_: pb.Format.ValueType = pb.FORMAT_STORED,
    max_wait_ms: int = 0,
    max_bytes: int = 0,
    min_bytes: int = 0,
) -> pb.FetchRequest:
    wanted = pb.FetchPartition(partition=partition_of(partition), offset=offset)
    return pb.FetchRequest(
        partitions=[wanted],
        isolation=isolation,
        format=format_,
        max_wait_ms=max_wait_ms,
        max_bytes=max_bytes,
        min_bytes=min_bytes,
    )


def values_of(fetched: pb.FetchedPartition) -> list[bytes]:
    return [
        value
        for one in fetched.batches
        for value in records.decode(one.encoding, one.payload).column(1).to_pylist()
    ]
