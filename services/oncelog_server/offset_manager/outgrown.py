"""Topics that have grown beyond what their groups may have (`partitions_per_group_max`). Volatile.
PURE.

Whoever asks for too many partitions is refused. Where a topic grows, nobody has asked: the group
goes on with what it has, and what came to the topic is nobody's. Operators must see that. What this
process sees of a topic is told with each heartbeat (`TopicsSeen`); what the group shares out is
replicated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oncelog_server.offset_manager.commands import GroupTopic, OutgrownTopic, TopicsSeen


class Outgrown:
    """Invariant: of each topic the largest size that was seen, where a group shares out less."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, GroupTopic]] = {}

    def seen(self, signal: TopicsSeen, shared_out: Mapping[str, GroupTopic]) -> None:
        """`shared_out`: the group's topics, by name."""
        of_group = self._seen.setdefault(signal.group, {})
        for topic in signal.topics:
            known = shared_out.get(topic.name)
            if known is not None and _is_larger(topic, known):
                of_group[topic.name] = topic
            else:
                of_group.pop(topic.name, None)
        if not of_group:
            del self._seen[signal.group]

    def of(self, group: str, shared_out: Mapping[str, GroupTopic]) -> Iterator[OutgrownTopic]:
        """In order of their names."""
        for name, topic in sorted(self._seen.get(group, {}).items()):
            known = shared_out.get(name)
            if known is not None and _is_larger(topic, known):
                yield OutgrownTopic(name, topic.partitions, known.partitions)

    def groups(self) -> list[str]:
        return list(self._seen)


def _is_larger(topic: GroupTopic, known: GroupTopic) -> bool:
    return topic.topic_id == known.topic_id and topic.partitions > known.partitions
