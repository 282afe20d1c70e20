"""Deletes the oldest records of a topic for good, for an operator: `log.admin.truncate`.

What is asked for by time or to the end is looked up first, so that each partition is told an
offset: a request that is repeated after a lost answer then deletes nothing that came since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, Literal, NamedTuple

import pyarrow as pa

from oncelog._core.requests import require_partition, require_text
from oncelog._core.routing import PartitionKey
from oncelog.batch import EPOCH, TopicPartition
from oncelog.groups import PLACE, Row, Rows
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2

# Leaders that are asked at one time.
AT_ONCE_MAX: Final = 64

# Below what records are deleted: an offset; a time with its zone, which is the first record of that
# time or later; all that there are.
Before = int | datetime | Literal["end"]


@dataclass(frozen=True, slots=True)
class Truncation(Row):
    """What was deleted of one partition, or would be."""

    ARROW: ClassVar[pa.Schema] = pa.schema(
        [
            *PLACE,
            pa.field("start_before", pa.int64(), nullable=False),
            pa.field("start_after", pa.int64(), nullable=False),
            pa.field("record_count", pa.int64(), nullable=False),
            pa.field("payload_bytes", pa.int64(), nullable=False),
        ]
    )

    topic: str
    partition: int
    # First offset that is kept.
    start_before: int
    start_after: int
    record_count: int
    # As stored, and as precisely as the partition's index knows them.
    payload_bytes: int


class Cut(NamedTuple):
    """Records of a partition below an offset go."""

    place: TopicPartition
    partition: PartitionKey
    before: int


async def plan(
    protocol: AsyncProtocol, topic: str, before: Before, partition: int | None
) -> list[Cut]:
    """Changes nothing. Raises UnknownTopic, UnknownPartition, InvalidArgument, Unavailable."""
    require_text("topic", topic)
    description = await protocol.topic(topic)
    count = len(description.partitions)
    if partition is not None:
        require_partition(partition)
        if partition >= count:
            raise errors.UnknownPartition(
                f"topic {topic!r} has {count} partitions, no {partition}", topic=topic
            )
    numbers = range(count) if partition is None else [partition]
    keys = [PartitionKey(description.topic_id, number) for number in numbers]
    offsets = await _offsets(protocol, keys, before)
    return [
        Cut(TopicPartition(topic, key.number), key, offset)
        for key, offset in zip(keys, offsets, strict=True)
    ]


async def execute(
    protocol: AsyncProtocol, cuts: Sequence[Cut], *, dry_run: bool
) -> Rows[Truncation]:
    """In the order of `cuts`. Raises the first error that one of them met; others are done then,
    and doing them again is harmless."""
    rows: list[Truncation] = []
    for first in range(0, len(cuts), AT_ONCE_MAX):
        ended = await asyncio.gather(
            *(_truncate(protocol, cut, dry_run=dry_run) for cut in cuts[first:][:AT_ONCE_MAX]),
            return_exceptions=True,
        )
        for one in ended:
            if isinstance(one, BaseException):
                raise one
            rows.append(one)
    return Rows(Truncation, rows)


async def _truncate(protocol: AsyncProtocol, cut: Cut, *, dry_run: bool) -> Truncation:
    request = partition_leader_pb2.TruncatePartitionRequest(
        partition=cut.partition.wire(), offset=cut.before, dry_run=dry_run
    )
    reply = await protocol.call("partition_leader.truncate_partition", request)
    return Truncation(
        *cut.place, reply.start_before, reply.start_after, reply.record_count, reply.payload_bytes
    )


async def _offsets(
    protocol: AsyncProtocol, partitions: Sequence[PartitionKey], before: Before
) -> list[int]:
    """Raises InvalidArgument."""
    query = partition_leader_pb2.OffsetQuery()
    match before:
        case "end":
            query.latest = True
        case datetime() if before.tzinfo is not None:
            since = before - EPOCH
            query.timestamp_us = (
                since.days * 86_400 + since.seconds
            ) * 1_000_000 + since.microseconds
        case int() if not isinstance(before, bool) and 0 <= before < 1 << 63:
            if len(partitions) > 1:
                raise errors.InvalidArgument(
                    f"before is an offset, and the topic has {len(partitions)} partitions, each "
                    "with offsets of its own: name the partition",
                    field="partition",
                )
            return [before]
        case _:
            raise errors.InvalidArgument(
                f"before is {before!r}; allowed: an offset, a datetime with its time zone, 'end'",
                field="before",
            )
    request = partition_leader_pb2.ListOffsetsRequest()
    for partition in partitions:
        request.queries.add(partition=partition.wire()).MergeFrom(query)
    reply = await protocol.call("partition_leader.list_offsets", request)
    for listed in reply.offsets:
        if listed.HasField("error"):
            raise errors.from_status(listed.error)
    return [listed.offset for listed in reply.offsets]
