"""The Cluster service, the same in every process: who leads what, as this process's view of etcd
says, and how this process is configured.

It answers from memory and never waits for etcd: a caller that finds a route stale is told so by
NOT_LEADER where it goes, and asks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from oncelog_server.core.ids import (
    CONSUMER_OFFSETS_ID,
    CONTROL_PARTITIONS,
    CONTROL_TOPIC_IDS,
    TRANSACTION_CONTROL,
    TRANSACTION_CONTROL_ID,
    PartitionId,
    TopicId,
    control_partition,
)
from oncelog_server.core.ports import Address, Call, Clock, ClusterMetadata, NodeInfo, TopicInfo
from oncelog_server.runtime.config import Value
from oncelog_server.runtime.leadership.unclean import Seen, UncleanElection
from oncelog_server.runtime.rpc.access_service import AccessService
from oncelog_server.runtime.rpc.cluster_access import (
    METADATA_NAMES_MAX,
    REASSIGNED_MAX,
    TOLD_CHARACTERS_MAX,
)
from oncelogpb.errors import (
    InvalidArgument,
    TooLarge,
    UnknownPartition,
    UnknownTopic,
    to_status,
)
from oncelogpb.v1 import cluster_pb2 as pb
from oncelogpb.v1 import partition_leader_pb2 as leader_pb
from oncelogpb.v1 import types_pb2 as types_pb

# Lets that node lead; the epoch granted and the synced end kept. Raises OncelogError.
ElectUncleanly = Callable[[UncleanElection], Awaitable[tuple[int, int]]]


# Hands over what other nodes should lead: how many partitions, and how many of them stay here.
# Raises OncelogError.
BalanceLeaders = Callable[[], tuple[int, int]]


class Reassign(Protocol):
    """Says where replicas shall be (`leadership/reassigning`)."""

    def require(self, targets: Mapping[PartitionId, Sequence[str]]) -> None:
        """Raises OncelogError where they cannot be there."""
        ...

    async def begin(self, targets: Mapping[PartitionId, Sequence[str]]) -> list[PartitionId]:
        """Those of which something was changed. Raises OncelogError."""
        ...


class ClusterService:
    """Handler object of the Cluster service."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        config: Callable[[], Iterable[Value]],
        elect_uncleanly: ElectUncleanly,
        balance_leaders: BalanceLeaders,
        reassign: Reassign,
        access: AccessService,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._config = config
        self._elect_uncleanly = elect_uncleanly
        self._balance_leaders = balance_leaders
        self._reassign = reassign
        self.list_rules = access.list_rules
        self.add_rules = access.add_rules
        self.remove_rules = access.remove_rules
        self.test_access = access.test_access
        self.list_quotas = access.list_quotas
        self.set_quotas = access.set_quotas
        self.remove_quotas = access.remove_quotas

    async def get_metadata(self, request: pb.GetMetadataRequest, call: Call) -> pb.GetMetadataReply:
        _require_bounded(request)
        revision, reachable = self._metadata.etcd_status()
        return pb.GetMetadataReply(
            cluster_id=self._metadata.cluster_id,
            nodes=[_node(node) for node in self._metadata.nodes()],
            topics=[self._describe(topic) for topic in self._wanted_topics(request, call)],
            transaction_groups=[
                self._route(control_partition(TRANSACTION_CONTROL_ID, group), group)
                for group in request.transaction_groups
            ],
            consumer_groups=[
                self._route(control_partition(CONSUMER_OFFSETS_ID, group), group)
                for group in request.consumer_groups
            ],
            journal_partitions=[
                self._route(PartitionId(TRANSACTION_CONTROL_ID, number))
                for number in request.journal_partitions
            ],
            etcd_revision=revision,
            etcd_reachable=reachable,
            refused_topics=list(_refused(request, call)),
            time_ms=self._clock.now().wall_ms,
        )

    async def unclean_elect(
        self, request: pb.UncleanElectRequest, call: Call
    ) -> pb.UncleanElectReply:
        if not request.accept_loss:
            raise InvalidArgument(
                "an unclean election may lose acknowledged records; say that you accept it",
                field="accept_loss",
            )
        if not request.node_id:
            raise InvalidArgument("name the node that shall lead", field="node_id")
        if len(request.told) > TOLD_CHARACTERS_MAX:
            raise TooLarge(
                f"{len(request.told)} characters are above told_characters_max = "
                f"{TOLD_CHARACTERS_MAX}",
                limit="told_characters_max",
            )
        partition = self._partition(request.topic, request.number)
        asked = UncleanElection(
            partition,
            request.node_id,
            _seen(request.seen) if request.HasField("seen") else None,
            by=call.identity,
            told=request.told,
        )
        epoch, kept_end = await self._elect_uncleanly(asked)
        return pb.UncleanElectReply(epoch=epoch, kept_end=kept_end)

    async def balance_leaders(
        self, request: pb.BalanceLeadersRequest, call: Call
    ) -> pb.BalanceLeadersReply:
        handed_over, kept = self._balance_leaders()
        return pb.BalanceLeadersReply(handed_over=handed_over, kept=kept)

    async def reassign_partitions(
        self, request: pb.ReassignPartitionsRequest, call: Call
    ) -> pb.ReassignPartitionsReply:
        if len(request.assignments) > REASSIGNED_MAX:
            raise TooLarge(
                f"{len(request.assignments)} assignments are above reassigned_max = "
                f"{REASSIGNED_MAX}: send them in parts",
                limit="reassigned_max",
            )
        asked = {self._partition(one.topic, one.number): one for one in request.assignments}
        if len(asked) < len(request.assignments):
            raise InvalidArgument("a partition is named twice", field="assignments")
        targets = {partition: tuple(one.replicas) for partition, one in asked.items()}
        if request.validate_only:
            self._reassign.require(targets)
            return pb.ReassignPartitionsReply(begun=request.assignments)
        begun = await self._reassign.begin(targets)
        return pb.ReassignPartitionsReply(begun=[asked[partition] for partition in begun])

    async def get_config(self, request: pb.GetConfigRequest, call: Call) -> pb.GetConfigReply:
        return pb.GetConfigReply(
            values=[
                pb.ConfigValue(name=v.name, value=v.value, source=v.source, help=v.help)
                for v in self._config()
            ]
        )

    # ----------------------------------------------------------------------------------- lookups

    def _wanted_topics(self, request: pb.GetMetadataRequest, call: Call) -> Iterable[TopicInfo]:
        """An unknown one is absent."""
        places = [(name, b"") for name in request.topics]
        places += [("", topic_id) for topic_id in request.topic_ids]
        may = (asked for place, asked in enumerate(places) if place not in call.refused)
        for name, topic_id in dict.fromkeys(may):
            if name:
                topic = self._metadata.topic(name)
            else:
                topic = self._metadata.topic_by_id(TopicId(topic_id))
            if topic is not None:
                yield topic

    def _describe(self, topic: TopicInfo) -> leader_pb.TopicDescription:
        return leader_pb.TopicDescription(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                self._describe_partition(PartitionId(topic.topic_id, number))
                for number in range(topic.partitions)
            ],
            replication_factor=topic.replication_factor,
            configs=dict(topic.configs),
            created_ms=topic.created_ms,
        )

    def _describe_partition(self, partition: PartitionId) -> leader_pb.PartitionDescription:
        info = self._metadata.partition(partition)
        if info is None:
            return leader_pb.PartitionDescription(number=partition.number)
        return leader_pb.PartitionDescription(
            number=partition.number,
            # Not as etcd names it: a process that is gone leads nothing.
            leader=_leader(self._metadata.leader_of(partition)),
            epoch=info.epoch,
            replicas=info.replicas,
            isr=info.isr,
            unclean_epoch=info.unclean_epoch,
            adding=info.adding,
            target=info.target,
        )

    def _route(self, partition: PartitionId, group: str = "") -> pb.Route:
        return pb.Route(
            group=group,
            partition=types_pb.Partition(topic_id=partition.topic_id, number=partition.number),
            leader=_leader(self._metadata.leader_of(partition)),
        )

    def _partition(self, name: str, number: int) -> PartitionId:
        """Raises UnknownTopic, UnknownPartition."""
        if name in CONTROL_TOPIC_IDS:
            topic_id, count = CONTROL_TOPIC_IDS[name], CONTROL_PARTITIONS
        else:
            topic = self._metadata.topic(name)
            if topic is None:
                raise UnknownTopic(f"no topic {name!r}", topic=name)
            topic_id, count = topic.topic_id, topic.partitions
        if number >= count:
            raise UnknownPartition(f"{name} has partitions 0 to {count - 1}", topic=name)
        return PartitionId(topic_id, number)


def _seen(seen: pb.SeenReplica) -> Seen:
    return Seen(seen.epoch, frozenset(seen.isr), seen.incarnation, seen.last_epoch, seen.synced_end)


def _refused(request: pb.GetMetadataRequest, call: Call) -> Iterable[pb.RefusedTopic]:
    """As they were asked for: names first, then ids (`cluster_access`)."""
    names = len(request.topics)
    for place, error in call.refused.items():
        if place < names:
            yield pb.RefusedTopic(name=request.topics[place], error=to_status(error))
        else:
            topic_id = request.topic_ids[place - names]
            yield pb.RefusedTopic(topic_id=topic_id, error=to_status(error))


def _require_bounded(request: pb.GetMetadataRequest) -> None:
    asked = sum(
        len(names)
        for names in (
            request.topics,
            request.topic_ids,
            request.transaction_groups,
            request.consumer_groups,
            request.journal_partitions,
        )
    )
    if asked > METADATA_NAMES_MAX:
        raise TooLarge(
            f"{asked} names are above metadata_names_max = {METADATA_NAMES_MAX}: ask in parts",
            limit="metadata_names_max",
        )
    for number in request.journal_partitions:
        if number >= CONTROL_PARTITIONS:
            raise UnknownPartition(
                f"{TRANSACTION_CONTROL} has partitions 0 to {CONTROL_PARTITIONS - 1}",
                topic=TRANSACTION_CONTROL,
            )


def _node(node: NodeInfo) -> pb.Node:
    return pb.Node(
        node_id=node.node_id,
        boot_id=node.boot_id,
        endpoint=types_pb.Endpoint(host=node.host, port=node.port),
        roles=node.roles,
        version=node.version,
        rack=node.rack,
        started_ms=node.started_ms,
    )


def _leader(address: Address | None) -> types_pb.Leader | None:
    if address is None:
        return None
    return types_pb.Leader(
        node_id=address.node_id,
        boot_id=address.boot_id,
        endpoint=types_pb.Endpoint(host=address.host, port=address.port),
        epoch=address.epoch,
    )
