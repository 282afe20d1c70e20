"""The partitions that a consumer reads, by the names of their topics and by their ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from oncelog._core.routing import PartitionKey
from oncelog.batch import TopicPartition
from oncelog.protocol import AsyncProtocol
from oncelogpb import errors
from oncelogpb.v1 import partition_leader_pb2


class Assigned:
    """Of one consumer."""

    def __init__(
        self,
        protocol: AsyncProtocol,
        names: Mapping[PartitionKey, TopicPartition],
        whole_topics: Sequence[str],
    ) -> None:
        """`whole_topics`: those of which it reads every partition, also what comes later."""
        self._protocol = protocol
        # Changed in place: others hold the table.
        self.names = dict(names)
        self.keys = {name: key for key, name in names.items()}
        # By name, as they were when the partitions were taken.
        self._whole_topics: dict[str, partition_leader_pb2.TopicDescription | None] = dict.fromkeys(
            whole_topics
        )

    @property
    def places(self) -> list[TopicPartition]:
        """By the topics' names."""
        return sorted(self.keys)

    def key(self, topic: str, partition: int) -> PartitionKey:
        """Raises InvalidArgument where it is not assigned."""
        key = self.keys.get(TopicPartition(topic, partition))
        if key is None:
            raise errors.InvalidArgument(
                f"{topic!r} partition {partition} is not assigned to this consumer",
                field="partition",
            )
        return key

    def chosen(self, places: Iterable[TopicPartition]) -> list[PartitionKey]:
        """These, or all where none is named. Raises InvalidArgument."""
        chosen: list[PartitionKey] = []
        for place in places:
            if not isinstance(place, tuple) or len(place) != 2:
                raise errors.InvalidArgument(
                    f"{place!r} is no partition: name each as (topic, partition), and not in a "
                    "list: pause(*partitions)",
                    field="partitions",
                )
            chosen.append(self.key(*place))
        return chosen or [self.keys[name] for name in self.places]

    def replace(self, names: Mapping[PartitionKey, TopicPartition]) -> None:
        """These are the partitions now."""
        for gone in [key for key in self.names if key not in names]:
            del self.names[gone]
        self.names.update(names)
        self.keys = {name: key for key, name in self.names.items()}

    def only_what_is_named(self) -> None:
        """What comes to its topics later is not its own any more."""
        self._whole_topics.clear()

    def take_added(self) -> list[PartitionKey]:
        """Partitions that were added to its whole topics, as far as this client has heard of
        them."""
        added: list[PartitionKey] = []
        if not self._whole_topics:
            return added
        self._protocol.look_again()
        for name, seen in self._whole_topics.items():
            topic = self._protocol.directory.topic(name)
            if topic is None or topic is seen:
                continue
            self._whole_topics[name] = topic
            # Another topic of that name is not this one.
            if PartitionKey(topic.topic_id, 0) not in self.names:
                continue
            for partition in topic.partitions:
                key = PartitionKey(topic.topic_id, partition.number)
                if key not in self.names:
                    self.names[key] = TopicPartition(name, partition.number)
                    added.append(key)
        self.keys = {name: key for key, name in self.names.items()}
        return added
