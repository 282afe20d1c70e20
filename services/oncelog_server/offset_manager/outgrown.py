"""Topics of which a group may not have all partitions (`partitions_per_group_max`). Volatile. PURE.

Whoever asks for too many is refused. Where a topic grows, or is made, or made again under its name,
nobody has asked: the group goes on with what it has, and what came is nobody's. Operators must see
that. What this process sees of topics is told with each heartbeat (`TopicsSeen`); what the group
shares out is replicated.
"""

from __future__ import annotations

from collections.abc import Iterator

from oncelog_server.offset_manager.commands import GroupTopic, OutgrownTopic, TopicsSeen
from oncelog_server.offset_manager.membership import Membership


class Outgrown:
    """Invariant: of topics, as they were seen last, those that a group shares out less of."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, GroupTopic]] = {}

    def seen(self, signal: TopicsSeen, membership: Membership) -> None:
        """`membership`: of its group, with what this heartbeat changed."""
        there = {topic.name: topic for topic in signal.topics}
        of_group = self._seen.setdefault(signal.group, {})
        for name in signal.subscribed:
            topic = there.get(name)
            if topic is not None and _lacks(membership, topic):
                of_group[name] = topic
            else:
                of_group.pop(name, None)
        if not of_group:
            del self._seen[signal.group]

    def forget(self, group: str) -> None:
        self._seen.pop(group, None)

    def of(self, group: str, membership: Membership) -> Iterator[OutgrownTopic]:
        """In order of their names."""
        for name, topic in sorted(self._seen.get(group, {}).items()):
            if _lacks(membership, topic):
                yield OutgrownTopic(name, topic.partitions, _shared_out(membership, topic))

    def groups(self) -> list[str]:
        return list(self._seen)


def _lacks(membership: Membership, topic: GroupTopic) -> bool:
    """Its members want more of it than they share out. One that stands in the place of another one
    of its name, of which nobody knows yet whether it is gone, says nothing."""
    known = membership.topics.get(topic.name)
    if known is not None:
        return known.topic_id == topic.topic_id and known.partitions < topic.partitions
    return any(topic.name in member.subscribed for member in membership.members())


def _shared_out(membership: Membership, topic: GroupTopic) -> int:
    known = membership.topics.get(topic.name)
    return 0 if known is None else known.partitions
