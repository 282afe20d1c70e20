"""What the RPCs of PartitionLeader need of their caller (`core/needs`).

    produce                                  write, of the topic of each batch
    fetch, subscribe                         read, of the topic of each partition
    list_offsets                             describe, of the topic of each query; services may:
                                             offset managers ask what waits for groups
    create_, alter_, delete_topic            create, alter, delete, of that name
    truncate_partition                       delete, of the topic
    describe_topics, list_topics             describe; a list shows what may be described
    resolve_transaction, describe_journals   operators

Whose producer a batch is of is no matter of rules: see `claims`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oncelog_server.core.access import Need, ResourceKind, Verb
from oncelog_server.core.ids import TopicId
from oncelog_server.core.needs import (
    Entry,
    ItemNeed,
    TopicNames,
    always,
    keep,
    operating,
    require_few,
    watching,
)
from oncelog_server.core.ports import Call
from oncelog_server.core.wire import TOPIC_ID_BYTES, partition_id
from oncelog_server.partition_leader.config import PartitionLeaderConfig
from oncelog_server.partition_leader.ports import PartitionEnv
from oncelogpb.errors import NotLeader, OncelogError
from oncelogpb.in_place import LiftedProduce
from oncelogpb.v1 import partition_leader_pb2 as pb
from oncelogpb.v1 import types_pb2


def entries(env: PartitionEnv, config: PartitionLeaderConfig) -> Mapping[str, Entry]:
    """By RPC."""
    places = _Places(env, config)
    return {
        "produce": Entry(items=places.of_batches),
        "fetch": Entry(items=places.of_reads, gives_data=True),
        "subscribe": Entry(items=places.of_reads, gives_data=True),
        "list_offsets": Entry(items=places.of_queries, services_may=True),
        "create_topic": Entry(_named(Verb.CREATE), audited=always),
        "alter_topic": Entry(_named(Verb.ALTER), audited=always),
        "delete_topic": Entry(_named(Verb.DELETE), audited=always),
        "describe_topics": Entry(places.described),
        "list_topics": Entry(
            shown=lambda reply, sees: keep(reply.topics, lambda topic: sees(_describe(topic.name)))
        ),
        "truncate_partition": Entry(places.truncated, audited=always),
        "resolve_transaction": operating("resolve_transaction"),
        "describe_journals": watching("describe_journals"),
    }


class _Places:
    """Partitions as topics by name."""

    def __init__(self, env: PartitionEnv, config: PartitionLeaderConfig) -> None:
        self._env = env
        self._config = config
        self._topics = TopicNames(env.metadata)

    def of_batches(
        self, produce: pb.ProduceRequest | LiftedProduce, call: Call
    ) -> Sequence[ItemNeed]:
        request = produce.request if isinstance(produce, LiftedProduce) else produce
        self._require_few(len(request.batches))
        need = self._need
        return [need(Verb.WRITE, batch.partition) for batch in request.batches]

    def of_reads(
        self, request: pb.FetchRequest | pb.SubscribeRequest, call: Call
    ) -> Sequence[ItemNeed]:
        most = self._config.fetch_partitions_max
        require_few("fetch_partitions_max", len(request.partitions), most)
        return [self._need(Verb.READ, wanted.partition) for wanted in request.partitions]

    def of_queries(self, request: pb.ListOffsetsRequest, call: Call) -> Sequence[ItemNeed]:
        self._require_few(len(request.queries))
        return [self._need(Verb.DESCRIBE, query.partition) for query in request.queries]

    def described(self, request: pb.DescribeTopicsRequest, call: Call) -> Iterable[Need]:
        self._require_few(len(request.names) + len(request.topic_ids))
        yield from map(_describe, request.names)
        for topic_id in request.topic_ids:
            # Of one that is unknown here, nothing can be told.
            need = self._topics.need(Verb.DESCRIBE, topic_id)
            if need is not None:
                yield need

    def truncated(self, request: pb.TruncatePartitionRequest, call: Call) -> Iterable[Need]:
        need = self._need(Verb.DELETE, request.partition)
        if isinstance(need, OncelogError):
            raise need
        return () if need is None else (need,)

    def _require_few(self, count: int) -> None:
        require_few("items_per_call_max", count, self._config.items_per_call_max)

    def _need(self, verb: Verb, partition: types_pb2.Partition) -> ItemNeed:
        topic_id = partition.topic_id
        need = self._topics.need(verb, topic_id)
        if need is not None or len(topic_id) != TOPIC_ID_BYTES:
            return need
        return self._unknown(partition)

    def _unknown(self, partition: types_pb2.Partition) -> OncelogError:
        """A topic that this process does not know is not led by it; it may come to know it in the
        next moment, when nobody asks for rights any more, so the handler must not see it."""
        try:
            self._env.replicas.lead(partition_id(partition))
        except OncelogError as error:
            return error
        return NotLeader(
            f"this process does not know the topic with id {TopicId(partition.topic_id).hex()}"
        )


def _named(verb: Verb) -> Any:
    return lambda request, call: (Need(verb, ResourceKind.TOPIC, request.name),)


def _describe(name: str) -> Need:
    return Need(Verb.DESCRIBE, ResourceKind.TOPIC, name)
