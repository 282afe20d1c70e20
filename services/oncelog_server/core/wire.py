"""Partitions, and values of enums, on the wire: what every role says and hears alike. PURE."""

from __future__ import annotations

from collections.abc import Container
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


def require_known(field: str, number: int, known: Container[int]) -> None:
    """Raises InvalidArgument for a value of an enum that a later version may have: its caller must
    not believe that he was given what he asked for."""
    if number not in known:
        raise InvalidArgument(f"{field} {number} is not known here", field=field)


def partition_message(partition: PartitionId) -> types_pb2.Partition:
    return types_pb2.Partition(topic_id=partition.topic_id, number=partition.number)
