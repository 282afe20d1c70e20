"""Partitions on the wire: what every role says and hears alike. PURE."""

from __future__ import annotations

from typing import Final

from oncelog_server.core.ids import PartitionId, TopicId
from oncelogpb.errors import InvalidArgument
from oncelogpb.v1 import types_pb2

TOPIC_ID_BYTES: Final = 16


def partition_id(message: types_pb2.Partition, field: str = "partition.topic_id") -> PartitionId:
    """Raises InvalidArgument, naming the field."""
    if len(message.topic_id) != TOPIC_ID_BYTES:
        raise InvalidArgument(
            f"{field}: a topic id has {TOPIC_ID_BYTES} bytes, not {len(message.topic_id)}; "
            "DescribeTopics tells it",
            field=field,
        )
    return PartitionId(TopicId(message.topic_id), message.number)


def partition_message(partition: PartitionId) -> types_pb2.Partition:
    return types_pb2.Partition(topic_id=partition.topic_id, number=partition.number)
