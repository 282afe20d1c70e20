"""The one request that is put together by hand: a ProduceRequest of megabytes, without copying its
payloads into a message first: protobuf copies them twice, eight times as slow for a megabyte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oncelog._core.batching import Sealed
from oncelog._core.routing import PartitionKey
from oncelog._core.sequencing import Numbered
from oncelogpb import bulk
from oncelogpb.v1 import partition_leader_pb2, types_pb2


class Identity(NamedTuple):
    """In whose name batches are sent. `tx_id` 0: plain."""

    tx_id: int
    producer_id: int
    generation: int
    writer: int = 0


class Produce(NamedTuple):
    """Batches for one leader. Serializes as a ProduceRequest does."""

    identity: Identity
    batches: Sequence[tuple[PartitionKey, Numbered]]

    def encoded(self) -> bulk.Encoded:
        head = partition_leader_pb2.ProduceRequest(
            tx_id=self.identity.tx_id,
            producer=types_pb2.Producer(
                producer_id=self.identity.producer_id, generation=self.identity.generation
            ),
            writer=self.identity.writer,
        )
        return bulk.produce_request(
            head,
            [
                (batch_head(partition, batch.sealed, batch.base_sequence), batch.sealed.payload)
                for partition, batch in self.batches
            ],
        )

    def SerializeToString(self) -> bytes:
        return bulk.join(self.encoded().chunks)


def batch_head(partition: PartitionKey, sealed: Sealed, base_sequence: int) -> types_pb2.Batch:
    """A batch without its payload."""
    return types_pb2.Batch(
        partition=partition.wire(),
        encoding=types_pb2.Encoding.ValueType(sealed.encoding),
        record_count=sealed.record_count,
        base_sequence=base_sequence,
        crc32c=sealed.crc32c,
        max_timestamp_us=sealed.max_timestamp_us,
    )
