"""What this process sees of the topics that a member subscribes to, before its heartbeat is decided
on: by name, for a topic that is made again under its name is another one.

This process's view of etcd may be behind: that it does not show a topic, or shows an older one of
that name, proves nothing. Where the group knows a topic that the view does not show, etcd is asked
whether it was deleted, by a linearizable read. Without an answer the group goes on with what it
knows: else a leader that has just begun would take partitions from all who own them, and give them
back a moment later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from oncelog_server.core.ids import TopicId
from oncelog_server.core.ports import ClusterMetadata
from oncelog_server.offset_manager.commands import GroupDescription, GroupTopic, Heartbeat

# Heartbeats come again in seconds.
GONE_TIMEOUT_MS: Final = 1_000


async def with_topics(
    metadata: ClusterMetadata, known: Mapping[str, GroupTopic], command: Heartbeat
) -> Heartbeat:
    """`known`: the group's topics, by name."""
    shown = [topic for name in command.subscribed if (topic := metadata.topic(name)) is not None]
    topics = tuple(GroupTopic(topic.name, topic.topic_id, topic.partitions) for topic in shown)
    ids = {topic.name: topic.topic_id for topic in topics}
    doubted = {
        group_topic.topic_id
        for name in command.subscribed
        if (group_topic := known.get(name)) is not None and ids.get(name) != group_topic.topic_id
    }
    gone = await metadata.gone(doubted, timeout_ms=GONE_TIMEOUT_MS) if doubted else ()
    return replace(command, topics=topics, gone=frozenset(gone))


def topic_names(metadata: ClusterMetadata, group: GroupDescription) -> list[tuple[TopicId, str]]:
    """Of the partitions of its members, those that this process sees."""
    ids = {
        partition.topic_id
        for member in group.members
        for partition in (*member.owned, *member.target)
    }
    topics = [metadata.topic_by_id(topic_id) for topic_id in sorted(ids)]
    return [(topic.topic_id, topic.name) for topic in topics if topic is not None]


def host_of(peer: str) -> str:
    """ipv4:10.0.0.7:51234, ipv6:%5B::1%5D:51234: without scheme and port."""
    host = peer.partition(":")[2].rpartition(":")[0]
    return host.replace("%5B", "").replace("%5D", "").strip("[]")
