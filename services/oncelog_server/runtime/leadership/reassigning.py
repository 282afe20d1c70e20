"""What an operator says of where replicas shall be: judged by what this process sees of the
cluster, then begun, partition by partition (`moving`). Nothing is changed where anything cannot be.

A topic's replication factor follows: it is written anew once all of its partitions shall have as
many replicas, so that partitions that are added later get as many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from oncelog_server.core.ids import PartitionId, TopicId
from oncelog_server.core.roles import role_of
from oncelog_server.runtime.etcd.cluster_view import ClusterView
from oncelog_server.runtime.etcd.keys import (
    PARTITIONS,
    decode_partition,
    encode,
    topic_key,
    topic_value,
)
from oncelog_server.runtime.etcd.placed import holders
from oncelog_server.runtime.etcd.port import Compare, Etcd, EtcdUnavailable, Put
from oncelog_server.runtime.leadership.moving import move, require_target
from oncelogpb.errors import InvalidArgument, Unavailable, UnknownPartition

Targets = Mapping[PartitionId, Sequence[str]]


class Reassigning:
    """Of one process; any will do."""

    def __init__(self, etcd: Etcd, view: ClusterView) -> None:
        self._etcd = etcd
        self._view = view

    def require(self, targets: Targets) -> None:
        """Raises InvalidArgument, UnknownPartition."""
        for partition, target in targets.items():
            require_target(partition, target)
            known = self._view.partition(partition)
            if known is None:
                raise UnknownPartition(f"there is no partition {partition}")
            role = role_of(partition.topic_id)
            living = {holder.node_id for holder in holders(self._view, role)}
            # One that is away keeps what it has; nothing new goes there.
            for node in target:
                if node not in living and node not in known.replicas:
                    raise InvalidArgument(
                        f"partition {partition} cannot go to node {node}: no living process of "
                        f"role {role} has that id; there are {', '.join(sorted(living)) or 'none'}"
                    )

    async def begin(self, targets: Targets) -> list[PartitionId]:
        """Those that were changed, in order. Raises InvalidArgument, UnknownPartition, Unavailable
        (some may have been begun: ask for the same again)."""
        self.require(targets)
        begun = []
        try:
            for partition, target in targets.items():
                before = self._view.partition(partition)
                after = await move(self._etcd, partition, target)
                if before is None or tuple(before.replicas) != after.replicas or after.target:
                    begun.append(partition)
            for topic_id in sorted({partition.topic_id for partition in targets}):
                await self._let_topic_follow(topic_id)
        except EtcdUnavailable as error:
            raise Unavailable(
                f"etcd does not answer; what was begun goes on, ask for the same again: {error}"
            ) from error
        return begun

    async def _let_topic_follow(self, topic_id: TopicId) -> None:
        topic = self._view.topic_by_id(topic_id)
        if topic is None or topic.name.startswith("__"):
            return
        found, _ = await self._etcd.get(topic_key(topic.name))
        listed, _ = await self._etcd.range(f"{PARTITIONS}{topic_id.hex()}/")
        if found is None or topic_value(found.value).topic_id != topic_id.hex():
            return
        states = [decode_partition(kv.value) for kv in listed]
        factors = {len(state.target or state.replicas) for state in states}
        value = topic_value(found.value)
        if len(factors) != 1 or factors == {value.replication_factor}:
            return
        changed = msgspec.structs.replace(
            value, replication_factor=factors.pop(), version=value.version + 1
        )
        # Refused: somebody alters it; the next move, or the same one again, looks again.
        await self._etcd.txn(
            [Compare(found.key, found.mod_revision)], [Put(found.key, encode(changed))]
        )
