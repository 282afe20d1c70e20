"""How the partitions of a group are shared out among its members. PURE.

`uniform` (the default)
    Everybody gets as much as the others, over all topics, as far as the subscriptions permit; of
    all such assignments, one that takes the fewest partitions from members who have them
    (`uniform.py` says it exactly). KIP-54 (sticky), KIP-848 (uniform).
`range`
    Topic by topic, members in order get neighbouring partitions, the first ones one more where it
    does not divide. As in Kafka's, static members come first, in the order of their instance ids,
    which outlive restarts; then the others in the order of their ids. Partitions of the same number
    in topics of the same size are at the same member, where the same members subscribe: so joins of
    such topics stay local. It remembers nothing: a member that joins or leaves moves the ranges of
    the others.

The same arguments give the same answer, whatever the order in which they are told. Who has nothing
to get, and partitions of topics that nobody subscribes to, are not in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.offset_manager.uniform import uniform
from oncelogpb.errors import InvalidArgument

# Topics by member id. Members with the same topics had better give the same frozenset: it is hashed
# once.
Subscriptions = Mapping[str, Collection[TopicId]]
Assignment = dict[PartitionId, str]

DEFAULT_ASSIGNOR: Final = "uniform"


def assign(
    name: str,
    subscriptions: Subscriptions,
    partitions: Mapping[TopicId, int],
    previous: Mapping[PartitionId, str],
    instance_ids: Mapping[str, str] = MappingProxyType({}),
) -> Assignment:
    """Who shall own which partition, in the order of topic ids and numbers.

    `partitions`: how many each topic has; one that is not in it has none. `previous`: who should
    have owned them up to now; members and partitions in it may be gone. `instance_ids`: of static
    members. Raises InvalidArgument for a name that is not known.
    """
    return _named(name)(subscriptions, partitions, previous, instance_ids)


def require_assignor(name: str) -> None:
    """Raises InvalidArgument unless there is one of this name."""
    _named(name)


def _named(name: str) -> Assignor:
    assignor = ASSIGNORS.get(name)
    if assignor is None:
        known = " or ".join(sorted(ASSIGNORS))
        raise InvalidArgument(f"there is no assignor {name!r}; ask for {known}", field="assignor")
    return assignor


def _range(
    subscriptions: Subscriptions,
    partitions: Mapping[TopicId, int],
    previous: Mapping[PartitionId, str],
    instance_ids: Mapping[str, str],
) -> Assignment:
    """Kafka's RangeAssignor."""

    def place(member_id: str) -> tuple[bool, str]:
        instance_id = instance_ids.get(member_id, "")
        return not instance_id, instance_id or member_id

    alike: dict[frozenset[TopicId], list[str]] = {}
    for member_id, topic_ids in subscriptions.items():
        alike.setdefault(frozenset(topic_ids), []).append(member_id)
    subscribers: dict[TopicId, list[str]] = {}
    for some, member_ids in alike.items():
        for topic_id in some:
            subscribers.setdefault(topic_id, []).extend(member_ids)
    assignment: Assignment = {}
    for topic_id in sorted(subscribers):
        members, first = sorted(subscribers[topic_id], key=place), 0
        each, more = divmod(partitions.get(topic_id, 0), len(members))
        # Who gets none comes last.
        for index, member_id in enumerate(members[: None if each else more]):
            end = first + each + (index < more)
            for number in range(first, end):
                assignment[PartitionId(topic_id, number)] = member_id
            first = end
    return assignment


def _uniform(
    subscriptions: Subscriptions,
    partitions: Mapping[TopicId, int],
    previous: Mapping[PartitionId, str],
    instance_ids: Mapping[str, str],
) -> Assignment:
    """Which remembers who had what, so names decide nothing."""
    return uniform(subscriptions, partitions, previous)


Assignor = Callable[
    [Subscriptions, Mapping[TopicId, int], Mapping[PartitionId, str], Mapping[str, str]], Assignment
]
ASSIGNORS: Final[Mapping[str, Assignor]] = {DEFAULT_ASSIGNOR: _uniform, "range": _range}
