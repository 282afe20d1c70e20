"""Has a group go on from somewhere else: a plan first, which changes nothing, then its commit.

Each step says where the plan saw the group, so one that somebody else has moved meanwhile is not
overrun, but refused (`_core.group_resets`). One call moves all partitions or none, and a plan has
one id: to execute it again, where its answer was lost, changes nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from oncelog._core import group_resets
from oncelog._core.group_resets import Aim, Kind, Reset, Stand
from oncelog._core.requests import require_partition, require_text
from oncelog._core.routing import PartitionKey
from oncelog.aio import group_standing
from oncelog.aio.group_standing import Standing
from oncelog.batch import EPOCH, TopicPartition
from oncelog.groups import OffsetReset, Rows, Saved, Shift, Where, Wheres
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import offset_manager_pb2, partition_leader_pb2

RESET_ID_BYTES: Final = 16
Topics = Mapping[str, partition_leader_pb2.TopicDescription]


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What would become of a group's offsets."""

    group: str
    resets: list[Reset]
    standing: Standing
    # By which the offset manager knows it.
    reset_id: bytes

    def rows(self) -> Rows[OffsetReset]:
        """By topic id and number."""
        held = {
            PartitionKey.of(offset.partition): offset.pending_tx_id
            for offset in self.standing.offsets
        }
        return Rows(
            OffsetReset,
            [
                OffsetReset(
                    *self.standing.place(reset.partition.wire()),
                    reset.now.offset,
                    reset.then,
                    reset.lag_now,
                    reset.lag_then,
                    held.get(reset.partition, 0),
                    reset.now.metadata,
                    reset.metadata,
                )
                for reset in self.resets
            ],
        )


async def plan(protocol: AsyncProtocol, group: str, to: Where | Wheres) -> ResetPlan:
    """Changes nothing. Raises NotFound, UnknownTopic, UnknownPartition, InvalidArgument,
    Unavailable (nobody leads a partition now whose offset is asked for)."""
    wheres = _by_place(to) if isinstance(to, Mapping) else {}
    everywhere = None if isinstance(to, Mapping) else _aim("to", to)
    topics = await _topics(protocol, wheres)
    standing = await group_standing.ask(protocol, group, topics.values())
    stands = _stands(standing)
    if not stands:
        raise errors.NotFound(
            f"group {group!r} has no offsets: name the topics that it shall read", group=group
        )
    wanted = _wanted(wheres, topics) if everywhere is None else dict.fromkeys(stands, everywhere)
    times = group_resets.by_time(
        [
            await protocol.call("partition_leader.list_offsets", request)
            for request in group_resets.by_time_requests(wanted, stands)
        ]
    )
    try:
        resets = group_resets.resets(wanted, stands, times)
        return ResetPlan(group, resets, standing, protocol.entropy(RESET_ID_BYTES))
    except group_resets.NobodySays as error:
        place = standing.place(error.partition.wire())
        raise errors.Unavailable(
            f"nobody leads {place.topic}/{place.partition} now, so nobody knows what it has; try "
            "again, or name an offset for it",
            topic=place.topic,
            partition=place.partition,
        ) from None


async def execute(protocol: AsyncProtocol, plan: ResetPlan, *, dry_run: bool = False) -> None:
    """Safe to repeat. `dry_run` changes nothing, and raises what the reset would: UnknownMember
    (the group has members), PendingTransaction, StalePosition (it has moved since), TooLarge,
    UnknownOutcome."""
    offsets = group_resets.commits(plan.resets)
    if offsets:
        of_group = offset_manager_pb2.GroupOffsets(group=plan.group, offsets=offsets)
        request = offset_manager_pb2.ResetOffsetsRequest(
            offsets=of_group, reset_id=plan.reset_id, dry_run=dry_run
        )
        await protocol.call("offset_manager.reset_offsets", request)


def _by_place(wheres: Wheres) -> dict[tuple[str, int | None], Aim]:
    """By topic and number; None: all of its partitions. Raises InvalidArgument."""
    if not wheres:
        raise errors.InvalidArgument("to names no topic and no partition", field="to")
    found: dict[tuple[str, int | None], Aim] = {}
    for name, where in wheres.items():
        topic, number = (name, None) if isinstance(name, str) else TopicPartition(*name)
        require_text("topic", topic)
        if number is not None:
            require_partition(number)
        place = topic if number is None else f"{topic}/{number}"
        found[topic, number] = _aim(place, where)
    return found


def _aim(what: str, where: Where) -> Aim:
    """Raises InvalidArgument that names `what`."""
    match where:
        case "earliest":
            return Aim(Kind.EARLIEST)
        case "latest":
            return Aim(Kind.LATEST)
        case Shift(by):
            return Aim(Kind.SHIFT, by)
        case datetime() if where.tzinfo is not None:
            since = where - EPOCH
            return Aim(
                Kind.SINCE, (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
            )
        case Saved(int(offset), str(metadata)) if 0 <= offset < 1 << 63:
            return Aim(Kind.OFFSET, offset, metadata)
        case int() if not isinstance(where, bool) and 0 <= where < 1 << 63:
            return Aim(Kind.OFFSET, where)
    raise errors.InvalidArgument(
        f"{what} is {where!r}; allowed: earliest, latest, an offset, a Shift, a Saved, a "
        "datetime with its time zone",
        field="to",
    )


async def _topics(
    protocol: AsyncProtocol, wheres: Mapping[tuple[str, int | None], Aim]
) -> dict[str, partition_leader_pb2.TopicDescription]:
    """By name, as the cluster says now. Raises UnknownTopic, UnknownPartition."""
    names = sorted({topic for topic, _ in wheres})
    if not names:
        return {}
    request = partition_leader_pb2.DescribeTopicsRequest(names=names)
    reply = await protocol.call("partition_leader.describe_topics", request)
    topics = {topic.name: topic for topic in reply.topics}
    for topic, number in wheres:
        count = len(topics[topic].partitions)
        if number is not None and number >= count:
            raise errors.UnknownPartition(
                f"topic {topic!r} has {count} partitions, no {number}",
                topic=topic,
                partition=number,
            )
    return topics


def _wanted(
    wheres: Mapping[tuple[str, int | None], Aim], topics: Topics
) -> dict[PartitionKey, Aim]:
    wanted: dict[PartitionKey, Aim] = {}
    for (name, number), aim in wheres.items():
        every = range(len(topics[name].partitions))
        for one in every if number is None else (number,):
            wanted[PartitionKey(topics[name].topic_id, one)] = aim
    return wanted


def _stands(found: Standing) -> dict[PartitionKey, Stand]:
    """Those of topics that are gone are left as they are."""
    return {
        PartitionKey.of(offset.partition): Stand(
            group_standing.committed(offset),
            offset.view,
            found.edges.get(PartitionKey.of(offset.partition)),
            offset.metadata,
        )
        for offset in found.offsets
        if offset.partition.topic_id in found.topics
    }
