"""The assignor `uniform`: everybody as much as the others, and as few moves as possible. PURE.

    keep      each member what it had, and may still have
    place     what nobody has, with those who have least
    balance   shares as equal as the subscriptions permit (`balancing`): always reached
    undo      moves that are needless (`fewest_moves`): the fewest there can be among all
              assignments that are as equal, up to POSITIONS_MAX; above it, no part of them could
              be left out
    choose    which partitions those are

Who gives some of what it has keeps as many of each topic as it can, and who gets some gets
neighbours of one topic last: so members share the load of each topic where there is a choice. It is
no promise: topics are not balanced one by one once members have come and gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.offset_manager.balancing import balance
from oncelog_server.offset_manager.fewest_moves import undo_needless_moves
from oncelog_server.offset_manager.shares import Shares, each


class _Group(NamedTuple):
    """Members and kinds by number."""

    member_ids: list[str]
    # The sets of members with the same subscription.
    alike: list[int]
    # Kind -> who may have it, and its topics.
    may: list[int]
    topics: list[list[TopicId]]


class _Held(NamedTuple):
    """What stands before anything moves, by kind."""

    # Member -> what it has, in order.
    by_member: list[dict[int, list[PartitionId]]]
    by_nobody: list[list[PartitionId]]


def uniform(
    subscriptions: Mapping[str, Collection[TopicId]],
    partitions: Mapping[TopicId, int],
    previous: Mapping[PartitionId, str],
) -> dict[PartitionId, str]:
    """See `assignors.assign`."""
    group = _group(subscriptions, partitions)
    held = _held(group, partitions, previous)
    shares = Shares(
        group.may,
        [{kind: len(some) for kind, some in has.items()} for has in held.by_member],
    )
    _place(shares, [len(some) for some in held.by_nobody])
    balance(shares)
    undo_needless_moves(shares, group.alike)
    return {
        partition: group.member_ids[member] for partition, member in sorted(_choose(shares, held))
    }


def _group(
    subscriptions: Mapping[str, Collection[TopicId]], partitions: Mapping[TopicId, int]
) -> _Group:
    member_ids = sorted(subscriptions)
    alike: dict[frozenset[TopicId], int] = defaultdict(int)
    for member, member_id in enumerate(member_ids):
        alike[frozenset(subscriptions[member_id])] |= 1 << member
    subscribers: dict[TopicId, int] = defaultdict(int)
    for topic_ids, members in alike.items():
        for topic_id in topic_ids:
            subscribers[topic_id] |= members
    kinds: dict[int, list[TopicId]] = {}
    for topic_id in sorted(subscribers):
        if partitions.get(topic_id, 0) > 0:
            kinds.setdefault(subscribers[topic_id], []).append(topic_id)
    return _Group(member_ids, list(alike.values()), list(kinds), list(kinds.values()))


def _held(
    group: _Group, partitions: Mapping[TopicId, int], previous: Mapping[PartitionId, str]
) -> _Held:
    bits = {member_id: 1 << member for member, member_id in enumerate(group.member_ids)}
    held = _Held([{} for _ in bits], [[] for _ in group.may])
    for kind, (may, topic_ids) in enumerate(zip(group.may, group.topics, strict=True)):
        for topic_id in topic_ids:
            for number in range(partitions[topic_id]):
                partition = PartitionId(topic_id, number)
                bit = bits.get(previous.get(partition, ""), 0)
                if bit & may:
                    member = held.by_member[bit.bit_length() - 1]
                    member.setdefault(kind, []).append(partition)
                else:
                    held.by_nobody[kind].append(partition)
    return held


def _place(shares: Shares, counts: Sequence[int]) -> None:
    """What fewest may have first: the others can go round it."""
    for kind in sorted(range(len(counts)), key=lambda kind: shares.may[kind].bit_count()):
        for _ in range(counts[kind]):
            shares.add(shares.least(shares.may[kind]), kind)


def _choose(shares: Shares, held: _Held) -> Iterator[tuple[PartitionId, int]]:
    """Which partitions are behind the numbers."""
    for kind, free in enumerate(held.by_nobody):
        for member in each(shares.losers[kind]):
            kept = shares.has[member].get(kind, 0)
            free += _last_of_each_topic(held.by_member[member][kind], kept)
        yield from _deal(shares, kind, sorted(free))
    for member, has in enumerate(held.by_member):
        for kept_partitions in has.values():
            for partition in kept_partitions:
                yield partition, member


def _last_of_each_topic(some: list[PartitionId], kept: int) -> list[PartitionId]:
    """Takes away all but so many: from the topic of which most is there, as long as it takes."""
    by_rank: list[tuple[int, PartitionId]] = []
    ranks: dict[TopicId, int] = defaultdict(int)
    for partition in some:
        by_rank.append((ranks[partition.topic_id], partition))
        ranks[partition.topic_id] += 1
    by_rank.sort()
    some[:] = [partition for _, partition in by_rank[:kept]]
    return [partition for _, partition in by_rank[kept:]]


def _deal(shares: Shares, kind: int, free: list[PartitionId]) -> Iterator[tuple[PartitionId, int]]:
    """One to each that gets any, then the next one."""
    wanted = {
        member: shares.has[member][kind] - shares.had[member].get(kind, 0)
        for member in each(shares.gainers[kind])
    }
    rest = iter(free)
    while wanted:
        for member in list(wanted):
            yield next(rest), member
            wanted[member] -= 1
            if not wanted[member]:
                del wanted[member]
